package client_test

import (
	"context"
	"io"
	"os"
	"strings"
	"testing"

	"github.com/RelevanceAI/harvest/client"
	"github.com/RelevanceAI/harvest/client/api"
	"github.com/RelevanceAI/harvest/client/errors"
	"github.com/RelevanceAI/harvest/client/transport/socket"
	"github.com/RelevanceAI/harvest/internal/base/testenv"
	"github.com/RelevanceAI/harvest/internal/fleet"
	"github.com/RelevanceAI/harvest/internal/image"
	"github.com/RelevanceAI/harvest/internal/server"

	"github.com/RelevanceAI/harvest/internal/engine/fake"
	"github.com/RelevanceAI/harvest/internal/store/testdb"
)

// builder makes an image for any request, and reports the context's content.
type builder struct{ image.Builder }

func (builder) Build(_ context.Context, spec image.Spec, opts image.BuildOptions) (image.Image, error) {
	if spec.Base == "bad" {
		return image.Image{}, errors.Remedy(errors.Newf(errors.NotFound, "nothing"), "look elsewhere")
	}
	text := ""
	if opts.Context != "" {
		data, err := os.ReadFile(opts.Context)
		if err != nil {
			return image.Image{}, err
		}
		text = string(data)
	}
	if opts.Log != nil {
		opts.Progress(image.Progress{Step: "unpack", Done: 1})
		opts.Log("files: " + text)
	}
	return image.Image{ID: "img_1", Names: opts.Names}, nil
}

func (builder) List(context.Context) ([]image.Image, error) {
	return []image.Image{{ID: "img_1", Names: []string{"team/app:1"}}}, nil
}

func (builder) Collect(context.Context, image.Collection) (image.Collected, error) {
	return image.Collected{Freed: 7}, nil
}

func (b builder) BuildCache() image.BuildCache { return b }

func (builder) Kept(context.Context, string) ([]image.Kept, error) {
	return []image.Kept{{ID: "ab12", Kind: image.KeptLayer, Text: "RUN true"}}, nil
}

func (builder) Forget(_ context.Context, _, id string) (image.Kept, error) {
	if id != "ab12" {
		return image.Kept{}, errors.Newf(errors.NotFound, "nothing")
	}
	return image.Kept{}, nil
}

// mission: B2
func TestBuildCache(t *testing.T) {
	t.Parallel()
	c := images(t)
	if all, err := c.BuildCache(t.Context()); err != nil || len(all) != 1 || all[0].ID != "ab12" ||
		all[0].Kind != "layer" {
		t.Errorf("got %+v, %v", all, err)
	}
	if err := c.ForgetBuild(t.Context(), "ab12"); err != nil {
		t.Error(err)
	}
	if err := c.ForgetBuild(t.Context(), "other"); errors.KindOf(err) != errors.NotFound {
		t.Errorf("got %v", err)
	}
}

// images is a client of a server that has that builder.
func images(t *testing.T) *client.Client {
	t.Helper()
	data := testenv.DataDir(t)
	eng, err := fake.Open(data, fake.Options{})
	if err != nil {
		t.Fatal(err)
	}
	db := testdb.Open(t)
	fleet, err := fleet.Open(t.Context(), fleet.Options{Engine: eng, Store: db.Sandboxes()})
	if err != nil {
		t.Fatal(err)
	}
	s := server.New(context.WithoutCancel(t.Context()), server.Options{
		Fleet: fleet, Images: builder{}, Volumes: eng.Volumes(), Temp: t.TempDir(), Replays: db.Replays(),
		Export: func(_ context.Context, _ image.Image, w io.Writer) error {
			_, err := io.WriteString(w, strings.Repeat("archive ", 100))
			return err
		},
	})
	l, err := socket.Listen(data, client.Socket)
	if err != nil {
		t.Fatal(err)
	}
	served := make(chan error, 1)
	go func() { served <- s.ServeLocal(l) }()
	c := client.New(data)
	t.Cleanup(func() {
		c.Close()
		ctx := context.WithoutCancel(t.Context())
		s.Stop(ctx)
		if err := errors.Join(s.Close(), <-served, fleet.Close(ctx), eng.Close()); err != nil {
			t.Error(err)
		}
	})
	return c
}

// mission: B2
func TestBuildExportCollect(t *testing.T) {
	t.Parallel()
	c := images(t)
	var lines, steps []string
	watch := client.Build{Log: func(l string) { lines = append(lines, l) },
		Progress: func(p api.Progress) { steps = append(steps, p.Step) }}
	built, err := c.BuildImageWith(t.Context(), api.BuildRequest{Base: "x", Names: []string{"n"}}, watch)
	if err != nil || built.ID != "img_1" || built.Names[0] != "n" {
		t.Errorf("got %+v, %v", built, err)
	}
	watch.Context = strings.NewReader("tar")
	if _, err := c.BuildImageWith(t.Context(), api.BuildRequest{Base: "x"}, watch); err != nil {
		t.Error(err)
	}
	if strings.Join(lines, "|") != "files: |files: tar" || len(steps) != 2 {
		t.Errorf("got the lines %q and the steps %q", lines, steps)
	}
	if _, err := c.BuildImageWith(t.Context(), api.BuildRequest{Base: "x"},
		client.Build{Context: strings.NewReader("silent")}); err != nil {
		t.Error(err)
	}
	_, err = c.BuildImageWith(t.Context(), api.BuildRequest{Base: "bad"}, client.Build{})
	if errors.KindOf(err) != errors.NotFound || errors.RemedyOf(err) == "" {
		t.Errorf("got %v", err)
	}
	gone := errors.Newf(errors.Invalid, "the directory is gone")
	if _, err := c.BuildImageWith(t.Context(), api.BuildRequest{Base: "x"},
		client.Build{Context: io.MultiReader(strings.NewReader("x"), failing{gone})}); err == nil {
		t.Error("a context that breaks off builds an image")
	}

	archive, err := c.ExportImage(t.Context(), "team/app:1")
	if err != nil {
		t.Fatal(err)
	}
	data, err := io.ReadAll(archive)
	if err != nil || len(data) != 800 || archive.Close() != nil {
		t.Errorf("got %d bytes, %v", len(data), err)
	}
	if _, err := c.ExportImage(t.Context(), "nosuch"); errors.KindOf(err) != errors.NotFound {
		t.Errorf("got %v", err)
	}
	if done, err := c.CollectImages(t.Context(), api.CollectRequest{}); err != nil || done.Freed != 7 ||
		done.Images == nil {
		t.Errorf("got %+v, %v", done, err)
	}
}

type failing struct{ err error }

func (f failing) Read([]byte) (int, error) { return 0, f.err }

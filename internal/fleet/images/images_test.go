package images_test

import (
	"bytes"
	"context"
	"io"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/RelevanceAI/harvest/client/errors"
	"github.com/RelevanceAI/harvest/internal/base/account"
	"github.com/RelevanceAI/harvest/internal/base/secret"
	"github.com/RelevanceAI/harvest/internal/engine"
	"github.com/RelevanceAI/harvest/internal/fleet/images"
	"github.com/RelevanceAI/harvest/internal/fleet/record"
	"github.com/RelevanceAI/harvest/internal/fleet/spec"
	"github.com/RelevanceAI/harvest/internal/image"
	"github.com/RelevanceAI/harvest/internal/store/testdb"
)

// library has the images of an engine.
type library struct {
	image.Builder
	all   []image.Image
	built []image.Spec
	made  image.SnapshotOptions
	layer bytes.Buffer // of the snapshot
}

// machine is an engine with a library.
type machine struct {
	engine.Engine
	l *library
}

func (m machine) Images() image.Builder { return m.l }
func (m machine) Name() string          { return "stub" }

func (l *library) List(context.Context) ([]image.Image, error) { return l.all, nil }

func (l *library) Find(_ context.Context, ref string) (image.Image, error) {
	for _, img := range l.all {
		if img.ID == ref {
			return img, nil
		}
	}
	return image.Image{}, errors.Newf(errors.NotFound, "image %q: not found", ref)
}

func (l *library) Build(_ context.Context, s image.Spec, _ image.BuildOptions) (image.Image, error) {
	l.built = append(l.built, s)
	if s.Base == "none" {
		return image.Image{}, errors.Newf(errors.NotFound, "no registry has an image %q", s.Base)
	}
	return image.Image{ID: "img_built", Spec: s}, nil
}

func (l *library) Snapshot(_ context.Context, _ image.Image, opts image.SnapshotOptions,
	fill func(io.Writer) error) (image.Image, error) {
	l.made = opts
	return image.Image{ID: "img_snapshot"}, fill(&l.layer)
}

// TestFind checks which images are found, which are built, and that those of other accounts count as missing.
func TestFind(t *testing.T) {
	t.Parallel()
	mine := image.Image{ID: "img_aaaaaaaaaaaaaaaa", Spec: image.Spec{Owner: account.Owner("acme"), Dockerfile: "x"}}
	for name, c := range map[string]struct {
		owner, holder string
		plan          spec.Plan
		id            string
		built         int
	}{
		"its own":    {"acme", "acme", spec.Plan{Request: spec.Request{Image: mine.ID}}, mine.ID, 0},
		"of another": {"other", "other", spec.Plan{Request: spec.Request{Image: mine.ID}}, "img_built", 1},
		"of a spare": {record.SpareAccount, "acme", spec.Plan{Request: spec.Request{Image: mine.ID}}, mine.ID, 0},
		"of an image build": {record.BuildAccount, record.BuildAccount,
			spec.Plan{Request: spec.Request{Image: mine.ID}}, mine.ID, 0},
		"of a registry": {"acme", "acme", spec.Plan{Request: spec.Request{Image: "debian:12"}}, "img_built", 1},
		"with commands": {"acme", "acme", spec.Plan{Request: spec.Request{Image: mine.ID, Commands: []string{"RUN x"}}},
			"img_built", 1},
	} {
		l := &library{all: []image.Image{mine}}
		img, err := images.Images{Engine: machine{l: l}}.Find(t.Context(), c.owner, c.holder, c.plan)
		if err != nil || img.ID != c.id || len(l.built) != c.built {
			t.Errorf("%s: %s, built %+v, %v", name, img.ID, l.built, err)
		}
		if c.built > 0 && (l.built[0].Base != c.plan.Image || !cmp.Equal(l.built[0].Commands, c.plan.Commands)) {
			t.Errorf("%s: built %+v", name, l.built)
		}
	}
	l := &library{}
	_, err := images.Images{Engine: machine{l: l}}.Find(t.Context(), "acme", "acme",
		spec.Plan{Request: spec.Request{Image: "none"}})
	if !errors.Is(err, errors.NotFound) || !strings.Contains(errors.RemedyOf(err), "harvest image ls") {
		t.Errorf("a missing one: %v, %s", err, errors.RemedyOf(err))
	}
}

// TestCredentials checks which login a registry gets, and that the user's Docker configuration is for the account
// "personal" only.
func TestCredentials(t *testing.T) {
	t.Parallel()
	v, err := secret.Open(t.Context(), secret.Options{Store: testdb.Open(t).Secrets(),
		KeyFile: filepath.Join(t.TempDir(), "secret.key")})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := v.Set(t.Context(), "acme", "login", secret.Pairs{"REGISTRY_SERVER": "ghcr.io",
		"REGISTRY_USERNAME": "user", "REGISTRY_PASSWORD": "the-password-of-a-registry"}, secret.Create); err != nil {
		t.Fatal(err)
	}
	login := image.Credential{User: "user", Password: "the-password-of-a-registry"}
	for name, c := range map[string]struct {
		vault               *secret.Vault
		owner, secret, host string
		want                image.Credential
	}{
		"the login":                 {v, "acme", "", "ghcr.io", login},
		"a named login":             {v, "acme", "login", "ghcr.io", login},
		"another registry":          {v, "acme", "", "docker.io", image.Credential{Anonymous: true}},
		"another account":           {v, "other", "", "ghcr.io", image.Credential{Anonymous: true}},
		"personal":                  {v, account.Personal, "", "ghcr.io", image.Credential{}},
		"without secrets":           {nil, "acme", "login", "ghcr.io", image.Credential{Anonymous: true}},
		"without secrets, personal": {nil, account.Personal, "", "ghcr.io", image.Credential{}},
	} {
		got, err := images.Images{Secrets: c.vault}.Credentials(c.owner, c.secret)(t.Context(), c.host)
		if err != nil || got != c.want {
			t.Errorf("%s: %+v, %v", name, got, err)
		}
	}
	_, err = images.Images{Secrets: v}.Credentials("acme", "login")(t.Context(), "docker.io")
	if !errors.Is(err, errors.Invalid) || !strings.Contains(errors.RemedyOf(err), "REGISTRY_SERVER=docker.io") {
		t.Errorf("a named login of another registry: %v, %s", err, errors.RemedyOf(err))
	}
}

// plain is a sandbox whose engine reads its files.
type plain struct{ engine.Sandbox }

func (plain) Snapshot(_ context.Context, path string, w io.Writer) error {
	_, err := io.WriteString(w, "files below "+path)
	return err
}

// rooted is plain on a root file system of its own.
type rooted struct{ plain }

func (rooted) Root() string { return "/roots/1" }

// imager is a sandbox whose engine makes images.
type imager struct {
	engine.Sandbox
	l *library
}

func (i imager) SnapshotImage(_ context.Context, _ image.Image, opts image.SnapshotOptions) (image.Image, error) {
	i.l.made = opts
	return image.Image{ID: "img_by_the_engine"}, nil
}

func TestSnapshot(t *testing.T) {
	t.Parallel()
	parent := image.Image{ID: "img_aaaaaaaaaaaaaaaa"}
	sb := record.Sandbox{ID: "sbx_1", Account: "acme", ImageID: parent.ID,
		Volumes: []spec.Mount{{Name: "v", Path: "/v"}}}
	l := &library{all: []image.Image{parent}}
	i := images.Images{Engine: machine{l: l}}
	img, err := i.Snapshot(t.Context(), sb, rooted{}, "name", "/work")
	want := image.SnapshotOptions{Owner: account.Owner("acme"), Sandbox: "sbx_1", Path: "/work", Root: "/roots/1",
		Names: []string{"name"}}
	if diff := cmp.Diff(want, l.made); err != nil || img.ID != "img_snapshot" || diff != "" {
		t.Errorf("%s, %v (-want +got):\n%s", img.ID, err, diff)
	}
	if got := l.layer.String(); got != "files below /work" {
		t.Errorf("the layer is %q", got)
	}
	if img, err = i.Snapshot(t.Context(), sb, imager{l: l}, "", ""); err != nil || img.ID != "img_by_the_engine" ||
		l.made.Names != nil {
		t.Errorf("by the engine: %s, %+v, %v", img.ID, l.made, err)
	}
	for _, dir := range []string{"/v", "/v/", "/v/below", "/w/../v"} {
		_, err := i.Snapshot(t.Context(), sb, plain{}, "", dir)
		if !errors.Is(err, errors.Invalid) || !strings.Contains(errors.Message(err), "volume v") {
			t.Errorf("%s: %v", dir, err)
		}
	}
	if _, err := i.Snapshot(t.Context(), sb, plain{}, "", "/vv"); err != nil {
		t.Errorf("beside the volume: %v", err)
	}
	if _, err := i.Snapshot(t.Context(), sb, struct{ engine.Sandbox }{}, "", ""); !errors.Is(err, errors.Unsupported) {
		t.Errorf("an engine without snapshots: %v", err)
	}
	sb.ImageID = "img_gone"
	if _, err := i.Snapshot(t.Context(), sb, plain{}, "", ""); !errors.Is(err, errors.NotFound) {
		t.Errorf("an image that is gone: %v", err)
	}
}

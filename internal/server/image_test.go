package server_test

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"mime/multipart"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/RelevanceAI/harvest/client/api"
	"github.com/RelevanceAI/harvest/client/errors"
	"github.com/RelevanceAI/harvest/internal/base/secret"
	"github.com/RelevanceAI/harvest/internal/image"
	"github.com/RelevanceAI/harvest/internal/server"
	"github.com/RelevanceAI/harvest/internal/store/testdb"
)

// builder records its calls.
type builder struct {
	image.Builder
	mu    sync.Mutex
	spec  image.Spec         // guarded by mu
	opts  image.BuildOptions // guarded by mu
	files string             // guarded by mu; the content of the context
	what  image.Collection   // guarded by mu
	err   error

	config image.Config // of all images
}

func (b *builder) Build(_ context.Context, spec image.Spec, opts image.BuildOptions) (image.Image, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.spec, b.opts, b.files = spec, opts, ""
	if opts.Context != "" {
		data, err := os.ReadFile(opts.Context)
		if err != nil {
			return image.Image{}, err
		}
		b.files = string(data)
	}
	if opts.Log != nil {
		opts.Log("a line")
		opts.Progress(image.Progress{Step: "download", Done: 0.5})
	}
	return image.Image{ID: "img_1", Names: opts.Names, Spec: spec, Config: b.config}, b.err
}

func (b *builder) List(context.Context) ([]image.Image, error) {
	return []image.Image{{ID: "img_0123456789abcdef", Names: []string{"team/app:1"},
		Config: image.Config{History: []image.History{{By: "RUN x"}}}}}, nil
}

func (b *builder) Collect(_ context.Context, what image.Collection) (image.Collected, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.what = what
	return image.Collected{Images: []image.Image{{ID: "img_2"}}, Freed: 3, Left: 4}, b.err
}

func withBuilder(t *testing.T, b *builder) *world {
	return start(t, func(o *server.Options) { o.Images, o.ImageAge, o.Temp = b, 5*time.Hour, t.TempDir() })
}

// form is the body of a build with a context.
func form(t *testing.T, fields ...string) (body, media string) {
	t.Helper()
	var buf bytes.Buffer
	w := multipart.NewWriter(&buf)
	for i := 0; i < len(fields); i += 2 {
		if err := w.WriteField(fields[i], fields[i+1]); err != nil {
			t.Fatal(err)
		}
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	return buf.String(), w.FormDataContentType()
}

// mission: B2
func TestBuildRequests(t *testing.T) {
	t.Parallel()
	b := &builder{}
	w := withBuilder(t, b)
	request := `{"base":"debian:12","dockerfile_commands":["RUN x"],"platform":"linux/amd64","target":"t",` +
		`"build_args":{"a":"b"},"names":["n"],"pull":"always","force":true,"secrets":{"s":"v"}}`
	if resp, body := w.do("POST", api.Images, request); resp.StatusCode != http.StatusCreated {
		t.Fatalf("%s %s", resp.Status, body)
	}
	want := image.Spec{Base: "debian:12", Commands: []string{"RUN x"}, Platform: "linux/amd64", Target: "t",
		Args: map[string]string{"a": "b"}}
	if diff := cmp.Diff(want, b.spec); diff != "" || b.opts.Pull != image.PullAlways || !b.opts.Force ||
		b.opts.Names[0] != "n" || string(b.opts.Secrets["s"]) != "v" {
		t.Errorf("got %+v %s", b.opts, diff)
	}
	if c, err := b.opts.Credentials(t.Context(), "ghcr.io"); err != nil || c != (image.Credential{}) {
		t.Errorf("got %+v, %v", c, err)
	}
	if w.do("POST", api.Images, `{"dockerfile":"FROM x"}`); b.spec.Base != "" || b.spec.Dockerfile != "FROM x" {
		t.Errorf("got %+v", b.spec)
	}
	if w.do("POST", api.Images, ``); b.spec.Base != "base" {
		t.Errorf("got %+v", b.spec)
	}
	if resp, body := w.do("POST", api.Images, `{"pull":"never"}`); resp.StatusCode != http.StatusBadRequest &&
		resp.StatusCode != http.StatusUnprocessableEntity || !strings.Contains(body, "always") {
		t.Errorf("%s %s", resp.Status, body)
	}

	body, media := form(t, "request", `{"dockerfile":"FROM y"}`, "context", "files")
	post := func(body, media, accept string) (int, string) {
		t.Helper()
		resp, data := w.do("POST", api.Images, body, "Content-Type", media, "Accept", accept)
		return resp.StatusCode, data
	}
	status, answer := post(body, media, api.TypeEvents)
	if status != 200 || b.files != "files" || b.spec.Dockerfile != "FROM y" {
		t.Errorf("%d %s; got %+v with %q", status, answer, b.spec, b.files)
	}
	for _, event := range []string{"event: image.log\ndata: {\"line\":\"a line\"}", "event: image.progress",
		"event: image.built"} {
		if !strings.Contains(answer, event) {
			t.Errorf("no %q in %s", event, answer)
		}
	}
	if _, err := os.Stat(b.opts.Context); !errors.IsNotExist(err) {
		t.Errorf("the context is left: %v", err)
	}
	for what, fields := range map[string][]string{
		"no context": {"request", "{}"}, "no request": {"context", "x"}, "no JSON": {"request", "x", "context", "x"},
		"too much": {"request", strings.Repeat(" ", api.MaxBody+1), "context", ""},
	} {
		body, media := form(t, fields...)
		if status, answer := post(body, media, ""); status < 400 || status >= 500 {
			t.Errorf("%s: %d %s", what, status, answer)
		}
	}
	if status, answer := post("x", "multipart/form-data", ""); status < 400 || status >= 500 {
		t.Errorf("no boundary: %d %s", status, answer)
	}
	if status, answer := post(body[:len(body)-40], media, ""); status < 400 {
		t.Errorf("cut: %d %s", status, answer)
	}
}

func TestExport(t *testing.T) {
	t.Parallel()
	b := &builder{}
	fail := errors.Newf(errors.Conflict, "not now")
	w := start(t, func(o *server.Options) {
		o.Images = b
		o.Export = func(_ context.Context, img image.Image, w io.Writer) error {
			if b.err != nil {
				return b.err
			}
			_, err := fmt.Fprintf(w, "%s %s", img.ID, strings.Repeat("x", 1000))
			return err
		}
	})
	resp, body := w.do("GET", "/v1/images/team%2Fapp:1/export", "")
	if resp.StatusCode != 200 || resp.Header.Get("Content-Type") != api.TypeTar ||
		!strings.HasPrefix(body, "img_0123456789abcdef xxx") || len(body) != 1021 {
		t.Errorf("%s %q", resp.Status, body)
	}
	if resp, _ := w.do("GET", "/v1/images/nosuch/export", ""); resp.StatusCode != 404 {
		t.Error(resp.Status)
	}
	b.err = fail
	if resp, body := w.do("GET", "/v1/images/img_0123456789abcdef/export", ""); resp.StatusCode != http.StatusConflict {
		t.Errorf("%s %q", resp.Status, body)
	}
	if resp, _ := start(t).do("GET", "/v1/images/base/export", ""); resp.StatusCode < 400 {
		t.Error("the fake has nothing to export, and says", resp.Status)
	}
}

func TestCollect(t *testing.T) {
	t.Parallel()
	b := &builder{}
	w := withBuilder(t, b)
	resp, body := w.do("POST", api.ImageCollect, "")
	got := parse[api.Collected](t, body)
	if resp.StatusCode != 200 || len(got.Images) != 1 || got.Freed != 3 || got.Left != 4 ||
		b.what != (image.Collection{Age: 5 * time.Hour}) {
		t.Errorf("%s %s; asked for %+v", resp.Status, body, b.what)
	}
	if w.do("POST", api.ImageCollect,
		`{"age_seconds":0,"size_bytes":7,"all":true,"dry_run":true}`); b.what != (image.Collection{Size: 7,
		All: true, Dry: true}) {
		t.Errorf("asked for %+v", b.what)
	}
	for _, body := range []string{`{"age_seconds":-1}`, `{"size_bytes":-1}`, `{"age_seconds":1e300}`, `{"x":1}`} {
		if resp, _ := w.do("POST", api.ImageCollect, body); resp.StatusCode < 400 || resp.StatusCode >= 500 {
			t.Errorf("%s: %s", body, resp.Status)
		}
	}
	if resp, _ := start(t).do("POST", api.ImageCollect, ""); resp.StatusCode < 400 {
		t.Error("the fake has nothing to collect, and says", resp.Status)
	}
}

// TestUnknownRegistrySecret checks that a build refuses the name of a secret that does not exist, even if it would not
// need the secret.
func TestUnknownRegistrySecret(t *testing.T) {
	t.Parallel()
	vault, err := secret.Open(t.Context(), secret.Options{Store: testdb.Open(t).Secrets(),
		KeyFile: filepath.Join(t.TempDir(), "secret.key")})
	if err != nil {
		t.Fatal(err)
	}
	b := &builder{}
	w := start(t, func(o *server.Options) { o.Images, o.Secrets, o.Temp = b, vault, t.TempDir() })
	resp, body := w.do("POST", api.Images, `{"base":"debian:12","registry_secret":"nosuch"}`)
	if resp.StatusCode != http.StatusNotFound || !strings.Contains(body, "nosuch") || b.spec.Base != "" {
		t.Errorf("%s %s, built %+v", resp.Status, body, b.spec)
	}
}

// TestInspectShowsConfig checks that one image has its configuration and history.
//
// mission: B2
func TestInspectShowsConfig(t *testing.T) {
	t.Parallel()
	b := &builder{config: image.Config{Cmd: []string{"c", "d e"}, Entrypoint: []string{"e"},
		Labels: map[string]string{"l": "m"}, Ports: []string{"80/tcp"},
		Healthcheck: []byte(`{"Test":["CMD","x"],"Interval":30000000000,"StartInterval":500000000}`),
		History:     []image.History{{By: "RUN x"}}}}
	w := withBuilder(t, b)
	_, body := w.do("POST", api.Images, `{"base":"debian:12"}`)
	for _, want := range []string{`"command":["c","d e"]`, `"entrypoint":["e"]`, `"labels":{"l":"m"}`,
		`"ports":["80/tcp"]`, `"test":["CMD","x"],"interval_seconds":30,"start_interval_seconds":0.5`,
		`"created_by":"RUN x"`} {
		if !strings.Contains(body, want) {
			t.Errorf("%s is missing in %s", want, body)
		}
	}
	if _, body := w.do("GET", api.Images+"/img_0123456789abcdef", ""); !strings.Contains(body, `"created_by":"RUN x"`) {
		t.Errorf("the history is missing in %s", body)
	}
}

package dockerfile_test

import (
	"context"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/RelevanceAI/harvest/engine/gvisor"
	"github.com/RelevanceAI/harvest/errors"
	"github.com/RelevanceAI/harvest/image"
	"github.com/RelevanceAI/harvest/image/dockerfile"
	"github.com/RelevanceAI/harvest/image/imagetest"
	"github.com/RelevanceAI/harvest/internal/testenv"
	"github.com/RelevanceAI/harvest/sandbox"
	"github.com/RelevanceAI/harvest/store/memory"
	"github.com/RelevanceAI/harvest/volume"
)

// shelf is a library of a test's own beside the one that all tests share, which has the base image.
type shelf struct {
	dockerfile.Shelf
	shared *image.Library
}

func (s shelf) isShared(ctx context.Context, id string) bool {
	if s.Cache.Owns(id) {
		return false
	}
	_, err := s.shared.Find(ctx, id)
	return err == nil
}

func (s shelf) Find(ctx context.Context, ref string) (image.Image, error) {
	if s.isShared(ctx, ref) {
		return s.shared.Find(ctx, ref)
	}
	return s.Shelf.Find(ctx, ref)
}

func (s shelf) Root(img image.Image) string {
	if s.isShared(context.Background(), img.ID) {
		return s.shared.Root(img)
	}
	return s.Shelf.Root(img)
}

func (s shelf) Layer(img image.Image) string {
	if s.isShared(context.Background(), img.ID) {
		return s.shared.Layer(img)
	}
	return s.Shelf.Layer(img)
}

func (s shelf) Use(id, who string) (func(), error) {
	if s.isShared(context.Background(), id) {
		return s.shared.Use(id, who)
	}
	return s.Shelf.Use(id, who)
}

func (s shelf) Build(ctx context.Context, spec image.Spec, opts image.BuildOptions) (image.Image, error) {
	if spec.Base == "base" && spec.Dockerfile == "" && len(spec.Commands) == 0 {
		return s.shared.Build(ctx, spec, opts)
	}
	return s.Shelf.Build(ctx, spec, opts)
}

// site is a whole Harvest without its server.
type site struct {
	t     *testing.T
	shelf shelf
	fleet *sandbox.Fleet

	mu     sync.Mutex
	log    []string       // guarded by mu
	starts map[string]int // guarded by mu; sandboxes by account
}

func newSite(t *testing.T) *site {
	t.Helper()
	testenv.Root(t)
	dir := testenv.DataDir(t)
	s := &site{t: t, starts: map[string]int{}}
	cache, err := dockerfile.OpenCache(filepath.Join(dir, "build-cache"), 20<<30)
	if err != nil {
		t.Fatal(err)
	}
	source := dockerfile.New(dockerfile.Options{Cache: cache, Run: 10 * time.Minute})
	library, err := image.OpenLibrary(filepath.Join(dir, "images"), image.Sources{Dockerfile: source})
	if err != nil {
		t.Fatal(err)
	}
	s.shelf = shelf{dockerfile.Shelf{Library: library, Cache: cache}, imagetest.Library(t)}
	volumes, err := volume.OpenDir(filepath.Join(dir, "volumes"))
	if err != nil {
		t.Fatal(err)
	}
	eng, err := gvisor.Open(t.Context(), gvisor.Options{Dir: dir, Images: s.shelf, Volumes: volumes, Executable: testenv.Binary(t)})
	if err != nil {
		t.Fatal(err)
	}
	s.fleet, err = sandbox.Open(t.Context(), sandbox.Options{Engine: eng, Store: new(memory.Sandboxes), Event: func(e sandbox.Event) {
		if e.Type == sandbox.EventReady {
			s.mu.Lock()
			defer s.mu.Unlock()
			s.starts[e.Sandbox.Account]++
		}
	}})
	if err != nil {
		t.Fatal(err)
	}
	source.Connect(s.shelf, s.fleet.Builds())
	t.Cleanup(func() {
		ctx := context.Background()
		all, err := s.fleet.List(ctx, "test", sandbox.Filter{})
		for _, sb := range all {
			err = errors.Join(err, s.fleet.Destroy(ctx, "test", sb.ID))
		}
		if err := errors.Join(err, source.Close(ctx), s.fleet.Close(ctx), eng.Close(), volumes.Close()); err != nil {
			t.Error(err)
		}
	})
	return s
}

func (s *site) build(spec image.Spec, opts image.BuildOptions) image.Image {
	s.t.Helper()
	s.log = nil
	opts.Log = func(line string) { s.log = append(s.log, line) }
	begin := time.Now()
	img, err := s.shelf.Build(s.t.Context(), spec, opts)
	if err != nil {
		s.t.Fatalf("%v\n%s", err, strings.Join(s.log, "\n"))
	}
	s.t.Logf("built in %s", time.Since(begin).Round(time.Millisecond))
	return img
}

// run runs a command in a sandbox of the image and returns its output.
func (s *site) run(img image.Image, args ...string) string {
	s.t.Helper()
	sb, err := s.fleet.Create(s.t.Context(), "test", sandbox.Request{Image: img.ID})
	if err != nil {
		s.t.Fatal(err)
	}
	defer s.fleet.Destroy(s.t.Context(), "test", sb.ID)
	x, err := s.fleet.Exec(s.t.Context(), "test", sb.ID, sandbox.ExecRequest{Args: args})
	if err != nil {
		s.t.Fatal(err)
	}
	res, err := x.Wait(s.t.Context())
	if err != nil || res.ReturnCode != 0 {
		s.t.Fatalf("%v: %+v, %v", args, res, err)
	}
	return res.Stdout
}

func (s *site) buildSandboxes() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.starts["harvest-build"]
}

// mission: B2
func TestCProject(t *testing.T) {
	s := newSite(t)
	dir := t.TempDir()
	write(t, dir, map[string]string{
		"configure": "#!/bin/sh\nset -e\ncc --version | head -1 >config.log\nprintf 'CFLAGS=-O1\\nprefix=%s\\n' \"${1#--prefix=}\" >config.mk\n",
		"Makefile": "include config.mk\nhello: main.o text.o\n\tcc -o $@ $^\n%.o: %.c text.h\n\tcc $(CFLAGS) -c -o $@ $<\n" +
			"install: hello\n\tinstall -D hello $(DESTDIR)$(prefix)/bin/hello\n\tln -sf hello $(DESTDIR)$(prefix)/bin/hi\n",
		"main.c": "#include \"text.h\"\n#include <stdio.h>\nint main(void) { puts(text()); return 0; }\n",
		"text.c": "#include \"text.h\"\nconst char *text(void) { return \"hello from C\"; }\n", "text.h": "const char *text(void);\n",
	})
	text := `# syntax=docker/dockerfile:1
FROM base AS build
WORKDIR /src
COPY configure Makefile ./
RUN chmod +x configure && ./configure --prefix=/usr/local
COPY *.c *.h ./
RUN make && make install DESTDIR=/out

FROM base
COPY --from=build /out/ /
USER nobody
CMD ["hello"]
`
	img := s.build(image.Spec{Dockerfile: text}, image.BuildOptions{Context: dir})
	if out := s.run(img, "hi"); out != "hello from C\n" {
		t.Errorf("got %q", out)
	}
	before := s.buildSandboxes()
	again := s.build(image.Spec{Dockerfile: text}, image.BuildOptions{Context: dir})
	if again.ID != img.ID || s.buildSandboxes() != before {
		t.Errorf("built again: %s and %s, %d sandboxes", img.ID, again.ID, s.buildSandboxes()-before)
	}
	s.build(image.Spec{Dockerfile: text + "# a comment\n"}, image.BuildOptions{Context: dir})
	if s.buildSandboxes() != before {
		t.Error("a comment made a step run again")
	}
	write(t, dir, map[string]string{"text.c": "#include \"text.h\"\nconst char *text(void) { return \"changed\"; }\n"})
	img = s.build(image.Spec{Dockerfile: text}, image.BuildOptions{Context: dir})
	if out := s.run(img, "hello"); out != "changed\n" {
		t.Errorf("got %q", out)
	}
	if n := s.buildSandboxes() - before; n != 1 {
		t.Errorf("a change in the middle started %d sandboxes, want 1", n)
	}
}

package dockerfile_test

import (
	"archive/tar"
	"context"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/RelevanceAI/harvest/client/errors"
	"github.com/RelevanceAI/harvest/internal/base/netguard"
	"github.com/RelevanceAI/harvest/internal/base/testenv"
	"github.com/RelevanceAI/harvest/internal/engine/gvisor"
	"github.com/RelevanceAI/harvest/internal/engine/volume"
	"github.com/RelevanceAI/harvest/internal/fleet"
	"github.com/RelevanceAI/harvest/internal/fleet/build"
	"github.com/RelevanceAI/harvest/internal/fleet/record"
	"github.com/RelevanceAI/harvest/internal/fleet/spec"
	"github.com/RelevanceAI/harvest/internal/image"
	"github.com/RelevanceAI/harvest/internal/image/dockerfile"
	"github.com/RelevanceAI/harvest/internal/image/imagetest"
	"github.com/RelevanceAI/harvest/internal/image/oci"
	"github.com/RelevanceAI/harvest/internal/image/rootfs"
	"github.com/RelevanceAI/harvest/internal/store/testdb"
)

// shelf is a test's own library beside the shared one, which has the base image.
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
	fleet *fleet.Fleet

	mu     sync.Mutex
	log    []string       // guarded by mu
	starts map[string]int // guarded by mu; sandboxes by account
}

func newSite(t *testing.T) *site { return newSiteWith(t, dockerfile.Options{Run: 10 * time.Minute}) }

// newSiteWith returns a site that builds with those options, except for its cache.
func newSiteWith(t *testing.T, opts dockerfile.Options) *site {
	t.Helper()
	testenv.Root(t)
	dir := testenv.DataDir(t)
	s := &site{t: t, starts: map[string]int{}}
	cache, err := dockerfile.OpenCache(filepath.Join(dir, "build-cache"), 20<<30)
	if err != nil {
		t.Fatal(err)
	}
	opts.Cache = cache
	source := dockerfile.New(opts)
	local := oci.NewTransport(netguard.Rules{Loopback: true}) // the registries of tests are on this machine
	pulls, err := oci.Open(oci.Options{Dir: filepath.Join(dir, "blobs"),
		Transport: func(string) http.RoundTripper { return local }})
	if err != nil {
		t.Fatal(err)
	}
	library, err := image.OpenLibrary(filepath.Join(dir, "images"), image.Sources{Dockerfile: source, Registry: pulls})
	if err != nil {
		t.Fatal(err)
	}
	s.shelf = shelf{dockerfile.Shelf{Library: library, Cache: cache}, imagetest.Library(t)}
	volumes, err := volume.OpenDir(filepath.Join(dir, "volumes"))
	if err != nil {
		t.Fatal(err)
	}
	eng, err := gvisor.Open(t.Context(), gvisor.Options{Dir: dir, Images: s.shelf, Volumes: volumes,
		Executable: testenv.Binary(t)})
	if err != nil {
		t.Fatal(err)
	}
	s.fleet, err = fleet.Open(t.Context(), fleet.Options{Engine: eng, Store: testdb.Open(t).Sandboxes(),
		Event: func(e record.Event) {
			if e.Type == record.EventReady {
				s.mu.Lock()
				defer s.mu.Unlock()
				s.starts[e.Sandbox.Account]++
			}
		}})
	if err != nil {
		t.Fatal(err)
	}
	source.Connect(s.shelf, build.New(s.fleet, volumes))
	t.Cleanup(func() {
		ctx := context.Background()
		all, err := s.fleet.List(ctx, "personal", record.Filter{})
		for _, sb := range all {
			err = errors.Join(err, s.fleet.Destroy(ctx, "personal", sb.ID))
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
	sb, err := s.fleet.Create(s.t.Context(), "personal", spec.Request{Image: img.ID})
	if err != nil {
		s.t.Fatal(err)
	}
	defer s.fleet.Destroy(s.t.Context(), "personal", sb.ID)
	x, err := s.fleet.Exec(s.t.Context(), "personal", sb.ID, fleet.ExecRequest{Args: args})
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
	testenv.Long(t)
	s := newSite(t)
	dir := t.TempDir()
	write(t, dir, map[string]string{
		"configure": "#!/bin/sh\nset -e\ncc --version | head -1 >config.log\nprintf 'CFLAGS=-O1\\nprefix=%s\\n' \"${1#--prefix=}\" >config.mk\n",
		"Makefile": "include config.mk\nhello: main.o text.o\n\tcc -o $@ $^\n%.o: %.c text.h\n\tcc $(CFLAGS) -c -o $@ $<\n" +
			"install: hello\n\tinstall -D hello $(DESTDIR)$(prefix)/bin/hello\n\tln -sf hello $(DESTDIR)$(prefix)/bin/hi\n",
		"main.c": "#include \"text.h\"\n#include <stdio.h>\nint main(void) { puts(text()); return 0; }\n",
		"text.c": "#include \"text.h\"\nconst char *text(void) { return \"hello from C\"; }\n",
		"text.h": "const char *text(void);\n",
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

// online skips the test if sandboxes cannot reach a package registry.
func (s *site) online() {
	s.t.Helper()
	sb, err := s.fleet.Create(s.t.Context(), "personal", spec.Request{Network: spec.Network{Mode: "default"}})
	if err != nil {
		s.t.Skipf("sandboxes have no network here: %v", err)
	}
	defer s.fleet.Destroy(s.t.Context(), "personal", sb.ID)
	x, err := s.fleet.Exec(s.t.Context(), "personal", sb.ID,
		fleet.ExecRequest{Args: []string{"apt-get", "update", "-qq"}, Timeout: time.Minute})
	if err != nil {
		s.t.Fatal(err)
	}
	if res, err := x.Wait(s.t.Context()); err != nil || res.ReturnCode != 0 {
		s.t.Skipf("Debian's packages cannot be reached from a sandbox: %v, %s", err, res.Stderr)
	}
}

// project is a Dockerfile in the style of a well-known sort of project.
type project struct {
	name, text string
	files      map[string]string
	args       []string // the command in the image
	want       string   // of its output
	online     bool
	opts       image.BuildOptions
}

var projects = []project{
	{name: "static binary from scratch",
		files: map[string]string{"main.c": "#include <stdio.h>\nint main(void) { puts(VERSION); return 0; }\n"},
		text: `ARG VERSION=dev
FROM base AS build
ARG VERSION
WORKDIR /src
RUN --mount=type=bind,source=main.c,target=main.c --mount=type=cache,target=/root/.ccache \
    gcc -static -DVERSION="\"${VERSION}\"" -o /app main.c && date >>/root/.ccache/used
FROM scratch
COPY --from=build --chmod=755 /app /app
USER 65532:65532
ENTRYPOINT ["/app"]
`, args: []string{"/app"}, want: "dev\n"},
	{name: "Python application", files: map[string]string{
		"pyproject.toml":        "[project]\nname = \"greet\"\nversion = \"1.0\"\n",
		"src/greet/__init__.py": "def greet(who):\n    return f'hello {who}'\n",
		"src/greet/__main__.py": "import os\nfrom greet import greet\nprint(greet(os.environ['WHO']), os.getuid(), __import__('sys').flags.dont_write_bytecode)\n",
		"tests/test_greet.py":   "import unittest\nfrom greet import greet\n\nclass T(unittest.TestCase):\n    def test(self):\n        self.assertEqual(greet('x'), 'hello x')\n",
		".dockerignore":         "**/__pycache__\n*.md\n", "README.md": "not copied\n",
	}, text: `FROM base AS build
ENV PYTHONDONTWRITEBYTECODE=1 PYTHONPATH=/app/src
RUN groupadd -g 1500 app && useradd -u 1500 -g app -m app
WORKDIR /app
COPY --chown=app:app . .
USER app
RUN --mount=type=secret,id=token,uid=1500 test "$(cat /run/secrets/token)" = s3cr3t-canary
RUN --network=none <<EOF
set -e
python3 -m unittest discover -s tests
test ! -e README.md
EOF
FROM build
ENV WHO=world
HEALTHCHECK --interval=30s CMD python3 -m greet
CMD ["python3", "-m", "greet"]
`, args: []string{"python3", "-m", "greet"}, want: "hello world 1500 1\n", opts: image.BuildOptions{Secrets: map[string][]byte{"token": []byte("s3cr3t-canary")}}},
	{name: "static site behind nginx", online: true, files: map[string]string{"site/index.html": "<h1>it works</h1>\n", "site/draft.html": "no\n"}, text: `FROM base AS server
RUN --mount=type=cache,target=/var/cache/apt,sharing=locked apt-get update \
 && apt-get install -y --no-install-recommends nginx-light && rm -rf /var/lib/apt/lists/*
FROM server
COPY --exclude=draft.html site /var/www/html
COPY <<EOF /etc/nginx/conf.d/site.conf
server { listen 8080; root /var/www/html; }
EOF
RUN nginx -t
EXPOSE 8080
STOPSIGNAL SIGQUIT
CMD ["nginx", "-g", "daemon off;"]
`, args: []string{"sh", "-c", "nginx && curl -s http://127.0.0.1:8080/ && ls /var/www/html/draft.html 2>/dev/null || true"}, want: "<h1>it works</h1>\n"},
	{name: "Node application", online: true,
		files: map[string]string{"package.json": `{"name":"app","version":"1.0.0","private":true}`,
			"index.js": "console.log('node', [1, 2, 3].map(n => n * 2).join())\n"},
		text: `FROM base AS deps
WORKDIR /app
RUN --mount=type=cache,target=/var/cache/apt,sharing=locked apt-get update && apt-get install -y --no-install-recommends nodejs
COPY package.json .
RUN node -e 'const p = require("./package.json"); require("fs").writeFileSync("lock", p.name + "@" + p.version)'
FROM deps
COPY index.js .
CMD ["node", "index.js"]
`, args: []string{"sh", "-c", "cat /app/lock && echo && node /app/index.js"}, want: "app@1.0.0\nnode 2,4,6\n"},
}

// TestProjects builds projects twice: the second time nothing runs, and the image is the same.
//
// mission: B2
func TestProjects(t *testing.T) {
	testenv.Long(t)
	for _, p := range projects {
		t.Run(p.name, func(t *testing.T) {
			s := newSite(t)
			if p.online {
				s.online()
			}
			dir := t.TempDir()
			write(t, dir, p.files)
			p.opts.Context = dir
			img := s.build(image.Spec{Dockerfile: p.text}, p.opts)
			if out := s.run(img, p.args...); out != p.want {
				t.Errorf("got %q, want %q", out, p.want)
			}
			before := s.buildSandboxes()
			if again := s.build(image.Spec{Dockerfile: p.text}, p.opts); again.ID != img.ID ||
				s.buildSandboxes() != before {
				t.Errorf("the second build is %s and not %s, and started %d sandboxes", again.ID, img.ID,
					s.buildSandboxes()-before)
			}
		})
	}
}

// TestAttributes checks the extended attributes of files: those from a RUN are in the image, in one on top and in an
// export, and those that are set in a sandbox are in images of its snapshot. Programs do not see the image's
// attributes, and files that they change lose theirs: gVisor's driver for the image's file system has no attributes.
// Once the driver supports them, this test fails, and docs/dockerfiles.md can say so.
//
// mission: B2
func TestAttributes(t *testing.T) {
	s := newSite(t)
	const set = `import os; open("/%s", "w").close(); os.setxattr("/%[1]s", "user.note", b"\x00it is %[1]s")`
	built := s.build(image.Spec{Dockerfile: "FROM base\nRUN python3 -c '" + fmt.Sprintf(set, "built") + "'\n"},
		image.BuildOptions{})
	onTop := s.build(image.Spec{Dockerfile: "FROM " + built.ID + "\nRUN python3 -c '" + fmt.Sprintf(set,
		"more") + "'\n"}, image.BuildOptions{})
	changed := s.build(image.Spec{Dockerfile: "FROM " + built.ID + "\nRUN chmod 600 /built\n"}, image.BuildOptions{})
	for _, test := range []struct {
		img  image.Image
		want map[string]string
	}{{built, map[string]string{"built": "\x00it is built"}}, {changed, map[string]string{}},
		{onTop, map[string]string{"built": "\x00it is built", "more": "\x00it is more"}}} {
		if diff := cmp.Diff(test.want, attributes(t, s.shelf.Root(test.img))); diff != "" {
			t.Errorf("%s (-want +got):\n%s", test.img.ID, diff)
		}
	}
	const look = `import os
for name in "/built", "/here":
    try: print(name, os.getxattr(name, "user.note"))
    except OSError as e: print(name, e.errno)`
	if out := s.run(built, "sh", "-c",
		"touch /here && python3 -c '"+look+"'"); out != "/built 95\n/here 61\n" { // EOPNOTSUPP, ENODATA
		t.Errorf("in a sandbox of the image: %q", out)
	}
	sb, err := s.fleet.Create(t.Context(), "personal", spec.Request{Image: built.ID})
	if err != nil {
		t.Fatal(err)
	}
	x, err := s.fleet.Exec(t.Context(), "personal", sb.ID,
		fleet.ExecRequest{Args: []string{"python3", "-c", fmt.Sprintf(set, "here")}})
	if err != nil {
		t.Fatal(err)
	}
	if res, err := x.Wait(t.Context()); err != nil || res.ReturnCode != 0 {
		t.Fatalf("set an attribute: %+v, %v", res, err)
	}
	taken, err := s.fleet.Snapshot(t.Context(), "personal", sb.ID, fleet.SnapshotOptions{})
	if err != nil {
		t.Fatal(err)
	}
	if out := s.run(taken, "python3", "-c", look); out != "/built 95\n/here b'\\x00it is here'\n" {
		t.Errorf("in a sandbox from the snapshot: %q", out)
	}
}

// attributes returns the notes of an image's files.
func attributes(t *testing.T, root string) map[string]string {
	t.Helper()
	f, err := os.Open(root)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	r, err := rootfs.OpenReader(f)
	if err != nil {
		t.Fatal(err)
	}
	got := map[string]string{}
	err = r.Walk(".", func(hdr *tar.Header, _ io.Reader) error {
		if note, ok := hdr.PAXRecords["SCHILY.xattr.user.note"]; ok {
			got[hdr.Name] = note
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return got
}

// TestIsolation shows that RUN reaches nothing but its sandbox, and that a RUN that never ends is ended.
//
// mission: A3
func TestIsolation(t *testing.T) {
	s := newSite(t)
	img := s.build(image.Spec{Base: "base", Commands: []string{"RUN dmesg 2>/dev/null | head -1 >/kernel; id -u >/id; ls /proc | grep -c '^[0-9]' >/processes"}}, image.BuildOptions{})
	if out := s.run(img, "cat", "/kernel", "/id"); !strings.Contains(out, "gVisor") || !strings.HasSuffix(out, "0\n") {
		t.Errorf("got %q", out)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 3*time.Second)
	defer cancel()
	_, err := s.shelf.Build(ctx, image.Spec{Base: "base", Commands: []string{"RUN sleep 1000"}}, image.BuildOptions{})
	if errors.KindOf(err) != errors.Timeout && errors.KindOf(err) != errors.Canceled {
		t.Errorf("got %v", err)
	}
	left, err := s.fleet.List(t.Context(), "harvest-build", record.Filter{})
	if err != nil || len(left) > 0 {
		t.Errorf("sandboxes of builds are left: %v, %v", left, err)
	}
}

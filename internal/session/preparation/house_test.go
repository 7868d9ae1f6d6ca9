package preparation_test

import (
	"context"
	"io"
	"maps"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/RelevanceAI/harvest/client/errors"
	"github.com/RelevanceAI/harvest/internal/base/testenv"
	"github.com/RelevanceAI/harvest/internal/engine"
	"github.com/RelevanceAI/harvest/internal/fleet"
	"github.com/RelevanceAI/harvest/internal/fleet/record"
	"github.com/RelevanceAI/harvest/internal/fleet/spec"
	"github.com/RelevanceAI/harvest/internal/image"
	"github.com/RelevanceAI/harvest/internal/session/preparation"
	"github.com/RelevanceAI/harvest/internal/session/records"
	"github.com/RelevanceAI/harvest/internal/session/workspace"
	"github.com/RelevanceAI/harvest/internal/store"
	"github.com/RelevanceAI/harvest/internal/store/testdb"
	"github.com/RelevanceAI/harvest/test/stubs/sandboxtest"
)

func TestMain(m *testing.M) { sandboxtest.Main(m) }

const personal = "personal"

// places are the paths of a sandbox that scripts of sessions use.
var places = []string{"/workspace", "/mnt/state", "/usr/local/bin/harvest-git", "/var/lib/harvest-git",
	"/tmp/harvest-bundle", "/home/agent/.mcp-memory", "/dev/shm/.harvest-git"}

// provider is an Engine with more images, which have the files of its own, and with commands that find the places of a
// sandbox in its directory.
type provider struct {
	*sandboxtest.Engine
	others   []string          // IDs of further images
	creating func()            // called before a sandbox is created; may be nil
	booted   func(root string) // called with the files of a new sandbox; may be nil
}

func (p *provider) Images() image.Builder { return builder{p.Engine.Images(), p} }

func (p *provider) Create(ctx context.Context, s engine.Spec) (engine.Sandbox, error) {
	if p.creating != nil {
		p.creating()
	}
	sb, err := p.Engine.Create(ctx, s)
	if err != nil {
		return nil, err
	}
	root := filepath.Join(p.Dir, "sandboxes", sb.Handle().Ref, "root")
	if p.booted != nil {
		p.booted(root)
	}
	return box{sb, root}, nil
}

// images lists the images that were requested for sandboxes.
func (p *provider) images() (all []string) {
	for _, s := range p.Specs() {
		all = append(all, s.Image)
	}
	return all
}

type builder struct {
	image.Builder
	p *provider
}

func (b builder) List(ctx context.Context) ([]image.Image, error) {
	all, err := b.Builder.List(ctx)
	for _, id := range b.p.others {
		all = append(all, image.Image{ID: id, Names: []string{id}})
	}
	return all, err
}

// Build reports a step, as builds and downloads do.
func (b builder) Build(ctx context.Context, s image.Spec, opts image.BuildOptions) (image.Image, error) {
	if opts.Progress != nil {
		opts.Progress(image.Progress{Step: "pull"})
	}
	return b.Builder.Build(ctx, s, opts)
}

// Snapshot makes builder an image.Snapshotter.
func (b builder) Snapshot(context.Context, image.Image, image.SnapshotOptions,
	func(io.Writer) error) (image.Image, error) {
	return image.Image{}, errors.Newf(errors.Unsupported, "no snapshots")
}

type box struct {
	engine.Sandbox
	root string
}

func (b box) Start(ctx context.Context, cmd engine.Command) (engine.Process, error) {
	var pairs []string
	for _, place := range places {
		pairs = append(pairs, place, filepath.Join(b.root, place))
	}
	moved := strings.NewReplacer(pairs...)
	cmd.Args, cmd.Env = append([]string{}, cmd.Args...), maps.Clone(cmd.Env)
	for i := range cmd.Args {
		cmd.Args[i] = moved.Replace(cmd.Args[i])
	}
	for name, value := range cmd.Env {
		cmd.Env[name] = moved.Replace(value)
	}
	if cmd.Env == nil {
		cmd.Env = map[string]string{}
	}
	cmd.Env["HOME"], cmd.Env["GIT_CONFIG_NOSYSTEM"] = filepath.Join(b.root, "home"), "1"
	return b.Sandbox.Start(ctx, cmd)
}

// house is a Fleet of a provider, and the Preparer on it.
type house struct {
	*provider
	preparation.Preparer
	*testing.T
	store store.Sandboxes
}

func newHouse(t *testing.T, set ...func(*fleet.Options)) *house {
	t.Helper()
	testenv.RequireTool(t, "git", "git")
	h := &house{provider: &provider{Engine: sandboxtest.New(t)}, T: t, store: testdb.Open(t).Sandboxes()}
	h.Can.Limits = []string{"cpu", "memory", "processes", "disk", "files"}
	base, err := h.Engine.Images().Build(t.Context(), image.Spec{Base: "base"}, image.BuildOptions{})
	if err != nil {
		t.Fatal(err)
	}
	h.Engine.Image = base.ID
	opts := fleet.Options{Engine: h.provider, Store: h.store, Timeouts: spec.Timeouts{Grace: 1}}
	for _, change := range set {
		change(&opts)
	}
	h.Fleet = sandboxtest.Open(t, h.Engine, opts)
	t.Cleanup(func() {
		ctx := context.WithoutCancel(t.Context())
		all, err := h.Fleet.List(ctx, "", record.Filter{})
		for _, sb := range all {
			err = errors.Join(err, h.Fleet.Destroy(ctx, sb.Account, sb.ID))
		}
		if err != nil {
			t.Error(err)
		}
	})
	h.Preparer.Volumes = h.Engine.Volumes()
	return h
}

// prepare prepares s, which must succeed, and returns the names of the steps too.
func (h *house) prepare(s preparation.Session) (preparation.Result, []string) {
	h.Helper()
	got, stages := h.try(h.Context(), s)
	if got.Err != nil {
		h.Fatalf("prepare: %v", got.Err)
	}
	return got, stages
}

func (h *house) try(ctx context.Context, s preparation.Session) (preparation.Result, []string) {
	var stages []string
	got := h.Prepare(ctx, s, func(s records.Stage) {
		stages = append(stages, s.Name)
		if s.MS <= 0 {
			h.Errorf("the stage %s took %v ms", s.Name, s.MS)
		}
	})
	return got, stages
}

// path returns the host's path of a file in a sandbox.
func (h *house) path(id, name string) string {
	h.Helper()
	handles, err := h.Engine.List(h.Context())
	if err != nil {
		h.Fatal(err)
	}
	for _, one := range handles {
		if one.ID == id {
			return filepath.Join(h.Dir, "sandboxes", one.Ref, "root", name)
		}
	}
	h.Fatalf("the engine has no sandbox %s", id)
	return ""
}

func (h *house) sandbox(id string) record.Sandbox {
	h.Helper()
	sb, err := h.store.Get(h.Context(), id)
	if err != nil {
		h.Fatal(err)
	}
	return sb
}

// project makes a repository with a commit for each text, and returns its address and its last commit.
func project(t *testing.T, texts ...string) (url, head string) {
	t.Helper()
	dir := t.TempDir()
	git(t, dir, "init", "--quiet", "-b", "main")
	for _, text := range texts {
		testenv.WriteFile(t, filepath.Join(dir, "file"), []byte(text))
		git(t, dir, "add", "-A")
		git(t, dir, "commit", "--quiet", "-m", text)
	}
	return "file://" + dir, git(t, dir, "rev-parse", "HEAD")
}

func git(t *testing.T, dir string, args ...string) string {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), "git", args...)
	cmd.Dir = dir
	cmd.Env = append(testenv.CleanEnv(), "GIT_CONFIG_GLOBAL=/dev/null", "GIT_CONFIG_SYSTEM=/dev/null",
		"GIT_AUTHOR_NAME=A", "GIT_AUTHOR_EMAIL=a@example.org", "GIT_COMMITTER_NAME=A",
		"GIT_COMMITTER_EMAIL=a@example.org")
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("git %v: %v", args, err)
	}
	return strings.TrimSpace(string(out))
}

// session describes a session on repositories at these addresses.
func session(urls ...string) preparation.Session {
	s := preparation.Session{ID: "ses_0123456789abcdef", Account: personal, Image: "base", Title: "Title",
		Author: workspace.Author{Name: "Ada", Email: "ada@example.org"}}
	for i, url := range urls {
		s.Repos = append(s.Repos, workspace.Repository{URL: url, Dir: "/workspace/" + string(rune('a'+i))})
	}
	s.Request = preparation.Request(spec.Request{}, s.Image, "", true)
	return s
}

package refresh_test

import (
	"context"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/RelevanceAI/harvest/client/errors"
	"github.com/RelevanceAI/harvest/internal/engine"
	"github.com/RelevanceAI/harvest/internal/engine/fake"
	"github.com/RelevanceAI/harvest/internal/engine/volume"
	"github.com/RelevanceAI/harvest/internal/fleet"
	"github.com/RelevanceAI/harvest/internal/fleet/record"
	"github.com/RelevanceAI/harvest/internal/fleet/refresh"
	"github.com/RelevanceAI/harvest/internal/fleet/spec"
	"github.com/RelevanceAI/harvest/internal/image"
	"github.com/RelevanceAI/harvest/test/stubs/sandboxtest"
)

func TestMain(m *testing.M) { sandboxtest.Main(m) }

const account = "personal"

const good = `{"python": "3.99.1", "files": 3, "freed": 77}`

// builder builds an image of the fake as if it had the requested base, and a size.
type builder struct {
	image.Builder
	err   error
	specs []image.Spec
	opts  []image.BuildOptions
}

func (b *builder) Build(ctx context.Context, s image.Spec, opts image.BuildOptions) (image.Image, error) {
	b.specs, b.opts = append(b.specs, s), append(b.opts, opts)
	if b.err != nil {
		return image.Image{}, b.err
	}
	img, err := b.Builder.Build(ctx, image.Spec{Base: "base"}, opts)
	img.Size = 4711
	return img, err
}

// house is a Refresh on an Engine.
type house struct {
	*sandboxtest.Engine
	builder
	refresh.Refresh
}

func newHouse(t *testing.T, warm int, set ...func(*engine.Capabilities)) *house {
	t.Helper()
	h := &house{Engine: sandboxtest.New(t)}
	h.builder.Builder = h.Engine.Images()
	for _, change := range set {
		change(&h.Can)
	}
	h.Refresh = refresh.Refresh{Images: &h.builder, Account: account,
		Fleet: sandboxtest.Open(t, h.Engine, fleet.Options{Warm: warm, Capture: 1 << 20})}
	return h
}

// only returns the record of the only sandbox that there has been.
func (h *house) only(t *testing.T) record.Sandbox {
	t.Helper()
	all, err := h.Fleet.List(context.Background(), account, record.Filter{All: true})
	if err != nil || len(all) != 1 {
		t.Fatalf("%+v, %v", all, err)
	}
	return all[0]
}

// TestRun checks the report, and the requests to the builder and the Fleet.
//
// mission: B5
func TestRun(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		image, base string
		age         time.Duration
		arg         string
	}{
		"defaults": {"", "base", 0, "604800"},
		"options":  {"agent", "agent", 36 * time.Hour, "129600"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				h := newHouse(t, 1)
				synctest.Wait() // until a sandbox is warm
				if warm := h.Fleet.Stats().Warm; warm != 1 {
					t.Fatalf("%d sandboxes are warm", warm)
				}
				h.Play = func(p *sandboxtest.Process, cmd engine.Command) {
					time.Sleep(3 * time.Second)
					sandboxtest.Prints(engine.Exit{}, good, "")(p, cmd)
				}
				h.Refresh.Image, h.CacheAge = c.image, c.age
				begin := time.Now()
				report, err := h.Run(t.Context())
				if err != nil {
					t.Fatal(err)
				}
				img := h.Specs()[0].Image
				if report.Seconds < 3 || report.Seconds > 3.5 {
					t.Errorf("it took %v s", report.Seconds)
				}
				report.Seconds = 3
				want := refresh.Report{Status: "success", Timestamp: begin.UTC().Round(0), ImageRebuilt: true,
					ImageID: img, ImageBytes: 4711, Verified: true, Python: "3.99.1", CacheFiles: 3, CacheBytes: 77,
					Seconds: 3}
				if report != want || img == "" {
					t.Errorf("%+v, want %+v", report, want)
				}
				if h.builder.specs[0].Base != c.base || !h.opts[0].Force || h.opts[0].Credentials == nil {
					t.Errorf("built %+v with %+v", h.builder.specs, h.opts)
				}
				sb, args := h.only(t), h.Commands()[0].Args
				if sb.Warm || !sb.Status.Ended() || sb.Expires.Sub(sb.Started) != 15*time.Minute {
					t.Errorf("the sandbox: %+v", sb)
				}
				if state := (spec.Mount{Name: refresh.StateVolume, Path: refresh.StatePath}); !slices.Equal(sb.Volumes,
					[]spec.Mount{state}) || h.Commands()[0].Dir != refresh.StatePath {
					t.Errorf("volumes %+v, directory %q", sb.Volumes, h.Commands()[0].Dir)
				}
				given := append([]string{".", c.arg}, volume.StateDirs...)
				if tail := args[len(args)-len(given):]; !slices.Equal(tail, given) {
					t.Errorf("arguments %q, want %q", tail, given)
				}
			})
		})
	}
}

// TestRunWithoutVolumes checks that an engine without volumes keeps the caches, and runs the program.
func TestRunWithoutVolumes(t *testing.T) {
	t.Parallel()
	h := newHouse(t, 0, func(c *engine.Capabilities) { c.Volumes = false })
	report, err := h.Run(t.Context())
	if err != nil || report.Status != "success" || !report.Verified || !strings.HasPrefix(report.Python, "3.") ||
		report.CacheFiles != 0 || report.CacheKept != "the engine fake has no volumes on this machine" {
		t.Errorf("%+v, %v", report, err)
	}
	args := h.Commands()[0].Args
	cmd := exec.CommandContext(t.Context(), args[0], args[1:]...)
	cmd.Dir = t.TempDir()
	out, err := cmd.CombinedOutput()
	if left, listErr := os.ReadDir(cmd.Dir); err != nil || listErr != nil || len(left) != 0 {
		t.Errorf("without a volume the program made %v: %s, %v, %v", left, out, err, listErr)
	}
	tail := args[len(args)-len(volume.StateDirs)-2:]
	if sb := h.only(t); len(sb.Volumes) != 0 || h.Commands()[0].Dir == refresh.StatePath || tail[0] != "" {
		t.Errorf("volumes %+v, directory %q, arguments %q", sb.Volumes, h.Commands()[0].Dir, tail)
	}
}

// TestRunFails checks the report and the error of each stage that fails, and that no sandbox is left.
//
// mission: B5, A9
func TestRunFails(t *testing.T) {
	t.Parallel()
	boom := errors.Newf(errors.Exhausted, "boom")
	prints := func(code int, stdout, stderr string) func(*house) {
		return func(h *house) { h.Play = sandboxtest.Prints(engine.Exit{Code: code}, stdout, stderr) }
	}
	for name, c := range map[string]struct {
		set   func(*house)
		kind  errors.Kind
		stage string
		text  string // a part of the error
	}{
		"build":  {func(h *house) { h.err = boom }, errors.Exhausted, "image", "rebuild the image base: boom"},
		"create": {func(h *house) { h.FailNext(fake.OpCreate, boom) }, errors.Exhausted, "create", "boom"},
		"start":  {func(h *house) { h.Play = nil; h.FailNext(fake.OpStart, boom) }, errors.Exhausted, "exec", "boom"},
		"exit status": {prints(3, good, " late trouble\n"), errors.Unavailable, "verify",
			"a program in a sandbox of the new image ended with 3: late trouble|"},
		"output": {prints(0, "hello", ""), errors.Unavailable, "verify", "ended with 0: |"},
		"long output": {prints(1, "", strings.Repeat("x", 501)), errors.Unavailable, "verify",
			"ended with 1: " + strings.Repeat("x", 500) + "|"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			h := newHouse(t, 0)
			h.Play = sandboxtest.Prints(engine.Exit{}, good, "")
			c.set(h)
			report, err := h.Run(t.Context())
			if err == nil {
				t.Fatal("no error")
			}
			text := errors.Message(err) + "|" + err.Error()
			if errors.KindOf(err) != c.kind || errors.StageOf(err) != c.stage || !strings.Contains(text, c.text) {
				t.Errorf("%s at stage %q: %s", errors.KindOf(err), errors.StageOf(err), text)
			}
			built := c.stage != "image"
			if report.Status != "failed" || report.Verified || report.Python != "" || report.ImageRebuilt != built ||
				(report.ImageID != "") != built || (report.ImageBytes != 0) != built || report.Timestamp.IsZero() ||
				report.Seconds <= 0 {
				t.Errorf("%+v", report)
			}
			if left, err := h.Fleet.List(t.Context(), "", record.Filter{}); err != nil || len(left) != 0 {
				t.Errorf("left: %+v, %v", left, err)
			}
		})
	}
}

// TestRunEnds checks that the program of a refresh has five minutes, and that a canceled refresh leaves no sandbox.
func TestRunEnds(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		cancel time.Duration
		took   time.Duration
		text   string
	}{
		"time limit": {0, 5 * time.Minute, "ended with 124"},
		"canceled":   {time.Minute, time.Minute, "ended with 137"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				h := newHouse(t, 0)
				h.Play = func(*sandboxtest.Process, engine.Command) {}
				ctx, cancel := context.WithCancel(t.Context())
				defer cancel()
				if c.cancel > 0 {
					time.AfterFunc(c.cancel, cancel)
				}
				begin := time.Now()
				report, err := h.Run(ctx)
				if took := time.Since(begin); took < c.took || took >= c.took+time.Minute {
					t.Errorf("took %s, want %s", took, c.took)
				}
				if errors.KindOf(err) != errors.Unavailable || !strings.Contains(err.Error(), c.text) ||
					report.Status != "failed" {
					t.Errorf("%+v, %v", report, err)
				}
				if sb := h.only(t); !sb.Status.Ended() {
					t.Errorf("the sandbox is left: %+v", sb)
				}
			})
		})
	}
}

// TestRunThoughTheSandboxStays checks that a refresh succeeds if its sandbox cannot be destroyed at once.
func TestRunThoughTheSandboxStays(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		h := newHouse(t, 0)
		h.Play = sandboxtest.Prints(engine.Exit{}, good, "")
		h.FailNext(fake.OpDestroy, errors.Newf(errors.Unavailable, "boom"))
		if report, err := h.Run(t.Context()); err != nil || report.Status != "success" {
			t.Errorf("%+v, %v", report, err)
		}
		time.Sleep(time.Hour) // the Fleet tries again
	})
}

// TestCaches checks which files of the state volume a refresh removes.
//
// mission: B5, C2
func TestCaches(t *testing.T) {
	t.Parallel()
	h := newHouse(t, 0)
	h.CacheAge = 2 * time.Hour
	if _, err := h.Volumes().Create(t.Context(), refresh.StateVolume); err != nil {
		t.Fatal(err)
	}
	root, outside := h.Volumes().(*volume.Local).Path(refresh.StateVolume), t.TempDir()
	for _, dir := range volume.StateDirs { // other engines do not create them
		if err := os.Remove(filepath.Join(root, dir)); err != nil {
			t.Fatal(err)
		}
	}
	old, fresh := time.Now().Add(-3*time.Hour), time.Now().Add(-time.Hour)
	must := func(errs ...error) {
		t.Helper()
		if err := errors.Join(errs...); err != nil {
			t.Fatal(err)
		}
	}
	write := func(path string, atime, mtime time.Time) {
		t.Helper()
		must(os.MkdirAll(filepath.Dir(path), 0o755), os.WriteFile(path, []byte("12345"), 0o644),
			os.Chtimes(path, atime, mtime))
	}
	write(filepath.Join(outside, "target"), old, old)
	for path, times := range map[string][2]time.Time{
		"unused/a/b/file": {old, old}, "unused/file": {old, old}, "top": {old, old},
		"mixed/old": {old, old}, "mixed/changed": {old, fresh}, "mixed/read": {fresh, old},
	} {
		write(filepath.Join(root, ".cache", path), times[0], times[1])
	}
	write(filepath.Join(root, "workspace/file"), old, old)
	for _, dir := range []string{"new", "empty", "outer/inner"} {
		must(os.MkdirAll(filepath.Join(root, ".cache", dir), 0o755))
	}
	must(os.Symlink(filepath.Join(outside, "target"), filepath.Join(root, ".cache/new-link")),
		os.Symlink(outside, filepath.Join(root, ".cache/directory-link")))
	for _, dir := range []string{"empty", "outer/inner"} {
		must(os.Chtimes(filepath.Join(root, ".cache", dir), old, old))
	}
	report, err := h.Run(t.Context())
	if err != nil || report.CacheFiles != 4 || report.CacheBytes != 20 || report.CacheKept != "" {
		t.Errorf("%+v, %v", report, err)
	}
	got := map[string]bool{}
	must(filepath.WalkDir(root, func(path string, _ os.DirEntry, err error) error {
		got[strings.TrimPrefix(path, root+"/")] = true
		return err
	}))
	delete(got, root)
	want := map[string]bool{}
	for _, path := range []string{".cache", ".cache/mixed", ".cache/mixed/changed", ".cache/mixed/read", ".cache/new",
		".cache/new-link", ".cache/directory-link", "git-repos", "checkpoints", "workspace", "workspace/file",
		"sessions"} {
		want[path] = true
	}
	if !maps.Equal(got, want) {
		t.Errorf("left %q, want %q", slices.Sorted(maps.Keys(got)), slices.Sorted(maps.Keys(want)))
	}
	if _, err := os.Stat(filepath.Join(outside, "target")); err != nil {
		t.Error(err)
	}
	must(os.RemoveAll(filepath.Join(root, ".cache")))
	write(filepath.Join(root, ".cache/old"), old, old)
	if report, err := h.Run(t.Context()); err != nil || report.CacheFiles != 1 {
		t.Errorf("%+v, %v", report, err)
	}
	if left, err := os.ReadDir(filepath.Join(root, ".cache")); err != nil || len(left) != 0 {
		t.Errorf("left in an empty cache: %v, %v", left, err)
	}
}

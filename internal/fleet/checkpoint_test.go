package fleet_test

import (
	"context"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/RelevanceAI/harvest/client/errors"
	"github.com/RelevanceAI/harvest/internal/base/logf"
	"github.com/RelevanceAI/harvest/internal/base/secret"
	"github.com/RelevanceAI/harvest/internal/engine"
	"github.com/RelevanceAI/harvest/internal/fleet"
	"github.com/RelevanceAI/harvest/internal/fleet/checkpoint"
	"github.com/RelevanceAI/harvest/internal/fleet/record"
	"github.com/RelevanceAI/harvest/internal/fleet/spec"
)

// Checkpoint writes a file. Tests of real engines cover the sandboxes that are restored from one.
func (b *box) Checkpoint(ctx context.Context, dir string) error {
	if err := b.s.called(ctx, "checkpoint"); err != nil {
		return err
	}
	if err := os.Mkdir(dir, 0o700); err != nil {
		return err
	}
	return os.WriteFile(filepath.Join(dir, "pages"), make([]byte, 1000), 0o600)
}

func newMemoryWorld(t *testing.T) *world {
	t.Helper()
	w := newWorld(t)
	w.caps.Memory, w.opts.Checkpoints = true, filepath.Join(t.TempDir(), "checkpoints")
	return w
}

// there lists the directory of checkpoints.
func (w *world) there(t *testing.T) []string {
	t.Helper()
	entries, err := os.ReadDir(w.opts.Checkpoints)
	if err != nil {
		t.Fatal(err)
	}
	var names []string
	for _, e := range entries {
		names = append(names, e.Name())
	}
	return names
}

// reopen ends a server and starts the next one.
func (w *world) reopen(t *testing.T, f *fleet.Fleet) *fleet.Fleet {
	t.Helper()
	if err := f.Close(t.Context()); err != nil {
		t.Fatal(err)
	}
	w.stub.mu.Lock()
	w.uses = map[string]int{} // a process that ends uses nothing
	w.stub.mu.Unlock()
	return w.open(t)
}

var week = fleet.CheckpointOptions{Keep: 7 * 24 * time.Hour, Note: []byte("a note")}

func kept(t *testing.T, f *fleet.Fleet, ref string, opts fleet.CheckpointOptions) checkpoint.Checkpoint {
	t.Helper()
	c, err := f.Checkpoint(t.Context(), account, ref, opts)
	if err != nil {
		t.Fatalf("checkpoint: %v", err)
	}
	return c
}

// TestCheckpointsOutliveServers checks that a checkpoint's record describes its sandbox, that the next server has the
// record too, and that a restored sandbox matches it.
//
// mission: A4, A8
func TestCheckpointsOutliveServers(t *testing.T) {
	t.Parallel()
	w := newMemoryWorld(t)
	w.opts.Warm = 1
	f := w.open(t)
	network := spec.Network{Mode: "none"}
	first := create(t, f, spec.Request{
		Name: "first", Tags: map[string]string{"team": "a", "harvest.session": "ses_1"},
		Env: map[string]string{"A": "of-the-environment"}, Workdir: "/work", User: "1000", CPU: 2,
		Memory: 1 << 30, Network: network, Ports: []int{80}, TimeoutSeconds: 7200, IdleTimeoutSeconds: 600,
	})
	x := start(t, f, first.ID, fleet.ExecRequest{Args: []string{"run"}, Timeout: time.Hour, Detach: true,
		Background: true})
	made := kept(t, f, first.ID, week)
	if made.Sandbox.ID != first.ID || made.Size != 1000 || made.Life != 2*time.Hour ||
		!slices.Equal(made.Background, []string{x.ID()}) ||
		made.Expires.Sub(made.Created) != week.Keep ||
		made.CommandLimits[x.ID()].Round(time.Minute) != time.Hour {
		t.Errorf("the record is %+v", made)
	}
	if got := get(t, f, first.ID); got.Status != record.Running {
		t.Errorf("the sandbox is %s", got.Status)
	}
	if err := f.Destroy(t.Context(), account, first.ID); err != nil {
		t.Fatal(err)
	}
	err := filepath.WalkDir(w.opts.Checkpoints, func(name string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		info, err := d.Info()
		if err == nil && info.Mode().Perm()&0o077 != 0 {
			t.Errorf("others may read %s: %v", name, info.Mode())
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	record, err := os.ReadFile(filepath.Join(w.opts.Checkpoints, made.ID, "record.json"))
	if err != nil || strings.Contains(string(record), "of-the-environment") {
		t.Errorf("the record is %s, %v", record, err)
	}

	f = w.reopen(t, f)
	found, err := f.Checkpoints().Find(account, made.ID)
	if err != nil || found.Size != made.Size || !found.Created.Equal(made.Created) || string(found.Note) != "a note" ||
		len(f.Checkpoints().List(account)) != 1 {
		t.Fatalf("the next server has %+v, %v", found, err)
	}
	second, err := f.Restore(t.Context(), account, made.ID, fleet.RestoreRequest{Name: "second"})
	if err != nil {
		t.Fatal(err)
	}
	if second.ID == first.ID || second.Name != "second" || second.Image != first.Image ||
		second.ImageID != first.ImageID || second.Workdir != "/work" || second.User != "1000" ||
		second.Limits != first.Limits || second.Network.Mode != "none" || !slices.Equal(second.Ports, first.Ports) ||
		second.IdleTimeoutSeconds != 600 || second.Warm {
		t.Errorf("what was restored is %+v", second)
	}
	if len(second.Tags) != 1 || second.Tags["team"] != "a" {
		t.Errorf("it has the tags %v", second.Tags)
	}
	if life := second.Expires.Sub(second.Started).Round(time.Second); life != 2*time.Hour {
		t.Errorf("it lives %s", life)
	}
	spec := w.specs[len(w.specs)-1]
	if spec.Checkpoint != filepath.Join(w.opts.Checkpoints, made.ID, "state") || spec.Limits != first.Limits ||
		spec.Image != "" || len(spec.Env) > 0 || spec.Network.Mode != engine.NetworkNone {
		t.Errorf("the engine was asked for %+v", spec)
	}
	if _, err := f.Restore(t.Context(), account, made.ID, fleet.RestoreRequest{Name: "second"}); !errors.Is(err,
		errors.Conflict) {
		t.Errorf("a name that is taken: %v", err)
	}
	w.opts.Quotas.Sandboxes = 1
	f = w.reopen(t, f)
	_, err = f.Restore(t.Context(), account, made.ID, fleet.RestoreRequest{})
	wantError(t, err, errors.Exhausted, "1 sandbox at once")
	if len(w.there(t)) != 1 {
		t.Errorf("there are %v", w.there(t))
	}
}

// TestRestoredCommandsHaveTheirLimits checks that the commands of a restored sandbox are listed again, with time limits
// that start at the restore.
func TestRestoredCommandsHaveTheirLimits(t *testing.T) {
	t.Parallel()
	w := newMemoryWorld(t)
	f := w.open(t)
	first := create(t, f, spec.Request{})
	x := start(t, f, first.ID, fleet.ExecRequest{Args: []string{"run"}, Timeout: time.Hour, Detach: true})
	made := kept(t, f, first.ID, week)
	w.hooks["processes"] = func() { // it continues in the restored sandbox
		w.stub.mu.Lock()
		defer w.stub.mu.Unlock()
		for _, b := range w.boxes {
			if b.handle.ID != first.ID && len(b.procs) == 0 {
				b.procs[x.ID()] = &proc{b: b, id: x.ID(), cmd: engine.Command{Args: []string{"run"}},
					started: time.Now().Add(-24 * time.Hour), done: make(chan struct{})}
			}
		}
	}
	second, err := f.Restore(t.Context(), account, made.ID, fleet.RestoreRequest{})
	if err != nil {
		t.Fatal(err)
	}
	stored, err := w.store.Get(t.Context(), second.ID)
	if err != nil || len(stored.Commands) != 1 || stored.Commands[0].ID != x.ID() ||
		stored.Commands[0].Deadline.Sub(stored.Started).Round(time.Minute) != time.Hour {
		t.Errorf("the commands %+v of one that began at %v, %v", stored.Commands, stored.Started, err)
	}
	if w.box(t, second.ID).proc(t, x.ID()).gotKilled() {
		t.Error("it was killed")
	}
	again := kept(t, f, second.ID, week)
	if limit := again.CommandLimits[x.ID()].Round(time.Minute); limit != time.Hour {
		t.Errorf("the next checkpoint gives it %s", limit)
	}
}

// mission: A4, A7
func TestCheckpointsAreTheirAccounts(t *testing.T) {
	t.Parallel()
	w := newMemoryWorld(t)
	f := w.open(t)
	sb := create(t, f, spec.Request{})
	made := kept(t, f, sb.ID, week)
	const other = "other"
	_, err := f.Checkpoint(t.Context(), other, sb.ID, week)
	wantError(t, err, errors.NotFound)
	_, err = f.Checkpoints().Find(other, made.ID)
	wantError(t, err, errors.NotFound, "make another checkpoint")
	_, err = f.Restore(t.Context(), other, made.ID, fleet.RestoreRequest{})
	wantError(t, err, errors.NotFound)
	for _, id := range []string{"", ".", "..", "chk_none", "../" + made.ID, strings.ToUpper(made.ID)} {
		_, err := f.Restore(t.Context(), account, id, fleet.RestoreRequest{})
		wantError(t, err, errors.NotFound)
	}
	if list := f.Checkpoints().List(other); len(list) != 0 {
		t.Errorf("another account has %v", list)
	}
	// With an engine that does not support it, the error "not found" still comes first.
	w.caps.Memory = false
	f = w.reopen(t, f)
	_, err = f.Restore(t.Context(), other, made.ID, fleet.RestoreRequest{})
	wantError(t, err, errors.NotFound)
	_, err = f.Restore(t.Context(), account, made.ID, fleet.RestoreRequest{})
	wantError(t, err, errors.Unsupported, "snapshot of the files")
	_, err = f.Checkpoint(t.Context(), account, sb.ID, week)
	wantError(t, err, errors.Unsupported, "snapshot of the files")
}

// mission: A4
func TestCheckpointsThatFailLeaveNothing(t *testing.T) {
	t.Parallel()
	w := newMemoryWorld(t)
	f := w.open(t)
	sb := create(t, f, spec.Request{})
	w.fail("checkpoint", errors.Remedy(errors.Newf(errors.Conflict, "it has a terminal"), "end it"))
	_, err := f.Checkpoint(t.Context(), account, sb.ID, week)
	wantError(t, err, errors.Conflict, "terminal", "end it", "checkpoint")
	with := create(t, f, spec.Request{Volumes: []spec.Mount{{Name: "data", Path: "/data"}}})
	_, err = f.Checkpoint(t.Context(), account, with.ID, week)
	wantError(t, err, errors.Unsupported, "volume", "create it without volumes")
	w.memory = 1 << 60
	w.caps.Usage = true
	_, err = f.Checkpoint(t.Context(), account, sb.ID, week)
	wantError(t, err, errors.Exhausted, "free some")
	w.memory = 0
	if err := f.Destroy(t.Context(), account, sb.ID); err != nil {
		t.Fatal(err)
	}
	_, err = f.Checkpoint(t.Context(), account, sb.ID, week)
	wantError(t, err, errors.Gone)
	if left := w.there(t); len(left) != 0 || len(f.Checkpoints().List(account)) != 0 {
		t.Errorf("%v is left", left)
	}
}

// mission: A8
func TestHalfCheckpointsAreRemoved(t *testing.T) {
	t.Parallel()
	w := newMemoryWorld(t)
	f := w.open(t)
	sb := create(t, f, spec.Request{})
	made, damaged := kept(t, f, sb.ID, week), kept(t, f, sb.ID, week)
	put := func(name, text string) {
		t.Helper()
		name = filepath.Join(w.opts.Checkpoints, name)
		if err := errors.Join(os.MkdirAll(filepath.Dir(name), 0o700),
			os.WriteFile(name, []byte(text), 0o600)); err != nil {
			t.Fatal(err)
		}
	}
	put(filepath.Join(damaged.ID, "record.json"), "{")
	put("chk_half/state.part/pages", "memory")
	put("chk_whole/state/pages", "memory")
	put("chk_other/record.json", `{"id":"`+made.ID+`"}`)
	f = w.reopen(t, f)
	if left := w.there(t); !slices.Equal(left, []string{made.ID}) {
		t.Errorf("%v is left", left)
	}
	if _, err := f.Checkpoints().Find(account, damaged.ID); !errors.Is(err, errors.NotFound) {
		t.Errorf("a damaged one: %v", err)
	}
	if _, err := f.Restore(t.Context(), account, made.ID, fleet.RestoreRequest{}); err != nil {
		t.Error(err)
	}
}

// later gives the world a clock that is ahead by the stored duration.
func (w *world) later() *atomic.Int64 {
	by := new(atomic.Int64)
	w.opts.Clock = func() time.Time { return time.Now().Add(time.Duration(by.Load())) }
	return by
}

func TestCheckpointsExpire(t *testing.T) {
	t.Parallel()
	w := newMemoryWorld(t)
	later := w.later()
	f := w.open(t)
	sb := create(t, f, spec.Request{})
	short, long := kept(t, f, sb.ID, fleet.CheckpointOptions{Keep: time.Hour}), kept(t, f, sb.ID, week)
	later.Store(int64(time.Hour))
	f = w.reopen(t, f)
	if _, err := f.Checkpoints().Find(account, short.ID); !errors.Is(err, errors.NotFound) {
		t.Errorf("one that has expired: %v", err)
	}
	if list := f.Checkpoints().List(account); len(list) != 1 || list[0].ID != long.ID {
		t.Errorf("there are %+v", list)
	}
	if left := w.there(t); !slices.Equal(left, []string{long.ID}) {
		t.Errorf("%v is left", left)
	}
}

// TestCheckpointsKeepSecretsHidden checks that the log hides a checkpoint's secrets as long as the checkpoint or a
// sandbox made from it exists, even if the secrets themselves are gone.
//
// mission: F6
func TestCheckpointsKeepSecretsHidden(t *testing.T) {
	t.Parallel()
	w := newMemoryWorld(t)
	later := w.later()
	const value = "secret-of-a-checkpoint"
	v := withSecrets(t, w, map[string]secret.Pairs{"s": {"TOKEN": value}})
	f := w.open(t)
	hidden := func(when string, want bool) {
		t.Helper()
		if got := logf.Redacted(value) == logf.Hidden; got != want {
			t.Errorf("%s, that the value is hidden is %t", when, got)
		}
	}
	sb := create(t, f, spec.Request{Secrets: []string{"s"}})
	if err := v.Delete(t.Context(), account, "s"); err != nil {
		t.Fatal(err)
	}
	made := kept(t, f, sb.ID, week)
	if err := f.Destroy(t.Context(), account, sb.ID); err != nil {
		t.Fatal(err)
	}
	hidden("with a checkpoint", true)
	f = w.reopen(t, f)
	hidden("after a restart", true)
	again, err := f.Restore(t.Context(), account, made.ID, fleet.RestoreRequest{})
	if err != nil || !slices.Equal(again.Secrets, []string{"s"}) {
		t.Fatalf("%+v, %v", again, err)
	}
	later.Store(int64(week.Keep))
	w.opts.Timeouts.MaxLife = 30 * 24 * time.Hour
	f = w.reopen(t, f)
	if len(w.there(t)) != 0 {
		t.Errorf("%v is left", w.there(t))
	}
	if err := f.Destroy(t.Context(), account, again.ID); err != nil {
		t.Fatal(err)
	}
	hidden("when all has ended", false)
}

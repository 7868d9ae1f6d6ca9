package fleet_test

import (
	"context"
	"encoding/json"
	"maps"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/RelevanceAI/harvest/client/errors"
	"github.com/RelevanceAI/harvest/internal/base/secret"
	"github.com/RelevanceAI/harvest/internal/engine"
	"github.com/RelevanceAI/harvest/internal/fleet"
	"github.com/RelevanceAI/harvest/internal/fleet/record"
	"github.com/RelevanceAI/harvest/internal/fleet/reserve"
	"github.com/RelevanceAI/harvest/internal/fleet/spec"
)

// Spec makes it an engine.Described.
func (b *box) Spec(ctx context.Context) (engine.Spec, error) {
	return b.spec, b.s.called(ctx, "spec")
}

// sleepers is a world in which sandboxes can be suspended.
func sleepers(t *testing.T) (*world, *secret.Vault) {
	t.Helper()
	w := newSnapshotWorld(t)
	w.library = true
	return w, withSecrets(t, w, map[string]secret.Pairs{"login": {"TOKEN": "sleepers-token"}})
}

func suspend(t *testing.T, f *fleet.Fleet, ref string) record.Sandbox {
	t.Helper()
	sb, err := fleet.Suspend(t.Context(), f, account, ref)
	if err != nil {
		t.Fatalf("suspend: %v", err)
	}
	return sb
}

// snapshots lists the images that snapshots made.
func (w *world) snapshots() []string {
	w.stub.mu.Lock()
	defer w.stub.mu.Unlock()
	var ids []string
	for _, img := range w.others {
		ids = append(ids, img.ID)
	}
	return ids
}

// inUse lists the images and volumes in use.
func (w *world) inUse() string {
	w.stub.mu.Lock()
	defer w.stub.mu.Unlock()
	return strings.Join(slices.Sorted(maps.Keys(w.uses)), " ")
}

// TestSuspendAndWake checks that a suspended sandbox has nothing of the engine and reserves nothing, and that the next
// operation makes it again as it was: also its environment, which is in no record, and after a restart of the server.
func TestSuspendAndWake(t *testing.T) {
	t.Parallel()
	w, v := sleepers(t)
	f := w.open(t)
	first := create(t, f, spec.Request{
		Name: "dev", Env: map[string]string{"KEY": "sleepers-environment"}, Secrets: []string{"login"},
		Volumes: []spec.Mount{{Name: "data", Path: "/data"}}, Workdir: "/work", User: "1000", Hostname: "desk",
		Network: spec.Network{Mode: "none"}, Ports: []int{80}, CPU: 2, StartCommand: []string{"polite", "serve"},
	})
	if first.StartCommand[1] != "serve" || len(w.box(t, first.ID).procs) != 1 {
		t.Errorf("the start command: %v", first.StartCommand)
	}
	made := w.specs[0]
	for cycle := range 3 {
		asleep := suspend(t, f, "dev")
		if asleep.Status != record.Suspended || asleep.Suspended.IsZero() || asleep.Suspension.Image == "" ||
			!strings.Contains(asleep.Reason, "request") || len(w.refs()) != 0 {
			t.Fatalf("suspended: %+v; the engine has %v", asleep, w.refs())
		}
		if again := suspend(t, f, first.ID); again.Suspension.Image != asleep.Suspension.Image {
			t.Errorf("suspended twice: %+v", again.Suspension)
		}
		if got := f.Stats(); got.CPU != 0 || got.Memory != 0 || got.Sandboxes[record.Suspended] != 1 {
			t.Errorf("it reserves %+v", got)
		}
		if got := w.snapshots(); !slices.Equal(got, []string{asleep.Suspension.Image}) {
			t.Errorf("images: %v, not that of the suspension alone", got)
		}
		if cycle == 1 {
			f = w.reopen(t, f)
		}
		if got := get(t, f, "dev"); got.Status != record.Suspended {
			t.Errorf("a look wakes it: %s", got.Status)
		}
		wait(t, start(t, f, "dev", fleet.ExecRequest{Args: []string{"echo", "awake"}}))
		awake := get(t, f, "dev")
		if awake.Status != record.Running || !awake.Suspended.IsZero() || awake.Reason != "" ||
			awake.ImageID != asleep.Suspension.Image || awake.Image != first.Image || awake.SuspendedSeconds <= 0 {
			t.Errorf("awake: %+v", awake)
		}
		now := w.specs[len(w.specs)-1]
		now.Stage, now.Image = nil, made.Image
		want := made
		want.Stage = nil
		if diff := cmp.Diff(want, now); diff != "" {
			t.Errorf("the engine's sandbox is another one (-was +is):\n%s", diff)
		}
		if args := w.box(t, first.ID).proc(t, "p1").cmd.Args; args[1] != "serve" {
			t.Errorf("it starts %v", args)
		}
	}
	stored, err := w.store.Get(t.Context(), first.ID)
	if err != nil {
		t.Fatal(err)
	}
	w.mu.Lock()
	everything, err := json.Marshal([]any{stored, w.events})
	w.mu.Unlock()
	if err != nil || strings.Contains(string(everything), "sleepers-") {
		t.Errorf("records and events have a secret: %v", err)
	}
	if _, err := secret.Kept(t.Context(), v, first.ID); !errors.Is(err, errors.NotFound) {
		t.Errorf("the environment of a running sandbox is kept: %v", err)
	}
	const cycle = " suspended stage woken"
	if got := w.seen(first.ID); strings.Count(got, "suspended") != 3 || strings.Count(got, "woken") != 3 {
		t.Errorf("events: %s, want 3 ×%s", got, cycle)
	}
	if err := f.Destroy(t.Context(), account, "dev"); err != nil {
		t.Fatal(err)
	}
	if got := w.snapshots(); len(got) != 0 || w.inUse() != "" {
		t.Errorf("the end leaves the images %v, and uses of %s", got, w.inUse())
	}
}

// TestEndOfSuspended checks that a suspended sandbox can be ended, and that its image is the snapshot on its end.
func TestEndOfSuspended(t *testing.T) {
	t.Parallel()
	w, v := sleepers(t)
	f := w.open(t)
	for _, onEnd := range []bool{false, true} {
		sb := create(t, f, spec.Request{Env: map[string]string{"A": "b"}, SnapshotOnEnd: onEnd})
		asleep := suspend(t, f, sb.ID)
		if onEnd {
			f = w.reopen(t, f)
		}
		if err := f.Destroy(t.Context(), account, sb.ID); err != nil {
			t.Fatal(err)
		}
		ended, left := get(t, f, sb.ID), w.snapshots()
		if ended.Status != record.Terminated || ended.SnapshotError != "" || !ended.Suspended.IsZero() ||
			(ended.SnapshotID == asleep.Suspension.Image) != onEnd || len(left) != map[bool]int{true: 1}[onEnd] {
			t.Errorf("on end %t: %+v; images %v", onEnd, ended, left)
		}
		if _, err := secret.Kept(t.Context(), v, sb.ID); !errors.Is(err, errors.NotFound) {
			t.Errorf("its environment is kept: %v", err)
		}
		if given := slices.Contains(w.kept, asleep.Suspension.Image); given != onEnd {
			t.Errorf("the image is given to the user: %t, want %t", given, onEnd)
		}
		if _, err := f.Exec(t.Context(), account, sb.ID, fleet.ExecRequest{Args: []string{"echo"}}); !errors.Is(err,
			errors.Gone) {
			t.Errorf("after the end: %v", err)
		}
	}
}

// TestIdleSuspension checks that a sandbox is suspended at its idle limit, that its lifetime and its cost stand still,
// and that it ends when it was suspended for too long.
func TestIdleSuspension(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w, _ := sleepers(t)
		w.opts.Prices = reserve.Prices{CPUSecond: 1}
		w.opts.Suspended = 10 * time.Hour
		f := w.open(t)
		sb := create(t, f, spec.Request{TimeoutSeconds: 3600, IdleTimeoutSeconds: 600, IdleAction: spec.IdleSuspend,
			CPU: 1, StartCommand: []string{"polite"}})
		time.Sleep(11 * time.Minute)
		synctest.Wait()
		asleep := get(t, f, sb.ID)
		if asleep.Status != record.Suspended || asleep.Reason != "it was idle for 10m0s" || len(w.refs()) != 0 {
			t.Fatalf("idle: %s %s", asleep.Status, asleep.Reason)
		}
		time.Sleep(5 * time.Hour)
		if got := get(t, f, sb.ID); got.Status != record.Suspended || got.Cost != asleep.Cost {
			t.Errorf("after hours: %s, $%v, before $%v", got.Status, got.Cost, asleep.Cost)
		}
		if _, err := f.Extend(t.Context(), account, sb.ID, 2*time.Hour, 0); err != nil {
			t.Error(err)
		}
		wait(t, start(t, f, sb.ID, fleet.ExecRequest{Args: []string{"echo"}}))
		if left := time.Until(get(t, f, sb.ID).Expires).Round(time.Minute); left != 2*time.Hour {
			t.Errorf("it woke with %v left, not the 2 h that it was given while it slept", left)
		}
		time.Sleep(11 * time.Minute)
		synctest.Wait()
		time.Sleep(10*time.Hour + time.Minute)
		synctest.Wait()
		ended := get(t, f, sb.ID)
		if ended.Status != record.Terminated || ended.End != record.EndLifetime ||
			!strings.Contains(ended.Reason, "suspended for 10h") || len(w.snapshots()) != 0 {
			t.Errorf("suspended for too long: %+v", ended)
		}
		// It ran twice for ten minutes and some seconds.
		if ran := ended.Ran(ended.Ended).Round(time.Minute); ran != 20*time.Minute || int(ended.Cost)/60 != 20 {
			t.Errorf("it ran %v for $%v", ran, ended.Cost)
		}
		totals, err := f.Totals(t.Context(), account)
		if err != nil || int(totals.Seconds)/60 != 20 {
			t.Errorf("totals: %+v, %v", totals, err)
		}
	})
}

// TestRefusedSuspensions checks what cannot be suspended, and that it continues.
func TestRefusedSuspensions(t *testing.T) {
	t.Parallel()
	w, _ := sleepers(t)
	f := w.open(t)
	sb := create(t, f, spec.Request{})
	want := func(ref string, kind errors.Kind, words ...string) {
		t.Helper()
		_, err := fleet.Suspend(t.Context(), f, account, ref)
		wantError(t, err, kind, words...)
	}
	want("nosuch", errors.NotFound, "nosuch")
	release, err := f.Hold(t.Context(), account, sb.ID)
	if err != nil {
		t.Fatal(err)
	}
	want(sb.ID, errors.Conflict, "in use")
	release()
	x := start(t, f, sb.ID, fleet.ExecRequest{Args: []string{"run"}, Detach: true})
	want(sb.ID, errors.Conflict, "1 detached commands")
	if err := x.Kill(t.Context()); err != nil {
		t.Fatal(err)
	}
	wait(t, x)
	own := create(t, f, spec.Request{Tags: map[string]string{"harvest.session": "ses_1"}})
	want(own.ID, errors.Conflict, "session")
	if err := f.Destroy(t.Context(), account, own.ID); err != nil {
		t.Fatal(err)
	}
	want(own.ID, errors.Gone, "terminated")
	if _, err := fleet.Wake(t.Context(), f, account, sb.ID); err != nil {
		t.Errorf("wake a running sandbox: %v", err)
	}
	for _, req := range []spec.Request{{IdleAction: "sleep"}, {IdleAction: spec.IdleSuspend},
		{StartCommand: []string{""}}} {
		if _, err := f.Create(t.Context(), account, req); !errors.Is(err, errors.Invalid) {
			t.Errorf("%+v: %v", req, err)
		}
	}
	suspend(t, f, sb.ID)

	plain := newWorld(t)
	f = plain.open(t)
	_, err = f.Create(t.Context(), account, spec.Request{IdleAction: spec.IdleSuspend, IdleTimeoutSeconds: 60})
	wantError(t, err, errors.Unsupported, "snapshots")
	sb = create(t, f, spec.Request{})
	_, err = fleet.Suspend(t.Context(), f, account, sb.ID)
	wantError(t, err, errors.Unsupported, "suspend")
}

// TestFailedSuspensions checks that a sandbox continues if it cannot be suspended, with its start command, and that
// nothing is left of the attempt.
func TestFailedSuspensions(t *testing.T) {
	t.Parallel()
	w, _ := sleepers(t)
	broken := &brokenStore{Store: w.store}
	w.store = broken
	f := w.open(t)
	sb := create(t, f, spec.Request{StartCommand: []string{"polite"}})
	for _, c := range []struct {
		name  string
		fails func()
		left  int // images: the stub keeps what it says that it did not, and what might be recorded must stay
	}{
		{"snapshot", func() { w.fail("snapshot", errors.Newf(errors.Exhausted, "it is full")) }, 0},
		{"keep", func() { w.fail("keep", errors.Newf(errors.Exhausted, "it is full")) }, 1},
		{"spec", func() { w.fail("spec", errors.Newf(errors.Unsupported, "it is full")) }, 0},
		{"record", func() { broken.set(errors.Newf(errors.Exhausted, "it is full")) }, 1},
	} {
		before := len(w.snapshots())
		c.fails()
		_, err := fleet.Suspend(t.Context(), f, account, sb.ID)
		broken.set(nil)
		if err == nil || !strings.Contains(errors.Message(err), "full") {
			t.Errorf("%s: %v", c.name, err)
		}
		if got := get(t, f, sb.ID); got.Status != record.Running || len(w.refs()) != 1 {
			t.Fatalf("%s: %s, the engine has %v", c.name, got.Status, w.refs())
		}
		if left := w.snapshots(); len(left)-before != c.left {
			t.Errorf("%s leaves %v", c.name, left)
		}
		wait(t, start(t, f, sb.ID, fleet.ExecRequest{Args: []string{"echo"}}))
		if !serving(w.box(t, sb.ID)) {
			t.Errorf("%s ended the start command", c.name)
		}
	}
	suspend(t, f, sb.ID)
	w.fail("create", errors.Newf(errors.Unavailable, "no room"))
	_, err := f.Exec(t.Context(), account, sb.ID, fleet.ExecRequest{Args: []string{"echo"}})
	wantError(t, err, errors.Unavailable, "no room")
	if got := get(t, f, sb.ID); got.Status != record.Suspended || len(w.refs()) != 0 {
		t.Errorf("after a failure to wake: %s, the engine has %v", got.Status, w.refs())
	}
	// It wakes although that cannot be recorded, and the next server can wake it again.
	broken.set(errors.Newf(errors.Exhausted, "it is full"))
	wait(t, start(t, f, sb.ID, fleet.ExecRequest{Args: []string{"echo"}}))
	broken.set(nil)
	f = w.reopen(t, f)
	if got := get(t, f, sb.ID); got.Status != record.Suspended || len(w.refs()) != 0 {
		t.Errorf("the next server: %s, the engine has %v", got.Status, w.refs())
	}
	wait(t, start(t, f, sb.ID, fleet.ExecRequest{Args: []string{"echo"}}))
}

// serving reports whether the program polite runs in a sandbox.
func serving(b *box) bool {
	b.s.mu.Lock()
	defer b.s.mu.Unlock()
	for _, p := range b.procs {
		if p.cmd.Args[0] == "polite" && p.exit == nil {
			return true
		}
	}
	return false
}

// TestQuotaOfSuspended checks that suspended sandboxes count for the quota of sandboxes alone, and wake only within the
// others.
func TestQuotaOfSuspended(t *testing.T) {
	t.Parallel()
	w, _ := sleepers(t)
	w.opts.Quotas = reserve.Quotas{Sandboxes: 2, CPU: 1}
	f := w.open(t)
	first := create(t, f, spec.Request{CPU: 1})
	suspend(t, f, first.ID)
	second := create(t, f, spec.Request{CPU: 1})
	_, err := fleet.Wake(t.Context(), f, account, first.ID)
	wantError(t, err, errors.Exhausted, "quota")
	suspend(t, f, second.ID)
	_, err = f.Create(t.Context(), account, spec.Request{})
	wantError(t, err, errors.Exhausted, "2 sandboxes")
	if _, err := fleet.Wake(t.Context(), f, account, first.ID); err != nil {
		t.Error(err)
	}
}

// TestManyWakeOnce checks that any number of operations at once wake a sandbox once.
func TestManyWakeOnce(t *testing.T) {
	t.Parallel()
	w, _ := sleepers(t)
	f := w.open(t)
	sb := create(t, f, spec.Request{})
	suspend(t, f, sb.ID)
	before := len(w.specs)
	var all sync.WaitGroup
	for range 10 {
		all.Go(func() {
			x, err := f.Exec(t.Context(), account, sb.ID, fleet.ExecRequest{Args: []string{"echo"}})
			if err == nil {
				_, err = x.Wait(t.Context())
			}
			if err != nil {
				t.Error(err)
			}
		})
	}
	all.Wait()
	if made := len(w.specs) - before; made != 1 || len(w.refs()) != 1 {
		t.Errorf("it woke %d times; the engine has %v", made, w.refs())
	}
}

// TestSuspensionWithProcesses checks that an engine with checkpoints keeps the processes, and that a sandbox wakes from
// its files if its checkpoint is of no use.
func TestSuspensionWithProcesses(t *testing.T) {
	t.Parallel()
	w, _ := sleepers(t)
	w.caps.Memory, w.opts.Checkpoints = true, t.TempDir()
	f := w.open(t)
	sb := create(t, f, spec.Request{Env: map[string]string{"A": "b"}})
	x := start(t, f, sb.ID, fleet.ExecRequest{Args: []string{"run"}, Detach: true, Timeout: time.Hour})
	asleep := suspend(t, f, sb.ID)
	if asleep.Suspension.Checkpoint == "" || len(asleep.Suspension.Commands) != 1 ||
		asleep.Suspension.Commands[0].ID != x.ID() || len(w.there(t)) != 1 {
		t.Fatalf("kept: %+v, on the disk %v", asleep.Suspension, w.there(t))
	}
	f = w.reopen(t, f)
	wait(t, start(t, f, sb.ID, fleet.ExecRequest{Args: []string{"echo"}}))
	if last := w.specs[len(w.specs)-1]; !strings.Contains(last.Checkpoint, asleep.Suspension.Checkpoint) ||
		last.Env["A"] != "b" {
		t.Errorf("it woke from %+v", last)
	}
	awake := get(t, f, sb.ID)
	if awake.ImageID != sb.ImageID || awake.Suspension.Image != "" || len(w.snapshots()) != 0 || len(w.there(t)) != 0 {
		t.Errorf("awake: %+v; left: %v, %v", awake, w.snapshots(), w.there(t))
	}

	asleep = suspend(t, f, sb.ID)
	w.fail("create", errors.Newf(errors.Unsupported, "another version"))
	wait(t, start(t, f, sb.ID, fleet.ExecRequest{Args: []string{"echo"}}))
	if last := w.specs[len(w.specs)-1]; last.Checkpoint != "" || last.Image != asleep.Suspension.Image ||
		len(w.there(t)) != 0 {
		t.Errorf("without its checkpoint it woke from %+v", last)
	}

	// What cannot be checkpointed is suspended with its files alone.
	w.fail("checkpoint", errors.Newf(errors.Conflict, "it has a terminal"))
	if got := suspend(t, f, sb.ID); got.Suspension.Checkpoint != "" || len(w.snapshots()) != 1 {
		t.Errorf("kept: %+v, images %v", got.Suspension, w.snapshots())
	}

	// The image that it runs from stays while its processes are kept.
	wait(t, start(t, f, sb.ID, fleet.ExecRequest{Args: []string{"echo"}}))
	base := get(t, f, sb.ID).ImageID
	for range 2 {
		asleep = suspend(t, f, sb.ID)
		if asleep.Suspension.Checkpoint == "" || asleep.Suspension.Base != base || len(w.snapshots()) != 2 {
			t.Errorf("kept: %+v, images %v", asleep.Suspension, w.snapshots())
		}
		f = w.reopen(t, f)
		wait(t, start(t, f, sb.ID, fleet.ExecRequest{Args: []string{"echo"}}))
		if got := get(t, f, sb.ID); got.ImageID != base || !slices.Equal(w.snapshots(), []string{base}) {
			t.Errorf("it runs from %s; images %v", got.ImageID, w.snapshots())
		}
	}
	if err := f.Destroy(t.Context(), account, sb.ID); err != nil || len(w.snapshots()) != 0 || w.inUse() != "" {
		t.Errorf("the end leaves %v and uses of %s, %v", w.snapshots(), w.inUse(), err)
	}
}

// TestUnfinishedSuspensions checks that the next server finds a sandbox that the last one was suspending or waking, and
// removes what is not needed.
func TestUnfinishedSuspensions(t *testing.T) {
	t.Parallel()
	w, _ := sleepers(t)
	w.caps.Memory, w.opts.Checkpoints = true, t.TempDir()
	f := w.open(t)
	sb := create(t, f, spec.Request{})
	// A checkpoint without a record, and a sandbox of the engine beside a suspended one.
	if _, err := f.Checkpoint(t.Context(), account, sb.ID, fleet.CheckpointOptions{Keep: time.Hour,
		Note: []byte(`{"suspension":true}`)}); err != nil {
		t.Fatal(err)
	}
	f = w.reopen(t, f)
	if got := get(t, f, sb.ID); got.Status != record.Running || len(w.there(t)) != 0 {
		t.Errorf("%s, checkpoints %v", got.Status, w.there(t))
	}
	suspend(t, f, sb.ID)
	w.stub.add(engine.Handle{ID: sb.ID})
	f = w.reopen(t, f)
	if got := get(t, f, sb.ID); got.Status != record.Suspended || len(w.refs()) != 0 || len(w.there(t)) != 1 {
		t.Errorf("%s, the engine has %v", got.Status, w.refs())
	}
	if _, err := fleet.Wake(t.Context(), f, account, sb.ID); err != nil {
		t.Error(err)
	}
	if got := w.inUse(); got != sb.ImageID {
		t.Errorf("in use: %s", got)
	}
}

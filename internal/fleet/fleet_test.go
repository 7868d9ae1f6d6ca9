package fleet_test

import (
	"context"
	"fmt"
	"math"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/RelevanceAI/harvest/client/errors"
	"github.com/RelevanceAI/harvest/internal/engine"
	"github.com/RelevanceAI/harvest/internal/fleet"
	"github.com/RelevanceAI/harvest/internal/fleet/record"
	"github.com/RelevanceAI/harvest/internal/fleet/reserve"
	"github.com/RelevanceAI/harvest/internal/fleet/spec"
	"github.com/RelevanceAI/harvest/internal/image"
)

// mission: A6, 1.2, 1.8, 1.9
func TestCreateHandsEverythingToTheEngine(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		w.hooks["create"] = func() { time.Sleep(20 * time.Millisecond) }
		f := w.open(t)
		before := time.Now().UTC()
		sb := create(t, f, spec.Request{
			Image: baseImage.ID, Name: "web", Tags: map[string]string{"team": "x"}, Env: map[string]string{"A": "b=c"},
			Workdir: "/w", User: "u:g", Hostname: "host", Engine: "stub",
			Volumes: []spec.Mount{{Name: "v", Path: "/v", ReadOnly: true}, {Name: "v", Path: "/again"}},
			CPU:     0.5, Memory: 64 << 20, Disk: 1 << 30, Processes: 10, Files: 20, TimeoutSeconds: 60,
			IdleTimeoutSeconds: 30,
		})
		want := engine.Spec{
			ID: sb.ID, Account: account, Image: baseImage.ID, Hostname: "host", Env: map[string]string{"A": "b=c"},
			Dir: "/w", User: "u:g",
			Mounts:  []engine.Mount{{Volume: "acme~v", Path: "/v", ReadOnly: true}, {Volume: "acme~v", Path: "/again"}},
			Limits:  engine.Limits{CPU: 0.5, Memory: 64 << 20, Disk: 1 << 30, Processes: 10, Files: 20},
			Network: engine.Network{Mode: "none"},
		}
		got := w.specs[0]
		got.Stage = nil
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("spec (-want +got):\n%s", diff)
		}
		ready := before.Add(20 * time.Millisecond)
		rec := record.Sandbox{
			ID: sb.ID, Account: account, Name: "web", Tags: map[string]string{"team": "x"}, Engine: "stub",
			Isolation: "stub",
			Image:     baseImage.ID, ImageID: baseImage.ID, Workdir: "/w", User: "u:g",
			Volumes: []spec.Mount{{Name: "v", Path: "/v", ReadOnly: true}, {Name: "v", Path: "/again"}},
			Network: spec.Network{Mode: "none"}, Limits: want.Limits, Status: record.Running,
			Stages: []record.Stage{{Name: "image"}, {Name: "volumes"}, {Name: "boot", MS: 3},
				{Name: "create", MS: 17}},
			Created: before, Started: ready, Expires: ready.Add(time.Minute), LastUsed: ready, IdleTimeoutSeconds: 30,
			Handle: engine.Handle{ID: sb.ID, Ref: "ref1"},
		}
		if diff := cmp.Diff(rec, sb); diff != "" {
			t.Errorf("record (-want +got):\n%s", diff)
		}
		stored, err := w.store.Get(t.Context(), sb.ID)
		if err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(rec, stored); diff != "" {
			t.Errorf("stored record (-want +got):\n%s", diff)
		}
		if !w.volumes["acme~v"] || w.uses["acme~v"] != 2 || w.uses[baseImage.ID] != 1 {
			t.Errorf("volumes %v, in use %v", w.volumes, w.uses)
		}
		if got := w.seen(sb.ID); got != "starting ready" {
			t.Errorf("events: %s", got)
		}
		var stages []string
		for _, e := range w.events {
			if e.Type == record.EventStage {
				stages = append(stages, e.Stage.Name)
			}
		}
		if got := strings.Join(stages, " "); got != "image volumes boot create" {
			t.Errorf("stage events: %s", got)
		}
	})
}

func TestDefaults(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		sb := create(t, w.open(t), spec.Request{})
		want := engine.Limits{CPU: 1, Memory: 2 << 30, Disk: 10 << 30, Processes: 1024, Files: 65536}
		if sb.Limits != want || w.specs[0].Limits != want {
			t.Errorf("limits %+v, the engine's %+v, want %+v", sb.Limits, w.specs[0].Limits, want)
		}
		if sb.Image != "base" || sb.Network.Mode != "none" || sb.IdleTimeoutSeconds != 0 ||
			sb.Expires.Sub(sb.Started) != 24*time.Hour {
			t.Errorf("record: %+v", sb)
		}
	})
}

// TestDefaultOfVolumeFiles checks that volumes have a limit of files without being asked for one, which follows the
// default disk limit and has a lower bound, and that a request cannot raise it.
func TestDefaultOfVolumeFiles(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		defaults engine.Limits
		want     int
	}{
		"of the default disk": {engine.Limits{}, 10 << 30 / (16 << 10)},
		"of a small disk":     {engine.Limits{Disk: 1 << 30}, 200_000},
		"as configured":       {engine.Limits{VolumeFiles: 500}, 500},
	} {
		w := newWorld(t)
		w.caps.Limits = append(w.caps.Limits, "volume_files")
		w.opts.Defaults = c.defaults
		f := w.open(t)
		sb := create(t, f, spec.Request{Disk: 20 << 30})
		if sb.Limits.VolumeFiles != c.want || w.specs[0].Limits.VolumeFiles != c.want {
			t.Errorf("%s: limit %d, the engine's %d, want %d", name, sb.Limits.VolumeFiles,
				w.specs[0].Limits.VolumeFiles, c.want)
		}
		_, err := f.Create(t.Context(), account, spec.Request{VolumeFiles: c.want + 1})
		wantError(t, err, errors.Invalid, "volume_files", "limits.volume_files")
		if sb := create(t, f, spec.Request{VolumeFiles: 10}); sb.Limits.VolumeFiles != 10 {
			t.Errorf("%s: a lower limit is %d", name, sb.Limits.VolumeFiles)
		}
	}
}

func TestMissingBaseImageIsBuilt(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.absent = true
	f := w.open(t)
	var steps []string
	progress := func(p image.Progress) { steps = append(steps, p.Step) }
	create(t, f, spec.Request{Progress: progress})
	create(t, f, spec.Request{Progress: progress})
	if w.builds != 1 || !slices.Equal(steps, []string{"install base"}) {
		t.Errorf("%d builds with the steps %q, want one", w.builds, steps)
	}
	_, err := f.Create(t.Context(), account, spec.Request{Image: "none"})
	wantError(t, err, errors.NotFound, "none", "harvest image ls", "| image")
}

// mission: A9, A3, 1.6
func TestCreateFailsAtEveryStage(t *testing.T) {
	t.Parallel()
	boom := errors.Newf(errors.Unavailable, "boom")
	for _, c := range []struct{ call, stage string }{
		{"find", "image"}, {"use", "image"}, {"volume", "volumes"}, {"create", "create"},
	} {
		t.Run(c.call, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t)
			f := w.open(t)
			w.fail(c.call, boom)
			sb, err := f.Create(t.Context(), account,
				spec.Request{Name: "n", Volumes: []spec.Mount{{Name: "v", Path: "/v"}}})
			wantError(t, err, errors.Unavailable, "boom", "| "+c.stage)
			if sb.Status != record.Failed || sb.Reason != "boom" || sb.FailedStage != c.stage || sb.Ended.IsZero() {
				t.Errorf("record: %+v", sb)
			}
			if stored := get(t, f, sb.ID); stored.Status != record.Failed || stored.FailedStage != c.stage {
				t.Errorf("stored record: %+v", stored)
			}
			if len(w.refs()) != 0 || len(w.uses) != 0 {
				t.Errorf("left: sandboxes %v, in use %v", w.refs(), w.uses)
			}
			if got := w.seen(sb.ID); got != "starting failed" {
				t.Errorf("events: %s", got)
			}
			create(t, f, spec.Request{Name: "n"}) // the name is free again
			if s := f.Stats(); s.Failed != 1 || s.Sandboxes[record.Running] != 1 || s.Created != 2 {
				t.Errorf("stats: %+v", s)
			}
		})
	}
}

func TestStageInsideTheEngineWins(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	f := w.open(t)
	w.fail("create", errors.Stage(errors.Errorf("secret detail"), "mount"))
	sb, err := f.Create(t.Context(), account, spec.Request{})
	wantError(t, err, errors.Internal, "| mount")
	if sb.FailedStage != "mount" || strings.Contains(sb.Reason, "secret") {
		t.Errorf("stage %q, reason %q", sb.FailedStage, sb.Reason)
	}
}

// brokenStore fails on demand.
type brokenStore struct {
	record.Store
	mu  sync.Mutex
	err error // guarded by mu; of every Put
}

func (s *brokenStore) set(err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.err = err
}

func (s *brokenStore) Put(ctx context.Context, sb record.Sandbox) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.err != nil {
		return s.err
	}
	return s.Store.Put(ctx, sb)
}

func TestNothingIsCreatedWithoutARecord(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	broken := &brokenStore{Store: w.store}
	w.store = broken
	f := w.open(t)
	broken.set(errors.Newf(errors.Exhausted, "the disk is full"))
	_, err := f.Create(t.Context(), account, spec.Request{})
	wantError(t, err, errors.Exhausted, "the disk is full", "| admit")
	if len(w.refs()) != 0 || len(f.Stats().Sandboxes) != 0 {
		t.Errorf("left: %v, %+v", w.refs(), f.Stats())
	}
}

// mission: A8
func TestSandboxEndsEvenIfThatCannotBeRecorded(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	broken := &brokenStore{Store: w.store}
	w.store = broken
	f := w.open(t)
	w.hooks["create"] = func() { broken.set(errors.Newf(errors.Exhausted, "the disk is full")) }
	sb := create(t, f, spec.Request{})
	wantError(t, f.Destroy(t.Context(), account, sb.ID), errors.Exhausted, "the disk is full")
	if len(w.refs()) != 0 || len(f.Stats().Sandboxes) != 0 {
		t.Errorf("left: %v, %+v", w.refs(), f.Stats())
	}
}

// mission: A7, 1.7
func TestReferences(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	f := w.open(t)
	one := create(t, f, spec.Request{Name: "one"})
	two := create(t, f, spec.Request{})
	if err := f.Destroy(t.Context(), account, two.ID); err != nil {
		t.Fatal(err)
	}
	unique := func(sb, other record.Sandbox) string {
		for i := range sb.ID {
			if sb.ID[i] != other.ID[i] {
				return sb.ID[:i+1]
			}
		}
		t.Fatal("two sandboxes have one id")
		return ""
	}
	for ref, want := range map[string]string{
		one.ID: one.ID, two.ID: two.ID, "one": one.ID, strings.ToUpper(one.ID[4:]): "",
		"sbx_" + strings.ToUpper(one.ID[4:]): one.ID,
		unique(one, two):                     one.ID, unique(two, one): two.ID, "on": "", "": "", "sbx_zzz": "",
		"sbx_" + strings.Repeat("0", 999): "", "sbx_%": "",
	} {
		sb, err := f.Get(t.Context(), account, ref)
		if want == "" {
			wantError(t, err, errors.NotFound, "harvest sandbox ls")
		} else if err != nil || sb.ID != want {
			t.Errorf("Get(%q) = %s, %v, want %s", ref, sb.ID, err, want)
		}
	}
	_, err := f.Get(t.Context(), account, "sbx_0")
	wantError(t, err, errors.Invalid, one.ID, two.ID, "more characters of the id")

	for _, ref := range []string{one.ID, "one", two.ID} {
		_, get := f.Get(t.Context(), "other", ref)
		_, exec := f.Exec(t.Context(), "other", ref, fleet.ExecRequest{Args: []string{"run"}})
		_, list := f.Processes(t.Context(), "other", ref)
		_, attach := f.Attach(t.Context(), "other", ref, "p1", engine.Stdio{})
		_, extend := f.Extend(t.Context(), "other", ref, time.Hour, 0)
		_, out := f.CopyOut(t.Context(), "other", ref, "/x")
		for what, err := range map[string]error{
			"Get": get, "Exec": exec, "Processes": list, "Attach": attach, "Extend": extend, "CopyOut": out,
			"CopyIn":  f.CopyIn(t.Context(), "other", ref, "/x", strings.NewReader("")),
			"Destroy": f.Destroy(t.Context(), "other", ref),
		} {
			if !errors.Is(err, errors.NotFound) {
				t.Errorf("%s of another account's sandbox: %v, want NotFound", what, err)
			}
		}
	}
}

func TestList(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		w.opts.Prices = reserve.Prices{CPUSecond: 1}
		f := w.open(t)
		one := create(t, f, spec.Request{Name: "one", Tags: map[string]string{"k": "v"}})
		time.Sleep(2 * time.Millisecond) // ids of one millisecond are in no order when other tests have other clocks
		two := create(t, f, spec.Request{Name: "two"})
		if err := f.Destroy(t.Context(), account, "two"); err != nil {
			t.Fatal(err)
		}
		time.Sleep(10 * time.Second)
		for _, c := range []struct {
			filter record.Filter
			want   []string
		}{
			{record.Filter{}, []string{one.ID}},
			{record.Filter{All: true}, []string{two.ID, one.ID}},
			{record.Filter{All: true, Tags: map[string]string{"k": "v"}}, []string{one.ID}},
			{record.Filter{Statuses: []record.Status{record.Terminated}}, []string{two.ID}},
			{record.Filter{All: true, Limit: 1}, []string{two.ID}},
			{record.Filter{All: true, Limit: 1, Before: two.ID}, []string{one.ID}},
		} {
			found, err := f.List(t.Context(), account, c.filter)
			if err != nil {
				t.Fatal(err)
			}
			var ids []string
			for _, sb := range found {
				ids = append(ids, sb.ID)
				if sb.ID == one.ID && math.Abs(sb.Cost-10) > 0.01 {
					t.Errorf("the running sandbox has cost %v so far, want about 10", sb.Cost)
				}
			}
			if !slices.Equal(ids, c.want) {
				t.Errorf("List(%+v) = %v, want %v", c.filter, ids, c.want)
			}
		}
		_, err := f.List(t.Context(), account, record.Filter{Statuses: []record.Status{"odd"}})
		wantError(t, err, errors.Invalid, "odd", "creating")
		_, err = f.List(t.Context(), account, record.Filter{Limit: -1})
		wantError(t, err, errors.Invalid, "-1")
	})
}

func TestNamesAreUniqueWhileTheyAreUsed(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	f := w.open(t)
	create(t, f, spec.Request{Name: "n"})
	_, err := f.Create(t.Context(), account, spec.Request{Name: "n"})
	wantError(t, err, errors.Conflict, `"n"`, "another name", "| admit")
	if _, err := f.Create(t.Context(), "other", spec.Request{Name: "n"}); err != nil {
		t.Errorf("the name in another account: %v", err)
	}
	if err := f.Destroy(t.Context(), account, "n"); err != nil {
		t.Fatal(err)
	}
	create(t, f, spec.Request{Name: "n"})
}

func TestQuotas(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name   string
		quotas reserve.Quotas
		words  []string
	}{
		{"sandboxes", reserve.Quotas{Sandboxes: 2}, []string{"2 sandboxes at once", "2 are in use",
			"1 more is requested"}},
		{"cpu", reserve.Quotas{CPU: 2.5}, []string{"2.5 cores at once", "2 are in use", "1 more is requested"}},
		{"memory", reserve.Quotas{Memory: 5 << 30}, []string{"5GiB of memory at once", "4GiB are in use",
			"2GiB more are requested"}},
		{"two of them", reserve.Quotas{Sandboxes: 2, CPU: 2.5}, []string{"2 things are wrong", "sandboxes", "cores"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t)
			w.opts.Quotas = c.quotas
			f := w.open(t)
			one := create(t, f, spec.Request{})
			create(t, f, spec.Request{})
			_, err := f.Create(t.Context(), account, spec.Request{})
			wantError(t, err, errors.Exhausted, append(c.words, "remove unused sandboxes", "| admit")...)
			if _, err := f.Create(t.Context(), "other", spec.Request{}); err != nil {
				t.Errorf("another account: %v", err)
			}
			if err := f.Destroy(t.Context(), account, one.ID); err != nil {
				t.Fatal(err)
			}
			create(t, f, spec.Request{})
		})
	}
}

func TestQuotasOfTenthsAddUp(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.opts.Quotas = reserve.Quotas{CPU: 0.3}
	f := w.open(t)
	for range 3 {
		create(t, f, spec.Request{CPU: 0.1})
	}
	_, err := f.Create(t.Context(), account, spec.Request{CPU: 0.1})
	wantError(t, err, errors.Exhausted, "0.3 cores", "0.1 more are")
}

// mission: A11
func TestManyAtOnceRespectTheQuota(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	const quota, attempts = 40, 100
	w.opts.Quotas = reserve.Quotas{Sandboxes: quota}
	f := w.open(t)
	var mu sync.Mutex
	made, refused := map[string]bool{}, 0
	var wg sync.WaitGroup
	for i := range attempts {
		wg.Go(func() {
			sb, err := f.Create(t.Context(), account, spec.Request{Name: fmt.Sprintf("n%d", i)})
			mu.Lock()
			defer mu.Unlock()
			switch {
			case err == nil:
				made[sb.ID] = true
			case errors.Is(err, errors.Exhausted):
				refused++
			default:
				t.Errorf("create: %v", err)
			}
		})
	}
	wg.Wait()
	if len(made) != quota || refused != attempts-quota || len(w.refs()) != quota {
		t.Errorf("%d made, %d refused, the engine has %d; want %d made", len(made), refused, len(w.refs()), quota)
	}
	for id := range made {
		wg.Go(func() {
			if err := f.Destroy(t.Context(), account, id); err != nil {
				t.Errorf("destroy: %v", err)
			}
		})
	}
	wg.Wait()
	if len(w.refs()) != 0 || len(w.uses) != 0 {
		t.Errorf("left: %v, %v", w.refs(), w.uses)
	}
}

// mission: A12
func TestCost(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		w.caps.GPUs = true
		w.opts.Prices = reserve.Prices{CPUSecond: 0.01, GiBSecond: 0.001, GPUSecond: map[string]float64{"T4": 1}}
		w.hooks["create"] = func() { time.Sleep(time.Minute) } // is not paid for
		f := w.open(t)
		sb := create(t, f, spec.Request{CPU: 2, Memory: 512 << 20})
		time.Sleep(100 * time.Second)
		const want = 100 * (2*0.01 + 0.5*0.001)
		if got := get(t, f, sb.ID).Cost; math.Abs(got-want) > 1e-9 {
			t.Errorf("cost so far is %v, want %v", got, want)
		}
		if err := f.Destroy(t.Context(), account, sb.ID); err != nil {
			t.Fatal(err)
		}
		time.Sleep(time.Hour)
		if got := get(t, f, sb.ID).Cost; math.Abs(got-want) > 1e-9 {
			t.Errorf("cost in the end is %v, want %v", got, want)
		}
		for gpu, price := range map[string]float64{"T4": 1, "T4:3": 3, "L4": 0} { // the last has no price
			sb := create(t, f, spec.Request{CPU: 1, Memory: 1 << 30, GPU: gpu})
			time.Sleep(10 * time.Second)
			if got, want := get(t, f, sb.ID).Cost, 10*(0.01+0.001+price); math.Abs(got-want) > 1e-9 {
				t.Errorf("with %s it costs %v, want %v", gpu, got, want)
			}
		}
	})
}

// mission: F5
func TestOptionsAreChecked(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	_, err := fleet.Open(t.Context(), fleet.Options{Store: w.store})
	wantError(t, err, errors.Internal)
	_, err = fleet.Open(t.Context(), fleet.Options{
		Engine: w.stub, Store: w.store, Machine: spec.Machine{CPU: 2, Memory: 1 << 30},
		Defaults: engine.Limits{CPU: 4, Memory: 2 << 30, Disk: -1},
		Quotas:   reserve.Quotas{CPU: -1}, Prices: reserve.Prices{GiBSecond: -1}, Warm: -1,
		Timeouts: spec.Timeouts{MaxLife: time.Hour, Life: 2 * time.Hour, Idle: -1, Exec: 2 * time.Hour},
	})
	wantError(t, err, errors.Invalid, "9 things are wrong", "default number of cores", "default memory", "disk",
		"quotas", "prices", "default lifetime", "idle", "commands", "warm pool")

	f, err := fleet.Open(t.Context(), fleet.Options{Engine: w.stub, Store: w.store}) // on the machine that this is
	if err != nil {
		t.Fatal(err)
	}
	create(t, f, spec.Request{})
	if f.Capabilities().Isolation != "stub" {
		t.Errorf("capabilities: %+v", f.Capabilities())
	}
	if err := f.Close(t.Context()); err != nil {
		t.Fatal(err)
	}
	_, err = f.Create(t.Context(), account, spec.Request{})
	wantError(t, err, errors.Unavailable, "shutting down")
	_, err = f.Exec(t.Context(), account, "sbx_1", fleet.ExecRequest{})
	wantError(t, err, errors.Unavailable, "shutting down")
	_, err = f.Attach(t.Context(), account, "sbx_1", "p1", engine.Stdio{})
	wantError(t, err, errors.Unavailable, "shutting down")
	_, err = f.Extend(t.Context(), account, "sbx_1", time.Hour, 0)
	wantError(t, err, errors.Unavailable, "shutting down")
	wantError(t, f.Destroy(t.Context(), account, "sbx_1"), errors.Unavailable, "shutting down")
}

// TestWithin checks that the largest sandbox is that of the machine, or that of the quotas.
func TestWithin(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.opts.Quotas = reserve.Quotas{CPU: 3}
	if got, want := fleet.Within(w.open(t)).Machine, (spec.Machine{CPU: 3, Memory: 16 << 30}); got != want {
		t.Errorf("%+v, want %+v", got, want)
	}
	w = newWorld(t)
	w.opts.Quotas = reserve.Quotas{CPU: 300, Memory: 1 << 30}
	if got, want := fleet.Within(w.open(t)).Machine, (spec.Machine{CPU: 8, Memory: 1 << 30}); got != want {
		t.Errorf("%+v, want %+v", got, want)
	}
}

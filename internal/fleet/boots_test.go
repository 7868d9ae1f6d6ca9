package fleet_test

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/RelevanceAI/harvest/client/errors"
	"github.com/RelevanceAI/harvest/internal/fleet"
	"github.com/RelevanceAI/harvest/internal/fleet/record"
	"github.com/RelevanceAI/harvest/internal/fleet/spec"
	"github.com/RelevanceAI/harvest/internal/image"
)

// TestBootsAreBounded checks that a burst of requests boots a few sandboxes at a time, in the order of requests, and
// that the waiting ones report this.
func TestBootsAreBounded(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		w.opts.Boots = 2
		var mu sync.Mutex
		booting, most := 0, 0
		w.hooks["create"] = func() {
			mu.Lock()
			booting++
			most = max(most, booting)
			mu.Unlock()
			time.Sleep(time.Second)
			mu.Lock()
			booting--
			mu.Unlock()
		}
		f := w.open(t)
		begin := time.Now()
		var order, told []string
		var all sync.WaitGroup
		for i := range 6 {
			name := fmt.Sprintf("b%d", i)
			all.Go(func() {
				sb := create(t, f, spec.Request{Name: name, Progress: func(p image.Progress) {
					mu.Lock()
					defer mu.Unlock()
					told = append(told, name+" "+p.Step+" "+p.Message)
				}})
				mu.Lock()
				defer mu.Unlock()
				order = append(order, fmt.Sprintf("%s after %s", name, time.Since(begin)))
				waited := slices.ContainsFunc(sb.Stages,
					func(s record.Stage) bool { return s.Name == fleet.StepQueue && s.MS >= 1000 })
				if events := w.seen(sb.ID); waited != (i >= 2) || waited != strings.Contains(events, "queued") {
					t.Errorf("%s: stages %v, events %s", name, sb.Stages, events)
				}
			})
			synctest.Wait()
		}
		all.Wait()
		slices.Sort(order) // of two that end in the same moment
		if got, want := strings.Join(order, ", "),
			"b0 after 1s, b1 after 1s, b2 after 2s, b3 after 2s, b4 after 3s, b5 after 3s"; got != want || most != 2 {
			t.Errorf("%d at once: %s", most, got)
		}
		if got, want := strings.Join(told, ", "),
			"b2 queue 0 wait before it, b3 queue 1 wait before it, b4 queue 2 wait before it, b5 queue 3 wait before it"; got != want {
			t.Errorf("told %q, want %q", got, want)
		}
	})
}

// TestQueuedBootsEnd checks that a queued sandbox ends like any other: with its request, with its removal, and with the
// server. It leaves nothing behind.
func TestQueuedBootsEnd(t *testing.T) {
	t.Parallel()
	for name, end := range map[string]func(t *testing.T, f *fleet.Fleet, id string, cancel context.CancelFunc){
		"request": func(_ *testing.T, _ *fleet.Fleet, _ string, cancel context.CancelFunc) { cancel() },
		"removal": func(t *testing.T, f *fleet.Fleet, id string, _ context.CancelFunc) {
			if err := f.Destroy(t.Context(), account, id); err != nil {
				t.Error(err)
			}
		},
		"server": func(t *testing.T, f *fleet.Fleet, _ string, _ context.CancelFunc) {
			if err := f.Close(t.Context()); err != nil {
				t.Error(err)
			}
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				w := newWorld(t)
				w.opts.Boots = 1
				w.hooks["create"] = func() { time.Sleep(time.Hour) }
				f := w.open(t)
				go func() { _, _ = f.Create(t.Context(), account, spec.Request{}) }()
				synctest.Wait()
				ctx, cancel := context.WithCancel(t.Context())
				defer cancel()
				failed := make(chan error, 1)
				go func() {
					_, err := f.Create(ctx, account, spec.Request{Name: "waits",
						Volumes: []spec.Mount{{Name: "v", Path: "/v"}}})
					failed <- err
				}()
				synctest.Wait()
				id := get(t, f, "waits").ID
				end(t, f, id, cancel)
				if err := <-failed; errors.StageOf(err) != fleet.StepQueue {
					t.Errorf("stage %q: %v", errors.StageOf(err), err)
				}
				synctest.Wait()
				if sb := get(t, f, id); sb.Status != record.Failed || sb.FailedStage != fleet.StepQueue ||
					w.uses["acme~v"] != 0 {
					t.Errorf("%s in %s, in use %v", sb.Status, sb.FailedStage, w.uses)
				}
				if name == "server" {
					return
				}
				time.Sleep(time.Hour + time.Second) // the slot is free, and no other boot uses it
				before := time.Now()
				w.hooks["create"] = func() {}
				create(t, f, spec.Request{})
				if took := time.Since(before); took > 0 || len(w.refs()) != 2 {
					t.Errorf("the next one took %s; the engine has %v", took, w.refs())
				}
			})
		})
	}
}

// TestWarmSandboxDoesNotQueue checks that a booted sandbox does not wait for other boots.
func TestWarmSandboxDoesNotQueue(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		w.opts.Boots, w.opts.Warm = 1, 1
		f := w.open(t)
		synctest.Wait()
		w.hooks["create"] = func() { time.Sleep(time.Hour) }
		go func() { _, _ = f.Create(t.Context(), account, spec.Request{Cold: true}) }()
		synctest.Wait()
		before := time.Now()
		if sb := create(t, f, spec.Request{}); !sb.Warm || time.Since(before) > 0 {
			t.Errorf("warm %t after %s", sb.Warm, time.Since(before))
		}
		synctest.Wait()
		if err := f.Close(t.Context()); err != nil { // the pool waits for its turn, too
			t.Error(err)
		}
	})
}

// TestHungBootReleasesItsSlot checks that a boot that hangs does not block the others forever.
func TestHungBootReleasesItsSlot(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		w.opts.Boots = 1
		slow := time.Hour
		w.hooks["create"] = func() {
			took := slow
			slow = 0
			time.Sleep(took)
		}
		f := w.open(t)
		go func() { _, _ = f.Create(t.Context(), account, spec.Request{}) }()
		synctest.Wait()
		before := time.Now()
		create(t, f, spec.Request{})
		if took := time.Since(before); took < time.Second || took > time.Minute {
			t.Errorf("the next one took %s", took)
		}
		time.Sleep(time.Hour) // the hung one ends, and does not release the slot again
		create(t, f, spec.Request{})
	})
}

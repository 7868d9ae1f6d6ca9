package leftover

import (
	"context"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/RelevanceAI/harvest/client/errors"
	"github.com/RelevanceAI/harvest/internal/engine"
)

// fake is an engine with one sandbox, whose destruction fails for a number of times.
type fake struct {
	engine.Engine
	engine.Sandbox
	start time.Time

	mu       sync.Mutex
	failures int             // guarded by mu; -1: always
	opened   int             // guarded by mu
	gone     bool            // guarded by mu
	tried    []time.Duration // guarded by mu; since start
}

func (f *fake) Open(context.Context, engine.Handle) (engine.Sandbox, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.opened++
	if f.gone {
		return nil, errors.Newf(errors.NotFound, "it is gone")
	}
	return f, nil
}

func (f *fake) Destroy(context.Context) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.tried = append(f.tried, time.Since(f.start))
	if f.failures != 0 {
		f.failures--
		return errors.Newf(errors.Unavailable, "it is busy")
	}
	return nil
}

// opens returns how often the sandbox was opened.
func (f *fake) opens() int {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.opened
}

var handle = engine.Handle{ID: "sbx_1", Ref: "ref"}

// TestDiscardRetriesWithGrowingPauses checks that a sandbox is destroyed again until that works, with pauses of at
// most a minute, and that nothing is left then.
func TestDiscardRetriesWithGrowingPauses(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var tasks sync.WaitGroup
		f := &fake{start: time.Now(), failures: 9}
		r := New(t.Context(), f, &tasks)
		r.Discard(t.Context(), "sbx_1", handle, f)
		if r.Len() != 1 || f.opens() != 0 {
			t.Errorf("%d left after a failure, opened %d times", r.Len(), f.opens())
		}
		tasks.Wait()
		var want []time.Duration
		for _, s := range []int{0, 1, 3, 7, 15, 31, 63, 123, 183, 243} {
			want = append(want, time.Duration(s)*time.Second)
		}
		if diff := cmp.Diff(want, f.tried); diff != "" {
			t.Errorf("tried at (-want +got):\n%s", diff)
		}
		if r.Len() != 0 {
			t.Errorf("%d left", r.Len())
		}
	})
}

// TestReleaseLeftEndsTheRetries checks that a sandbox that is left can be released at once, and that one that no
// longer exists counts as released.
func TestReleaseLeftEndsTheRetries(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var tasks sync.WaitGroup
		f := &fake{start: time.Now(), failures: 1}
		r := New(t.Context(), f, &tasks)
		if err := r.ReleaseLeft(t.Context(), "sbx_1"); err != nil || f.opens() != 0 {
			t.Errorf("nothing was left: %v, opened %d times", err, f.opens())
		}
		r.Retry("sbx_1", handle)
		if err := r.ReleaseLeft(t.Context(), "sbx_1"); !errors.Is(err, errors.Unavailable) || r.Len() != 1 {
			t.Errorf("%v, %d left", err, r.Len())
		}
		f.mu.Lock()
		f.gone = true
		f.mu.Unlock()
		if err := r.ReleaseLeft(t.Context(), "sbx_1"); err != nil || r.Len() != 0 {
			t.Errorf("%v, %d left", err, r.Len())
		}
		tasks.Wait()
		if len(f.tried) != 1 || f.opens() != 2 {
			t.Errorf("tried %v, opened %d times", f.tried, f.opens())
		}
	})
}

// TestRetriesEndWithTheServer checks that retries end when the server closes; the next one finds what is left.
func TestRetriesEndWithTheServer(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var tasks sync.WaitGroup
		ctx, cancel := context.WithCancel(t.Context())
		f := &fake{start: time.Now(), failures: -1}
		r := New(ctx, f, &tasks)
		r.Discard(ctx, "sbx_1", handle, nil)
		time.Sleep(10 * time.Second)
		cancel()
		tasks.Wait()
		if n := len(f.tried); n != 4 || r.Len() != 1 {
			t.Errorf("tried %d times, %d left", n, r.Len())
		}
	})
}

// TestSeveralAreLeft checks that all are released that one sandbox has left, and that nothing is to be released of one
// that has neither a connection nor a handle.
func TestSeveralAreLeft(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var tasks sync.WaitGroup
		f := &fake{start: time.Now(), failures: 1}
		r := New(t.Context(), f, &tasks)
		if err := r.Release(t.Context(), engine.Handle{}, nil); err != nil || f.opens() != 0 {
			t.Errorf("%v, opened %d times", err, f.opens())
		}
		r.Retry("sbx_1", handle)
		r.Retry("sbx_1", handle)
		r.Retry("sbx_1", engine.Handle{ID: "sbx_1", Ref: "other"})
		if err := r.ReleaseLeft(t.Context(), "sbx_1"); !errors.Is(err, errors.Unavailable) || r.Len() != 1 {
			t.Errorf("%v, %d left", err, r.Len())
		}
		tasks.Wait()
		if len(f.tried) != 3 || r.Len() != 0 {
			t.Errorf("tried at %v, %d left", f.tried, r.Len())
		}
	})
}

package tasks

import (
	"context"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/RelevanceAI/harvest/client/errors"
)

// TestCloseWaitsForStartedWork checks that Close waits for work, and for work that this work starts meanwhile.
func TestCloseWaitsForStartedWork(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var g Group
		var ends atomic.Int32
		g.Go(func() {
			time.Sleep(time.Second)
			if g.Begin() {
				t.Error("work begins after Close")
			}
			if !g.Go(func() { time.Sleep(time.Second); ends.Add(1) }) {
				t.Error("unfinished work cannot start more")
			}
			ends.Add(1)
		})
		impatient, cancel := context.WithTimeout(t.Context(), time.Millisecond)
		defer cancel()
		if err := g.CloseWithin(impatient); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("CloseWithin returns %v before the work ends", err)
		}
		g.Close()
		if n := ends.Load(); n != 2 {
			t.Errorf("Close returns after the end of %d of 2", n)
		}
		g.Close()
		if g.Begin() || g.Go(func() { t.Error("work runs after Close") }) {
			t.Error("work is accepted after Close")
		}
		synctest.Wait()
	})
}

// TestWorkMayBeginDuringClose starts work while Close waits. No accepted work may run after Close has returned.
func TestWorkMayBeginDuringClose(t *testing.T) {
	t.Parallel()
	for range 1000 {
		var g Group
		var closed atomic.Bool
		var callers sync.WaitGroup
		work := func() {
			if closed.Load() {
				t.Error("work runs after Close")
			}
		}
		for range 2 {
			callers.Go(func() {
				g.Go(work)
				if g.Begin() {
					g.Go(work)
					work()
					g.Done()
				}
			})
		}
		g.Close()
		closed.Store(true)
		callers.Wait()
	}
}

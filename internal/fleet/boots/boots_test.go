package boots_test

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/RelevanceAI/harvest/client/errors"
	"github.com/RelevanceAI/harvest/internal/fleet/boots"
)

func TestNoBoundAdmitsAll(t *testing.T) {
	t.Parallel()
	for _, n := range []int{0, -1} {
		q := boots.New(n)
		if q != nil {
			t.Fatalf("a queue for %d at once", n)
		}
		for range 100 {
			done := q.Try()
			if done == nil {
				t.Fatal("it refused one")
			}
			done()
		}
	}
}

// TestQueue checks that boots are admitted in the order of their requests, that a boot whose context ends leaves the
// queue, and that Try does not overtake the queue.
func TestQueue(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		q := boots.New(1)
		first := q.Try()
		if first == nil || q.Try() != nil {
			t.Fatal("want one slot")
		}
		order := make(chan string, 3)
		wait := func(ctx context.Context, name string) {
			go func() {
				done, err := q.Wait(ctx)
				if err != nil {
					order <- name + " " + string(errors.KindOf(err))
					return
				}
				order <- name
				time.Sleep(time.Second)
				done()
			}()
			synctest.Wait()
		}
		short, cancel := context.WithCancel(t.Context())
		wait(t.Context(), "a")
		wait(short, "b")
		wait(t.Context(), "c")
		if q.Waiting() != 3 {
			t.Errorf("%d wait", q.Waiting())
		}
		cancel()
		synctest.Wait()
		if got := <-order; got != "b canceled" || q.Waiting() != 2 {
			t.Errorf("%s, %d wait", got, q.Waiting())
		}
		first()
		synctest.Wait()
		if got := <-order; got != "a" || q.Try() != nil {
			t.Errorf("%s was first, or a boot overtook c", got)
		}
		first() // again: it must not free a's slot
		synctest.Wait()
		if len(order) > 0 || q.Waiting() != 1 {
			t.Errorf("%d wait after a slot was released twice", q.Waiting())
		}
		if got := <-order; got != "c" {
			t.Errorf("%s was second", got)
		}
		time.Sleep(time.Second)
		synctest.Wait()
		if done := q.Try(); done == nil {
			t.Error("a slot is missing")
		} else {
			done()
		}
	})
}

// TestSlotsAreReleasedAfterAWhile checks that a boot that hangs holds its slot for half a minute, and does not release
// that of another one when it ends after all.
func TestSlotsAreReleasedAfterAWhile(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		q := boots.New(1)
		hangs := q.Try()
		start := time.Now()
		done, err := q.Wait(t.Context())
		if err != nil || time.Since(start) != 30*time.Second {
			t.Fatalf("admitted after %v: %v", time.Since(start), err)
		}
		hangs()
		if q.Try() != nil {
			t.Error("two boots at once")
		}
		done()
	})
}

package spares

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/RelevanceAI/harvest/client/errors"
	"github.com/RelevanceAI/harvest/internal/base/tasks"
)

// waiting is a session that is ready from the beginning.
type waiting struct {
	name       string
	warm, gone chan struct{}
}

func newWaiting(name string) *waiting {
	w := &waiting{name, make(chan struct{}), make(chan struct{})}
	close(w.warm)
	return w
}

func (w *waiting) Warm() <-chan struct{} { return w.warm }
func (w *waiting) Gone() <-chan struct{} { return w.gone }
func (w *waiting) GiveUp(string)         { close(w.gone) }

// run calls f with a Pool that keeps two sessions of each kind for an hour.
func run(t *testing.T, f func(t *testing.T, p *Pool[*waiting])) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		ctx, stop := context.WithCancel(t.Context())
		var work tasks.Group
		p := NewPool[*waiting](ctx, &work, 2, time.Hour)
		f(t, p)
		p.Close()
		for _, k := range p.kinds {
			for _, s := range k.waiting {
				s.session.GiveUp("")
			}
		}
		stop()
		work.Close()
	})
}

// TestPool checks that the sessions of a kind wait for requests, the newest first, that one that was taken is replaced,
// and that they end when no request has wanted them for their lifetime.
func TestPool(t *testing.T) {
	t.Parallel()
	run(t, func(t *testing.T, p *Pool[*waiting]) {
		var made []*waiting
		create := func(context.Context) (*waiting, error) {
			made = append(made, newWaiting(string(rune('a'+len(made)))))
			return made[len(made)-1], nil
		}
		want := func(waiting int) {
			t.Helper()
			synctest.Wait()
			if n, making := p.Counts(); n != waiting || making != 0 {
				t.Errorf("%d wait, %d are being made, want %d", n, making, waiting)
			}
		}
		if _, ok := p.Pop(Key{1}); ok {
			t.Error("a kind that was never wanted has a session")
		}
		p.Want(Key{1}, "ada", time.Time{}, create)
		want(2)
		got, ok := p.Pop(Key{1})
		if !ok || got.name != "b" {
			t.Fatalf("taken: %+v, %v", got, ok)
		}
		p.Took(Key{1}, true)
		p.Want(Key{1}, "ada", time.Now().Add(time.Minute), create)
		want(1)
		time.Sleep(time.Minute)
		want(2)
		time.Sleep(time.Hour)
		want(0)
		if len(made) != 3 {
			t.Errorf("%d were made, want 3", len(made))
		}
		for _, w := range made {
			select {
			case <-w.gone:
				if w == got {
					t.Error("the session that was taken has ended")
				}
			default:
				if w != got {
					t.Errorf("session %s has not ended", w.name)
				}
			}
		}
	})
}

// TestPoolBacksOff checks that the pause after a failure doubles.
func TestPoolBacksOff(t *testing.T) {
	t.Parallel()
	run(t, func(t *testing.T, p *Pool[*waiting]) {
		begin, tries := time.Now(), []time.Duration{}
		p.Want(Key{1}, "ada", time.Time{}, func(context.Context) (*waiting, error) {
			tries = append(tries, time.Since(begin))
			return nil, errors.Newf(errors.Unavailable, "no room")
		})
		time.Sleep(4 * firstPause)
		synctest.Wait()
		if len(tries) != 3 || tries[0] != 0 || tries[1] != firstPause || tries[2] != 3*firstPause {
			t.Errorf("tried after %v", tries)
		}
	})
}

// TestKindsPerAccount checks that an account with too many kinds loses the oldest, and that another account does not.
func TestKindsPerAccount(t *testing.T) {
	t.Parallel()
	run(t, func(t *testing.T, p *Pool[*waiting]) {
		create := func(context.Context) (*waiting, error) { return newWaiting(""), nil }
		p.Want(Key{99}, "bob", time.Time{}, create)
		for i := range kindsPerAccount + 1 {
			p.Want(Key{byte(i)}, "ada", time.Time{}, create)
			time.Sleep(time.Second)
		}
		synctest.Wait()
		_, first := p.Pop(Key{0})
		_, second := p.Pop(Key{1})
		_, other := p.Pop(Key{99})
		if first || !second || !other {
			t.Errorf("the first kind waits: %v, the second: %v, the other account's: %v", first, second, other)
		}
	})
}

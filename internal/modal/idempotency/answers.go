// Package idempotency does an operation once for all attempts of a request.
package idempotency

import (
	"context"
	"sync"
	"time"

	"github.com/RelevanceAI/harvest/client/errors"
)

// Kept is how long the answer to a request is kept for repetitions: clients retry for some seconds.
const Kept = 10 * time.Minute

// Answers keeps answers by the key that a client sends with each attempt of a request. A retry after a lost answer then
// changes nothing twice. Transient failures are not kept. The zero value is ready to use.
type Answers struct {
	mu    sync.Mutex
	calls map[string]*call // guarded by mu; by key
}

type call struct {
	done   chan struct{}
	value  any
	err    error
	expire time.Time // guarded by Answers.mu; zero while it runs
}

// Transient reports whether the same request may succeed later.
func Transient(err error) bool {
	switch errors.KindOf(err) {
	case errors.Unavailable, errors.Timeout, errors.Canceled, errors.Internal, errors.Exhausted:
		return true
	}
	return false
}

// Keep records until a given time that an earlier server has done the operation, so that it is not repeated.
func (a *Answers) Keep(key string, value any, until time.Time) {
	a.mu.Lock()
	defer a.mu.Unlock()
	c := &call{done: make(chan struct{}), value: value, expire: until}
	close(c.done)
	a.set(key, c)
}

func (a *Answers) set(key string, c *call) {
	if a.calls == nil {
		a.calls = map[string]*call{}
	}
	a.calls[key] = c
}

// Do calls do once for a key, with start, which must run it in the background. do continues when ctx ends, for the next
// attempt.
func Do[T any](ctx context.Context, a *Answers, key string, start func(func()), do func() (T, error)) (T, error) {
	a.mu.Lock()
	for k, old := range a.calls {
		if !old.expire.IsZero() && time.Now().After(old.expire) {
			delete(a.calls, k)
		}
	}
	running := a.calls[key]
	if running == nil {
		running = &call{done: make(chan struct{})}
		a.set(key, running)
		start(func() {
			running.value, running.err = do()
			a.mu.Lock()
			running.expire = time.Now().Add(Kept)
			if Transient(running.err) {
				delete(a.calls, key)
			}
			a.mu.Unlock()
			close(running.done)
		})
	}
	a.mu.Unlock()
	var zero T
	select {
	case <-running.done:
		value, _ := running.value.(T)
		return value, running.err
	case <-ctx.Done():
		return zero, ctx.Err()
	}
}

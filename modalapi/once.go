package modalapi

import (
	"context"
	"sync"
	"time"

	"google.golang.org/grpc/codes"

	"github.com/RelevanceAI/harvest/errors"
)

const (
	alreadyExists = codes.AlreadyExists
	notFound      = codes.NotFound
)

// replayed is how long the answer to a request is kept for repetitions: clients retry for some seconds.
const replayed = 10 * time.Minute

// once keeps answers by the key that a client sends with each attempt of a request. A retry after a lost answer
// then changes nothing twice. Transient failures are not kept.
type once struct {
	mu    sync.Mutex
	calls map[string]*call // guarded by mu; by account, operation and key
}

type call struct {
	done   chan struct{}
	value  any
	err    error
	expire time.Time // guarded by once.mu; zero while it runs
}

// again reports whether the same request may succeed later.
func again(err error) bool {
	switch errors.KindOf(err) {
	case errors.Unavailable, errors.Timeout, errors.Canceled, errors.Internal, errors.Exhausted:
		return true
	}
	return false
}

// once1 calls do once for each idempotency key; without a key, on each call. do continues when ctx ends, for
// the next attempt.
func once1[T any](ctx context.Context, s *Server, what string, do func() (T, error)) (T, error) {
	c := callerOf(ctx)
	if c.key == "" {
		return do()
	}
	return once2(ctx, s, c.Account+" "+c.KeyID+" "+what+" "+c.key, do)
}

// keep records until a given time that an earlier server has done the operation, so that it is not repeated.
func (o *once) keep(key string, value any, until time.Time) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.calls == nil {
		o.calls = map[string]*call{}
	}
	c := &call{done: make(chan struct{}), value: value, expire: until}
	close(c.done)
	o.calls[key] = c
}

// once2 calls do once for a key.
func once2[T any](ctx context.Context, s *Server, key string, do func() (T, error)) (T, error) {
	o := &s.once
	o.mu.Lock()
	for k, old := range o.calls {
		if !old.expire.IsZero() && time.Now().After(old.expire) {
			delete(o.calls, k)
		}
	}
	running := o.calls[key]
	if running == nil {
		running = &call{done: make(chan struct{})}
		if o.calls == nil {
			o.calls = map[string]*call{}
		}
		o.calls[key] = running
		s.tasks.Go(func() {
			running.value, running.err = do()
			o.mu.Lock()
			running.expire = time.Now().Add(replayed)
			if again(running.err) {
				delete(o.calls, key)
			}
			o.mu.Unlock()
			close(running.done)
		})
	}
	o.mu.Unlock()
	var zero T
	select {
	case <-running.done:
		value, _ := running.value.(T)
		return value, running.err
	case <-ctx.Done():
		return zero, ctx.Err()
	}
}

// Package leftover destroys sandboxes on their engine, and retries until nothing is left of them.
package leftover

import (
	"context"
	"slices"
	"sync"
	"time"

	"github.com/RelevanceAI/harvest/client/errors"
	"github.com/RelevanceAI/harvest/internal/base/logf"
	"github.com/RelevanceAI/harvest/internal/engine"
)

const (
	releaseLimit = 2 * time.Minute // limit for one attempt of the engine to destroy a sandbox
	firstPause   = time.Second     // between attempts; doubled each time
	longestPause = time.Minute
)

// Remover destroys sandboxes. All methods may be called concurrently.
type Remover struct {
	engine engine.Engine
	ctx    context.Context // of retries
	tasks  *sync.WaitGroup // counts them

	mu sync.Mutex
	// left is guarded by mu; by ID: ended, but not completely released. A sandbox that was suspended or carried over
	// may have left several.
	left map[string][]engine.Handle
}

// New returns a Remover for an engine, which retries until ctx ends.
func New(ctx context.Context, e engine.Engine, tasks *sync.WaitGroup) *Remover {
	return &Remover{engine: e, ctx: ctx, tasks: tasks, left: map[string][]engine.Handle{}}
}

// Len returns how many sandboxes are left.
func (r *Remover) Len() int {
	r.mu.Lock()
	defer r.mu.Unlock()
	return len(r.left)
}

// Release destroys the sandbox on the engine. box may be nil if only its handle is known. Without either, as for a
// suspended sandbox, there is nothing to destroy.
func (r *Remover) Release(ctx context.Context, h engine.Handle, box engine.Sandbox) (err error) {
	if box == nil && h == (engine.Handle{}) {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, releaseLimit)
	defer cancel()
	if box == nil {
		if box, err = r.engine.Open(ctx, h); errors.Is(err, errors.NotFound) {
			return nil
		}
		if err != nil {
			return errors.Wrapf(err, "open %s to destroy it", h.Ref)
		}
	}
	return errors.Wrapf(box.Destroy(ctx), "destroy %s", h.Ref)
}

// Discard destroys an unwanted sandbox, if need be with retries in the background.
func (r *Remover) Discard(ctx context.Context, id string, h engine.Handle, box engine.Sandbox) {
	ctx = context.WithoutCancel(ctx)
	if err := r.Release(ctx, h, box); err != nil {
		logf.Errorf(ctx, "release the resources of %s: %v", id, err)
		r.Retry(id, h)
	}
}

// Retry makes the Remover destroy a sandbox in the background, after Release failed. It does not wait.
func (r *Remover) Retry(id string, h engine.Handle) {
	r.mu.Lock()
	known := len(r.left[id]) > 0
	if !slices.Contains(r.left[id], h) {
		r.left[id] = append(r.left[id], h)
	}
	r.mu.Unlock()
	if !known {
		r.tasks.Go(func() { r.sweep(id) })
	}
}

// ReleaseLeft destroys what is left of a sandbox, now. It does nothing if there is nothing.
func (r *Remover) ReleaseLeft(ctx context.Context, id string) error {
	for {
		h, ok := r.handle(id)
		if !ok {
			return nil
		}
		if err := r.Release(ctx, h, nil); err != nil {
			return err
		}
		r.mu.Lock()
		r.left[id] = slices.DeleteFunc(slices.Clone(r.left[id]), func(other engine.Handle) bool { return other == h })
		if len(r.left[id]) == 0 {
			delete(r.left, id)
		}
		r.mu.Unlock()
		logf.Infof(ctx, "released the remaining resources of %s", id)
	}
}

func (r *Remover) handle(id string) (h engine.Handle, ok bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if len(r.left[id]) == 0 {
		return engine.Handle{}, false
	}
	return r.left[id][0], true
}

// sweep releases the remains of a sandbox, with as many retries as necessary.
func (r *Remover) sweep(id string) {
	ctx := logf.With(r.ctx, "sandbox_id", id)
	timer := time.NewTimer(firstPause)
	defer timer.Stop()
	for pause := firstPause; ; {
		select {
		case <-r.ctx.Done():
			return
		case <-timer.C:
		}
		err := r.ReleaseLeft(ctx, id)
		if err == nil {
			return
		}
		logf.Warnf(ctx, "still not everything is released: %v", err)
		pause = min(2*pause, longestPause)
		timer.Reset(pause)
	}
}

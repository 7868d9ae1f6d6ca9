// Package tasks counts the work that the Close of a server waits for.
package tasks

import (
	"context"
	"sync"
)

// Group counts work. Unlike a sync.WaitGroup, it may get work while it is waited for: all methods may be called
// concurrently, at any time. The zero value is ready to use.
type Group struct {
	mu     sync.Mutex
	count  int           // guarded by mu; of unfinished work
	closed bool          // guarded by mu
	ended  chan struct{} // guarded by mu; closed when a closed Group has no more work; nil until Close
}

// Begin counts work of the caller, which calls Done at its end. It returns false from Close on; then the caller must
// not begin.
func (g *Group) Begin() bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.closed {
		return false
	}
	g.count++
	return true
}

// Done ends work that Begin has counted.
func (g *Group) Done() {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.count--
	if g.closed && g.count == 0 {
		close(g.ended)
	}
}

// Go runs f in a goroutine. Close waits for f even if unfinished work of the Group starts it after Close has begun.
// Once Close has nothing left to wait for, Go returns false and does not run f.
func (g *Group) Go(f func()) bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.closed && g.count == 0 {
		return false
	}
	g.count++
	go func() {
		defer g.Done()
		f()
	}()
	return true
}

// Close makes Begin fail and waits until all work has ended. Close is idempotent.
func (g *Group) Close() { <-g.close() }

// CloseWithin is Close, but waits only until ctx ends, and then returns its error.
func (g *Group) CloseWithin(ctx context.Context) error {
	select {
	case <-g.close():
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// close makes Begin fail and returns a channel that is closed when all work has ended.
func (g *Group) close() <-chan struct{} {
	g.mu.Lock()
	defer g.mu.Unlock()
	if !g.closed {
		g.closed, g.ended = true, make(chan struct{})
		if g.count == 0 {
			close(g.ended)
		}
	}
	return g.ended
}

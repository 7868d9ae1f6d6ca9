// Package carry decides when sandboxes are carried over to new ones, because their engine ends them.
package carry

import (
	"context"
	"sync"
	"time"

	"github.com/RelevanceAI/harvest/client/errors"
	"github.com/RelevanceAI/harvest/internal/engine"
)

const (
	// notWorthIt is the maximum by which a lifetime is shortened to avoid a carry-over, which ends the commands.
	notWorthIt = 10 * time.Minute
	// early is the minimum time between the end of a sandbox and the engine's limit.
	early = 5 * time.Second
	// longestQuiet is how long a carry-over waits for file copies that are under way.
	longestQuiet = 10 * time.Minute
	// longestPause is the longest pause before a failed carry-over is retried.
	longestPause = 5 * time.Minute
)

// Fit returns when to end a sandbox that should live until expires. The result is earlier if the engine would end the
// sandbox shortly before expires. It leaves time for a snapshot on end: snapshot is its duration, 0 without one.
func Fit(box engine.Sandbox, expires time.Time, snapshot time.Duration) time.Time {
	c, ok := box.(engine.Carrier)
	if !ok {
		return expires
	}
	due, end := c.Ends()
	before := early
	if snapshot > 0 {
		before = max(early, min(snapshot, end.Sub(due)))
	}
	if !end.IsZero() && expires.After(end.Add(-before)) && expires.Before(end.Add(notWorthIt)) {
		return end.Add(-before).UTC().Round(0)
	}
	return expires
}

// State is whether a sandbox is being carried over. All methods may be called concurrently.
type State struct {
	mu       sync.Mutex
	done     chan struct{} // guarded by mu; closed when it is carried over; nil unless a carry-over is under way
	notAgain time.Time     // guarded by mu; earliest time for the next attempt
}

// Due returns the time until box must be carried over, so that its sandbox lives until expires. ok is false if no
// carry-over is needed, or if one is under way. at is the current time.
func (s *State) Due(box engine.Sandbox, expires, at time.Time) (left time.Duration, ok bool) {
	c, can := box.(engine.Carrier)
	s.mu.Lock()
	defer s.mu.Unlock()
	if !can || s.done != nil {
		return 0, false
	}
	due, end := c.Ends()
	if due.IsZero() || !expires.After(end) {
		return 0, false
	}
	if s.notAgain.After(due) {
		due = s.notAgain
	}
	return due.Sub(at), true
}

// Begin begins a carry-over, after Due. The caller calls done once, at its end.
func (s *State) Begin() (done func()) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.done = make(chan struct{})
	return func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		close(s.done)
		s.done = nil
	}
}

// Quiet returns how long to wait for copies of files before a carry-over.
func Quiet(c engine.Carrier, at time.Time) time.Duration {
	_, end := c.Ends()
	return min(longestQuiet, end.Sub(at)/4)
}

// Failed returns the pause until the next attempt, after one failed.
func (s *State) Failed(c engine.Carrier, at time.Time) time.Duration {
	_, end := c.Ends()
	pause := min(longestPause, max(time.Second, end.Sub(at)/8))
	s.mu.Lock()
	defer s.mu.Unlock()
	s.notAgain = at.Add(pause)
	return pause
}

// UnderWay reports whether the sandbox is being carried over.
func (s *State) UnderWay() bool { return s.awaited() != nil }

func (s *State) awaited() <-chan struct{} {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.done
}

// Wait waits until the sandbox with this ID is not being carried over.
func (s *State) Wait(ctx context.Context, id string) error {
	done := s.awaited()
	if done == nil {
		return nil
	}
	select {
	case <-done:
		return nil
	case <-ctx.Done():
		return errors.Wrapf(ctx.Err(), "wait for the sandbox %s, which is being carried over or suspended", id)
	}
}

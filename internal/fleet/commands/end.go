package commands

import (
	"context"
	"sync"
	"time"

	"github.com/RelevanceAI/harvest/internal/base/logf"
)

// each calls do for all running commands concurrently, and waits.
func (s *Set) each(do func(*Execution)) {
	s.mu.Lock()
	var wg sync.WaitGroup
	for x := range s.running {
		wg.Go(func() { do(x) })
	}
	s.mu.Unlock()
	wg.Wait()
}

// Terminate sends SIGTERM to the running commands, and waits for the grace period. On a terminal it sends SIGHUP,
// since interactive shells ignore SIGTERM.
func (s *Set) Terminate(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, s.sandbox.Grace)
	defer cancel()
	s.each(func(x *Execution) {
		sig := "TERM"
		if x.terminal {
			sig = "HUP"
		}
		if err := x.Signal(ctx, sig); err != nil {
			logf.Debugf(ctx, "ask command %s to end: %v", x.ID(), err)
			return
		}
		select {
		case <-x.done:
		case <-ctx.Done():
		}
	})
}

// Settle ends the running commands, including those that are just starting. It then waits, at most for limit, until no
// other activity in the sandbox is under way: later writes would be lost.
func (s *Set) Settle(ctx context.Context, limit time.Duration) {
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	for {
		s.Terminate(ctx)
		s.each(func(x *Execution) {
			x.kill(ctx)
			select {
			case <-x.done:
			case <-time.After(killLimit):
			case <-ctx.Done():
			}
		})
		if !s.Busy() && s.Len() == 0 {
			return
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			logf.Warnf(ctx, "copies of files are still running in the sandbox; unwritten data would be lost")
			return
		}
	}
}

package sandbox

import (
	"context"
	"slices"
	"time"

	"github.com/RelevanceAI/harvest/engine"
	"github.com/RelevanceAI/harvest/errors"
	"github.com/RelevanceAI/harvest/logf"
)

// pool keeps booted sandboxes with the default limits. A nil pool is always empty.
type pool struct {
	fleet  *Fleet
	warmer engine.Warmer
	limits engine.Limits
	ready  chan engine.Warm // full when there are enough
	more   chan struct{}    // tells the filler to look
}

const firstRefillPause = 100 * time.Millisecond

// openPool starts the warm pool, if there shall be one.
func (f *Fleet) openPool() {
	warmer, ok := f.opts.Engine.(engine.Warmer)
	if f.opts.Warm == 0 {
		return
	}
	if !ok || !f.caps.Warm {
		logf.Warnf(f.ctx, "the engine %s has no warm sandboxes on this machine, so none are kept", f.opts.Engine.Name())
		return
	}
	p, err := f.plan(Request{})
	if err != nil { // the defaults were checked
		logf.Errorf(f.ctx, "the limits of warm sandboxes: %v", err)
		return
	}
	f.pool = &pool{
		fleet: f, warmer: warmer, limits: p.limits,
		ready: make(chan engine.Warm, f.opts.Warm), more: make(chan struct{}, 1),
	}
	f.tasks.Go(f.pool.fill)
}

// take returns a warm sandbox that fits, or nil. It never waits.
func (p *pool) take(plan plan) engine.Warm {
	if p == nil || plan.Cold || plan.limits != p.limits {
		return nil
	}
	select {
	case w := <-p.ready:
		return w
	default:
		return nil
	}
}

// refill lets the filler look. It is called when a creation is over, so that booting does not slow that down.
func (p *pool) refill() {
	if p == nil {
		return
	}
	select {
	case p.more <- struct{}{}:
	default:
	}
}

func (p *pool) size() int {
	if p == nil {
		return 0
	}
	return len(p.ready)
}

// fill boots one sandbox after the other until there are enough, then waits until one was taken.
func (p *pool) fill() {
	f := p.fleet
	pause := firstRefillPause
	for f.ctx.Err() == nil {
		if len(p.ready) == cap(p.ready) {
			select {
			case <-p.more:
			case <-f.ctx.Done():
			}
			continue
		}
		w, err := p.warmer.Warm(f.ctx, p.limits)
		if err != nil {
			if f.ctx.Err() == nil {
				logf.Warnf(f.ctx, "boot a warm sandbox (again in %s): %v", pause, err)
			}
			f.pause(pause)
			pause = min(2*pause, longestPause)
			continue
		}
		pause = firstRefillPause
		p.ready <- w // has room: only this goroutine fills it
	}
}

// drain destroys the warm sandboxes. The filler has ended.
func (p *pool) drain(ctx context.Context) error {
	if p == nil {
		return nil
	}
	var errs []error
	for {
		select {
		case w := <-p.ready:
			errs = append(errs, errors.Wrapf(w.Destroy(context.WithoutCancel(ctx)), "destroy the warm sandbox %s", w.Handle().Ref))
		default:
			return errors.Join(slices.DeleteFunc(errs, func(err error) bool { return err == nil })...)
		}
	}
}

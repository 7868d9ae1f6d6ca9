package fleet

import (
	"context"

	"github.com/RelevanceAI/harvest/client/errors"
	"github.com/RelevanceAI/harvest/internal/base/logf"
	"github.com/RelevanceAI/harvest/internal/engine"
	"github.com/RelevanceAI/harvest/internal/fleet/record"
	"github.com/RelevanceAI/harvest/internal/fleet/usage"
)

// Totals returns the account's total usage so far over all sandboxes.
func (f *Fleet) Totals(ctx context.Context, account string) (record.Totals, error) {
	t, err := f.opts.Store.Totals(ctx, account)
	if err != nil {
		return record.Totals{}, err
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, e := range f.live {
		// Ended sandboxes are in the Store, or will be in a moment.
		if e.record.Account == account && e.record.Ended.IsZero() {
			t.Add(f.snapshot(e), f.now())
		}
	}
	return t, nil
}

// source returns the Source of e, which is current as long as e runs as box.
func (f *Fleet) source(e *entry, box engine.Sandbox) usage.Source {
	meter, _ := box.(engine.Meter)
	return usage.Source{Engine: meter, Current: func() bool {
		f.mu.Lock()
		defer f.mu.Unlock()
		return e.box == box
	}}
}

// measure samples the usage of a running sandbox until it ends or is lost. Sandboxes whose engine cannot measure cause
// no load.
func (f *Fleet) measure(e *entry, box engine.Sandbox) {
	if f.caps.Usage {
		e.meter.Follow(logf.With(f.ctx, "sandbox_id", e.id), f.source(e, box), f.pause)
	}
}

// Usage returns the resource usage of a sandbox over its life, also after its end, as long as its record is kept. A
// sandbox that ended within a second or two has no samples. Kinds: NotFound, Unsupported (the engine cannot measure
// usage).
func (f *Fleet) Usage(ctx context.Context, account, ref string) (usage.Usage, error) {
	if err := f.begin(); err != nil {
		return usage.Usage{}, err
	}
	defer f.tasks.Done()
	sb, e, err := f.find(ctx, account, ref)
	if err != nil {
		return usage.Usage{}, err
	}
	if e == nil {
		u, err := f.meters.Ended(ctx, sb.ID)
		if err == nil && len(u.Samples) == 0 && !f.caps.Usage {
			err = f.noUsage()
		}
		return u, err
	}
	if !f.caps.Usage {
		return usage.Usage{}, f.noUsage()
	}
	f.mu.Lock()
	box := e.box
	f.mu.Unlock()
	return e.meter.History(ctx, f.source(e, box)), nil
}

func (f *Fleet) noUsage() error {
	err := errors.Newf(errors.Unsupported, "the engine %s does not report the resource use of sandboxes",
		f.opts.Engine.Name())
	return errors.Remedy(err,
		"measure it within the sandbox, for example: harvest sandbox exec SANDBOX -- cat /proc/meminfo")
}

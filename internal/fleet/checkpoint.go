package fleet

import (
	"context"
	"time"

	"github.com/docker/go-units"

	"github.com/RelevanceAI/harvest/client/errors"
	"github.com/RelevanceAI/harvest/internal/base/logf"
	"github.com/RelevanceAI/harvest/internal/engine"
	"github.com/RelevanceAI/harvest/internal/fleet/checkpoint"
	"github.com/RelevanceAI/harvest/internal/fleet/record"
)

// CheckpointOptions are the options of one Checkpoint.
type CheckpointOptions struct {
	Keep time.Duration // how long to keep it; positive
	Note []byte        // data of the caller, stored as is; must not be secret
}

// Checkpoint saves the memory of a running sandbox's processes and its files at one moment, as described for
// engine.Checkpointer. The sandbox is paused meanwhile and then continues. The checkpoint is durable when Checkpoint
// returns. Kinds: NotFound, Conflict (it does not run, or has a terminal), Unsupported (the engine has no
// checkpoints, or the sandbox has volumes), Exhausted (the disk is full).
func (f *Fleet) Checkpoint(ctx context.Context, account, ref string,
	opts CheckpointOptions) (checkpoint.Checkpoint, error) {
	if err := f.begin(); err != nil {
		return checkpoint.Checkpoint{}, err
	}
	defer f.tasks.Done()
	e, box, leave, err := f.enter(ctx, account, ref)
	if err != nil {
		return checkpoint.Checkpoint{}, err
	}
	defer leave()
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	defer context.AfterFunc(f.ctx, cancel)()
	c, err := f.checkpoint(ctx, e, box, opts)
	if err != nil {
		return checkpoint.Checkpoint{}, errors.Stage(err, "checkpoint")
	}
	logf.Infof(logContext(ctx, c.Sandbox), "checkpoint of the sandbox: %s, %s", c.ID, units.BytesSize(float64(c.Size)))
	return c, nil
}

// checkpoint creates the checkpoint.
func (f *Fleet) checkpoint(ctx context.Context, e *entry, box engine.Sandbox,
	opts CheckpointOptions) (c checkpoint.Checkpoint, err error) {
	keeper, err := f.checkpointer(e, box)
	if err != nil {
		return c, err
	}
	from := checkpoint.Source{ID: e.id, Describe: func(c *checkpoint.Checkpoint) { f.describe(e, c) },
		Save: func(dir string) error { return keeper.Checkpoint(ctx, dir) }}
	if m, ok := box.(engine.Meter); ok {
		if u, err := m.Usage(ctx); err == nil {
			from.Memory = u.Memory
		}
	}
	return f.checkpoints.Make(ctx, from, opts.Keep, opts.Note)
}

// checkpointer returns the engine's Checkpointer for a sandbox, or an error with the reason why it has none.
func (f *Fleet) checkpointer(e *entry, box engine.Sandbox) (engine.Checkpointer, error) {
	keeper, ok := box.(engine.Checkpointer)
	if !ok || !f.caps.Memory {
		return nil, f.noCheckpoints()
	}
	sb := f.current(e)
	if len(sb.Volumes) > 0 || sb.S3 != nil {
		err := errors.Newf(errors.Unsupported,
			"a sandbox with a volume cannot be checkpointed: its programs may depend on files of the volume that "+
				"change later")
		return nil, errors.Remedy(err, "create it without volumes, or make a snapshot of its files")
	}
	return keeper, nil
}

func (f *Fleet) noCheckpoints() error {
	err := errors.Newf(errors.Unsupported, "the engine %s does not support memory checkpoints on this machine",
		f.opts.Engine.Name())
	return errors.Remedy(err, "make a snapshot of the files instead, and restart the programs")
}

// describe records in c the sandbox and its running commands.
func (f *Fleet) describe(e *entry, c *checkpoint.Checkpoint) {
	sb := f.current(e)
	sb.Stages, sb.Denials = []record.Stage{}, nil
	c.Sandbox, c.Withheld, c.Life = sb, sb.Withheld, min(sb.Life(), f.opts.Timeouts.MaxLife)
	c.CommandLimits, c.Background = e.commands.Limits(sb.Started)
}

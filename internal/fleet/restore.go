package fleet

import (
	"context"
	"slices"

	"github.com/RelevanceAI/harvest/client/errors"
	"github.com/RelevanceAI/harvest/internal/base/fault"
	"github.com/RelevanceAI/harvest/internal/base/logf"
	"github.com/RelevanceAI/harvest/internal/engine"
	"github.com/RelevanceAI/harvest/internal/fleet/checkpoint"
	"github.com/RelevanceAI/harvest/internal/fleet/record"
	"github.com/RelevanceAI/harvest/internal/image"
)

// RestoreRequest contains the fields that a restored sandbox does not take from its checkpoint.
type RestoreRequest struct {
	Name string
	Tags map[string]string // nil: tags of the checkpoint's sandbox, except Harvest's own
}

// Restore creates a sandbox from a checkpoint. The processes of the original sandbox continue in it, with its limits,
// environment, network, ports, tags, user and working directory. Its time limits, and those of its commands, start
// again. Attach finds commands by their IDs. The kinds are those of Create, with NotFound for a checkpoint that does
// not exist or belongs to another account, Invalid for a damaged one, and Unsupported for a checkpoint of another
// version of the engine.
func (f *Fleet) Restore(ctx context.Context, account, id string, req RestoreRequest) (record.Sandbox, error) {
	if err := f.begin(); err != nil {
		return record.Sandbox{}, err
	}
	defer f.tasks.Done()
	defer f.checkpoints.Hold(id)() // before the lookup, so that it is not removed in between
	c, err := f.checkpoints.Find(account, id)
	if err != nil {
		return record.Sandbox{}, err
	}
	p, err := f.planRestore(c, req)
	if err != nil {
		return record.Sandbox{}, errors.Stage(err, "validate")
	}
	return f.make(ctx, account, p)
}

// planRestore determines the properties of the sandbox.
func (f *Fleet) planRestore(c checkpoint.Checkpoint, req RestoreRequest) (plan, error) {
	if !f.caps.Memory {
		return plan{}, f.noCheckpoints()
	}
	p, err := c.Plan(f.rules, req.Name, req.Tags)
	return plan{Plan: p, from: &c}, err
}

// restore runs the stages of Restore.
func (f *Fleet) restore(ctx context.Context, e *entry, p plan) error {
	if len(p.Secrets) > 0 && f.opts.Secrets != nil {
		if err := f.stage(e, "secrets", func() error {
			err := f.opts.Secrets.Relend(ctx, p.from.ID, e.id)
			f.returnSecrets(e)
			return err
		}); err != nil {
			return err
		}
	}
	img := image.Image{ID: p.from.Sandbox.ImageID}
	f.mu.Lock()
	e.record.ImageID = img.ID
	f.mu.Unlock()
	if err := f.use(e, f.opts.Engine.Images(), img.ID); errors.Is(err, errors.NotFound) {
		logf.Infof(ctx, "the image %s is gone; the checkpoint has its files", img.ID)
	} else if err != nil {
		return errors.Stage(err, "image")
	}
	f.mu.Lock()
	e.record.Lent = slices.Clone(p.from.Sandbox.Lent)
	f.mu.Unlock()
	network, err := p.Network.Engine(), error(nil)
	if network.Intercept, err = e.loan.Hosts(ctx); err != nil {
		return errors.Stage(err, "secrets")
	}
	box, _, err := f.box(ctx, e, p, img, engine.Spec{
		ID: e.id, Account: e.record.Holder(), Dir: p.Workdir, User: p.User, Limits: p.Limits,
		Network: network, KeepOnOOM: p.SnapshotOnEnd,
		Checkpoint: f.checkpoints.State(p.from.ID),
	})
	if err != nil {
		return err
	}
	fault.Point("sandbox.made")
	if err := f.ready(ctx, e, p, box, false); err != nil {
		return err
	}
	f.goOn(ctx, e, box, p.from)
	return nil
}

// goOn adopts the commands of a restored sandbox, with their time limits.
func (f *Fleet) goOn(ctx context.Context, e *entry, box engine.Sandbox, c *checkpoint.Checkpoint) {
	f.mu.Lock()
	e.record.Commands = nil
	for id, limit := range c.CommandLimits {
		e.record.Commands = append(e.record.Commands, record.Command{ID: id, Deadline: e.record.Started.Add(limit),
			Detached: true, Background: slices.Contains(c.Background, id)})
	}
	f.mu.Unlock()
	f.adoptCommands(ctx, e, box)
	f.saveCommands(ctx, e)
}

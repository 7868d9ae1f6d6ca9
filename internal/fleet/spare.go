package fleet

import (
	"context"

	"github.com/RelevanceAI/harvest/client/errors"
	"github.com/RelevanceAI/harvest/internal/base/account"
	"github.com/RelevanceAI/harvest/internal/base/logf"
	"github.com/RelevanceAI/harvest/internal/fleet/record"
	"github.com/RelevanceAI/harvest/internal/fleet/spec"
	"github.com/RelevanceAI/harvest/internal/image"
)

// Adopt moves a sandbox of SpareAccount to its owner. It checks the owner's quotas as Create does. From then on the
// owner sees the sandbox and pays for it: lifetime, idle limit and cost start again. put stores the new record; if it
// returns an error, nothing changes. Kinds: NotFound, Conflict (it does not run), Exhausted (quota), and those of put.
func (f *Fleet) Adopt(ctx context.Context, owner, id string,
	put func(context.Context, record.Sandbox) error) (record.Sandbox, error) {
	if err := f.begin(); err != nil {
		return record.Sandbox{}, err
	}
	defer f.tasks.Done()
	_, e, err := f.find(ctx, owner, id)
	if err != nil {
		return record.Sandbox{}, err
	}
	if e == nil {
		return record.Sandbox{}, errors.Newf(errors.Conflict, "sandbox %s has ended", id)
	}
	sb, err := f.adoptSpare(ctx, e, put)
	if err != nil {
		return record.Sandbox{}, err
	}
	f.emit(record.Event{Type: record.EventReady, Sandbox: sb}) // for followers of the owner's sandboxes
	f.wakeReaper()
	logf.Infof(logContext(ctx, sb), "sandbox made ahead is taken, %s after it was ready", sb.Started.Sub(sb.Created))
	return sb, nil
}

// adoptSpare changes and stores the record.
func (f *Fleet) adoptSpare(ctx context.Context, e *entry,
	put func(context.Context, record.Sandbox) error) (record.Sandbox, error) {
	e.save.Lock()
	defer e.save.Unlock()
	f.mu.Lock()
	before := e.record
	err := before.RequireStatus(record.Running)
	if err == nil && before.Account != record.SpareAccount {
		err = errors.Newf(errors.Conflict, "sandbox %s was not made ahead", e.id)
	}
	if err == nil {
		err = f.checkQuotas(before.Owner, plan{Plan: spec.Plan{ReservedCPU: e.cpu, ReservedMemory: e.memory}}, nil)
	}
	if err != nil {
		f.mu.Unlock()
		return record.Sandbox{}, err
	}
	sb, now := before.Clone(), f.now()
	sb.Account, sb.Owner = before.Owner, ""
	sb.Started, sb.LastUsed, sb.Expires = now, now, f.fit(e.box, now.Add(before.Expires.Sub(before.Started)),
		sb.SnapshotOnEnd)
	e.record = sb
	sb = f.snapshot(e)
	f.mu.Unlock()
	if err := put(context.WithoutCancel(ctx), sb); err != nil {
		f.mu.Lock()
		e.record.Account, e.record.Owner = before.Account, before.Owner
		e.record.Started, e.record.LastUsed, e.record.Expires = before.Started, before.LastUsed, before.Expires
		f.mu.Unlock()
		return record.Sandbox{}, err
	}
	return sb, nil
}

// ImageID returns the ID of an image that the account sees, or NotFound.
func (f *Fleet) ImageID(ctx context.Context, owner, ref string) (string, error) {
	img, err := image.Of(f.opts.Engine.Images(), account.Owner(owner)).Find(ctx, ref)
	return img.ID, err
}

package storage

import (
	"context"
	"slices"
	"strings"

	"github.com/RelevanceAI/harvest/errors"
	"github.com/RelevanceAI/harvest/logf"
	"github.com/RelevanceAI/harvest/s3sync"
	"github.com/RelevanceAI/harvest/volume"
)

// Delete deletes a volume of all, which has an account's. Conflict while S3 does not have what a sandbox left in it, unless forced: then
// nobody sends that any more, and an attempt that is under way is waited for.
func (m *Manager) Delete(ctx context.Context, account string, all volume.Provider, name string, force bool) error {
	waiting, err := m.unsentOf(ctx, account, name)
	if err != nil {
		return err
	}
	if len(waiting) == 0 {
		return all.Delete(ctx, name)
	}
	vol, err := all.Open(ctx, name)
	if err != nil {
		return err
	}
	d, ok := vol.(volume.Directory)
	if !force || !ok {
		return notSent(waiting[0])
	}
	free, err := m.turn(ctx, d, name, true)
	if err != nil {
		return err
	}
	defer free()
	m.later.records.Lock()
	defer m.later.records.Unlock()
	// Those that came meanwhile are of sandboxes that have the volume, or had it a moment ago.
	if waiting, err = m.unsentOf(ctx, account, name); err != nil {
		return err
	}
	for _, u := range waiting {
		m.unguard(u.Sandbox)
	}
	if err := all.Delete(ctx, name); err != nil {
		for _, u := range waiting {
			m.guard(context.WithoutCancel(ctx), u.Job)
		}
		return err
	}
	for _, u := range waiting {
		logf.Warnf(ctx, "the volume %s was deleted by force: what the sandbox %s left in it is not sent to S3", name, u.Sandbox)
		if e := m.opts.Store.Delete(context.WithoutCancel(ctx), u.Sandbox); e != nil {
			err = e
		}
	}
	return err
}

// notSent is the error for deleting a volume that S3 does not have yet.
func notSent(u Unsent) error {
	why := "has not been sent yet"
	if u.Error != "" {
		why = "could not be sent: " + u.Error
	}
	sync := "harvest volume sync " + u.Volume
	if u.Bucket != "" {
		sync += " s3://" + u.Bucket + "/" + u.Prefix
	}
	if u.Secret != "" {
		sync += " --secret " + u.Secret
	}
	return errors.Remedy(errors.Newf(errors.Conflict, "the volume %s has files that S3 does not have: what the sandbox %s left %s", u.Volume, u.Sandbox, why),
		"send them first: %s; or lose them: --force, over HTTP force=true", sync)
}

// unsentOf returns what has to be sent of a volume.
func (m *Manager) unsentOf(ctx context.Context, account, name string) ([]Unsent, error) {
	all, err := m.opts.Store.List(ctx)
	return slices.DeleteFunc(all, func(u Unsent) bool { return u.Account != account || u.Volume != name }), err
}

// sentByHand notes that what was to be sent to a place is there.
func (m *Manager) sentByHand(ctx context.Context, waiting []Unsent, to Where, res Result) {
	ctx = context.WithoutCancel(ctx)
	for _, u := range waiting {
		if u.Bucket != to.Bucket || strings.Trim(u.Prefix, "/") != strings.Trim(to.Prefix, "/") || u.Secret != to.Secret {
			continue
		}
		if err := m.sent(ctx, u.Sandbox); err != nil {
			logf.Errorf(ctx, "note that what the sandbox %s left was sent: %v", u.Sandbox, err)
			continue
		}
		m.tell(Told{Job: u.Job, Direction: s3sync.Up, Result: res})
	}
}

// put writes down what has to be sent, and keeps its volume.
func (m *Manager) put(ctx context.Context, u Unsent) error {
	if err := m.opts.Store.Put(ctx, u); err != nil {
		return err
	}
	m.guard(ctx, u.Job)
	return nil
}

// again is put of what is still to be sent; of a volume that was deleted by force it is not.
func (m *Manager) again(ctx context.Context, u Unsent) error {
	m.later.records.Lock()
	defer m.later.records.Unlock()
	all, err := m.unsentOf(ctx, u.Account, u.Volume)
	if err != nil || !slices.ContainsFunc(all, func(v Unsent) bool { return v.Sandbox == u.Sandbox }) {
		return err
	}
	return m.put(ctx, u)
}

// sent notes that a sandbox has nothing to be sent any more.
func (m *Manager) sent(ctx context.Context, sandbox string) error {
	m.unguard(sandbox)
	return m.opts.Store.Delete(ctx, sandbox)
}

// guard keeps the volume of a job from being deleted by whomever. One that is gone needs nothing.
func (m *Manager) guard(ctx context.Context, job Job) {
	vol, err := m.opts.Open(ctx, job.Account, job.Volume)
	if err != nil {
		return
	}
	d, ok := vol.(volume.Directory)
	if !ok {
		return
	}
	release, err := d.Use("files that S3 does not have yet")
	if err != nil {
		return
	}
	m.later.mu.Lock()
	defer m.later.mu.Unlock()
	if m.later.guards == nil {
		m.later.guards = map[string]func(){}
	}
	if old := m.later.guards[job.Sandbox]; old != nil {
		old()
	}
	m.later.guards[job.Sandbox] = release
}

// unguard ends guard.
func (m *Manager) unguard(sandbox string) {
	m.later.mu.Lock()
	defer m.later.mu.Unlock()
	if release := m.later.guards[sandbox]; release != nil {
		release()
		delete(m.later.guards, sandbox)
	}
}

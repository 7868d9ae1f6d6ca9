package storage

import (
	"context"
	"slices"
	"strings"

	"github.com/RelevanceAI/harvest/client/errors"
	"github.com/RelevanceAI/harvest/internal/base/logf"
	"github.com/RelevanceAI/harvest/internal/base/places"
	"github.com/RelevanceAI/harvest/internal/engine/volume"
	"github.com/RelevanceAI/harvest/internal/s3/volsync/plan"
)

// Delete deletes a volume of an account through the provider all. It returns Conflict while S3
// lacks files that a sandbox left in the volume, unless force is set. With force, it waits for an
// upload that is in progress, and the rest of the files are never uploaded.
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
	// Records added meanwhile belong to sandboxes that use the volume, or did until a moment ago.
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
		logf.Warnf(ctx, "volume %s: deleted by force; files of sandbox %s in it are not sent to S3", name, u.Sandbox)
		if e := m.opts.Store.Delete(context.WithoutCancel(ctx), u.Sandbox); e != nil {
			err = e
		}
	}
	return err
}

// notSent returns the error for deleting a volume that S3 does not have yet.
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
	return errors.Remedy(errors.Newf(errors.Conflict,
		"the volume %s has files that S3 does not have: what the sandbox %s left %s", u.Volume, u.Sandbox, why),
		"send them first: %s; or lose them: --force, over HTTP force=true", sync)
}

// unsentOf returns the unsent jobs of a volume.
func (m *Manager) unsentOf(ctx context.Context, account, name string) ([]Unsent, error) {
	all, err := m.opts.Store.List(ctx)
	return slices.DeleteFunc(all, func(u Unsent) bool { return u.Account != account || u.Volume != name }), err
}

// sentByHand removes the unsent jobs that a manual sync to the same place has completed.
func (m *Manager) sentByHand(ctx context.Context, waiting []Unsent, to places.Place, res Result) {
	ctx = context.WithoutCancel(ctx)
	for _, u := range waiting {
		if u.Bucket != to.Bucket || strings.Trim(u.Prefix, "/") != strings.Trim(to.Prefix, "/") ||
			u.Secret != to.Secret {
			continue
		}
		if err := m.sent(ctx, u.Sandbox); err != nil {
			logf.Errorf(ctx, "record that the files of sandbox %s were sent: %v", u.Sandbox, err)
			continue
		}
		m.tell(Told{Job: u.Job, Direction: plan.Up, Result: res})
	}
}

// put records an unsent job and guards its volume.
func (m *Manager) put(ctx context.Context, u Unsent) error {
	if err := m.opts.Store.Put(ctx, u); err != nil {
		return err
	}
	m.guard(ctx, u.Job)
	return nil
}

// again updates the record of an unsent job. It does nothing if the record is gone because the
// volume was deleted by force.
func (m *Manager) again(ctx context.Context, u Unsent) error {
	m.later.records.Lock()
	defer m.later.records.Unlock()
	all, err := m.unsentOf(ctx, u.Account, u.Volume)
	if err != nil || !slices.ContainsFunc(all, func(v Unsent) bool { return v.Sandbox == u.Sandbox }) {
		return err
	}
	return m.put(ctx, u)
}

// sent removes the record of a sandbox's unsent job.
func (m *Manager) sent(ctx context.Context, sandbox string) error {
	m.unguard(sandbox)
	return m.opts.Store.Delete(ctx, sandbox)
}

// guard protects the volume of a job from deletion. It does nothing if the volume no longer exists.
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

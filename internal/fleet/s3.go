package fleet

import (
	"context"
	"time"

	"github.com/RelevanceAI/harvest/client/errors"
	"github.com/RelevanceAI/harvest/internal/base/account"
	"github.com/RelevanceAI/harvest/internal/base/logf"
	"github.com/RelevanceAI/harvest/internal/engine"
	"github.com/RelevanceAI/harvest/internal/engine/volume"
	"github.com/RelevanceAI/harvest/internal/fleet/record"
	"github.com/RelevanceAI/harvest/internal/fleet/transfer"
)

// updateS3 changes the S3 of e's record, which has one, and stores it.
func (f *Fleet) updateS3(ctx context.Context, e *entry, change func(*record.S3Volume)) error {
	_, err := f.update(ctx, e, func(sb *record.Sandbox) error {
		own := *sb.S3
		change(&own)
		sb.S3 = &own
		return nil
	})
	return err
}

// undoVolume arranges that a volume that does not exist yet is removed again if its sandbox never becomes ready.
func (f *Fleet) undoVolume(ctx context.Context, e *entry, name string) {
	volumes := volume.Of(f.opts.Engine.Volumes(), account.Owner(e.record.Holder()))
	if _, err := volumes.Open(ctx, name); !errors.Is(err, errors.NotFound) {
		return
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	e.undo = func() {
		ctx := logf.With(context.WithoutCancel(f.ctx), "sandbox_id", e.id)
		// Conflict means that another sandbox uses it by now.
		if err := volumes.Delete(ctx, name); err != nil && !errors.Is(err, errors.Conflict) {
			logf.Warnf(ctx, "remove the volume of a sandbox that never was: %v", err)
		}
	}
}

// fill fills e's volume from S3, unless another sandbox has done that and still uses it.
func (f *Fleet) fill(ctx context.Context, e *entry, p plan) error {
	if !p.S3.Init {
		return nil
	}
	return f.stage(e, "s3 init", func() error {
		return e.files.Fill(ctx, volume.Stored(account.Owner(e.record.Holder()), p.Synced), func() bool {
			f.mu.Lock()
			defer f.mu.Unlock()
			for _, other := range f.live {
				if other != e && other.files.FilledFor(other.record, e.record) {
					return true
				}
			}
			return false
		})
	})
}

// mountS3 mounts the bucket of p unless the engine does, and returns the mounts for the engine.
func (f *Fleet) mountS3(ctx context.Context, e *entry, p plan) ([]engine.Mount, error) {
	if p.S3 == nil || !p.S3.Mount {
		return nil, nil
	}
	if f.caps.Buckets {
		return []engine.Mount{transfer.EngineMount(*p.S3)}, nil
	}
	var m engine.Mount
	err := f.stage(e, "s3 mount", func() error {
		var undo func()
		var err error
		m, undo, err = e.files.Mount(ctx, p.Limits.Disk)
		f.mu.Lock()
		defer f.mu.Unlock()
		e.undo = undo
		return err
	})
	return []engine.Mount{m}, err
}

// mountLost records why the mount of a sandbox no longer works.
func (f *Fleet) mountLost(ctx context.Context, id, reason string) {
	f.mu.Lock()
	e := f.live[id]
	f.mu.Unlock()
	if e != nil {
		e.files.MountLost(ctx, reason)
	}
}

// Sent records that the data that a sandbox failed to send to S3 at its end has been sent.
func (f *Fleet) Sent(ctx context.Context, account, id string) error {
	sb, e, err := f.find(ctx, account, id)
	if err != nil || sb.S3 == nil || sb.S3.SyncError == "" {
		return err
	}
	if e != nil { // it has not ended completely
		return f.updateS3(ctx, e, func(s *record.S3Volume) { s.SyncError = "" })
	}
	own := *sb.S3
	own.SyncError = ""
	sb.S3 = &own
	return errors.Wrapf(f.opts.Store.Put(context.WithoutCancel(ctx), sb), "record that %s is in S3", id)
}

// sendDue sends the volumes of running sandboxes that have SyncEverySeconds, and returns when to check again.
func (f *Fleet) sendDue(at time.Time) time.Duration {
	nap := longestNap
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, e := range f.live {
		if again := e.files.SendDue(at, e.record, f.wakeReaper); again > 0 {
			nap = min(nap, again)
		}
	}
	return nap
}

// SyncOnEnd sets whether the sandbox's volume is sent to S3 when it ends. Without Request.S3, or if the sandbox has
// ended, it does nothing.
func (f *Fleet) SyncOnEnd(ctx context.Context, account, ref string, sync bool) error {
	if err := f.begin(); err != nil {
		return err
	}
	defer f.tasks.Done()
	sb, e, err := f.find(ctx, account, ref)
	if err != nil {
		return err
	}
	if sb.S3 == nil || sb.S3.Mount || e == nil { // no volume to send, or the end has decided about that already
		return nil
	}
	return f.updateS3(ctx, e, func(s *record.S3Volume) { s.SyncOnTerminate = sync })
}

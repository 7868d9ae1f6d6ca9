package sandbox

import (
	"context"
	"strings"
	"time"

	"github.com/RelevanceAI/harvest/account"
	"github.com/RelevanceAI/harvest/errors"
	"github.com/RelevanceAI/harvest/logf"
	"github.com/RelevanceAI/harvest/sandbox/record"
	"github.com/RelevanceAI/harvest/storage"
	"github.com/RelevanceAI/harvest/volume"
)

// Syncer copies files between volumes and S3. A *storage.Manager is one.
type Syncer interface {
	// Check reports the problems of a job that can be detected without S3.
	Check(ctx context.Context, job storage.Job) error
	// Fill copies the files from S3 into the volume. Unsent data of earlier sandboxes is sent first.
	Fill(ctx context.Context, job storage.Job) error
	// Note records that the volume must be sent. The record remains until it has been sent.
	Note(ctx context.Context, job storage.Job) error
	// Send sends the current state of the volume, unless a transfer is under way. It is not retried after an error.
	Send(ctx context.Context, job storage.Job) error
	// Save calls Note, and then sends the volume. It is retried automatically after an error.
	Save(ctx context.Context, job storage.Job) error
}

// Mounter mounts S3 locations as directories of this machine.
type Mounter interface {
	// Watch registers lost, which is called with the reason when a mount no longer works. Watch is called once,
	// before all other methods.
	Watch(lost func(sandbox, reason string))
	// Mount mounts a location for a sandbox. At most limit bytes may be written and not stored yet. On failure it
	// leaves nothing behind.
	Mount(ctx context.Context, job storage.Job, readOnly bool, limit int64) (dir string, err error)
	// Quiet makes all operations fail that wait for S3 in a sandbox's mount, so that the sandbox can be destroyed.
	Quiet(ctx context.Context, sandbox string)
	// Finish unmounts a sandbox's mount, and stores the remaining data, for a bounded time. The error says which data
	// could not be stored and where it is kept. Without a mount it does nothing.
	Finish(ctx context.Context, sandbox string) error
	// Recover takes over the mounts of an earlier Fleet: those of live sandboxes stay, others are finished in the
	// background.
	Recover(ctx context.Context, lives func(sandbox string) bool) error
}

// s3Job returns the job for e's volume.
func (f *Fleet) s3Job(e *entry) storage.Job {
	f.mu.Lock()
	defer f.mu.Unlock()
	return e.s3Job()
}

// s3Job is Fleet.s3Job. Fleet.mu is held.
func (e *entry) s3Job() storage.Job {
	s := e.record.S3
	return storage.Job{Sandbox: e.id, Account: e.record.Holder(), Volume: s.Volume, Place: s.Place}
}

func (f *Fleet) syncsAtEnd(e *entry) bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.opts.S3 != nil && e.record.SyncsAtEnd()
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
		done, err := f.takeVolume(ctx, volume.Stored(account.Owner(e.record.Holder()), p.Synced))
		if err != nil {
			return err
		}
		defer done()
		if f.filledByOther(e) {
			logf.Infof(ctx, "the volume %s was filled from S3 by another sandbox that uses it", p.Synced)
		} else if err := f.opts.S3.Fill(ctx, f.s3Job(e)); err != nil {
			return errors.Explainf(err, errors.KindOf(err), "volume %s: the download from S3 failed: %s", p.Synced,
				errors.Message(err))
		}
		f.mu.Lock()
		defer f.mu.Unlock()
		e.filled = true
		return nil
	})
}

// takeVolume waits until no other goroutine is filling the volume with this name.
func (f *Fleet) takeVolume(ctx context.Context, name string) (done func(), err error) {
	for {
		f.mu.Lock()
		busy := f.fills[name]
		if busy == nil {
			mine := make(chan struct{})
			f.fills[name] = mine
			f.mu.Unlock()
			return func() {
				f.mu.Lock()
				defer f.mu.Unlock()
				delete(f.fills, name)
				close(mine)
			}, nil
		}
		f.mu.Unlock()
		select {
		case <-busy:
		case <-ctx.Done():
			return nil, errors.Wrapf(context.Cause(ctx), "wait for another sandbox to fill the volume %s", name)
		}
	}
}

// filledByOther reports whether another sandbox uses e's volume and filled it from the same location: then its
// changes take precedence.
func (f *Fleet) filledByOther(e *entry) bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	mine := e.record.S3
	for _, other := range f.live {
		s := other.record.S3
		if other == e || s == nil || other.record.Account != e.record.Account || s.Volume != mine.Volume ||
			s.Bucket != mine.Bucket || s.Prefix != mine.Prefix {
			continue
		}
		if s.Init && (other.filled || other.record.Status != record.Creating) {
			return true
		}
	}
	return false
}

// noteEnd records that the volume of an ending sandbox must be sent to S3, before the end is published.
func (f *Fleet) noteEnd(ctx context.Context, e *entry) {
	if !f.syncsAtEnd(e) {
		return
	}
	if err := f.opts.S3.Note(ctx, f.s3Job(e)); err != nil {
		logf.Errorf(ctx, "note that a volume has to be sent to S3: %v", err)
	}
}

// saveEnd sends the volume of a sandbox that is ending or has ended to S3, if that was requested. If the Fleet
// closes, it leaves that to the next one.
func (f *Fleet) saveEnd(ctx context.Context, e *entry) {
	if !f.syncsAtEnd(e) {
		return
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	defer context.AfterFunc(f.ctx, cancel)()
	err := f.opts.S3.Save(ctx, f.s3Job(e))
	if err == nil {
		return
	}
	logf.Errorf(ctx, "the volume of a sandbox that ends could not be sent to S3, which is tried again: %v", err)
	f.noteSyncError(ctx, e, err)
}

// noteSyncError records why the files of an ending sandbox are not in S3.
func (f *Fleet) noteSyncError(ctx context.Context, e *entry, err error) {
	_, err = f.update(ctx, e, func(sb *record.Sandbox) error {
		own := *sb.S3
		own.SyncError = strings.TrimSuffix(errors.Message(err), ".")
		sb.S3 = &own
		return nil
	})
	if err != nil {
		logf.Errorf(ctx, "the record of a sandbox that ends: %v", err)
	}
}

// Sent records that the data that a sandbox could not send to S3 at its end is there now.
func (f *Fleet) Sent(ctx context.Context, account, id string) error {
	sb, e, err := f.find(ctx, account, id)
	if err != nil || sb.S3 == nil || sb.S3.SyncError == "" {
		return err
	}
	sent := func(sb *record.Sandbox) error {
		own := *sb.S3
		own.SyncError = ""
		sb.S3 = &own
		return nil
	}
	if e != nil { // it has not ended completely
		_, err := f.update(ctx, e, sent)
		return err
	}
	if err := sent(&sb); err != nil {
		return err
	}
	return errors.Wrapf(f.opts.Store.Put(context.WithoutCancel(ctx), sb), "record that %s is in S3", id)
}

// saveLater sends the volume of a sandbox that ended without a request, in the background.
func (f *Fleet) saveLater(ctx context.Context, e *entry) {
	f.tasks.Go(func() { f.saveEnd(ctx, e) })
}

// sendDue sends the volumes of running sandboxes that have SyncEverySeconds, and returns when to check again. It does
// not wait for transfers: a transfer that exceeds its interval delays the next one accordingly.
func (f *Fleet) sendDue(at time.Time) time.Duration {
	nap := longestNap
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, e := range f.live {
		sb := e.record
		if f.opts.S3 == nil || sb.S3 == nil || sb.S3.SyncEverySeconds == 0 || sb.Status != record.Running || e.sending {
			continue
		}
		if e.sent.IsZero() { // it was just created or found
			e.sent = at
		}
		due := e.sent.Add(seconds(sb.S3.SyncEverySeconds))
		if due.After(at) {
			nap = min(nap, due.Sub(at))
			continue
		}
		e.sending = true
		ctx, job := logContext(f.ctx, sb), e.s3Job()
		f.tasks.Go(func() {
			if err := f.opts.S3.Send(ctx, job); err != nil && ctx.Err() == nil {
				logf.Warnf(ctx, "the volume of a sandbox could not be sent to S3: %v", err)
			}
			f.mu.Lock()
			e.sent, e.sending = f.now(), false
			f.mu.Unlock()
			f.wakeReaper()
		})
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
	_, err = f.update(ctx, e, func(r *record.Sandbox) error {
		own := *r.S3
		own.SyncOnTerminate = sync
		r.S3 = &own
		return nil
	})
	return err
}

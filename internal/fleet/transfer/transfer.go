// Package transfer moves the files of sandboxes to and from S3: volumes before the sandbox is ready, at intervals and
// at its end, and mounts of buckets.
package transfer

import (
	"context"
	"strings"
	"sync"
	"time"

	"github.com/RelevanceAI/harvest/client/errors"
	"github.com/RelevanceAI/harvest/internal/base/logf"
	"github.com/RelevanceAI/harvest/internal/fleet/record"
	"github.com/RelevanceAI/harvest/internal/fleet/storage"
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

// Server is what the files of all sandboxes share.
type Server struct {
	S3      Syncer          // nil without one
	Mounts  Mounter         // nil without one, or if the engine mounts buckets itself
	Context context.Context // ends when the server closes; the next one resumes transfers
	Tasks   *sync.WaitGroup // counts the goroutines of transfers
	Now     func() time.Time

	mu    sync.Mutex
	fills map[string]chan struct{} // guarded by mu; by stored name: volumes that are being filled
}

// Sandbox is the sandbox of Files. Its functions may be called concurrently.
type Sandbox struct {
	Record func() record.Sandbox // its current record
	// Update changes the S3 of the record, which has one, and stores it.
	Update func(ctx context.Context, change func(*record.S3Volume)) error
}

// Files are the files of a sandbox in S3, if it has any. All methods may be called concurrently.
type Files struct {
	server  *Server
	sandbox Sandbox

	mu      sync.Mutex
	filled  bool      // guarded by mu; the volume was filled from S3
	sending bool      // guarded by mu; the volume is being sent to S3, as SyncEverySeconds asks
	sent    time.Time // guarded by mu; time of the last periodic send, or of the start
}

// Of returns the files of a sandbox.
func (s *Server) Of(sandbox Sandbox) *Files { return &Files{server: s, sandbox: sandbox} }

// job returns the job for a sandbox with S3.
func job(sb record.Sandbox) storage.Job {
	return storage.Job{Sandbox: sb.ID, Account: sb.Holder(), Volume: sb.S3.Volume, Place: sb.S3.Place}
}

// Check reports the problems of the sandbox's S3 that can be detected without asking it.
func (f *Files) Check(ctx context.Context) error {
	return f.server.S3.Check(ctx, job(f.sandbox.Record()))
}

// Fill fills the volume from S3, unless other reports that another sandbox has done that and still uses it. stored is
// the name of the volume in the engine.
func (f *Files) Fill(ctx context.Context, stored string, other func() bool) error {
	done, err := f.server.take(ctx, stored)
	if err != nil {
		return err
	}
	defer done()
	sb := f.sandbox.Record()
	if other() {
		logf.Infof(ctx, "the volume %s was filled from S3 by another sandbox that uses it", sb.S3.Volume)
	} else if err := f.server.S3.Fill(ctx, job(sb)); err != nil {
		return errors.Explainf(err, errors.KindOf(err), "volume %s: the download from S3 failed: %s", sb.S3.Volume,
			errors.Message(err))
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	f.filled = true
	return nil
}

// FilledFor reports whether the sandbox, whose record is own, has filled the volume that other uses as well, from the
// same place. The changes in the volume then take precedence over S3.
func (f *Files) FilledFor(own, other record.Sandbox) bool {
	s, theirs := own.S3, other.S3
	if s == nil || own.Account != other.Account || s.Volume != theirs.Volume || s.Bucket != theirs.Bucket ||
		s.Prefix != theirs.Prefix {
		return false
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	return s.Init && (f.filled || own.Status != record.Creating)
}

// take waits until no other goroutine is filling the volume with this name.
func (s *Server) take(ctx context.Context, name string) (done func(), err error) {
	for {
		s.mu.Lock()
		busy := s.fills[name]
		if busy == nil {
			mine := make(chan struct{})
			if s.fills == nil {
				s.fills = map[string]chan struct{}{}
			}
			s.fills[name] = mine
			s.mu.Unlock()
			return func() {
				s.mu.Lock()
				defer s.mu.Unlock()
				delete(s.fills, name)
				close(mine)
			}, nil
		}
		s.mu.Unlock()
		select {
		case <-busy:
		case <-ctx.Done():
			return nil, errors.Wrapf(context.Cause(ctx), "wait for another sandbox to fill the volume %s", name)
		}
	}
}

// syncsAtEnd reports whether the volume is sent when the sandbox ends, and the record.
func (f *Files) syncsAtEnd() (record.Sandbox, bool) {
	sb := f.sandbox.Record()
	return sb, f.server.S3 != nil && sb.SyncsAtEnd()
}

// NoteEnd records that the volume of an ending sandbox must be sent to S3, before the end is published.
func (f *Files) NoteEnd(ctx context.Context) {
	sb, ok := f.syncsAtEnd()
	if !ok {
		return
	}
	if err := f.server.S3.Note(ctx, job(sb)); err != nil {
		logf.Errorf(ctx, "note that a volume has to be sent to S3: %v", err)
	}
}

// End sends the volume of a sandbox that is ending or has ended to S3, if that was requested. If the server closes, it
// leaves that to the next one.
func (f *Files) End(ctx context.Context) {
	sb, ok := f.syncsAtEnd()
	if !ok {
		return
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	defer context.AfterFunc(f.server.Context, cancel)()
	err := f.server.S3.Save(ctx, job(sb))
	if err == nil {
		return
	}
	logf.Errorf(ctx, "the volume of a sandbox that ends could not be sent to S3, which is tried again: %v", err)
	f.noteError(ctx, err)
}

// SendAsleep sends the volume of a sandbox that was just suspended, if it has SyncEverySeconds. It does not wait.
func (f *Files) SendAsleep() {
	sb := f.sandbox.Record()
	if f.server.S3 == nil || sb.S3 == nil || sb.S3.SyncEverySeconds == 0 {
		return
	}
	ctx := logf.With(f.server.Context, "sandbox_id", sb.ID, "account", sb.Account)
	f.server.Tasks.Go(func() {
		if err := f.server.S3.Send(ctx, job(sb)); err != nil && ctx.Err() == nil {
			logf.Warnf(ctx, "the volume of a suspended sandbox could not be sent to S3: %v", err)
		}
	})
}

// noteError records why the files of an ending sandbox are not in S3.
func (f *Files) noteError(ctx context.Context, err error) {
	err = f.sandbox.Update(ctx, func(s *record.S3Volume) {
		s.SyncError = strings.TrimSuffix(errors.Message(err), ".")
	})
	if err != nil {
		logf.Errorf(ctx, "the record of a sandbox that ends: %v", err)
	}
}

// SendDue sends the volume of a running sandbox, with the record sb, if it has SyncEverySeconds and that is due. again
// is called when a transfer has ended. It returns when to check again; 0 for never, or after again. It does not wait
// for transfers: a transfer that exceeds its interval delays the next one accordingly.
func (f *Files) SendDue(at time.Time, sb record.Sandbox, again func()) time.Duration {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.server.S3 == nil || sb.S3 == nil || sb.S3.SyncEverySeconds == 0 || sb.Status != record.Running || f.sending {
		return 0
	}
	if f.sent.IsZero() { // it was just created or found
		f.sent = at
	}
	due := f.sent.Add(time.Duration(sb.S3.SyncEverySeconds * float64(time.Second)))
	if due.After(at) {
		return due.Sub(at)
	}
	f.sending = true
	ctx, j := logf.With(f.server.Context, "sandbox_id", sb.ID, "account", sb.Account), job(sb)
	f.server.Tasks.Go(func() {
		if err := f.server.S3.Send(ctx, j); err != nil && ctx.Err() == nil {
			logf.Warnf(ctx, "the volume of a sandbox could not be sent to S3: %v", err)
		}
		f.mu.Lock()
		f.sent, f.sending = f.server.Now(), false
		f.mu.Unlock()
		again()
	})
	return 0
}

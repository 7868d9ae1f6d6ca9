package sandbox

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"strings"
	"time"

	"github.com/RelevanceAI/harvest/account"
	"github.com/RelevanceAI/harvest/errors"
	"github.com/RelevanceAI/harvest/internal/pattern"
	"github.com/RelevanceAI/harvest/logf"
	"github.com/RelevanceAI/harvest/secret"
	"github.com/RelevanceAI/harvest/volume"
)

// S3 is a place in S3 for the files of the volume at MountPath: one of the request's volumes, or else one that is made for this bucket
// and prefix, and that all sandboxes of the account with the same ones share.
type S3 struct {
	Bucket    string `json:"bucket,omitempty"` // "" is the server's own, where each volume has a prefix of its own
	Prefix    string `json:"prefix,omitempty"`
	MountPath string `json:"mount_path"`
	// Init copies what is there into the volume before the sandbox is ready. Not if another sandbox that has done so still has the volume:
	// its files are newer.
	Init bool `json:"init,omitempty"`
	// SyncOnTerminate copies the volume there when the sandbox ends, in whatever way. Nothing is deleted there. Where it fails the
	// sandbox ends all the same, and it is tried again.
	SyncOnTerminate bool `json:"sync_on_terminate,omitempty"`
	// SyncEverySeconds copies the volume there every so often while the sandbox runs, as it is then; 0 does not.
	SyncEverySeconds float64 `json:"sync_every_seconds,omitempty"`
	Secret           string  `json:"secret,omitempty"` // with the credentials; "" is "aws"
	// Mount has no volume, but the bucket itself at MountPath, live: what is written there is stored as soon as it is closed.
	Mount    bool `json:"mount,omitempty"`
	ReadOnly bool `json:"read_only,omitempty"` // of Mount
}

// S3Volume is what became of Request.S3.
type S3Volume struct {
	S3
	Volume string `json:"volume"`
	// SyncError is one sentence: why the volume could not be sent when the sandbox ended. It is tried again.
	SyncError string `json:"sync_error,omitempty"`
	// MountError is one sentence: why the mount does not work any more, and what to do.
	MountError string `json:"mount_error,omitempty"`

	own bool // the volume is named after the place
}

// S3Job is a sandbox's volume and its place in S3.
type S3Job struct {
	Sandbox, Account, Volume string
	Bucket, Prefix, Secret   string // as in S3
}

// Syncer brings volumes and S3 together.
type Syncer interface {
	// Check returns what is wrong with a job as far as it can be told without S3.
	Check(ctx context.Context, job S3Job) error
	// Fill copies what is in S3 into the volume. What earlier sandboxes have not sent yet goes there first.
	Fill(ctx context.Context, job S3Job) error
	// Note writes down that the volume has to be sent, for as long as that has not been done.
	Note(ctx context.Context, job S3Job) error
	// Send sends the volume as it is now, unless it is being sent already. After an error it is not tried again.
	Send(ctx context.Context, job S3Job) error
	// Save does Note, and then sends the volume. After an error it is tried again without further ado.
	Save(ctx context.Context, job S3Job) error
}

// Mounter mounts places in S3 as directories of this machine.
type Mounter interface {
	// Watch has lost called when a mount does not work any more, with the reason. It is called once, before all else.
	Watch(lost func(sandbox, reason string))
	// Mount mounts a place for a sandbox. At most limit bytes may be written and not stored yet. On failure nothing is left.
	Mount(ctx context.Context, job S3Job, readOnly bool, limit int64) (dir string, err error)
	// Quiet has everything fail that waits for S3 in a sandbox's mount, so that the sandbox can be destroyed.
	Quiet(ctx context.Context, sandbox string)
	// Finish unmounts what a sandbox has, and stores what is not stored yet, for a bounded time. The error says what could not be stored and
	// where it is kept. Without a mount it does nothing.
	Finish(ctx context.Context, sandbox string) error
	// Recover takes up what an earlier Fleet left: mounts of sandboxes that live stay, others are finished in the background.
	Recover(ctx context.Context, lives func(sandbox string) bool) error
}

const (
	maxPrefix    = 900 // of the 1,024 bytes that a key may have
	nameOfBucket = 40  // bytes of it in a volume's name
	leastEvery   = 5 * time.Second
	mostEvery    = 24 * time.Hour
)

// https://docs.aws.amazon.com/AmazonS3/latest/userguide/bucketnamingrules.html, and what older buckets have.
var bucketPattern = pattern.New(`^[A-Za-z0-9][A-Za-z0-9._-]{1,253}[A-Za-z0-9]$`)

// withS3 adds the volume that req.S3 needs, if there is none at its path.
func (f *Fleet) withS3(p *problems, req Request) (Request, *S3Volume) {
	if req.S3 == nil {
		return req, nil
	}
	out := &S3Volume{S3: *req.S3}
	if f.opts.S3 == nil {
		p.addf(errors.Unsupported, "leave s3 out, and use a volume", "this server has no S3")
		return req, nil
	}
	if out.Bucket == "" && (out.Prefix != "" || out.Secret != "") {
		p.invalidf("name a bucket, too", "s3 has a prefix or a secret, but no bucket")
	}
	if out.Bucket != "" && !bucketPattern().MatchString(out.Bucket) {
		p.invalidf("name it without s3:// and without a prefix", "%.100q cannot be a bucket", out.Bucket)
	}
	if !isText(out.Prefix, maxPrefix) {
		p.invalidf("use up to 900 bytes of text in one line", "%.100q cannot be a prefix", out.Prefix)
	}
	if every := out.SyncEverySeconds; every != 0 && !(every >= leastEvery.Seconds() && every <= mostEvery.Seconds()) { // nor NaN
		p.invalidf(fmt.Sprintf("give a number from %v to %v, or 0 to send nothing meanwhile", leastEvery.Seconds(), mostEvery.Seconds()), "sync_every_seconds of s3 cannot be %v", every)
	}
	if out.Secret != "" {
		p.add(secret.CheckName(out.Secret))
	}
	if out.Mount || out.ReadOnly {
		f.checkS3Mount(p, out, req.Volumes)
		return req, out
	}
	if f.caps.Views {
		p.addf(errors.Unsupported, "leave s3 out, and copy the files in and out", "volumes of the engine %s cannot be synchronised with S3: their files are not on this machine", f.opts.Engine.Name())
	}
	for _, m := range req.Volumes {
		if m.Path == out.MountPath {
			out.Volume = m.Name
			return req, out
		}
	}
	if out.Bucket == "" {
		p.invalidf("name a bucket, or a volume with the same path", "s3 names no bucket, and no volume is at %.200q", out.MountPath)
		return req, nil
	}
	out.Volume, out.own = s3VolumeName(out.Bucket, out.Prefix), true
	req.Volumes = append(req.Volumes[:len(req.Volumes):len(req.Volumes)], Mount{Name: out.Volume, Path: out.MountPath})
	return req, out
}

// s3VolumeName names the volume for a place. It belongs to an account, so that another account's is another one.
func s3VolumeName(bucket, prefix string) string {
	sum := sha256.Sum256([]byte(bucket + "/" + strings.Trim(prefix, "/")))
	return "s3-" + bucket[:min(len(bucket), nameOfBucket)] + "-" + hex.EncodeToString(sum[:6])
}

func (s Sandbox) syncsAtEnd() bool { return s.S3 != nil && s.S3.SyncOnTerminate && !s.S3.Mount }

// s3Job is what there is to do about e's volume.
func (f *Fleet) s3Job(e *entry) S3Job {
	f.mu.Lock()
	defer f.mu.Unlock()
	return e.s3Job()
}

// s3Job is Fleet.s3Job. Fleet.mu is held.
func (e *entry) s3Job() S3Job {
	s := e.record.S3
	return S3Job{Sandbox: e.id, Account: e.record.Account, Volume: s.Volume, Bucket: s.Bucket, Prefix: s.Prefix, Secret: s.Secret}
}

func (f *Fleet) syncsAtEnd(e *entry) bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.opts.S3 != nil && e.record.syncsAtEnd()
}

// undoVolume has a volume that is not there yet removed again if its sandbox never becomes ready.
func (f *Fleet) undoVolume(ctx context.Context, e *entry, name string) {
	volumes := volume.Of(f.opts.Engine.Volumes(), account.Owner(e.record.Account))
	if _, err := volumes.Open(ctx, name); !errors.Is(err, errors.NotFound) {
		return
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	e.undo = func() {
		ctx := logf.With(context.WithoutCancel(f.ctx), "sandbox_id", e.id)
		if err := volumes.Delete(ctx, name); err != nil && !errors.Is(err, errors.Conflict) { // which somebody else has by now
			logf.Warnf(ctx, "remove the volume of a sandbox that never was: %v", err)
		}
	}
}

// fill fills e's volume from S3, unless another sandbox has done that and still has it.
func (f *Fleet) fill(ctx context.Context, e *entry, p plan) error {
	if !p.s3.Init {
		return nil
	}
	return f.stage(e, "s3 init", func() error {
		done, err := f.takeVolume(ctx, volume.Stored(account.Owner(e.record.Account), p.s3.Volume))
		if err != nil {
			return err
		}
		defer done()
		if f.filledByOther(e) {
			logf.Infof(ctx, "the volume %s was filled from S3 by another sandbox that has it", p.s3.Volume)
		} else if err := f.opts.S3.Fill(ctx, f.s3Job(e)); err != nil {
			return errors.Explainf(err, errors.KindOf(err), "the volume %s could not be filled from S3: %s", p.s3.Volume, errors.Message(err))
		}
		f.mu.Lock()
		defer f.mu.Unlock()
		e.filled = true
		return nil
	})
}

// takeVolume waits until nobody else fills the volume of that name.
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

// filledByOther reports whether another sandbox has e's volume, filled from the same place: then what it has written counts.
func (f *Fleet) filledByOther(e *entry) bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	mine := e.record.S3
	for _, other := range f.live {
		s := other.record.S3
		if other == e || s == nil || other.record.Account != e.record.Account || s.Volume != mine.Volume || s.Bucket != mine.Bucket || s.Prefix != mine.Prefix {
			continue
		}
		if s.Init && (other.filled || other.record.Status != Creating) {
			return true
		}
	}
	return false
}

// noteEnd writes down that the volume of a sandbox that ends has to be sent to S3, before anything says that it ended.
func (f *Fleet) noteEnd(ctx context.Context, e *entry) {
	if !f.syncsAtEnd(e) {
		return
	}
	if err := f.opts.S3.Note(ctx, f.s3Job(e)); err != nil {
		logf.Errorf(ctx, "note that a volume has to be sent to S3: %v", err)
	}
}

// saveEnd sends the volume of a sandbox that ends, or ended by itself, to S3 if that was asked for. The end of the Fleet leaves it to the next one.
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

// noteSyncError writes into the record of a sandbox that ends why what it wrote is not in S3.
func (f *Fleet) noteSyncError(ctx context.Context, e *entry, err error) {
	_, err = f.update(ctx, e, func(sb *Sandbox) error {
		own := *sb.S3
		own.SyncError = strings.TrimSuffix(errors.Message(err), ".")
		sb.S3 = &own
		return nil
	})
	if err != nil {
		logf.Errorf(ctx, "the record of a sandbox that ends: %v", err)
	}
}

// Sent notes that what a sandbox could not send to S3 when it ended is there now.
func (f *Fleet) Sent(ctx context.Context, account, id string) error {
	sb, e, err := f.find(ctx, account, id)
	if err != nil || sb.S3 == nil || sb.S3.SyncError == "" {
		return err
	}
	sent := func(sb *Sandbox) error {
		own := *sb.S3
		own.SyncError = ""
		sb.S3 = &own
		return nil
	}
	if e != nil { // it is still on its way to its end
		_, err := f.update(ctx, e, sent)
		return err
	}
	if err := sent(&sb); err != nil {
		return err
	}
	return errors.Wrapf(f.opts.Store.Put(context.WithoutCancel(ctx), sb), "record that %s is in S3", id)
}

// saveLater sends the volume of a sandbox that ended by itself, for which nobody waits.
func (f *Fleet) saveLater(ctx context.Context, e *entry) {
	f.tasks.Go(func() { f.saveEnd(ctx, e) })
}

// sendDue sends the volumes of running sandboxes that ask for it every so often, and returns when to look again. Nobody waits for a
// volume: what takes longer than its time is sent again so much later.
func (f *Fleet) sendDue(at time.Time) time.Duration {
	nap := longestNap
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, e := range f.live {
		sb := e.record
		if f.opts.S3 == nil || sb.S3 == nil || sb.S3.SyncEverySeconds == 0 || sb.Status != Running || e.sending {
			continue
		}
		if e.sent.IsZero() { // it was made or found just now
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

// SyncOnEnd says whether the sandbox's volume is sent to S3 when it ends. Without Request.S3, or if it has ended, it does nothing.
func (f *Fleet) SyncOnEnd(ctx context.Context, account, ref string, sync bool) error {
	if err := f.begin(); err != nil {
		return err
	}
	defer f.tasks.Done()
	sb, e, err := f.find(ctx, account, ref)
	if err != nil {
		return err
	}
	if sb.S3 == nil || sb.S3.Mount || e == nil {
		return nil // there is nothing to send, or what has ended has been sent, or will be, or was not to be
	}
	_, err = f.update(ctx, e, func(r *Sandbox) error {
		own := *r.S3
		own.SyncOnTerminate = sync
		r.S3 = &own
		return nil
	})
	return err
}

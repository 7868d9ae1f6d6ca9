package sandbox

import (
	"context"
	"io"
	"maps"
	"path"
	"strings"
	"time"

	"github.com/RelevanceAI/harvest/account"
	"github.com/RelevanceAI/harvest/engine"
	"github.com/RelevanceAI/harvest/errors"
	"github.com/RelevanceAI/harvest/image"
	"github.com/RelevanceAI/harvest/logf"
	"github.com/RelevanceAI/harvest/sandbox/record"
	"github.com/RelevanceAI/harvest/sandbox/spec"
)

// endSnapshotLimit is the time limit for a snapshot on end. After that, resources are released without a snapshot.
const endSnapshotLimit = 15 * time.Minute

// SnapshotOptions of one Snapshot.
type SnapshotOptions struct {
	Name string // name of the image; an older image of that name loses it
	Path string // absolute; only files below it are included. "" means all
}

// Snapshot creates an image of the sandbox's files while it runs. The sandbox is paused while the files are read, and
// continues before the image is durable. The image does not contain files on volumes and in /proc, /sys and /dev,
// processes or memory. Kinds: Invalid, NotFound (sandbox or path), Conflict (it does not run), Unsupported (the
// engine has no snapshots), Exhausted (the disk is full).
func (f *Fleet) Snapshot(ctx context.Context, account, ref string, opts SnapshotOptions) (image.Image, error) {
	if err := f.begin(); err != nil {
		return image.Image{}, err
	}
	defer f.tasks.Done()
	var p spec.Problems
	f.rules.CheckSnapshots(&p)
	if opts.Name != "" {
		p.Add(image.CheckName(opts.Name))
	}
	if opts.Path != "" {
		spec.CheckPath(&p, opts.Path)
	}
	if err := p.Err(); err != nil {
		return image.Image{}, errors.Stage(err, "validate")
	}
	e, box, leave, err := f.enter(ctx, account, ref)
	if err != nil {
		return image.Image{}, err
	}
	defer leave()
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	defer context.AfterFunc(f.ctx, cancel)()
	img, err := f.capture(ctx, e, box, opts)
	if err != nil {
		return image.Image{}, errors.Stage(err, "snapshot")
	}
	f.mu.Lock()
	sb := f.snapshot(e)
	f.mu.Unlock()
	f.emit(record.Event{Type: record.EventSnapshotted, Sandbox: sb, Image: img.ID})
	logf.Infof(logContext(ctx, sb), "snapshot of the sandbox: image %s", img.ID)
	return img, nil
}

// Export writes the sandbox's files that are not in its image to w, as described for engine.Snapshotter.
func (f *Fleet) Export(ctx context.Context, account, ref string, w io.Writer) error {
	_, box, leave, err := f.enter(ctx, account, ref)
	if err != nil {
		return err
	}
	defer leave()
	s, ok := box.(engine.Snapshotter)
	if !ok {
		return errors.Newf(errors.Unsupported, "the engine %s does not support snapshots", f.opts.Engine.Name())
	}
	return s.Snapshot(ctx, "", w)
}

// capture creates the image.
func (f *Fleet) capture(ctx context.Context, e *entry, box engine.Sandbox, opts SnapshotOptions) (image.Image, error) {
	imager, makes := box.(engine.Imager)
	source, ok := box.(engine.Snapshotter)
	keeper, keeps := f.opts.Engine.Images().(image.Snapshotter)
	if !makes && !(ok && keeps) {
		return image.Image{}, errors.Newf(errors.Unsupported,
			"the engine %s does not support snapshots on this machine", f.opts.Engine.Name())
	}
	f.mu.Lock()
	sb := e.record.Clone()
	f.mu.Unlock()
	for _, m := range sb.Volumes {
		if opts.Path != "" && spec.Within(m.Path, path.Clean(opts.Path)) {
			err := errors.Newf(errors.Invalid, "%.200q is on the volume %s, which is not part of snapshots",
				opts.Path, m.Name)
			return image.Image{}, errors.Remedy(err, "name a directory outside of volumes; volumes outlive the sandbox")
		}
	}
	parent, err := f.opts.Engine.Images().Find(ctx, sb.ImageID)
	if err != nil {
		return image.Image{}, errors.Wrapf(err, "find the sandbox's image")
	}
	made := image.SnapshotOptions{Owner: account.Owner(sb.Account), Sandbox: sb.ID, Path: opts.Path}
	if opts.Name != "" {
		made.Names = []string{opts.Name}
	}
	if makes {
		return imager.SnapshotImage(ctx, parent, made)
	}
	if rooted, ok := box.(engine.Rooted); ok {
		made.Root = rooted.Root()
	}
	return keeper.Snapshot(ctx, parent, made, func(w io.Writer) error { return source.Snapshot(ctx, opts.Path, w) })
}

// captureEnd takes the snapshot on end, if requested, and records its ID or why it failed. It returns no error: the
// sandbox's resources are released in any case.
func (f *Fleet) captureEnd(ctx context.Context, e *entry, box engine.Sandbox) {
	f.mu.Lock()
	sb := e.record.Clone()
	f.mu.Unlock()
	if !sb.SnapshotOnEnd || sb.Account == record.SpareAccount || sb.SnapshotID != "" || sb.SnapshotError != "" {
		return
	}
	ctx, cancel := context.WithTimeout(ctx, endSnapshotLimit)
	defer cancel()
	var img image.Image
	var err error
	if box == nil {
		box, err = f.opts.Engine.Open(ctx, sb.Handle)
	}
	if err == nil {
		img, err = f.capture(ctx, e, box, SnapshotOptions{})
	}
	if err != nil {
		logf.Errorf(ctx, "no snapshot was taken on the end of the sandbox: %v", err)
	} else {
		logf.Infof(ctx, "snapshot on the end of the sandbox: image %s", img.ID)
	}
	_, saveErr := f.update(ctx, e, func(r *record.Sandbox) error {
		r.SnapshotID = img.ID
		if err != nil {
			r.SnapshotError = strings.TrimSuffix(errors.Message(err), ".")
		}
		return nil
	})
	if saveErr != nil {
		logf.Errorf(ctx, "the snapshot on the end of a sandbox: %v", saveErr)
	}
	if err == nil {
		f.mu.Lock()
		sb = f.snapshot(e)
		f.mu.Unlock()
		f.emit(record.Event{Type: record.EventSnapshotted, Sandbox: sb, Image: img.ID})
	}
}

// ownTag is the prefix of tags by which Harvest itself identifies a sandbox, such as the tag of a session.
const ownTag = "harvest."

// Fork creates a copy of a running sandbox with its current files. The copy has the same limits, volumes, secrets,
// network, ports, tags, user and working directory. The environment of the original is not recorded, so it comes from
// req.Env, and the name comes from req.Name. Time limits start again. The kinds are those of Snapshot and Create.
//
// The copy of a session's sandbox belongs to no session. Keys that the session withheld from its commands are
// withheld from the copy's commands, too. Data that the session put into memory, such as git tokens, is not part of
// the snapshot.
func (f *Fleet) Fork(ctx context.Context, account, ref string, req ForkRequest) (record.Sandbox, error) {
	sb, err := f.Get(ctx, account, ref)
	if err != nil {
		return record.Sandbox{}, err
	}
	img, err := f.Snapshot(ctx, account, sb.ID, SnapshotOptions{})
	if err != nil {
		return record.Sandbox{}, err
	}
	var s3 *spec.S3 // the volume is filled already
	if sb.S3 != nil {
		s3 = &spec.S3{}
		*s3 = sb.S3.S3
		s3.Init = false
	}
	maps.DeleteFunc(sb.Tags, func(key, _ string) bool { return strings.HasPrefix(key, ownTag) })
	return f.Create(ctx, account, spec.Request{
		S3: s3, Image: img.ID, Name: req.Name, Env: req.Env, Tags: sb.Tags, Secrets: sb.Secrets, Withhold: sb.Withheld,
		Ports: sb.Ports, Workdir: sb.Workdir, User: sb.User, Volumes: sb.Volumes,
		Network: sb.Network, GPU: sb.GPU, CPU: sb.Limits.CPU, Memory: sb.Limits.Memory, Disk: sb.Limits.Disk,
		Processes: sb.Limits.Processes, Files: sb.Limits.Files,
		VolumeFiles:        min(sb.Limits.VolumeFiles, f.opts.Defaults.VolumeFiles),
		TimeoutSeconds:     min(sb.Expires.Sub(sb.Started), f.opts.Timeouts.MaxLife).Seconds(),
		IdleTimeoutSeconds: sb.IdleTimeoutSeconds, SnapshotOnEnd: sb.SnapshotOnEnd,
	})
}

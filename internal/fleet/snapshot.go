package fleet

import (
	"context"
	"io"
	"strings"
	"time"

	"github.com/RelevanceAI/harvest/client/errors"
	"github.com/RelevanceAI/harvest/internal/base/logf"
	"github.com/RelevanceAI/harvest/internal/engine"
	"github.com/RelevanceAI/harvest/internal/fleet/record"
	"github.com/RelevanceAI/harvest/internal/fleet/spec"
	"github.com/RelevanceAI/harvest/internal/image"
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
	img, err := f.images.Snapshot(ctx, f.current(e), box, opts.Name, opts.Path)
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

// captureEnd takes the snapshot on end, if requested, and records its ID or why it failed. It returns no error: the
// sandbox's resources are released in any case.
func (f *Fleet) captureEnd(ctx context.Context, e *entry, box engine.Sandbox) {
	sb := f.current(e)
	if !sb.SnapshotOnEnd || sb.Account == record.SpareAccount || sb.SnapshotID != "" || sb.SnapshotError != "" {
		return
	}
	ctx, cancel := context.WithTimeout(ctx, endSnapshotLimit)
	defer cancel()
	var img image.Image
	var err error
	suspended := sb.Handle == (engine.Handle{}) && sb.Suspension.Image != ""
	switch {
	case suspended:
		img.ID, err = sb.Suspension.Image, giveImage(ctx, f, sb.Suspension.Image)
	case box == nil:
		box, err = f.opts.Engine.Open(ctx, sb.Handle)
	}
	if err == nil && !suspended {
		img, err = f.images.Snapshot(ctx, sb, box, "", "")
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
	again := sb.Again(f.rules)
	again.Image, again.Name, again.Env = img.ID, req.Name, req.Env
	return f.Create(ctx, account, again)
}

package sandbox

import (
	"cmp"
	"context"

	"github.com/RelevanceAI/harvest/engine"
	"github.com/RelevanceAI/harvest/logf"
	"github.com/RelevanceAI/harvest/sandbox/record"
)

// defaultSpool is the limit for data that was written to a mount and is not stored yet, if the sandbox has no disk
// limit.
const defaultSpool = 10 << 30

// mountsS3 reports whether the Fleet, and not the engine, mounts e's bucket.
func (f *Fleet) mountsS3(e *entry) bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.opts.Mounts != nil && !f.caps.Buckets && e.record.S3 != nil && e.record.S3.Mount
}

// mountS3 mounts the bucket of p unless the engine does, and returns the mounts for the engine.
func (f *Fleet) mountS3(ctx context.Context, e *entry, p plan) ([]engine.Mount, error) {
	if p.S3 == nil || !p.S3.Mount {
		return nil, nil
	}
	if f.caps.Buckets {
		place := engine.Bucket{Name: p.S3.Bucket, Prefix: p.S3.Prefix, Secret: p.S3.Secret}
		return []engine.Mount{{Bucket: place, Path: p.S3.MountPath, ReadOnly: p.S3.ReadOnly}}, nil
	}
	dir := ""
	err := f.stage(e, "s3 mount", func() (err error) {
		dir, err = f.opts.Mounts.Mount(ctx, f.s3Job(e), p.S3.ReadOnly, cmp.Or(p.Limits.Disk, defaultSpool))
		return err
	})
	if err != nil {
		return nil, err
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	e.undo = func() {
		if err := f.opts.Mounts.Finish(context.WithoutCancel(ctx), e.id); err != nil {
			logf.Errorf(ctx, "the mount of a sandbox that never was: %v", err)
		}
	}
	return []engine.Mount{{Dir: dir, Path: p.S3.MountPath, ReadOnly: p.S3.ReadOnly}}, nil
}

// quietMount cancels operations that wait for S3 in a sandbox that is ending.
func (f *Fleet) quietMount(ctx context.Context, e *entry) {
	if f.mountsS3(e) {
		f.opts.Mounts.Quiet(ctx, e.id)
	}
}

// mountLost records why the mount of a sandbox no longer works.
func (f *Fleet) mountLost(ctx context.Context, id, reason string) {
	f.mu.Lock()
	e := f.live[id]
	f.mu.Unlock()
	if e == nil || !f.mountsS3(e) {
		return
	}
	if _, err := f.update(ctx, e, func(sb *record.Sandbox) error {
		own := *sb.S3
		own.MountError = reason
		sb.S3 = &own
		return nil
	}); err != nil {
		logf.Errorf(ctx, "the record of a sandbox whose mount is lost: %v", err)
	}
}

// endMount unmounts the bucket of a sandbox that has ended. If the Fleet closes, it leaves that to the next one.
func (f *Fleet) endMount(ctx context.Context, e *entry) error {
	if !f.mountsS3(e) {
		return nil
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	defer context.AfterFunc(f.ctx, cancel)()
	err := f.opts.Mounts.Finish(ctx, e.id)
	if err != nil {
		logf.Errorf(ctx, "the mount of a sandbox that ended: %v", err)
	}
	return err
}

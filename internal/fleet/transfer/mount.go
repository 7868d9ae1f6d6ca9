package transfer

import (
	"cmp"
	"context"

	"github.com/RelevanceAI/harvest/internal/base/logf"
	"github.com/RelevanceAI/harvest/internal/engine"
	"github.com/RelevanceAI/harvest/internal/fleet/record"
	"github.com/RelevanceAI/harvest/internal/fleet/spec"
)

// defaultSpool is the limit for data that was written to a mount and is not stored yet, if the sandbox has no disk
// limit.
const defaultSpool = 10 << 30

// mounts reports whether the server, and not the engine, mounts the sandbox's bucket.
func (f *Files) mounts() (record.Sandbox, bool) {
	sb := f.sandbox.Record()
	return sb, f.server.Mounts != nil && sb.S3 != nil && sb.S3.Mount
}

// EngineMount returns the mount of a request for an engine that mounts buckets itself.
func EngineMount(s spec.S3) engine.Mount {
	return engine.Mount{Place: s.Place, Path: s.MountPath, ReadOnly: s.ReadOnly}
}

// Mount mounts the sandbox's bucket, and returns the mount for the engine. disk is the limit for data that is not
// stored yet. undo unmounts it again if the sandbox never becomes ready.
func (f *Files) Mount(ctx context.Context, disk int64) (m engine.Mount, undo func(), err error) {
	sb := f.sandbox.Record()
	dir, err := f.server.Mounts.Mount(ctx, job(sb), sb.S3.ReadOnly, cmp.Or(disk, defaultSpool))
	if err != nil {
		return engine.Mount{}, nil, err
	}
	if sb.S3.MountError != "" || sb.S3.SyncError != "" { // of the mount before a suspension
		err = f.sandbox.Update(ctx, func(s *record.S3Volume) { s.MountError, s.SyncError = "", "" })
		if err != nil {
			logf.Errorf(ctx, "the record of a sandbox whose bucket is mounted again: %v", err)
		}
	}
	return engine.Mount{Dir: dir, Path: sb.S3.MountPath, ReadOnly: sb.S3.ReadOnly}, func() {
		if err := f.server.Mounts.Finish(context.WithoutCancel(ctx), sb.ID); err != nil {
			logf.Errorf(ctx, "the mount of a sandbox that never was: %v", err)
		}
	}, nil
}

// Quiet cancels operations that wait for S3 in the mount of a sandbox that is ending.
func (f *Files) Quiet(ctx context.Context) {
	if sb, ok := f.mounts(); ok {
		f.server.Mounts.Quiet(ctx, sb.ID)
	}
}

// MountLost records why the mount of the sandbox no longer works.
func (f *Files) MountLost(ctx context.Context, reason string) {
	if _, ok := f.mounts(); !ok {
		return
	}
	if err := f.sandbox.Update(ctx, func(s *record.S3Volume) { s.MountError = reason }); err != nil {
		logf.Errorf(ctx, "the record of a sandbox whose mount is lost: %v", err)
	}
}

// Unmount unmounts the bucket of a sandbox that has ended, and logs why not all of its files are in S3. If the server
// closes, it leaves that to the next one.
func (f *Files) Unmount(ctx context.Context) error {
	sb, ok := f.mounts()
	if !ok {
		return nil
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	defer context.AfterFunc(f.server.Context, cancel)()
	err := f.server.Mounts.Finish(ctx, sb.ID)
	if err != nil {
		logf.Errorf(ctx, "the mount of a sandbox that ended: %v", err)
	}
	return err
}

// UnmountEnding is Unmount for a sandbox that is ending: its record keeps the reason of a failure.
func (f *Files) UnmountEnding(ctx context.Context) {
	if err := f.Unmount(ctx); err != nil {
		f.noteError(ctx, err)
	}
}

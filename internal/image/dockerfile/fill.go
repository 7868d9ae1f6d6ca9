package dockerfile

import (
	"context"

	"github.com/RelevanceAI/harvest/client/errors"
)

// fillLock is the name of the lock of a cache mount that begins with files. It is held while the mount is filled or
// removed, and from the check that it is filled until a machine uses it.
func fillLock(volume string) string { return "fill " + volume }

// startFilled starts the machine of a RUN. It first fills the cache mounts that begin with files.
func (x *executor) startFilled(ctx context.Context, r *run, setup Setup) error {
	var names []string
	for _, m := range r.mounts {
		if m.files != "" {
			names = append(names, fillLock(m.volume(x.owner)))
		}
	}
	unlock, err := x.lockAll(ctx, names)
	if err != nil {
		return err
	}
	defer unlock()
	for _, m := range r.mounts {
		if m.files == "" {
			continue
		}
		if err := x.fill(ctx, m, setup); err != nil {
			return errors.Wrapf(err, "fill the cache mount at %s", m.Dest)
		}
	}
	x.machine, err = x.runner.Start(ctx, setup)
	return errors.Wrapf(err, "start the machine of a build")
}

// fill copies the files with which a cache mount begins into its volume, unless it has them. A machine of its own does
// so, since that of the RUN may see the volume read-only. A fill that was interrupted is repeated: the same files
// replace those that are there.
func (x *executor) fill(ctx context.Context, m mount, setup Setup) error {
	filled := x.cache.filled(x.owner, m)
	if err := x.cache.noteMount(x.owner, m, filled); err != nil || filled {
		return err
	}
	dir, err := x.bound(m)
	if err != nil {
		return err
	}
	machine, err := x.runner.Start(ctx, Setup{Image: setup.Image, Network: "none", Title: setup.Title,
		Mounts: []Mount{{Volume: m.volume(x.owner), Path: bindDir}}})
	if err != nil {
		return err
	}
	err = bring(ctx, machine, bindDir, dir)
	if err = errors.Join(err, machine.Close(context.WithoutCancel(ctx))); err != nil {
		return err
	}
	return x.cache.noteMount(x.owner, m, true)
}

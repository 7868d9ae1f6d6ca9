package gvisor

import (
	"cmp"
	"context"
	"maps"
	"os"
	"path/filepath"

	"github.com/RelevanceAI/harvest/client/errors"
	"github.com/RelevanceAI/harvest/internal/base/atomicfile"
	"github.com/RelevanceAI/harvest/internal/engine"
	"github.com/RelevanceAI/harvest/internal/engine/gvisor/wire"
)

// Checkpoint implements engine.Checkpointer.
func (s *Sandbox) Checkpoint(ctx context.Context, dir string) (err error) {
	if _, err := os.Lstat(dir); !errors.IsNotExist(err) {
		return errors.Newf(errors.Conflict, "%s exists", dir)
	}
	part := dir + ".part"
	if err := os.Mkdir(part, 0o700); err != nil {
		return errors.Wrapf(err, "create directory of a checkpoint")
	}
	defer func() {
		if err != nil {
			err = errors.Join(errors.Stage(err, "checkpoint"), removeGrowing(part))
		}
	}()
	if _, err := s.Call(ctx, wire.Request{Op: wire.Checkpoint, Path: part}); err != nil {
		return err
	}
	if err := atomicfile.SyncDir(part); err != nil {
		return err
	}
	if err := os.Rename(part, dir); err != nil {
		return errors.Wrapf(err, "publish checkpoint")
	}
	if err := atomicfile.SyncDir(filepath.Dir(dir)); err != nil {
		return errors.Join(err, os.RemoveAll(dir))
	}
	return nil
}

// removeGrowing removes a directory in which a keeper may still create a few files, because it does not know
// that the checkpoint was abandoned.
func removeGrowing(dir string) (err error) {
	const files = 8
	for range files {
		if err = os.RemoveAll(dir); err == nil {
			return nil
		}
	}
	return errors.Wrapf(err, "remove the files of a checkpoint")
}

// prepareRestore takes ref for a spec with a checkpoint. If it fails, ref is free again.
func (e *Engine) prepareRestore(_ context.Context, ref string, spec engine.Spec) (*wire.ClaimArgs, error) {
	saved, err := wire.ReadSaved(spec.Checkpoint)
	if err == nil {
		err = e.checkSaved(saved, spec)
	}
	if err != nil {
		return nil, errors.Stage(err, "checkpoint")
	}
	if _, err := e.take(ref, spec.ID); err != nil {
		return nil, err
	}
	if err := e.writeUses(ref, uses{ID: spec.ID}); err != nil {
		return nil, errors.Join(err, e.remove(ref))
	}
	// The checkpoint may be removed while the sandbox exists, and a new checkpoint of the sandbox needs these
	// files. The keeper finds the second one.
	root := filepath.Join(e.dir(ref), rootName)
	if os.Link(filepath.Join(spec.Checkpoint, wire.CheckpointRoot), root) != nil {
		root = filepath.Join(spec.Checkpoint, wire.CheckpointRoot)
	}
	_ = os.Link(filepath.Join(spec.Checkpoint, wire.CheckpointInit), filepath.Join(e.dir(ref), wire.CheckpointInit))
	claim := saved.Claim
	claim.ID, claim.Root, claim.Network, claim.Keep = spec.ID, root, spec.Network, spec.KeepOnOOM
	claim.Hostname = cmp.Or(spec.Hostname, engine.HostName(spec.ID))
	if spec.Dir != "" {
		claim.Dir = spec.Dir
	}
	if spec.User != "" {
		claim.User = spec.User
	}
	claim.Env = maps.Clone(claim.Env)
	if claim.Env == nil {
		claim.Env = map[string]string{}
	}
	maps.Copy(claim.Env, spec.Env)
	spec.Env, spec.Dir, spec.User = claim.Env, claim.Dir, claim.User
	claim.Spec = &spec
	return &claim, nil
}

// checkSaved refuses a checkpoint from which the sandbox cannot start here.
func (e *Engine) checkSaved(saved *wire.Saved, spec engine.Spec) error {
	switch {
	case saved.Version != wire.GVisor:
		err := errors.Newf(errors.Unsupported, "the checkpoint was made with gVisor %s; this is gVisor %s",
			saved.Version, wire.GVisor)
		return errors.Remedy(err,
			"make another one with this version of Harvest; only its snapshot of files survives an upgrade")
	case saved.Platform != e.opts.Platform || saved.Rootless != e.rootless:
		err := errors.Newf(errors.Unsupported,
			"the checkpoint was made by another user, or on another platform of gVisor")
		return errors.Remedy(err, "restore it with the settings with which it was made")
	case saved.Limits != spec.Limits:
		err := errors.Newf(errors.Invalid, "the checkpoint is of a sandbox with other limits: %+v", saved.Limits)
		return errors.Remedy(err, "leave the limits out, or name the same ones")
	case len(spec.Mounts) > 0:
		return errors.Remedy(errors.Newf(errors.Unsupported, "a sandbox from a checkpoint cannot have volumes"),
			"create it without volumes")
	}
	return nil
}

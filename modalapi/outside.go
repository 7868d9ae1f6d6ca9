package modalapi

import (
	"context"
	"os"
	"path/filepath"

	"github.com/RelevanceAI/harvest/errors"
	"github.com/RelevanceAI/harvest/modalapi/volumefiles"
	"github.com/RelevanceAI/harvest/volume"
)

// outside is a volume that a client reads or changes from outside of sandboxes.
type outside struct {
	s       *Server
	acc     string
	name    string
	volume  volume.Volume
	root    *os.Root
	staging string
}

// outside opens the caller's volume with that ID. The caller closes its root.
func (s *Server) outside(ctx context.Context, id string) (*outside, error) {
	name, err := nameOf(id, volumeID, "Volume")
	if err != nil {
		return nil, err
	}
	v, err := s.outsideOf(ctx, callerOf(ctx).Account, name)
	if errors.KindOf(err) == errors.NotFound || volume.CheckName(name) != nil {
		return nil, missing("Volume", id)
	}
	return v, err
}

func (s *Server) outsideOf(ctx context.Context, acc, name string) (*outside, error) {
	vol, err := s.provider(acc).Open(ctx, name)
	if err != nil {
		return nil, err
	}
	v := &outside{s: s, acc: acc, name: name, volume: vol}
	if d, ok := vol.(volume.Directory); ok && d.Notes() != "" {
		v.staging = filepath.Join(d.Notes(), stagingDir)
	}
	v.root, err = openVolume(ctx, s.provider(acc), name)
	return v, err
}

// change calls do while no sandbox commits to the volume.
func (v *outside) change(do func() error) error {
	l := v.s.volumes.lock(v.acc, v.name)
	l.Lock()
	defer l.Unlock()
	return do()
}

// add is change for an operation that calls admit before it creates a file.
func (v *outside) add(ctx context.Context, do func(admit func(path string) error) error) error {
	return v.change(func() error {
		admit, err := volume.Admit(ctx, v.volume, v.root)
		if err != nil {
			return err
		}
		return do(admit)
	})
}

// put writes files to the volume.
func (v *outside) put(ctx context.Context, files []volumefiles.File, overwrite bool) error {
	b, err := volumefiles.Stage(ctx, v.staging, files)
	if err != nil {
		return err
	}
	err = v.add(ctx, func(admit func(string) error) error { return b.Commit(v.root, overwrite, admit) })
	if errors.KindOf(err) == errors.Conflict {
		err = withCode(err, alreadyExists)
	}
	return errors.Join(err, b.Discard())
}

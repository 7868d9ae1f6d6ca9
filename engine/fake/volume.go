package fake

import (
	"context"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"syscall"

	"github.com/RelevanceAI/harvest/errors"
	"github.com/RelevanceAI/harvest/internal/tarfs"
	"github.com/RelevanceAI/harvest/volume"
)

// volumes keeps volumes as directories below dir.
type volumes struct {
	dir  string
	uses func(name string) bool
}

func (v *volumes) path(name string) string { return filepath.Join(v.dir, name) }

func (v *volumes) Create(ctx context.Context, name string) (volume.Volume, error) {
	if err := volume.CheckName(name); err != nil {
		return nil, err
	}
	if err := os.Mkdir(v.path(name), 0o777); err != nil && !errors.Is(err, fs.ErrExist) {
		return nil, errors.Wrapf(err, "make volume %s", name)
	}
	return v.Open(ctx, name)
}

func (v *volumes) Open(_ context.Context, name string) (volume.Volume, error) {
	if volume.CheckName(name) == nil {
		if _, err := os.Stat(v.path(name)); err == nil {
			return &vol{name: name, dir: v.path(name)}, nil
		}
	}
	return nil, errors.Newf(errors.NotFound, "there is no volume %.150q", name)
}

func (v *volumes) List(context.Context) ([]volume.Info, error) {
	entries, err := os.ReadDir(v.dir)
	if err != nil {
		return nil, errors.Wrapf(err, "list the volumes")
	}
	infos := []volume.Info{}
	for _, entry := range entries {
		info := volume.Info{Name: entry.Name()}
		if stat, err := entry.Info(); err == nil {
			info.Created = stat.ModTime()
		}
		err := filepath.WalkDir(v.path(entry.Name()), func(_ string, e fs.DirEntry, err error) error {
			if err == nil && e.Type().IsRegular() {
				if stat, err := e.Info(); err == nil {
					info.Size, info.Files = info.Size+stat.Size(), info.Files+1
				}
			}
			return nil // files come and go while we look
		})
		if err != nil {
			return nil, errors.Wrapf(err, "measure volume %s", entry.Name())
		}
		infos = append(infos, info)
	}
	return infos, nil
}

func (v *volumes) Delete(ctx context.Context, name string) error {
	if _, err := v.Open(ctx, name); err != nil {
		return err
	}
	if v.uses(name) {
		return errors.Newf(errors.Conflict, "volume %s is in use", name)
	}
	return errors.Wrapf(os.RemoveAll(v.path(name)), "remove volume %s", name)
}

// vol is one volume.
type vol struct{ name, dir string }

func (v *vol) Name() string                 { return v.name }
func (v *vol) Commit(context.Context) error { return nil }
func (v *vol) Reload(context.Context) error { return nil }

// open opens the volume's root and cleans a path in it.
func (v *vol) open(path string) (*os.Root, string, error) {
	name, err := tarfs.Clean(path)
	if err != nil {
		return nil, "", err
	}
	root, err := os.OpenRoot(v.dir)
	if errors.IsNotExist(err) {
		return nil, "", errors.Newf(errors.NotFound, "volume %s is gone", v.name)
	}
	return root, name, errors.Wrapf(err, "open volume %s", v.name)
}

func (v *vol) CopyIn(_ context.Context, dir string, tar io.Reader) error {
	root, name, err := v.open(dir)
	if err != nil {
		return err
	}
	defer root.Close()
	return tarfs.Unpack(root, name, tar, tarfs.Options{Owners: os.Geteuid() == 0, SetID: true})
}

func (v *vol) CopyOut(_ context.Context, path string) (io.ReadCloser, error) {
	root, name, err := v.open(path)
	if err != nil {
		return nil, err
	}
	return packed(root, name)
}

func (v *vol) ReadDir(_ context.Context, dir string) ([]volume.Entry, error) {
	root, name, err := v.open(dir)
	if err != nil {
		return nil, err
	}
	defer root.Close()
	found, err := fs.ReadDir(root.FS(), name)
	if err != nil {
		return nil, tarfs.Explain(err, dir)
	}
	entries := []volume.Entry{}
	for _, f := range found {
		info, err := f.Info()
		if err != nil {
			continue // gone meanwhile
		}
		e := volume.Entry{Name: f.Name(), Size: info.Size(), Modified: info.ModTime(), Mode: info.Sys().(*syscall.Stat_t).Mode}
		if info.Mode()&fs.ModeSymlink != 0 {
			e.Link, _ = root.Readlink(filepath.Join(name, f.Name()))
		}
		entries = append(entries, e)
	}
	return entries, nil
}

func (v *vol) Remove(_ context.Context, path string) error {
	root, name, err := v.open(path)
	if err != nil {
		return err
	}
	defer root.Close()
	if name == "." {
		return errors.Newf(errors.Invalid, "the root of a volume cannot be removed")
	}
	if _, err := root.Lstat(name); err != nil {
		return tarfs.Explain(err, path)
	}
	return tarfs.Explain(root.RemoveAll(name), path)
}

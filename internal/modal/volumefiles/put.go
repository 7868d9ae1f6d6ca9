package volumefiles

import (
	"context"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"strconv"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/RelevanceAI/harvest/client/errors"
	"github.com/RelevanceAI/harvest/internal/base/tarfs"
	"github.com/RelevanceAI/harvest/internal/engine/volume"
)

// standardMode is the mode of files whose client names none.
const standardMode = 0o644

// File is a file to put into a volume.
type File struct {
	Path  string
	Mode  uint32 // permission bits; 0: 0644
	Size  int64
	Write func(f *os.File) error // writes the content; bytes up to Size that it leaves out are zero

	dir  bool
	link string
}

// Batch is files that are complete outside of the volume.
type Batch struct {
	dir   string
	files []File
}

// Stage writes the content of files below the directory staging, which must be in the file system of the volume. The
// caller calls Discard.
func Stage(ctx context.Context, staging string, files []File) (b *Batch, err error) {
	seen := map[string]bool{}
	b = &Batch{}
	for _, f := range files {
		clean, err := tarfs.Clean(f.Path)
		if err != nil {
			return nil, err
		}
		if clean == "." || seen[clean] || path.Base(f.Path) != path.Base(clean) {
			return nil, errors.Newf(errors.Invalid, "invalid or duplicate path %.200q", f.Path)
		}
		seen[clean] = true
		f.Path = clean
		b.files = append(b.files, f)
	}
	if err := os.MkdirAll(staging, 0o700); err != nil {
		return nil, errors.Wrapf(err, "make a directory for files of a volume")
	}
	if b.dir, err = os.MkdirTemp(staging, ""); err != nil {
		return nil, errors.Wrapf(err, "make a directory for files of a volume")
	}
	for i, f := range b.files {
		if err := ctx.Err(); err != nil {
			return nil, errors.Join(err, b.Discard())
		}
		if f.dir || f.link != "" {
			continue
		}
		if err := stage(filepath.Join(b.dir, strconv.Itoa(i)), f); err != nil {
			return nil, errors.Join(err, b.Discard())
		}
	}
	return b, nil
}

func stage(name string, f File) error {
	to, err := os.OpenFile(name, os.O_CREATE|os.O_WRONLY|os.O_EXCL, 0o600)
	if err != nil {
		return errors.Wrapf(err, "write a file of a volume")
	}
	err = f.Write(to)
	if err == nil {
		err = to.Truncate(f.Size)
	}
	if f.Mode &= 0o777; f.Mode == 0 {
		f.Mode = standardMode
	}
	if err == nil {
		err = to.Chmod(fs.FileMode(f.Mode))
	}
	return tarfs.Explain(errors.Join(err, to.Close()), f.Path)
}

// Discard removes what Commit has not moved.
func (b *Batch) Discard() error { return os.RemoveAll(b.dir) }

// Commit moves the files into the volume. Each replaces an earlier one atomically. Conflict, without any change, if one
// would replace a directory, or without overwrite any file. Exhausted if v, whose root is root, has no room for more.
func (b *Batch) Commit(ctx context.Context, v volume.Volume, root *os.Root, overwrite bool) error {
	for _, f := range b.files {
		info, err := root.Lstat(f.Path)
		switch {
		case err == nil && info.IsDir() != f.dir:
			return errors.Newf(errors.Conflict,
				"'%.200s' already exists: a file and a directory do not replace one another",
				f.Path)
		case err == nil && !f.dir && !overwrite:
			return errors.Remedy(errors.Newf(errors.Conflict, "'%.200s' already exists", f.Path), "use force=True")
		case err != nil && !errors.IsNotExist(err):
			return tarfs.Explain(err, f.Path)
		}
	}
	room, err := volume.Admit(ctx, v, root)
	if err != nil {
		return err
	}
	staged, err := os.Open(b.dir)
	if err != nil {
		return errors.Wrapf(err, "move files into a volume")
	}
	defer staged.Close()
	for i, f := range b.files {
		if err := room.Make(f.Path, func() error {
			return tarfs.Explain(f.move(root, staged, strconv.Itoa(i)), f.Path)
		}); err != nil {
			return err
		}
	}
	return nil
}

// move makes one file appear. It and new directories above it have the owner of the directory that they are in.
func (f File) move(root *os.Root, staged *os.File, temp string) error {
	for _, dir := range parents(f.Path) {
		if err := directory(root, dir, 0o755); err != nil {
			return err
		}
	}
	if f.dir {
		return directory(root, f.Path, fs.FileMode(f.Mode))
	}
	if f.link != "" {
		if err := root.Remove(f.Path); err != nil && !errors.IsNotExist(err) {
			return err
		}
		return errors.Join(root.Symlink(f.link, f.Path), own(root, f.Path))
	}
	above, err := root.OpenRoot(path.Dir(f.Path))
	if err != nil {
		return err
	}
	defer above.Close()
	dir, err := above.Open(".")
	if err != nil {
		return err
	}
	defer dir.Close()
	if info, err := dir.Stat(); err == nil {
		if st, ok := info.Sys().(*syscall.Stat_t); ok {
			if err := tolerated(os.Lchown(filepath.Join(staged.Name(), temp), int(st.Uid), int(st.Gid))); err != nil {
				return err
			}
		}
	}
	return unix.Renameat(int(staged.Fd()), temp, int(dir.Fd()), path.Base(f.Path))
}

// directory makes a directory if it does not exist.
func directory(root *os.Root, name string, mode fs.FileMode) error {
	err := root.Mkdir(name, mode)
	if errors.Is(err, fs.ErrExist) {
		info, err := root.Stat(name)
		if err == nil && !info.IsDir() {
			err = &fs.PathError{Op: "mkdir", Path: name, Err: syscall.ENOTDIR}
		}
		return err
	}
	if err != nil {
		return err
	}
	return own(root, name)
}

// own gives a new file the owner of the directory that it is in.
func own(root *os.Root, name string) error {
	info, err := root.Stat(path.Dir(name))
	if err != nil {
		return err
	}
	st, ok := info.Sys().(*syscall.Stat_t)
	if !ok {
		return nil
	}
	return tolerated(root.Lchown(name, int(st.Uid), int(st.Gid)))
}

// tolerated is for a server that is not root: the files stay its own.
func tolerated(err error) error {
	if errors.Is(err, fs.ErrPermission) && os.Geteuid() != 0 {
		return nil
	}
	return err
}

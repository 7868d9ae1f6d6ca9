// Package volumefiles reads and changes the files of a volume for clients outside of sandboxes. All access goes through
// an os.Root, since sandboxes control the content.
package volumefiles

import (
	"context"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
	"slices"
	"syscall"
	"time"

	"github.com/RelevanceAI/harvest/client/errors"
	"github.com/RelevanceAI/harvest/internal/base/tarfs"
	"github.com/RelevanceAI/harvest/internal/engine/volume"
	"github.com/RelevanceAI/harvest/internal/modal/trees"
)

// Entry is a file in a list.
type Entry struct {
	Path     string // relative to the volume
	Mode     fs.FileMode
	Size     int64
	Modified time.Time
}

// errEnough ends a walk.
var errEnough = errors.Errorf("enough")

// List calls yield for the entries of a directory, or of all directories below it, or for a file itself. It stops after
// most entries, if most is not 0.
func List(ctx context.Context, root *os.Root, name string, recursive bool, most int, yield func(Entry) error) error {
	clean, err := tarfs.Clean(name)
	if err != nil {
		return err
	}
	info, err := root.Stat(clean)
	if err != nil {
		return tarfs.Explain(err, name)
	}
	n := 0
	give := func(name string, info fs.FileInfo) error {
		if most > 0 && n == most {
			return errEnough
		}
		n++
		return yield(Entry{Path: name, Mode: info.Mode(), Size: info.Size(), Modified: info.ModTime()})
	}
	if !info.IsDir() {
		return give(clean, info)
	}
	dir, err := root.OpenRoot(clean) // which follows a symbolic link, unlike a walk
	if err != nil {
		return tarfs.Explain(err, name)
	}
	defer dir.Close()
	err = trees.Walk(ctx, dir, func(at string, info fs.FileInfo) error {
		if err := give(path.Join(clean, at), info); err != nil {
			return err
		}
		if info.IsDir() && !recursive {
			return fs.SkipDir
		}
		return nil
	})
	if errors.Is(err, errEnough) {
		return nil
	}
	return err
}

// Stat returns the size of a file, and a stamp that changes with the file.
func Stat(root *os.Root, name string) (size int64, stamp string, err error) {
	clean, err := tarfs.Clean(name)
	if err != nil {
		return 0, "", err
	}
	info, err := root.Stat(clean)
	if err != nil {
		return 0, "", tarfs.Explain(err, name)
	}
	if !info.Mode().IsRegular() {
		return 0, "", errors.Newf(errors.Invalid, "%.200q is not a file", name)
	}
	return info.Size(), stampOf(info), nil
}

func stampOf(info fs.FileInfo) string {
	var inode uint64
	if st, ok := info.Sys().(*syscall.Stat_t); ok {
		inode = st.Ino
	}
	return fmt.Sprintf("%x-%x-%x", inode, info.ModTime().UnixNano(), info.Size())
}

// Read returns a part of a file. Conflict if its stamp is another one, before or after.
func Read(root *os.Root, name, stamp string, offset, length int64) ([]byte, error) {
	clean, err := tarfs.Clean(name)
	if err != nil {
		return nil, err
	}
	// Without O_NONBLOCK a pipe in place of the file would block.
	f, err := root.OpenFile(clean, os.O_RDONLY|syscall.O_NONBLOCK, 0)
	if err != nil {
		return nil, tarfs.Explain(err, name)
	}
	defer f.Close()
	changed := func() error {
		info, err := f.Stat()
		if err == nil && (!info.Mode().IsRegular() || stampOf(info) != stamp) {
			err = errors.Remedy(errors.Newf(errors.Conflict, "%.200q has changed", name), "read it again")
		}
		return err
	}
	if err := changed(); err != nil {
		return nil, err
	}
	data := make([]byte, length)
	if _, err := f.ReadAt(data, offset); err != nil && !errors.Is(err, io.EOF) {
		return nil, tarfs.Explain(err, name)
	}
	return data, changed()
}

// Remove removes a file, or with recursive a directory. Invalid for a directory without recursive and for the volume
// itself.
func Remove(root *os.Root, name string, recursive bool) error {
	clean, err := tarfs.Clean(name)
	if err != nil {
		return err
	}
	if clean == "." {
		return errors.Newf(errors.Invalid, "the volume itself cannot be removed as a file")
	}
	info, err := root.Lstat(clean)
	if err != nil {
		return tarfs.Explain(err, name)
	}
	if info.IsDir() && !recursive {
		return errors.Remedy(errors.Newf(errors.Invalid, "%.200q is a directory", name), "use recursive=True")
	}
	return tarfs.Remove(root, clean)
}

// Copy copies files as cp does: into to if it is a directory, otherwise to the name to. Directories need recursive.
// Exhausted if v, whose root is root, has no room for more.
func Copy(ctx context.Context, v volume.Volume, root *os.Root, staging string, from []string, to string,
	recursive bool) error {
	target, err := tarfs.Clean(to)
	if err != nil {
		return err
	}
	into := false
	if info, err := root.Stat(target); err == nil {
		into = info.IsDir()
	}
	if len(from) == 0 || len(from) > 1 && !into {
		return errors.Newf(errors.Invalid, "%.200q is not a directory, which copies of %d files need", to, len(from))
	}
	var files []File
	for _, name := range from {
		clean, err := tarfs.Clean(name)
		if err != nil {
			return err
		}
		at := target
		if into {
			at = path.Join(target, path.Base(clean))
		}
		more, err := copies(ctx, root, clean, at, recursive)
		if err != nil {
			return err
		}
		files = append(files, more...)
	}
	b, err := Stage(ctx, staging, files)
	if err != nil {
		return err
	}
	defer b.Discard()
	return b.Commit(ctx, v, root, true)
}

// copies describes the files that a copy of name makes at to.
func copies(ctx context.Context, root *os.Root, name, to string, recursive bool) ([]File, error) {
	info, err := root.Stat(name)
	switch {
	case err != nil:
		return nil, tarfs.Explain(err, name)
	case info.Mode().IsRegular():
		return []File{copyOf(root, name, to, info)}, nil
	case !info.IsDir():
		return nil, errors.Newf(errors.Invalid, "%.200q is neither a file nor a directory", name)
	case !recursive:
		return nil, errors.Remedy(errors.Newf(errors.Invalid, "%.200q is a directory", name), "use recursive=True")
	case name == "." || name == to || slices.Contains(parents(to), name):
		return nil, errors.Newf(errors.Invalid, "%.200q cannot be copied into itself", name)
	}
	var files []File
	err = fs.WalkDir(root.FS(), name, func(at string, d fs.DirEntry, err error) error {
		if err = errors.Join(err, ctx.Err()); err != nil {
			return err
		}
		info, err := d.Info()
		if err != nil {
			return err
		}
		dest := path.Join(to, at[len(name):])
		switch {
		case info.IsDir():
			files = append(files, File{Path: dest, Mode: uint32(info.Mode().Perm()), dir: true})
		case info.Mode().IsRegular():
			files = append(files, copyOf(root, at, dest, info))
		case info.Mode().Type() == fs.ModeSymlink:
			link, err := root.Readlink(at)
			if err != nil {
				return err
			}
			files = append(files, File{Path: dest, link: link})
		}
		return nil // sockets, pipes and devices are not copied
	})
	return files, tarfs.Explain(err, name)
}

func copyOf(root *os.Root, name, to string, info fs.FileInfo) File {
	return File{Path: to, Size: info.Size(), Mode: uint32(info.Mode().Perm()), Write: func(f *os.File) error {
		from, err := root.OpenFile(name, os.O_RDONLY|syscall.O_NONBLOCK, 0)
		if err != nil {
			return tarfs.Explain(err, name)
		}
		defer from.Close()
		_, err = io.Copy(f, from)
		return tarfs.Explain(err, name)
	}}
}

// parents returns the directories above a clean path, without ".".
func parents(name string) []string {
	var above []string
	for dir := path.Dir(name); dir != "." && dir != "/"; dir = path.Dir(dir) {
		above = append(above, dir)
	}
	slices.Reverse(above)
	return above
}

// chunk is how much a Reader reads at a time.
const chunk = 1 << 20

// Reader reads a part of a file. It fails with Conflict if the file changes meanwhile.
type Reader struct {
	Root         *os.Root
	Path, Stamp  string
	Offset, Left int64

	buffer []byte
}

// Read implements io.Reader.
func (r *Reader) Read(p []byte) (int, error) {
	if len(r.buffer) == 0 {
		if r.Left == 0 {
			return 0, io.EOF
		}
		data, err := Read(r.Root, r.Path, r.Stamp, r.Offset, min(r.Left, chunk))
		if err != nil {
			return 0, err
		}
		r.buffer = data
		r.Offset += int64(len(data))
		r.Left -= int64(len(data))
	}
	n := copy(p, r.buffer)
	r.buffer = r.buffer[n:]
	return n, nil
}

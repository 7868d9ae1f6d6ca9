// Package trees copies the changes of one directory to another, for the copies of volumes that sandboxes have.
package trees

import (
	"context"
	"io"
	"io/fs"
	"maps"
	"os"
	"path"
	"slices"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/RelevanceAI/harvest/client/errors"
)

// Stamp is the state of a file that shows whether it has changed.
type Stamp struct {
	Mode     uint32
	Size     int64
	Modified int64 // ns
	UID, GID uint32
	Link     string
}

// Tree maps the paths below a directory to the stamps of the files.
type Tree map[string]Stamp

func (s Stamp) kind() uint32 { return s.Mode & unix.S_IFMT }

// Scan reads the files below root. Links cannot lead out of it.
func Scan(ctx context.Context, root *os.Root) (Tree, error) {
	t := Tree{}
	err := Walk(ctx, root, func(name string, info fs.FileInfo) error {
		st, ok := info.Sys().(*syscall.Stat_t)
		if !ok {
			return errors.Errorf("no details of a file")
		}
		s := Stamp{Mode: st.Mode, Size: st.Size, Modified: st.Mtim.Nano(), UID: st.Uid, GID: st.Gid}
		switch s.kind() {
		case unix.S_IFDIR:
			s.Size, s.Modified = 0, 0 // they change with the directory's entries
		case unix.S_IFLNK:
			s.Modified = 0
			var err error
			if s.Link, err = root.Readlink(name); err != nil {
				return nil
			}
		case unix.S_IFREG:
		default:
			return nil // sockets, pipes and devices are not copied
		}
		t[name] = s
		return nil
	})
	return t, errors.Wrapf(err, "read a volume")
}

// change is one path to change.
type change struct {
	name   string
	remove bool
	Stamp
}

// difference returns the changes that turn was into is: removals bottom-up, then the rest top-down.
func difference(was, is Tree) []change {
	var removals, changes []change
	for _, name := range slices.Sorted(maps.Keys(was)) {
		if now, ok := is[name]; !ok || now.kind() != was[name].kind() {
			removals = append(removals, change{name: name, remove: true})
		}
	}
	slices.Reverse(removals)
	for _, name := range slices.Sorted(maps.Keys(is)) {
		if before, ok := was[name]; !ok || before != is[name] {
			changes = append(changes, change{name: name, Stamp: is[name]})
		}
	}
	return append(removals, changes...)
}

// Copy makes the changes from was to is in dst, with the contents of src. With share, files become hard links where
// that is possible, for a sandbox that cannot write them.
func Copy(ctx context.Context, dst, src *os.Root, was, is Tree, share bool) error {
	for _, c := range difference(was, is) {
		if err := ctx.Err(); err != nil {
			return err
		}
		if err := c.do(dst, src, share); err != nil && !errors.IsNotExist(err) { // removed meanwhile, on either side
			if errors.Is(err, syscall.ENOSPC) {
				return errors.Explainf(err, errors.Exhausted, "there is no space left for the volume")
			}
			return errors.Wrapf(err, "copy a file of a volume")
		}
	}
	return nil
}

func (c change) do(dst, src *os.Root, share bool) error {
	if c.remove {
		err := dst.RemoveAll(c.name)
		return err
	}
	if now, err := dst.Lstat(c.name); err == nil && uint32(now.Mode().Type()) != uint32(typeOf(c.Stamp)) {
		if err := dst.RemoveAll(c.name); err != nil {
			return err
		}
	}
	if dir := path.Dir(c.name); dir != "." && strings.Contains(c.name, "/") {
		if err := dst.MkdirAll(dir, 0o777); err != nil {
			return err
		}
	}
	switch c.kind() {
	case unix.S_IFDIR:
		if err := dst.Mkdir(c.name, 0o777); err != nil && !errors.Is(err, fs.ErrExist) {
			return err
		}
	case unix.S_IFLNK:
		_ = dst.Remove(c.name) // an existing link may differ
		if err := dst.Symlink(c.Link, c.name); err != nil {
			return err
		}
		return own(dst.Lchown(c.name, int(c.UID), int(c.GID)))
	default:
		if share && linkFile(dst, src, c.name) == nil {
			return nil
		}
		if err := copyFile(dst, src, c.name); err != nil {
			return err
		}
	}
	if err := own(dst.Lchown(c.name, int(c.UID), int(c.GID))); err != nil {
		return err
	}
	if err := dst.Chmod(c.name, modeOf(c.Mode)); err != nil {
		return err
	}
	if c.kind() == unix.S_IFREG {
		at := time.Unix(0, c.Modified)
		return dst.Chtimes(c.name, at, at)
	}
	return nil
}

// own tolerates a failed chown if the server is not root: the file then stays the server's.
func own(err error) error {
	if errors.Is(err, fs.ErrPermission) && os.Geteuid() != 0 {
		return nil
	}
	return err
}

func typeOf(s Stamp) fs.FileMode {
	switch s.kind() {
	case unix.S_IFDIR:
		return fs.ModeDir
	case unix.S_IFLNK:
		return fs.ModeSymlink
	}
	return 0
}

// modeOf converts the permission bits of a kernel mode.
func modeOf(mode uint32) fs.FileMode {
	m := fs.FileMode(mode & 0o777)
	for bit, flag := range map[uint32]fs.FileMode{unix.S_ISUID: fs.ModeSetuid, unix.S_ISGID: fs.ModeSetgid,
		unix.S_ISVTX: fs.ModeSticky} {
		if mode&bit != 0 {
			m |= flag
		}
	}
	return m
}

// linkFile atomically replaces the file in dst with a hard link to the one in src. A later replacement in src
// leaves the file in dst unchanged.
func linkFile(dst, src *os.Root, name string) error {
	from, err := src.Open(path.Dir(name))
	if err != nil {
		return err
	}
	defer from.Close()
	to, err := dst.Open(path.Dir(name))
	if err != nil {
		return err
	}
	defer to.Close()
	temp := temporary(name)
	if err := unix.Linkat(int(from.Fd()), path.Base(name), int(to.Fd()), temp, 0); err != nil {
		return err
	}
	if err := unix.Renameat(int(to.Fd()), temp, int(to.Fd()), path.Base(name)); err != nil {
		return errors.Join(err, unix.Unlinkat(int(to.Fd()), temp, 0))
	}
	return unlinked(int(to.Fd()), temp)
}

// unlinked removes the temporary name. It still exists if both names were links to one file already.
func unlinked(dir int, name string) error {
	if err := unix.Unlinkat(dir, name, 0); err != nil && !errors.Is(err, unix.ENOENT) {
		return err
	}
	return nil
}

// temporary is the name of a file, beside its destination, until it is complete.
func temporary(name string) string {
	return ".modal-" + path.Base(name)[:min(len(path.Base(name)), 200)]
}

// copyFile copies a file and atomically replaces the old one. It shares blocks where the file system can.
func copyFile(dst, src *os.Root, name string) (err error) {
	from, err := src.Open(name)
	if err != nil {
		return err
	}
	defer from.Close()
	temp := path.Join(path.Dir(name), temporary(name))
	to, err := dst.OpenFile(temp, os.O_CREATE|os.O_TRUNC|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	defer func() {
		if err != nil {
			_ = dst.Remove(temp) // best effort: the returned error matters more
		}
	}()
	if unix.IoctlFileClone(int(to.Fd()), int(from.Fd())) != nil {
		if _, err := io.Copy(to, from); err != nil {
			return errors.Join(err, to.Close())
		}
	}
	if err := to.Close(); err != nil {
		return err
	}
	return dst.Rename(temp, name)
}

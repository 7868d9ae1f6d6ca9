package container

import (
	"archive/tar"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/RelevanceAI/harvest/client/errors"
	"github.com/RelevanceAI/harvest/internal/engine/ocilayer"
)

// overlayPrefix begins the extended attributes of overlayfs.
const overlayPrefix = "trusted.overlay."

// writeLayer writes the files of an upper directory of overlayfs below a name in the form of an OCI layer. Nothing may
// change them meanwhile.
func writeLayer(dir, below string, w io.Writer) error {
	root, err := os.OpenRoot(dir)
	if err != nil {
		return errors.Wrapf(err, "open the writable layer")
	}
	defer root.Close()
	all, err := list(root)
	if err != nil {
		return err
	}
	ocilayer.Settle(all)
	return ocilayer.Write(all, below, w, func(name string) (ocilayer.File, error) { return file{dir, name}, nil })
}

// list returns the files of an upper directory.
func list(root *os.Root) (all []ocilayer.Entry, err error) {
	type inode struct{ device, number uint64 }
	first := map[inode]string{}
	err = fs.WalkDir(root.FS(), ".", func(name string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		info, err := root.Lstat(name)
		if err != nil {
			return err
		}
		st, ok := info.Sys().(*syscall.Stat_t)
		if !ok {
			return errors.Errorf("%.200q has no status", name)
		}
		e := ocilayer.Entry{Name: name}
		switch info.Mode().Type() {
		case fs.ModeDir:
			e.Kind = tar.TypeDir
			var value [1]byte
			n, err := unix.Lgetxattr(filepath.Join(root.Name(), name), overlayPrefix+"opaque", value[:])
			e.Hides = err == nil && n == 1 && value[0] == 'y'
		case fs.ModeSymlink:
			e.Kind = tar.TypeSymlink
			if e.Link, err = root.Readlink(name); err != nil {
				return err
			}
		case fs.ModeNamedPipe:
			e.Kind = tar.TypeFifo
		case fs.ModeDevice | fs.ModeCharDevice:
			e.Kind, e.Device = tar.TypeChar, [2]int64{int64(unix.Major(st.Rdev)), int64(unix.Minor(st.Rdev))}
		case 0:
			e.Kind, e.Size = tar.TypeReg, st.Size
			if e.Data, err = segments(filepath.Join(root.Name(), name), st); err != nil {
				return err
			}
		default: // sockets are of running programs
			return nil
		}
		if id := (inode{st.Dev, st.Ino}); st.Nlink > 1 && e.Kind != tar.TypeDir && !e.Gone() {
			if to, seen := first[id]; seen {
				e = ocilayer.Entry{Name: name, Kind: tar.TypeLink, Link: to}
			} else {
				first[id] = name
			}
		}
		all = append(all, e)
		return nil
	})
	return all, errors.Wrapf(err, "list the writable layer")
}

// blockSize is the unit of Stat_t.Blocks.
const blockSize = 512

// segments returns the ranges of a regular file with content.
func segments(path string, st *syscall.Stat_t) ([]ocilayer.Segment, error) {
	if st.Blocks*blockSize >= st.Size {
		return []ocilayer.Segment{{Start: 0, End: st.Size}}, nil
	}
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	var all []ocilayer.Segment
	for at := int64(0); at < st.Size; {
		from, err := f.Seek(at, unix.SEEK_DATA)
		if errors.Is(err, unix.ENXIO) { // only a hole is left
			break
		}
		if err != nil {
			return nil, err
		}
		to, err := f.Seek(from, unix.SEEK_HOLE)
		if err != nil {
			return nil, err
		}
		all = append(all, ocilayer.Segment{Start: from, End: min(to, st.Size)})
		at = to
	}
	return all, nil
}

// maxAttribute is the kernel's limit for the size of an extended attribute: xattr(7).
const maxAttribute = 64 << 10

// file is a file of an upper directory. It implements ocilayer.File.
type file struct{ dir, name string }

func (f file) path() string { return filepath.Join(f.dir, f.name) }

func (f file) Close() {}

func (f file) Stat() (ocilayer.Stat, error) {
	var st unix.Stat_t
	err := unix.Lstat(f.path(), &st)
	return ocilayer.Stat{Mode: st.Mode & 0o7777, UID: int(st.Uid), GID: int(st.Gid),
		Mtime: time.Unix(st.Mtim.Unix())}, err
}

func (f file) Attributes() (map[string]string, error) {
	size, err := unix.Llistxattr(f.path(), nil)
	if err == unix.EOPNOTSUPP || size == 0 && err == nil {
		return nil, nil
	}
	if err != nil {
		return nil, errors.Wrapf(err, "list attributes")
	}
	names := make([]byte, size)
	if size, err = unix.Llistxattr(f.path(), names); err != nil {
		return nil, errors.Wrapf(err, "list attributes")
	}
	all := map[string]string{}
	for key := range strings.SplitSeq(strings.Trim(string(names[:size]), "\x00"), "\x00") {
		if strings.HasPrefix(key, overlayPrefix) {
			continue
		}
		value := make([]byte, maxAttribute)
		n, err := unix.Lgetxattr(f.path(), key, value)
		if err != nil {
			return nil, errors.Wrapf(err, "read attribute %.200q", key)
		}
		all[key] = string(value[:n])
	}
	return all, nil
}

func (f file) Content(to io.Writer, ranges []ocilayer.Segment, buf []byte) error {
	in, err := os.OpenFile(f.path(), os.O_RDONLY|unix.O_NOFOLLOW, 0)
	if err != nil {
		return errors.Wrapf(err, "open")
	}
	defer in.Close()
	for _, s := range ranges {
		from := io.NewSectionReader(in, s.Start, s.End-s.Start)
		n, err := io.CopyBuffer(struct{ io.Writer }{to}, struct{ io.Reader }{from}, buf)
		if err == nil && n < s.End-s.Start {
			err = io.ErrUnexpectedEOF
		}
		if err != nil {
			return err
		}
	}
	return nil
}

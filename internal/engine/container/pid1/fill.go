package pid1

import (
	"archive/tar"
	"bufio"
	"bytes"
	"io"
	"maps"
	"os"
	"path"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/RelevanceAI/harvest/client/errors"
	"github.com/RelevanceAI/harvest/internal/engine/ocilayer"
)

// fill unpacks a tar stream in the form of an OCI layer over the root file system. The stream may consist of several
// layers: entries are applied in their order. Nothing else changes the files meanwhile.
func fill(from io.Reader) error {
	old := unix.Umask(0)
	defer unix.Umask(old)
	tr := tar.NewReader(bufio.NewReaderSize(from, 1<<20))
	f := filler{buf: make([]byte, 256<<10), dirs: map[string]*tar.Header{}}
	for {
		hdr, err := tr.Next()
		if err == io.EOF {
			break
		}
		if err != nil {
			return failed(err, "read the snapshot")
		}
		hdr.Name = path.Clean("/" + hdr.Name)
		if err := f.entry(hdr, tr); err != nil {
			return failed(err, "restore %.200q", hdr.Name)
		}
	}
	for name, hdr := range f.dirs {
		if err := setTimes(name, hdr.ModTime); err != nil {
			return failed(err, "restore %.200q", name)
		}
	}
	return nil
}

// filler applies a layer to the file system of this process.
type filler struct {
	buf  []byte
	dirs map[string]*tar.Header // whose times are set last, because filling them changes the times
}

func (f filler) entry(hdr *tar.Header, content io.Reader) error {
	dir, base := path.Split(hdr.Name)
	if gone, ok := strings.CutPrefix(base, ocilayer.Whiteout); ok && hdr.PAXRecords[ocilayer.Literal] == "" {
		if base == ocilayer.Opaque {
			return f.empty(dir)
		}
		return f.remove(dir + gone)
	}
	switch hdr.Typeflag {
	case tar.TypeXGlobalHeader:
		return nil
	case tar.TypeDir:
		return f.dir(hdr)
	}
	if hdr.Name == "/" {
		return errors.Errorf("the root is no directory")
	}
	if err := f.remove(hdr.Name); err != nil {
		return err
	}
	if hdr.Typeflag == tar.TypeLink {
		return os.Link(path.Clean("/"+hdr.Linkname), hdr.Name)
	}
	if err := f.create(hdr, content); err != nil {
		return err
	}
	return f.adorn(hdr)
}

// create creates an entry that is not a directory.
func (f filler) create(hdr *tar.Header, content io.Reader) error {
	mode := uint32(hdr.Mode & 0o7777)
	switch hdr.Typeflag {
	case tar.TypeReg:
		return f.file(hdr, content)
	case tar.TypeSymlink:
		return os.Symlink(hdr.Linkname, hdr.Name)
	case tar.TypeFifo:
		return unix.Mkfifo(hdr.Name, mode)
	case tar.TypeChar, tar.TypeBlock:
		return errors.Errorf("a container can have no device files")
	}
	return errors.Errorf("it has the unknown type %q", hdr.Typeflag)
}

// file creates a regular file. Blocks of zeros become holes.
func (f filler) file(hdr *tar.Header, content io.Reader) (err error) {
	to, err := os.OpenFile(hdr.Name, os.O_WRONLY|os.O_CREATE|os.O_EXCL|unix.O_NOFOLLOW, 0o600)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, to.Close()) }()
	for at := int64(0); at < hdr.Size; {
		part := f.buf[:min(int64(len(f.buf)), hdr.Size-at)]
		if _, err := io.ReadFull(content, part); err != nil {
			return err
		}
		if len(bytes.TrimLeft(part, "\x00")) > 0 {
			if _, err := to.WriteAt(part, at); err != nil {
				return err
			}
		}
		at += int64(len(part))
	}
	return to.Truncate(hdr.Size)
}

// dir creates a directory, or changes an existing one.
func (f filler) dir(hdr *tar.Header) error {
	info, err := os.Lstat(hdr.Name)
	if err == nil && !info.IsDir() {
		err = os.Remove(hdr.Name)
		if err == nil {
			err = unix.ENOENT
		}
	}
	if errors.Is(err, unix.ENOENT) {
		err = os.Mkdir(hdr.Name, 0o700)
	}
	if err != nil {
		return err
	}
	f.dirs[hdr.Name] = hdr
	return f.adorn(hdr)
}

// adorn sets owner, mode, attributes and times, in an order in which no step undoes another.
func (f filler) adorn(hdr *tar.Header) error {
	if err := os.Lchown(hdr.Name, hdr.Uid, hdr.Gid); err != nil {
		return err
	}
	if hdr.Typeflag != tar.TypeSymlink {
		if err := unix.Chmod(hdr.Name, uint32(hdr.Mode&0o7777)); err != nil {
			return err
		}
	}
	for key, value := range hdr.PAXRecords {
		key, ok := strings.CutPrefix(key, ocilayer.Attribute)
		if !ok {
			continue
		}
		if err := unix.Lsetxattr(hdr.Name, key, []byte(value), 0); err != nil {
			return errors.Wrapf(err, "set attribute %.200q", key)
		}
	}
	return setTimes(hdr.Name, hdr.ModTime)
}

func setTimes(name string, t time.Time) error {
	ts := unix.NsecToTimespec(t.UnixNano())
	return unix.UtimesNanoAt(unix.AT_FDCWD, name, []unix.Timespec{ts, ts}, unix.AT_SYMLINK_NOFOLLOW)
}

// empty removes the files in a directory.
func (f filler) empty(dir string) error {
	entries, err := os.ReadDir(dir)
	if errors.IsNotExist(err) {
		return nil
	}
	for _, e := range entries {
		if err == nil {
			err = f.remove(path.Join(dir, e.Name()))
		}
	}
	return err
}

// remove removes a file or a tree, if it exists.
func (f filler) remove(name string) error {
	info, err := os.Lstat(name)
	switch {
	case errors.Is(err, unix.ENOENT) || errors.Is(err, unix.ENOTDIR):
		return nil
	case err != nil:
		return err
	case !info.IsDir():
		return os.Remove(name)
	}
	maps.DeleteFunc(f.dirs, func(dir string, _ *tar.Header) bool { return strings.HasPrefix(dir+"/", name+"/") })
	return os.RemoveAll(name)
}

//go:build linux

package tarfs

import (
	"archive/tar"
	"bufio"
	"io"
	"io/fs"
	"os"
	"path"
	"slices"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/RelevanceAI/harvest/client/errors"
)

// Pack writes a tar stream of name: one entry for a file or a symbolic link, or the tree of entries below a
// directory, without one for the directory itself. It keeps modes, times, numeric owners, symbolic and hard
// links. It skips sockets and devices. A file that changes meanwhile is padded or cut to its size at opening. A
// file of size 0, such as those of /proc, is read to its end.
//
// Kinds: NotFound if name does not exist, Invalid if it leads out of root, Denied if the process may not read
// some of it.
func Pack(root *os.Root, name string, w io.Writer) error { return pack(root, name, Naming{}, w) }

func pack(root *os.Root, name string, as Naming, w io.Writer) error {
	clean, err := Clean(name)
	if err != nil {
		return err
	}
	if clean, err = locate(root, clean, false); err != nil {
		return err
	}
	info, err := root.Lstat(clean)
	if err != nil {
		return Explain(err, name)
	}
	out := bufio.NewWriterSize(w, 64<<10) // a small file's entry takes seven writes
	p := &packer{tw: tar.NewWriter(out), as: as, seen: map[inode]string{}}
	if as.First != nil {
		err = p.tw.WriteHeader(as.First)
	}
	switch {
	case err != nil:
	case info.IsDir():
		err = p.tree(root, clean)
	default:
		var dir *os.Root
		if dir, err = root.OpenRoot(path.Dir(clean)); err == nil {
			err = p.one(dir, path.Base(clean))
			dir.Close()
		}
	}
	if err != nil {
		return Explain(err, name)
	}
	if err = p.tw.Close(); err == nil {
		err = out.Flush()
	}
	return errors.Wrapf(err, "end the archive")
}

type inode struct{ dev, ino uint64 }

type packer struct {
	tw   *tar.Writer
	as   Naming
	seen map[inode]string // first name of files with several links
	name string           // the open directory, from which its children are opened
	open *os.Root         // nil without an open directory
	buf  []byte           // of a small file
}

func (p *packer) header(hdr *tar.Header) error {
	p.as.change(hdr)
	return p.tw.WriteHeader(hdr)
}

// one writes the entry of a single file.
func (p *packer) one(dir *os.Root, last string) error {
	f, err := dir.Open(".")
	if err != nil {
		return err
	}
	defer f.Close()
	return p.add(dir, f, "", last)
}

func (p *packer) close() {
	if p.open != nil {
		p.open.Close()
		p.open = nil
	}
}

// enter opens a directory and keeps it open for the next one.
func (p *packer) enter(base *os.Root, name string) (*os.Root, error) {
	at, rest := base, name
	if below, ok := strings.CutPrefix(name, p.name+"/"); ok && p.open != nil {
		at, rest = p.open, below
	}
	dir, err := at.OpenRoot(rest)
	if err != nil {
		return nil, err
	}
	p.close()
	p.name, p.open = name, dir
	return dir, nil
}

// tree writes everything below name, parents first. It holds only one directory open at a time, however deep
// the tree is.
func (p *packer) tree(root *os.Root, name string) error {
	base, err := root.OpenRoot(name)
	if err != nil {
		return err
	}
	defer base.Close()
	defer p.close()
	todo := []string{"."}
	for len(todo) > 0 {
		dir := todo[len(todo)-1]
		todo = todo[:len(todo)-1]
		subdirs, err := p.directory(base, dir)
		if err != nil {
			return err
		}
		slices.Reverse(subdirs)
		todo = append(todo, subdirs...)
	}
	return nil
}

// directory writes a directory and its direct entries, and returns its subdirectories.
func (p *packer) directory(base *os.Root, name string) ([]string, error) {
	dir, err := p.enter(base, name)
	if errors.IsNotExist(err) || errors.Is(err, syscall.ENOTDIR) {
		return nil, nil // removed or replaced meanwhile
	}
	if err != nil {
		return nil, err
	}
	f, err := dir.Open(".")
	if err != nil {
		return nil, err
	}
	defer f.Close()
	if name != "." {
		info, err := f.Stat()
		if err != nil {
			return nil, err
		}
		hdr := header(info, name+"/", "")
		if err := p.header(hdr); err != nil {
			return nil, errors.Wrapf(err, "write %.200q", name)
		}
	}
	entries, err := readDir(f)
	if err != nil {
		return nil, err
	}
	slices.SortFunc(entries, func(a, b dirEntry) int { return strings.Compare(a.name, b.name) })
	var subdirs []string
	for _, e := range entries {
		if e.kind == unix.DT_UNKNOWN {
			if info, err := dir.Lstat(e.name); err == nil && info.IsDir() {
				e.kind = unix.DT_DIR
			}
		}
		switch e.kind {
		case unix.DT_DIR:
			subdirs = append(subdirs, path.Join(name, e.name))
		case unix.DT_REG: // saves an lstat
			err = p.file(f, path.Join(name, e.name), e.name)
		default:
			err = p.add(dir, f, name, e.name)
		}
		if err != nil {
			return nil, err
		}
	}
	return subdirs, nil
}

// add writes one entry that is not a directory. It skips a file that was removed meanwhile.
func (p *packer) add(dir *os.Root, open *os.File, parent, last string) error {
	name := path.Join(parent, last)
	info, err := dir.Lstat(last)
	if errors.IsNotExist(err) {
		if parent == "" {
			return err
		}
		return nil
	}
	if err != nil {
		return err
	}
	switch info.Mode().Type() {
	case 0:
		return p.file(open, name, last)
	case fs.ModeSymlink:
		target, err := dir.Readlink(last)
		if err != nil {
			return err
		}
		return errors.Wrapf(p.header(header(info, name, target)), "write %.200q", name)
	case fs.ModeNamedPipe:
		return errors.Wrapf(p.header(header(info, name, "")), "write %.200q", name)
	}
	return nil
}

// file writes a regular file of an open directory. It makes system calls itself: package os adds an epoll_ctl and,
// when it lists a directory of an os.Root, a stat to the four calls that a small file needs, and in sandboxes these
// calls take most of the time.
func (p *packer) file(dir *os.File, name, last string) error {
	// Open without blocking: a pipe that replaces the file just now may have no writer.
	fd, err := retried(func() (int, error) {
		return unix.Openat(int(dir.Fd()), last, unix.O_RDONLY|unix.O_NONBLOCK|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
	})
	if err == unix.ENOENT || err == unix.ELOOP {
		return nil // removed, or replaced by a link
	}
	if err != nil {
		return &fs.PathError{Op: "open", Path: name, Err: err}
	}
	f := descriptor(fd)
	defer f.Close()
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil || st.Mode&unix.S_IFMT != unix.S_IFREG {
		return err
	}
	hdr := &tar.Header{Typeflag: tar.TypeReg, Name: name, Size: st.Size, Mode: int64(st.Mode & 0o7777),
		Uid: int(st.Uid), Gid: int(st.Gid),
		ModTime: time.Unix(st.Mtim.Unix()), Format: tar.FormatPAX}
	if st.Nlink > 1 {
		id := inode{st.Dev, st.Ino}
		if first, ok := p.seen[id]; ok {
			hdr.Typeflag, hdr.Linkname, hdr.Size = tar.TypeLink, first, 0
			return errors.Wrapf(p.header(hdr), "write %.200q", name)
		}
		p.seen[id] = name
	}
	if hdr.Size <= maxPseudo {
		return errors.Wrapf(p.small(hdr, f), "write %.200q", name)
	}
	if err := p.header(hdr); err != nil {
		return errors.Wrapf(err, "write %.200q", name)
	}
	n, err := io.Copy(p.tw, io.LimitReader(f, hdr.Size))
	if err == nil && n < hdr.Size {
		_, err = io.CopyN(p.tw, zeros{}, hdr.Size-n)
	}
	return errors.Wrapf(err, "write %.200q", name)
}

// Files of /proc have size 0, and those of /sys the size of a page, whatever their content.
const (
	maxPseudo   = 4096     // the largest size that is not trusted
	maxSizeless = 64 << 20 // the most bytes read of a file of size 0
)

// small writes a file that is read completely before its header is written.
func (p *packer) small(hdr *tar.Header, f descriptor) error {
	if p.buf == nil {
		p.buf = make([]byte, maxPseudo)
	}
	content := p.buf[:hdr.Size]
	if hdr.Size == 0 {
		all, err := io.ReadAll(io.LimitReader(f, maxSizeless))
		if err != nil {
			return err
		}
		content = all
	} else {
		n, err := io.ReadFull(f, content)
		if err != nil && err != io.EOF && err != io.ErrUnexpectedEOF {
			return err
		}
		content = content[:n]
	}
	hdr.Size = int64(len(content))
	if err := p.header(hdr); err != nil {
		return err
	}
	_, err := p.tw.Write(content)
	return err
}

// zeros never ends.
type zeros struct{}

func (zeros) Read(p []byte) (int, error) {
	clear(p)
	return len(p), nil
}

// header describes a file. It has only numeric owners, because names differ between machines.
func header(info fs.FileInfo, name, target string) *tar.Header {
	hdr := &tar.Header{Name: name, Linkname: target, Mode: int64(info.Mode().Perm()), ModTime: info.ModTime(),
		Format: tar.FormatPAX}
	switch info.Mode().Type() {
	case fs.ModeDir:
		hdr.Typeflag = tar.TypeDir
	case fs.ModeSymlink:
		hdr.Typeflag = tar.TypeSymlink
	case fs.ModeNamedPipe:
		hdr.Typeflag = tar.TypeFifo
	default:
		hdr.Typeflag, hdr.Size = tar.TypeReg, info.Size()
	}
	if st, ok := info.Sys().(*syscall.Stat_t); ok {
		hdr.Mode = int64(st.Mode & 0o7777)
		hdr.Uid, hdr.Gid = int(st.Uid), int(st.Gid)
	}
	return hdr
}

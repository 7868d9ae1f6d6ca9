//go:build linux

package tarfs

import (
	"archive/tar"
	"io"
	"io/fs"
	"os"
	"path"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/RelevanceAI/harvest/client/errors"
)

// Unpack unpacks a tar stream below dir, which is created if missing. A file replaces a file, and a directory
// merges with a directory. Names may go through symbolic links that stay below dir. An entry for dir itself is
// skipped, because dir belongs to the caller. Files unpacked before an error stay.
//
// Kinds: Invalid for an entry that would leave dir, a device, an impossible name, or an archive that is damaged
// or has no end. Exhausted for a limit of opts or a full disk. Denied if the process may not write there.
func Unpack(root *os.Root, dir string, r io.Reader, opts Options) error {
	clean, err := Clean(dir)
	if err != nil {
		return err
	}
	if clean, err = locate(root, clean, true); err != nil {
		return err
	}
	if clean != "." {
		if err := root.MkdirAll(clean, 0o755); err != nil {
			return Explain(err, dir)
		}
	}
	base, err := openDir(root, clean)
	if err != nil {
		return Explain(err, dir)
	}
	defer base.Close()
	u := &unpacker{base: base, opts: opts, in: NewReader(r), buf: make([]byte, 128<<10), uid: os.Geteuid(),
		gid: os.Getegid()}
	defer u.close()
	if err := u.run(); err != nil {
		return err
	}
	return u.finishDirs()
}

type unpacker struct {
	base    *os.Root
	opts    Options
	in      *Reader
	entries int64
	bytes   int64
	dirs    []*tar.Header // modes and times are set last, because writing into a directory needs or changes them
	dirName string        // the directory of parent, "" without one
	parent  *os.Root      // kept open for neighbouring entries
	at      *os.File      // parent, for system calls; nil until it is used
	own     bool          // new files in at get the group of this process
	uid     int           // of this process
	gid     int
	buf     []byte // of a file's content
}

func (u *unpacker) close() {
	if u.at != nil {
		u.at.Close()
		u.at = nil
	}
	if u.parent != nil {
		u.parent.Close()
	}
}

func (u *unpacker) run() error {
	if first := u.opts.Naming.First; first != nil {
		if err := u.entry(first); err != nil {
			return err
		}
	}
	for {
		hdr, err := u.in.Next()
		if err == io.EOF {
			return nil
		}
		if err == nil {
			u.opts.Naming.change(hdr)
			err = u.entry(hdr)
		}
		if err != nil {
			return err
		}
	}
}

// local returns an archive's name as a clean relative path.
func local(name string) (string, error) {
	if path.IsAbs(name) {
		return "", errors.Newf(errors.Invalid, "the archive has the absolute name %.200q", name)
	}
	for part := range strings.SplitSeq(name, "/") {
		if part == ".." {
			return "", errors.Newf(errors.Invalid, "the archive has the name %.200q, which leads out of its directory",
				name)
		}
	}
	if name == "" {
		return "", errors.Newf(errors.Invalid, "the archive has an entry without a name")
	}
	return Clean(name)
}

func (u *unpacker) entry(hdr *tar.Header) error {
	if hdr.Typeflag == tar.TypeXGlobalHeader {
		return nil
	}
	name, err := local(hdr.Name)
	if err != nil {
		return err
	}
	if err := u.count(hdr); err != nil {
		return err
	}
	if name == "." {
		if hdr.Typeflag != tar.TypeDir {
			return errors.Newf(errors.Invalid, "the archive has an entry for its own directory that is not a directory")
		}
		return nil
	}
	hdr.Name = name
	special := hdr.Typeflag == tar.TypeFifo || hdr.Typeflag == tar.TypeChar || hdr.Typeflag == tar.TypeBlock
	if special && u.opts.Skipped != nil {
		u.opts.Skipped(name)
		return nil
	}
	if u.opts.Admit != nil {
		if err := u.opts.Admit(name); err != nil {
			return err
		}
	}
	switch hdr.Typeflag {
	case tar.TypeDir:
		err = u.dir(hdr)
	case tar.TypeReg, tar.TypeGNUSparse:
		err = u.file(hdr)
	case tar.TypeSymlink:
		err = u.symlink(hdr)
	case tar.TypeLink:
		err = u.link(hdr)
	case tar.TypeFifo:
		err = u.fifo(hdr)
	case tar.TypeChar, tar.TypeBlock:
		return errors.Newf(errors.Invalid, "the archive has the device %.200q; devices are refused", name)
	default:
		return errors.Newf(errors.Invalid, "the archive has %.200q of the unknown type %q", name, hdr.Typeflag)
	}
	return err
}

// count checks the limits before an entry is written.
func (u *unpacker) count(hdr *tar.Header) error {
	u.entries++
	if max := u.opts.MaxEntries; max > 0 && u.entries > max {
		return errors.Newf(errors.Exhausted, "the archive has more than %d entries", max)
	}
	if max := u.opts.MaxBytes; max > 0 && hdr.Size > max-u.bytes {
		return errors.Newf(errors.Exhausted, "the archive has more than %d bytes", max)
	}
	u.bytes += hdr.Size
	return nil
}

// within returns the directory of name, created if missing, and the last element of name.
func (u *unpacker) within(name string) (*os.Root, string, error) {
	dir, last := path.Dir(name), path.Base(name)
	if u.parent != nil && u.dirName == dir {
		return u.parent, last, nil
	}
	next, err := u.walk(dir)
	if err != nil {
		return nil, "", Explain(err, name)
	}
	u.close()
	u.parent, u.dirName = next, dir
	return next, last, nil
}

// walk opens a directory, created if missing. It goes step by step, and starts at the open directory if that is
// on the way. Resolving a whole path at once starts at the top for every element, which takes seconds for deep
// trees in sandboxes.
func (u *unpacker) walk(dir string) (*os.Root, error) {
	at, rest := u.base, dir
	if below, ok := strings.CutPrefix(dir, u.dirName+"/"); ok && u.parent != nil {
		at, rest = u.parent, below
	}
	for part := range strings.SplitSeq(rest, "/") {
		next, err := u.step(at, part)
		if at != u.base && at != u.parent {
			at.Close()
		}
		if errors.Is(err, errLink) {
			return u.resolve(dir)
		}
		if err != nil {
			return nil, err
		}
		at = next
	}
	return at, nil
}

// errLink means that a path cannot be followed step by step, because a symbolic link may lead anywhere below
// base.
var errLink = errors.Newf(errors.Invalid, "a symbolic link")

func (u *unpacker) step(at *os.Root, part string) (*os.Root, error) {
	if _, err := at.Readlink(part); err == nil {
		return nil, errLink
	}
	next, err := openDir(at, part)
	if errors.IsNotExist(err) {
		if err := at.Mkdir(part, 0o755); err != nil && !errors.Is(err, fs.ErrExist) {
			return nil, err
		}
		next, err = openDir(at, part)
	}
	return next, err
}

// resolve opens a directory, created if missing, on a path with symbolic links.
func (u *unpacker) resolve(dir string) (*os.Root, error) {
	real, err := Resolve(u.base, dir)
	if err != nil {
		return nil, err
	}
	next, err := openDir(u.base, real)
	if errors.IsNotExist(err) {
		if err := u.base.MkdirAll(real, 0o755); err != nil {
			return nil, err
		}
		next, err = openDir(u.base, real)
	}
	return next, err
}

// clear makes room for a new file. It removes the name, so that nothing is written through an existing file or
// link.
func (u *unpacker) clear(dir *os.Root, last, name string) error {
	info, err := dir.Lstat(last)
	switch {
	case errors.IsNotExist(err):
		return nil
	case err != nil:
		return Explain(err, name)
	case info.IsDir():
		return Explain(syscall.EISDIR, name)
	}
	return Explain(dir.Remove(last), name)
}

func (u *unpacker) dir(hdr *tar.Header) error {
	parent, last, err := u.within(hdr.Name)
	if err != nil {
		return err
	}
	err = parent.Mkdir(last, 0o755)
	if errors.Is(err, fs.ErrExist) {
		// A link to a directory below base is accepted: archives of "/" have "bin/" where systems have bin ->
		// usr/bin.
		info, statErr := parent.Lstat(last)
		if statErr == nil && info.Mode().Type() == fs.ModeSymlink {
			info, statErr = u.base.Stat(hdr.Name)
		}
		if statErr != nil {
			return Explain(statErr, hdr.Name)
		}
		if !info.IsDir() {
			return Explain(syscall.ENOTDIR, hdr.Name)
		}
		err = nil
	}
	if err != nil {
		return Explain(err, hdr.Name)
	}
	u.dirs = append(u.dirs, hdr)
	return nil
}

// descend opens the directory of parent for system calls.
func (u *unpacker) descend() error {
	if u.at != nil {
		return nil
	}
	at, err := u.parent.Open(".")
	if err != nil {
		return err
	}
	var st unix.Stat_t
	if err := unix.Fstat(int(at.Fd()), &st); err != nil {
		at.Close()
		return err
	}
	// The group is that of the directory if its setgid bit is set, and on some file systems always.
	u.at, u.own = at, int(st.Gid) == u.gid
	return nil
}

// file writes a regular file. It makes system calls itself: package os doubles the number of calls for a small file,
// and in sandboxes these calls take most of the time.
func (u *unpacker) file(hdr *tar.Header) (err error) {
	dir, last, err := u.within(hdr.Name)
	if err == nil {
		err = Explain(u.descend(), hdr.Name)
	}
	if err != nil {
		return err
	}
	mode := u.mode(hdr)
	chown := u.opts.Owners && !(u.own && hdr.Uid == u.uid && hdr.Gid == u.gid)
	chmod, created := true, uint32(0o600)
	if u.opts.NoUmask && !chown && mode == mode.Perm() {
		chmod, created = false, uint32(mode)
	}
	create := func() (int, error) {
		return unix.Openat(int(u.at.Fd()), last, unix.O_WRONLY|unix.O_CREAT|unix.O_EXCL|unix.O_NOFOLLOW|unix.O_CLOEXEC,
			created)
	}
	fd, err := retried(create)
	if err == unix.EEXIST { // the name is usually free
		if err := u.clear(dir, last, hdr.Name); err != nil {
			return err
		}
		fd, err = retried(create)
	}
	if err != nil {
		return Explain(err, hdr.Name)
	}
	f := &fileWriter{descriptor: descriptor(fd)}
	defer func() {
		if closeErr := f.Close(); err == nil {
			err = Explain(closeErr, hdr.Name)
		}
		if err == nil {
			err = Explain(setTime(int(u.at.Fd()), last, hdr.ModTime), hdr.Name)
		}
	}()
	if _, err := io.CopyBuffer(f, u.in, u.buf); err != nil {
		if f.err != nil {
			return Explain(f.err, hdr.Name)
		}
		return err
	}
	if chown {
		if err := unix.Fchown(fd, hdr.Uid, hdr.Gid); err != nil {
			return Explain(err, hdr.Name)
		}
	}
	if chmod {
		if err := unix.Fchmod(fd, uint32(mode.Perm())|setID(mode)); err != nil {
			return Explain(err, hdr.Name)
		}
	}
	return nil
}

// setID returns the setuid, setgid and sticky bits of a mode for system calls.
func setID(mode fs.FileMode) (bits uint32) {
	for m, bit := range map[fs.FileMode]uint32{fs.ModeSetuid: unix.S_ISUID, fs.ModeSetgid: unix.S_ISGID,
		fs.ModeSticky: unix.S_ISVTX} {
		if mode&m != 0 {
			bits |= bit
		}
	}
	return bits
}

// setTime sets the times of a file in an open directory. It does not follow links.
func setTime(dir int, last string, t time.Time) error {
	ts := unix.NsecToTimespec(t.UnixNano())
	return unix.UtimesNanoAt(dir, last, []unix.Timespec{ts, ts}, unix.AT_SYMLINK_NOFOLLOW)
}

// fileWriter remembers its error, to distinguish it from an error of the archive.
type fileWriter struct {
	descriptor
	err error
}

func (w *fileWriter) Write(p []byte) (int, error) {
	n, err := w.descriptor.Write(p)
	w.err = err
	return n, err
}

func (u *unpacker) symlink(hdr *tar.Header) error {
	if hdr.Linkname == "" || strings.ContainsRune(hdr.Linkname, 0) {
		return errors.Newf(errors.Invalid, "the symbolic link %.200q has no usable target", hdr.Name)
	}
	dir, last, err := u.within(hdr.Name)
	if err != nil {
		return err
	}
	if err := u.clear(dir, last, hdr.Name); err != nil {
		return err
	}
	return u.special(dir, last, hdr, func(fd int) error { return unix.Symlinkat(hdr.Linkname, fd, last) })
}

// special creates a file that cannot be opened: a symbolic link or a pipe. Its calls go to the open directory
// and never follow a link.
func (u *unpacker) special(dir *os.Root, last string, hdr *tar.Header, create func(fd int) error) error {
	f, err := dir.Open(".")
	if err != nil {
		return Explain(err, hdr.Name)
	}
	defer f.Close()
	fd := int(f.Fd())
	err = create(fd)
	if err == nil && u.opts.Owners {
		err = unix.Fchownat(fd, last, hdr.Uid, hdr.Gid, unix.AT_SYMLINK_NOFOLLOW)
	}
	if err == nil {
		err = setTime(fd, last, hdr.ModTime)
	}
	return Explain(err, hdr.Name)
}

func (u *unpacker) link(hdr *tar.Header) error {
	target, err := local(hdr.Linkname)
	if err != nil {
		return err
	}
	parent, err := Resolve(u.base, path.Dir(target))
	if err != nil {
		return err
	}
	target = path.Join(parent, path.Base(target))
	info, err := u.base.Lstat(target)
	if errors.IsNotExist(err) || err == nil && info.IsDir() || target == hdr.Name {
		return errors.Newf(errors.Invalid, "the hard link %.200q has no file %.200q to link to", hdr.Name, target)
	}
	if err != nil {
		return Explain(err, target)
	}
	dir, last, err := u.within(hdr.Name)
	if err != nil {
		return err
	}
	if err := u.clear(dir, last, hdr.Name); err != nil {
		return err
	}
	parent, err = Resolve(u.base, path.Dir(hdr.Name))
	if err != nil {
		return err
	}
	return Explain(u.base.Link(target, path.Join(parent, last)), hdr.Name)
}

func (u *unpacker) fifo(hdr *tar.Header) error {
	dir, last, err := u.within(hdr.Name)
	if err != nil {
		return err
	}
	if err := u.clear(dir, last, hdr.Name); err != nil {
		return err
	}
	return u.special(dir, last, hdr, func(fd int) error { return unix.Mkfifoat(fd, last, uint32(hdr.Mode)&0o777) })
}

func (u *unpacker) mode(hdr *tar.Header) fs.FileMode {
	mode := fs.FileMode(hdr.Mode & 0o777)
	if !u.opts.SetID {
		return mode
	}
	for bit, m := range map[int64]fs.FileMode{0o4000: fs.ModeSetuid, 0o2000: fs.ModeSetgid, 0o1000: fs.ModeSticky} {
		if hdr.Mode&bit != 0 {
			mode |= m
		}
	}
	return mode
}

// finishDirs sets the modes and times of directories, the deepest first.
func (u *unpacker) finishDirs() error {
	for i := len(u.dirs) - 1; i >= 0; i-- {
		hdr := u.dirs[i]
		var err error
		if u.opts.Owners {
			err = u.base.Chown(hdr.Name, hdr.Uid, hdr.Gid)
		}
		if err == nil {
			err = u.base.Chtimes(hdr.Name, hdr.ModTime, hdr.ModTime)
		}
		if err == nil {
			err = u.base.Chmod(hdr.Name, u.mode(hdr))
		}
		if err != nil {
			return Explain(err, hdr.Name)
		}
	}
	return nil
}

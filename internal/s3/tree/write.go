package tree

import (
	"crypto/rand"
	"crypto/sha256"
	"encoding/base32"
	"io"
	"os"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/RelevanceAI/harvest/client/errors"
)

// TempPrefix begins the names of incomplete files. Random characters and their checksum follow, so
// that no name chosen by a user is mistaken for one. Such files are never synced.
const TempPrefix = ".harvest-sync-"

// Numbers of random and of check characters in a temporary name.
const (
	tempRandom = 16
	tempCheck  = 10
)

// NewTempName returns a name for an incomplete file.
func NewTempName() string {
	random := rand.Text()[:tempRandom]
	return TempPrefix + random + checkTemp(random)
}

func checkTemp(random string) string {
	sum := sha256.Sum256([]byte(TempPrefix + random))
	return base32.StdEncoding.EncodeToString(sum[:tempCheck])[:tempCheck] // five bits each: the rest is not needed
}

// Temporary reports whether path is an incomplete file, judging by its name.
func Temporary(path string) bool {
	rest, ok := strings.CutPrefix(path[strings.LastIndexByte(path, '/')+1:], TempPrefix)
	return ok && len(rest) == tempRandom+tempCheck && checkTemp(rest[:tempRandom]) == rest[tempRandom:]
}

// ErrTemporary explains why an object is omitted.
var ErrTemporary = errors.Remedy(errors.Newf(errors.Unsupported,
	"it is a temporary file of an interrupted sync, which another program stored"), "delete the object")

// Mkdir makes the directory path in an existing directory, and reports whether it is new. It
// returns Conflict if the name is taken by something else.
func (t *Tree) Mkdir(path string) (bool, error) {
	fresh := false
	err := t.make(path, func() (err error) {
		fresh, err = t.mkdir(path)
		return err
	})
	return fresh, err
}

// NewDirMode is the mode of a new directory: only the owner may enter it until its content is in place.
const NewDirMode = 0o700

func (t *Tree) mkdir(path string) (bool, error) {
	dir, name, err := t.dirOf(path)
	if err != nil {
		return false, err
	}
	defer dir.Close()
	if err := unix.Mkdirat(int(dir.Fd()), name, NewDirMode); err == nil {
		return true, nil
	} else if !errors.Is(err, unix.EEXIST) {
		return false, ExplainFile(err)
	}
	var st unix.Stat_t
	if err := unix.Fstatat(int(dir.Fd()), name, &st, unix.AT_SYMLINK_NOFOLLOW); err != nil {
		return false, ExplainFile(err)
	}
	if st.Mode&unix.S_IFMT != unix.S_IFDIR {
		return false, InTheWay(st.Mode)
	}
	return false, nil
}

// InTheWay returns a Conflict that names the kind of file, by its mode, that is in the way.
func InTheWay(mode uint32) error {
	what := "a " + File.String()
	switch mode & unix.S_IFMT {
	case unix.S_IFDIR:
		what = "a " + Dir.String()
	case unix.S_IFLNK:
		what = "a " + Symlink.String()
	case unix.S_IFREG:
	default:
		what = special(mode)
	}
	return errors.Newf(errors.Conflict, "%s of that name is in the way", what)
}

// absent reports whether an error means that nothing exists at a path.
func absent(err error) bool { return errors.Is(err, unix.ENOENT) || errors.Is(err, unix.ENOTDIR) }

// Shadowed reports whether path cannot exist in the tree because a parent is a file.
func (t *Tree) Shadowed(path string) bool {
	dir, _, err := t.dirOf(path)
	if err == nil {
		dir.Close()
	}
	return errors.Is(err, unix.ENOTDIR)
}

// Lstat returns the entry at path, or nil.
func (t *Tree) Lstat(path string) (*Entry, error) {
	dir, name, err := t.dirOf(path)
	if absent(err) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	defer dir.Close()
	var st unix.Stat_t
	if err := unix.Fstatat(int(dir.Fd()), name, &st, unix.AT_SYMLINK_NOFOLLOW); errors.Is(err, unix.ENOENT) {
		return nil, nil
	} else if err != nil {
		return nil, ExplainFile(err)
	}
	return FromStat(path, &st), nil
}

// Writer is a file that replaces path once it is complete. It uses raw descriptors: os.File first
// asks the kernel for the flags of each, which adds up with thousands of small files.
type Writer struct {
	t       *Tree
	fd, dir int
	path    string
	name    string // final name in dir
	temp    string
}

// Fd returns the file's descriptor, which is valid until discard.
func (w *Writer) Fd() uintptr { return uintptr(w.fd) }

// WriteAt implements io.WriterAt.
func (w *Writer) WriteAt(p []byte, at int64) (int, error) {
	n, err := w.whole(unix.Pwrite, p, at, io.ErrShortWrite)
	w.t.Written.Add(int64(n))
	return n, err
}

// whole repeats a call until it has read or written all of p. A call without progress is the error end.
func (w *Writer) whole(call func(fd int, p []byte, at int64) (int, error), p []byte, at int64, end error) (int, error) {
	done := 0
	for done < len(p) {
		n, err := call(w.fd, p[done:], at+int64(done))
		switch {
		case errors.Is(err, unix.EINTR):
		case err != nil:
			return done, err
		case n == 0:
			return done, end
		default:
			done += n
		}
	}
	return done, nil
}

// ReadAt implements io.ReaderAt.
func (w *Writer) ReadAt(p []byte, at int64) (int, error) {
	return w.whole(unix.Pread, p, at, io.EOF)
}

// Truncate sets the length of the file.
func (w *Writer) Truncate(n int64) error { return unix.Ftruncate(w.fd, n) }

// Create begins a file for path. It is not visible there before commit. The caller must call
// discard in any case.
func (t *Tree) Create(path string) (*Writer, error) {
	var w *Writer
	err := t.make(path, func() (err error) {
		w, err = t.create(path)
		return err
	})
	return w, err
}

func (t *Tree) create(path string) (*Writer, error) {
	above := Parent(path)
	dir, err := t.dirFD(above)
	if err != nil {
		return nil, err
	}
	w := &Writer{t: t, dir: dir, path: path, name: path, temp: NewTempName()}
	if above != "" {
		w.name = path[len(above)+1:]
	}
	w.fd, err = unix.Openat(dir, w.temp, unix.O_RDWR|unix.O_CREAT|unix.O_EXCL|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0o600)
	if err != nil {
		unix.Close(dir)
		return nil, ExplainFile(err)
	}
	return w, nil
}

// inPlace returns the current entry with the file's name, or nil.
func (w *Writer) inPlace() (*Entry, error) {
	var st unix.Stat_t
	if err := unix.Fstatat(w.dir, w.name, &st, unix.AT_SYMLINK_NOFOLLOW); errors.Is(err, unix.ENOENT) {
		return nil, nil
	} else if err != nil {
		return nil, ExplainFile(err)
	}
	return FromStat(w.path, &st), nil
}

// Commit gives the file its metadata and its name, and returns its entry. check may refuse to
// replace the current entry. fresh means that no entry is expected, and that one which appears at
// the last moment is not overwritten.
func (w *Writer) Commit(e *Entry, o Restoring, fresh bool, check func(now *Entry) error) (*Entry, error) {
	for name, value := range e.Xattrs {
		if err := unix.Fsetxattr(w.fd, name, []byte(value), 0); err != nil && !errors.Is(err, unix.ENOTSUP) {
			return nil, ExplainFile(err)
		}
	}
	owned := w.t.owners && o.Owners
	// A new file belongs to the process, except in directories that pass on their group.
	if owned && (int(e.UID) != w.t.uid || int(e.GID) != w.t.gid) {
		if err := unix.Fchown(w.fd, int(e.UID), int(e.GID)); err != nil {
			return nil, ExplainFile(err)
		}
	}
	if err := unix.Fchmod(w.fd, o.Mode(e)); err != nil {
		return nil, ExplainFile(err)
	}
	times := []unix.Timespec{e.ModTime.Timespec(), e.ModTime.Timespec()}
	if err := unix.UtimesNanoAt(w.dir, w.temp, times, unix.AT_SYMLINK_NOFOLLOW); err != nil {
		return nil, ExplainFile(err)
	}
	if err := w.rename(fresh, check); err != nil {
		return nil, err
	}
	w.temp = ""
	w.t.Written.Add(1)
	var st unix.Stat_t
	err := unix.Fstat(w.fd, &st)
	if err == nil && owned && (st.Uid != e.UID || st.Gid != e.GID) {
		err = errors.Join(unix.Fchown(w.fd, int(e.UID), int(e.GID)), unix.Fchmod(w.fd, o.Mode(e)),
			unix.Fstat(w.fd, &st))
	}
	if err != nil {
		return nil, ExplainFile(err)
	}
	return w.t.asSet(e, &st), nil
}

func (w *Writer) rename(fresh bool, check func(now *Entry) error) error {
	return w.t.move(func() error { return w.renameNow(fresh, check) })
}

func (w *Writer) renameNow(fresh bool, check func(now *Entry) error) error {
	// If this fails, the name is taken or the file system does not support the flag.
	if fresh && unix.Renameat2(w.dir, w.temp, w.dir, w.name, unix.RENAME_NOREPLACE) == nil {
		return nil
	}
	if check != nil {
		now, err := w.inPlace()
		if err == nil {
			err = check(now)
		}
		if err != nil {
			return err
		}
	}
	return ExplainFile(unix.Renameat(w.dir, w.temp, w.dir, w.name))
}

// Discard removes an uncommitted file and closes the descriptors.
func (w *Writer) Discard() {
	if w.temp != "" {
		_ = unix.Unlinkat(w.dir, w.temp, 0)
	}
	unix.Close(w.fd)
	unix.Close(w.dir)
}

// Restoring selects the metadata that a restore may set.
type Restoring struct {
	Owners bool // users and groups, if the process is permitted to
	SetID  bool // the setuid and setgid bits
}

// Mode returns the permissions that a file gets.
func (o Restoring) Mode(e *Entry) uint32 {
	if o.SetID {
		return e.Mode
	}
	return e.Mode &^ SetID
}

// renameFresh renames an entry of a directory to a name that is not in use.
func renameFresh(dir *os.File, from, to string) error {
	fd := int(dir.Fd())
	err := unix.Renameat2(fd, from, fd, to, unix.RENAME_NOREPLACE)
	if !errors.Is(err, unix.EINVAL) && !errors.Is(err, unix.EEXIST) {
		return err
	}
	var st unix.Stat_t
	if found := unix.Fstatat(fd, to, &st, unix.AT_SYMLINK_NOFOLLOW); found == nil {
		return InTheWay(st.Mode)
	} else if !errors.Is(found, unix.ENOENT) || errors.Is(err, unix.EEXIST) {
		return err
	}
	return unix.Renameat(fd, from, fd, to) // the file system does not support the flag
}

// replace makes path a symbolic or hard link that make creates under a temporary name beside it. If it is fresh, the
// name must not be in use.
func (t *Tree) replace(path string, fresh bool, make func(dir *os.File, temp string) error) (*Entry, error) {
	var e *Entry
	err := t.make(path, func() (err error) {
		e, err = t.link(path, fresh, make)
		return err
	})
	return e, err
}

func (t *Tree) link(path string, fresh bool, make func(dir *os.File, temp string) error) (*Entry, error) {
	dir, name, err := t.dirOf(path)
	if err != nil {
		return nil, err
	}
	defer dir.Close()
	temp := NewTempName()
	if err := make(dir, temp); err != nil {
		_ = unix.Unlinkat(int(dir.Fd()), temp, 0)
		return nil, ExplainFile(err)
	}
	if fresh {
		err = renameFresh(dir, temp, name)
	} else {
		err = unix.Renameat(int(dir.Fd()), temp, int(dir.Fd()), name)
	}
	if err != nil {
		_ = unix.Unlinkat(int(dir.Fd()), temp, 0)
		return nil, ExplainFile(err)
	}
	// A rename between two names of the same file does nothing and keeps both.
	_ = unix.Unlinkat(int(dir.Fd()), temp, 0)
	var st unix.Stat_t
	if err := unix.Fstatat(int(dir.Fd()), name, &st, unix.AT_SYMLINK_NOFOLLOW); err != nil {
		return nil, ExplainFile(err)
	}
	return FromStat(path, &st), nil
}

// Symlink makes a symbolic link, or replaces what has its name. If it is fresh, the name must not be in use.
func (t *Tree) Symlink(e *Entry, o Restoring, fresh bool) (*Entry, error) {
	at, err := t.replace(e.Path, fresh, func(dir *os.File, temp string) error {
		if err := unix.Symlinkat(e.Target, int(dir.Fd()), temp); err != nil {
			return err
		}
		if t.owners && o.Owners {
			if err := unix.Fchownat(int(dir.Fd()), temp, int(e.UID), int(e.GID), unix.AT_SYMLINK_NOFOLLOW); err != nil {
				return err
			}
		}
		return unix.UtimesNanoAt(int(dir.Fd()), temp, []unix.Timespec{e.ModTime.Timespec(), e.ModTime.Timespec()},
			unix.AT_SYMLINK_NOFOLLOW)
	})
	t.AdoptTime(at, e)
	return at, err
}

// Link makes path another name of the file target. Both are in the tree.
func (t *Tree) Link(target, path string) (*Entry, error) {
	from, name, err := t.dirOf(target)
	if err != nil {
		return nil, err
	}
	defer from.Close()
	var st unix.Stat_t
	if err := unix.Fstatat(int(from.Fd()), name, &st, unix.AT_SYMLINK_NOFOLLOW); err != nil {
		return nil, ExplainFile(err)
	}
	if st.Mode&unix.S_IFMT != unix.S_IFREG {
		return nil, ErrChanged
	}
	return t.replace(path, false, func(dir *os.File, temp string) error {
		return unix.Linkat(int(from.Fd()), name, int(dir.Fd()), temp, 0)
	})
}

// SetMeta sets mode, owner and time of the entry at path: a directory, or a file with the correct
// content.
func (t *Tree) SetMeta(e *Entry, o Restoring) (*Entry, error) {
	if e.Kind == Symlink {
		return t.Symlink(e, o, false)
	}
	dir, name, err := t.dirOf(e.Path)
	if err != nil {
		return nil, err
	}
	defer dir.Close()
	fd, err := unix.Openat(int(dir.Fd()), name, unix.O_RDONLY|unix.O_NOFOLLOW|unix.O_NONBLOCK|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, explainOpen(err)
	}
	f := os.NewFile(uintptr(fd), e.Path)
	defer f.Close()
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil {
		return nil, ExplainFile(err)
	}
	if got := FromStat(e.Path, &st); got.Kind != e.Kind {
		return nil, ErrChanged
	}
	if e.Kind == File { // attributes of directories are not synced
		if err := setXattrs(f, e.Xattrs); err != nil {
			return nil, err
		}
	}
	if t.owners && o.Owners && (st.Uid != e.UID || st.Gid != e.GID) {
		if err := unix.Fchown(fd, int(e.UID), int(e.GID)); err != nil {
			return nil, ExplainFile(err)
		}
	}
	if err := unix.Fchmod(fd, o.Mode(e)); err != nil {
		return nil, ExplainFile(err)
	}
	at := e.ModTime.Timespec()
	if e.Unmarked() {
		at.Nsec = unix.UTIME_OMIT
	}
	if err := unix.UtimesNanoAt(int(dir.Fd()), name, []unix.Timespec{at, at}, unix.AT_SYMLINK_NOFOLLOW); err != nil {
		return nil, ExplainFile(err)
	}
	if err := unix.Fstat(fd, &st); err != nil {
		return nil, ExplainFile(err)
	}
	return t.asSet(e, &st), nil
}

// setXattrs replaces the user.* attributes with those of want.
func setXattrs(f *os.File, want map[string]string) error {
	have, err := xattrs(f)
	if err != nil {
		return err
	}
	for name := range have {
		if _, ok := want[name]; !ok {
			if err := unix.Fremovexattr(int(f.Fd()), name); err != nil && !errors.Is(err, unix.ENODATA) {
				return ExplainFile(err)
			}
		}
	}
	for name, value := range want {
		if old, ok := have[name]; ok && old == value {
			continue
		}
		if err := unix.Fsetxattr(int(f.Fd()), name, []byte(value), 0); err != nil && !errors.Is(err, unix.ENOTSUP) {
			return ExplainFile(err)
		}
	}
	return nil
}

// Remove removes a file, a link or an empty directory. It is not an error if it does not exist.
func (t *Tree) Remove(path string, kind Kind) error {
	dir, name, err := t.dirOf(path)
	if absent(err) {
		return nil
	}
	if err != nil {
		return err
	}
	defer dir.Close()
	flags := 0
	if kind == Dir {
		flags = unix.AT_REMOVEDIR
	}
	// An entry of another kind has taken its place meanwhile.
	if err := unix.Unlinkat(int(dir.Fd()), name, flags); err != nil && !absent(err) {
		if errors.Is(err, unix.ENOTEMPTY) {
			return errors.Explainf(err, errors.Conflict, "it is not empty")
		}
		return ExplainFile(err)
	}
	return nil
}

// RemoveLeft removes an incomplete file that an ended sync left, and no other file. The directory
// keeps its time. A failure is not reported: the next sync tries again.
func (t *Tree) RemoveLeft(path string) {
	dir, name, err := t.dirOf(path)
	if err != nil {
		return
	}
	defer dir.Close()
	var st unix.Stat_t
	if !Temporary(name) || unix.Fstat(int(dir.Fd()), &st) != nil {
		return
	}
	if unix.Unlinkat(int(dir.Fd()), name, 0) == nil {
		_ = unix.UtimesNanoAt(int(dir.Fd()), ".", []unix.Timespec{{Nsec: unix.UTIME_OMIT}, st.Mtim}, 0)
	}
}

// Commit flushes all written data. The kernel may report a write error only once, so no error may
// be dropped.
func (t *Tree) Commit() error {
	t.Written.Store(0)
	return errors.Wrapf(t.Syncfs(int(t.root.Fd())), "write the tree to its disk")
}

// ReadContent reads len(p) bytes of an entry's object at offset at. With extents, the object has the
// file's data only.
func ReadContent(f io.ReaderAt, e *Entry, p []byte, at int64) error {
	return eachExtent(e, int64(len(p)), at, func(offset, from, n int64) error {
		_, err := io.ReadFull(io.NewSectionReader(f, offset, n), p[from:from+n])
		if errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) {
			return ErrChanged
		}
		return ExplainFile(err)
	})
}

// WriteContent writes p, which is at offset at of an entry's object, to its place in the file.
func WriteContent(f io.WriterAt, e *Entry, p []byte, at int64) error {
	return eachExtent(e, int64(len(p)), at, func(offset, from, n int64) error {
		_, err := f.WriteAt(p[from:from+n], offset)
		return ExplainFile(err)
	})
}

// eachExtent calls do for the parts of a file that correspond to n bytes of its object at offset
// at, with the part's offset in the file, its offset in the n bytes, and its length.
func eachExtent(e *Entry, n, at int64, do func(offset, from, n int64) error) error {
	if e.Extents == nil {
		return do(at, 0, n)
	}
	begin, from := int64(0), int64(0) // of the extent, in the object; done so far
	for _, x := range e.Extents {
		if skip := at + from - begin; skip < x.Length && from < n {
			part := min(x.Length-skip, n-from)
			if err := do(x.Offset+skip, from, part); err != nil {
				return err
			}
			from += part
		}
		begin += x.Length
	}
	return nil
}

// Rename moves the file at path to a name that is not in use.
func (t *Tree) Rename(path, to string) error {
	dir, name, err := t.dirOf(path)
	if err != nil {
		return err
	}
	defer dir.Close()
	return ExplainFile(renameFresh(dir, name, to[len(path)-len(name):]))
}

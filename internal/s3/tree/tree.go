// Package tree reads and writes a directory as entries of a synchronization: scans in the order of keys, names as
// keys of a bucket, exact times, and writes that leave no partial files. The directory's content may be hostile and
// change at any time.
package tree

import (
	"context"
	"io"
	"iter"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"

	"github.com/minio/crc64nvme"
	"golang.org/x/sys/unix"

	"github.com/RelevanceAI/harvest/client/errors"
)

// MaxDepth is the maximum nesting of directories: each level being read needs an open file.
const MaxDepth = 512

// Tree is a directory to sync. Its content may be hostile and change at any time. A Tree never
// accesses anything outside of the directory, follows symbolic links, crosses into another file
// system, or opens anything but files and directories. It must be closed.
type Tree struct {
	root *os.File
	dev  uint64
	// owners means that the process may change the owners of files.
	owners   bool
	uid, gid int // of new files
	// written counts the bytes written to files since the last commit began, plus one for each
	// file.
	Written atomic.Int64
	Syncfs  func(fd int) error // unix.Syncfs, except in tests of failing disks
	limits  func() limits      // of times
	// Room, if set, limits the files of the tree. It must be safe for concurrent use.
	Room Room
}

// Room limits the files, links and directories of a tree.
type Room interface {
	// Make calls create, which makes a file at path, perhaps under a temporary name, if there is room for it. Its
	// error is that of the path.
	Make(path string, create func() error) error
	// Move calls rename, which gives a file its name. Files are not counted meanwhile.
	Move(rename func() error) error
}

func (t *Tree) make(path string, create func() error) error {
	if t.Room == nil {
		return create()
	}
	return t.Room.Make(path, create)
}

func (t *Tree) move(rename func() error) error {
	if t.Room == nil {
		return rename()
	}
	return t.Room.Move(rename)
}

// Open opens the directory path.
func Open(path string) (*Tree, error) {
	fd, err := unix.Open(path, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, errors.Wrapf(&os.PathError{Op: "open", Path: path, Err: err}, "open a tree")
	}
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil {
		unix.Close(fd)
		return nil, errors.Wrapf(err, "open a tree")
	}
	t := &Tree{root: os.NewFile(uintptr(fd), path), dev: st.Dev, owners: os.Geteuid() == 0, uid: os.Geteuid(),
		gid: os.Getegid(), Syncfs: unix.Syncfs}
	t.limits = sync.OnceValue(t.findLimits)
	return t, nil
}

// OpenRoot opens the tree's directory once more.
func (t *Tree) OpenRoot() (*os.File, error) { return dup(t.root) }

// Device returns the number of the file system's device.
func (t *Tree) Device() uint64 { return t.dev }

// CanChown reports whether the process may change the owners of files.
func (t *Tree) CanChown() bool { return t.owners }

// Identity returns the absolute path and the inode of the tree's directory.
func (t *Tree) Identity() (path string, inode uint64, err error) {
	var st unix.Stat_t
	if err := unix.Fstat(int(t.root.Fd()), &st); err != nil {
		return "", 0, errors.Wrapf(err, "open a tree")
	}
	path, err = filepath.Abs(t.root.Name())
	return path, st.Ino, errors.Wrapf(err, "open a tree")
}

// Close implements io.Closer.
func (t *Tree) Close() error { return t.root.Close() }

// Scanned is an entry of a tree, or the error of a path.
type Scanned struct {
	*Entry
	EmptyDir    bool // a directory without entries
	Err         error
	FailedPath  string // of err; "" for the whole tree
	OfDirectory bool   // err is about a directory
}

// Scan yields the entries of the tree in the order of keys, without the root. Entries that cannot
// be synced come with an error.
func (t *Tree) Scan(ctx context.Context) iter.Seq[Scanned] {
	return func(yield func(Scanned) bool) {
		fd, err := dup(t.root)
		if err != nil {
			yield(Scanned{Err: err})
			return
		}
		defer fd.Close()
		w := walk{t: t, ctx: ctx, yield: yield}
		names, err := list(fd)
		if err != nil {
			yield(Scanned{Err: ExplainFile(err)})
			return
		}
		w.dir(fd, "", names, 0)
	}
}

func dup(f *os.File) (*os.File, error) {
	// Open again instead of dup: duplicates share the position of directory reads.
	fd, err := unix.Openat(int(f.Fd()), ".", unix.O_RDONLY|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, errors.Wrapf(err, "open a directory")
	}
	return os.NewFile(uintptr(fd), f.Name()), nil
}

type walk struct {
	t     *Tree
	ctx   context.Context
	yield func(Scanned) bool
}

// child is a name in a directory with its sort key.
type child struct {
	name, place string
	st          unix.Stat_t
	err         error
}

// list reads the names of a directory.
func list(dir *os.File) ([]string, error) {
	names, err := dir.Readdirnames(-1)
	if errors.Is(err, io.EOF) {
		err = nil
	}
	return names, err
}

// dir yields the entries of a directory, and reports whether to continue.
func (w *walk) dir(dir *os.File, path string, names []string, depth int) bool {
	children := make([]child, 0, len(names))
	for _, name := range names {
		c := child{name: name}
		c.err = unix.Fstatat(int(dir.Fd()), name, &c.st, unix.AT_SYMLINK_NOFOLLOW)
		if errors.Is(c.err, unix.ENOENT) {
			continue // removed meanwhile
		}
		c.place = EncodePath(Join(path, name))
		if c.st.Mode&unix.S_IFMT == unix.S_IFDIR {
			c.place += "/"
		}
		children = append(children, c)
	}
	slices.SortFunc(children, func(a, b child) int { return strings.Compare(a.place, b.place) })
	for i := range children {
		if w.ctx.Err() != nil || !w.child(dir, path, &children[i], depth) {
			return false
		}
	}
	return true
}

func (w *walk) child(dir *os.File, path string, c *child, depth int) bool {
	full := Join(path, c.name)
	fail := func(err error) bool { return w.yield(Scanned{FailedPath: full, Err: ExplainFile(err)}) }
	if c.err != nil {
		return fail(c.err)
	}
	e := FromStat(full, &c.st)
	switch c.st.Mode & unix.S_IFMT {
	case unix.S_IFREG:
		return w.yield(Scanned{Entry: e})
	case unix.S_IFLNK:
		var target string
		if target, c.err = readlink(dir, c.name); c.err != nil {
			return fail(c.err)
		}
		e.Target = target
		return w.yield(Scanned{Entry: e})
	case unix.S_IFDIR:
		return w.subdir(dir, e, c.name, depth+1)
	}
	return fail(errors.Explainf(ErrSpecial, errors.Unsupported, "it is %s, which has no content to keep",
		special(c.st.Mode)))
}

// ErrSpecial reports a FIFO, a socket or a device.
var ErrSpecial = errors.Newf(errors.Unsupported, "it has no content to keep")

func (w *walk) subdir(dir *os.File, e *Entry, name string, depth int) bool {
	fail := func(err error) bool {
		return w.yield(Scanned{FailedPath: e.Path, OfDirectory: true, Err: ExplainFile(err)})
	}
	if depth > MaxDepth || len(e.Path) > maxPath {
		return fail(errors.Newf(errors.Unsupported, "directories are nested more than %d deep", MaxDepth))
	}
	sub, err := openDir(dir, name)
	if err != nil {
		return fail(err)
	}
	defer sub.Close()
	var st unix.Stat_t
	if err := unix.Fstat(int(sub.Fd()), &st); err != nil {
		return fail(err)
	}
	if st.Dev != w.t.dev {
		return fail(errors.Newf(errors.Unsupported, "another file system is mounted there"))
	}
	names, err := list(sub)
	if err != nil {
		return fail(err)
	}
	return w.yield(Scanned{Entry: e, EmptyDir: len(names) == 0}) && w.dir(sub, e.Path, names, depth)
}

// FromStat returns the entry at path with the metadata of st, without target, attributes and extents.
func FromStat(path string, st *unix.Stat_t) *Entry {
	e := &Entry{Path: path, Mode: st.Mode & 0o7777, UID: st.Uid, GID: st.Gid,
		ModTime: Time{st.Mtim.Sec, int32(st.Mtim.Nsec)}, Inode: st.Ino, Change: st.Ctim.Nano()}
	switch st.Mode & unix.S_IFMT {
	case unix.S_IFREG:
		e.Kind, e.Size, e.Nlink, e.blocks = File, st.Size, uint64(st.Nlink), st.Blocks
	case unix.S_IFDIR:
		e.Kind = Dir
	case unix.S_IFLNK:
		e.Kind, e.Mode = Symlink, 0o777
	}
	return e
}

func special(mode uint32) string {
	switch mode & unix.S_IFMT {
	case unix.S_IFIFO:
		return "a FIFO"
	case unix.S_IFSOCK:
		return "a socket"
	case unix.S_IFBLK, unix.S_IFCHR:
		return "a device"
	}
	return "of an unknown kind"
}

// Join returns the path of a name in a directory. The root is "".
func Join(dir, name string) string {
	if dir == "" {
		return name
	}
	return dir + "/" + name
}

// openDir opens the directory name of dir. It fails if the name is now of another kind.
func openDir(dir *os.File, name string) (*os.File, error) {
	fd, err := unix.Openat(int(dir.Fd()), name, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, err
	}
	return os.NewFile(uintptr(fd), name), nil
}

func readlink(dir *os.File, name string) (string, error) {
	buf := make([]byte, 4097)
	n, err := unix.Readlinkat(int(dir.Fd()), name, buf)
	if err != nil {
		return "", err
	}
	return string(buf[:n]), nil
}

// dirOf opens the directory that holds path, part by part, and returns it with the last part of
// path.
func (t *Tree) dirOf(path string) (*os.File, string, error) {
	dir, name := Parent(path), path
	if dir != "" {
		name = path[len(dir)+1:]
	}
	f, err := t.openDir(dir)
	return f, name, err
}

// openDir opens a directory of the tree without following links.
func (t *Tree) openDir(path string) (*os.File, error) {
	fd, err := t.dirFD(path)
	if err != nil {
		return nil, err
	}
	return os.NewFile(uintptr(fd), path), nil
}

// dirFD is openDir for callers that close the descriptor.
func (t *Tree) dirFD(path string) (int, error) {
	how := unix.OpenHow{Flags: unix.O_RDONLY | unix.O_DIRECTORY | unix.O_CLOEXEC,
		Resolve: unix.RESOLVE_BENEATH | unix.RESOLVE_NO_SYMLINKS | unix.RESOLVE_NO_XDEV | unix.RESOLVE_NO_MAGICLINKS}
	if path == "" {
		path = "."
	}
	fd, err := unix.Openat2(int(t.root.Fd()), path, &how)
	if errors.Is(err, unix.ENOSYS) || errors.Is(err, unix.ENAMETOOLONG) {
		f, err := t.openByParts(path)
		if err != nil {
			return -1, err
		}
		defer f.Close()
		fd, err = unix.FcntlInt(f.Fd(), unix.F_DUPFD_CLOEXEC, 0)
		return fd, errors.Wrapf(err, "open a directory")
	}
	if err != nil {
		return -1, explainOpen(err)
	}
	return fd, nil
}

// openByParts is openDir for long paths, and for kernels without openat2, such as gVisor's.
func (t *Tree) openByParts(path string) (*os.File, error) {
	f, err := dup(t.root)
	if err != nil || path == "." {
		return f, err
	}
	for part := range strings.SplitSeq(path, "/") {
		next, err := openDir(f, part)
		f.Close()
		if err != nil {
			return nil, explainOpen(err)
		}
		f = next
	}
	return f, nil
}

// Open opens a file for reading and returns its current stat. It opens only regular files of this
// file system.
func (t *Tree) Open(path string) (*os.File, *unix.Stat_t, error) {
	dir, name, err := t.dirOf(path)
	if err != nil {
		return nil, nil, err
	}
	defer dir.Close()
	// O_NONBLOCK: if the path is now a FIFO, do not wait for its writer.
	fd, err := unix.Openat(int(dir.Fd()), name,
		unix.O_RDONLY|unix.O_NOFOLLOW|unix.O_NONBLOCK|unix.O_CLOEXEC|unix.O_NOCTTY, 0)
	if err != nil {
		return nil, nil, explainOpen(err)
	}
	f := os.NewFile(uintptr(fd), path)
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil {
		f.Close()
		return nil, nil, ExplainFile(err)
	}
	if st.Mode&unix.S_IFMT != unix.S_IFREG || st.Dev != t.dev {
		f.Close()
		return nil, nil, ErrChanged
	}
	return f, &st, nil
}

// ErrChanged reports that another process changed a file while it was read.
var ErrChanged = errors.Newf(errors.Conflict, "it changed while it was read")

func explainOpen(err error) error {
	if errors.Is(err, unix.ELOOP) || errors.Is(err, unix.EXDEV) || errors.Is(err, unix.ENXIO) {
		return ErrChanged
	}
	return ExplainFile(err)
}

// ExplainFile explains an error of a file to the volume's owner.
func ExplainFile(err error) error {
	switch {
	case err == nil || errors.KindOf(err) != errors.Internal && errors.KindOf(err) != errors.NotFound &&
		errors.KindOf(err) != errors.Denied:
		return err
	case errors.Is(err, unix.ENOENT):
		return errors.Explainf(err, errors.NotFound, "it no longer exists")
	case errors.Is(err, unix.EACCES), errors.Is(err, unix.EPERM):
		return errors.Explainf(err, errors.Denied, "its permissions do not allow it")
	case errors.Is(err, unix.ENOSPC), errors.Is(err, unix.EDQUOT):
		return errors.Explainf(err, errors.Exhausted, "no space is left on the disk")
	case errors.Is(err, unix.ENOTDIR), errors.Is(err, unix.EISDIR), errors.Is(err, unix.EEXIST):
		return errors.Explainf(err, errors.Conflict, "a file of another kind has that name")
	case errors.Is(err, unix.ENAMETOOLONG):
		return errors.Explainf(err, errors.Unsupported, "its name is too long for the file system")
	}
	return errors.Explainf(err, errors.Internal, "the file system refused it")
}

// Details adds the properties that stat does not return: attributes, and the data ranges of a
// sparse file.
func Details(f *os.File, e *Entry) error {
	var err error
	if e.Xattrs, err = xattrs(f); err != nil {
		return err
	}
	// A file with far fewer blocks than its size has holes worth keeping.
	if e.Kind == File && e.Size >= MinSparse && e.Size-e.blocks*512 >= e.Size/4 {
		e.Extents, err = extents(f, e.Size)
	}
	return err
}

// MinSparse is the minimum size of a file that is searched for holes. Smaller files are stored in
// full.
const MinSparse = 64 << 20

// xattrs reads the user.* attributes.
func xattrs(f *os.File) (map[string]string, error) {
	var small [512]byte
	buf := small[:]
	n, err := unix.Flistxattr(int(f.Fd()), buf)
	if errors.Is(err, unix.ERANGE) {
		buf = make([]byte, 64<<10)
		n, err = unix.Flistxattr(int(f.Fd()), buf)
	}
	if errors.Is(err, unix.ENOTSUP) || n == 0 {
		return nil, nil
	}
	if err != nil {
		return nil, ExplainFile(err)
	}
	var all map[string]string
	for name := range strings.SplitSeq(strings.TrimSuffix(string(buf[:n]), "\x00"), "\x00") {
		if !strings.HasPrefix(name, "user.") || len(all) >= MaxXattrs {
			continue
		}
		value := make([]byte, 64<<10)
		n, err := unix.Fgetxattr(int(f.Fd()), name, value)
		if err != nil {
			continue // removed meanwhile
		}
		if all == nil {
			all = map[string]string{}
		}
		all[name] = string(value[:n])
	}
	return all, nil
}

// extents returns the data ranges of a file.
func extents(f *os.File, size int64) ([]Extent, error) {
	all := []Extent{}
	for at := int64(0); at < size; {
		data, err := unix.Seek(int(f.Fd()), at, unix.SEEK_DATA)
		if errors.Is(err, unix.ENXIO) {
			break
		}
		if err != nil {
			return nil, ExplainFile(err)
		}
		hole, err := unix.Seek(int(f.Fd()), data, unix.SEEK_HOLE)
		if err != nil {
			return nil, ExplainFile(err)
		}
		if len(all) == MaxExtents {
			return nil, errors.Newf(errors.Unsupported, "it is sparse in more than %d places", MaxExtents)
		}
		hole = min(hole, size)
		if hole > data {
			all = append(all, Extent{data, hole - data})
		}
		at = hole
	}
	return all, nil
}

// Place returns the sort key of a scanned entry, or of a path that could not be scanned.
func (s *Scanned) Place() string {
	if s.Err != nil && s.OfDirectory {
		return EncodePath(s.FailedPath) + "/"
	}
	if s.Err != nil {
		return EncodePath(s.FailedPath)
	}
	return s.Order()
}

// Holds reads a file into body, and reports whether it matches e.
func (t *Tree) Holds(e *Entry, body []byte) bool {
	f, st, err := t.Open(e.Path)
	if err != nil {
		return false
	}
	defer f.Close()
	return st.Size == e.Size && ReadContent(f, e, body, 0) == nil && crc64nvme.Checksum(body) == e.CRC
}

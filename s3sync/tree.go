package s3sync

import (
	"context"
	"io"
	"iter"
	"os"
	"slices"
	"strings"
	"sync"
	"sync/atomic"

	"golang.org/x/sys/unix"

	"github.com/RelevanceAI/harvest/errors"
)

// maxDepth is the maximum nesting of directories: each level being read needs an open file.
const maxDepth = 512

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
	written atomic.Int64
	syncfs  func(fd int) error // unix.Syncfs, except in tests of failing disks
	limits  func() limits      // of times
}

// OpenTree opens the directory path.
func OpenTree(path string) (*Tree, error) {
	fd, err := unix.Open(path, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, errors.Wrapf(&os.PathError{Op: "open", Path: path, Err: err}, "open a tree")
	}
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil {
		unix.Close(fd)
		return nil, errors.Wrapf(err, "open a tree")
	}
	t := &Tree{root: os.NewFile(uintptr(fd), path), dev: st.Dev, owners: os.Geteuid() == 0, uid: os.Geteuid(), gid: os.Getegid(), syncfs: unix.Syncfs}
	t.limits = sync.OnceValue(t.findLimits)
	return t, nil
}

// Close implements io.Closer.
func (t *Tree) Close() error { return t.root.Close() }

// scanned is an entry of a tree, or the error of a path.
type scanned struct {
	*Entry
	empty bool // a directory without entries
	err   error
	path  string // of err; "" for the whole tree
	isDir bool   // err is about a directory
}

// scan yields the entries of the tree in the order of keys, without the root. Entries that cannot
// be synced come with an error.
func (t *Tree) scan(ctx context.Context) iter.Seq[scanned] {
	return func(yield func(scanned) bool) {
		fd, err := dup(t.root)
		if err != nil {
			yield(scanned{err: err})
			return
		}
		defer fd.Close()
		w := walk{t: t, ctx: ctx, yield: yield}
		names, err := list(fd)
		if err != nil {
			yield(scanned{err: explainFile(err)})
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
	yield func(scanned) bool
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
		c.place = EncodePath(join(path, name))
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
	full := join(path, c.name)
	fail := func(err error) bool { return w.yield(scanned{path: full, err: explainFile(err)}) }
	if c.err != nil {
		return fail(c.err)
	}
	e := fromStat(full, &c.st)
	switch c.st.Mode & unix.S_IFMT {
	case unix.S_IFREG:
		return w.yield(scanned{Entry: e})
	case unix.S_IFLNK:
		var target string
		if target, c.err = readlink(dir, c.name); c.err != nil {
			return fail(c.err)
		}
		e.Target = target
		return w.yield(scanned{Entry: e})
	case unix.S_IFDIR:
		return w.subdir(dir, e, c.name, depth+1)
	}
	return fail(errors.Newf(errors.Unsupported, "it is %s, which has no content to keep", special(c.st.Mode)))
}

func (w *walk) subdir(dir *os.File, e *Entry, name string, depth int) bool {
	fail := func(err error) bool { return w.yield(scanned{path: e.Path, isDir: true, err: explainFile(err)}) }
	if depth > maxDepth || len(e.Path) > maxPath {
		return fail(errors.Newf(errors.Unsupported, "directories lie more than %d deep in one another", maxDepth))
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
	return w.yield(scanned{Entry: e, empty: len(names) == 0}) && w.dir(sub, e.Path, names, depth)
}

func fromStat(path string, st *unix.Stat_t) *Entry {
	e := &Entry{Path: path, Mode: st.Mode & 0o7777, UID: st.Uid, GID: st.Gid, ModTime: Time{st.Mtim.Sec, int32(st.Mtim.Nsec)}, Inode: st.Ino, Change: st.Ctim.Nano()}
	switch st.Mode & unix.S_IFMT {
	case unix.S_IFREG:
		e.Kind, e.Size, e.nlink, e.blocks = File, st.Size, uint64(st.Nlink), st.Blocks
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

func join(dir, name string) string {
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
	dir, name := parent(path), path
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

// open opens a file for reading and returns its current stat. It opens only regular files of this
// file system.
func (t *Tree) open(path string) (*os.File, *unix.Stat_t, error) {
	dir, name, err := t.dirOf(path)
	if err != nil {
		return nil, nil, err
	}
	defer dir.Close()
	// O_NONBLOCK: if the path is now a FIFO, do not wait for its writer.
	fd, err := unix.Openat(int(dir.Fd()), name, unix.O_RDONLY|unix.O_NOFOLLOW|unix.O_NONBLOCK|unix.O_CLOEXEC|unix.O_NOCTTY, 0)
	if err != nil {
		return nil, nil, explainOpen(err)
	}
	f := os.NewFile(uintptr(fd), path)
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil {
		f.Close()
		return nil, nil, explainFile(err)
	}
	if st.Mode&unix.S_IFMT != unix.S_IFREG || st.Dev != t.dev {
		f.Close()
		return nil, nil, errChanged
	}
	return f, &st, nil
}

// errChanged reports that another process changed a file while it was read.
var errChanged = errors.Newf(errors.Conflict, "it changed while it was read")

func explainOpen(err error) error {
	if errors.Is(err, unix.ELOOP) || errors.Is(err, unix.EXDEV) || errors.Is(err, unix.ENXIO) {
		return errChanged
	}
	return explainFile(err)
}

// explainFile explains an error of a file to the volume's owner.
func explainFile(err error) error {
	switch {
	case err == nil || errors.KindOf(err) != errors.Internal && errors.KindOf(err) != errors.NotFound && errors.KindOf(err) != errors.Denied:
		return err
	case errors.Is(err, unix.ENOENT):
		return errors.Explainf(err, errors.NotFound, "it no longer exists")
	case errors.Is(err, unix.EACCES), errors.Is(err, unix.EPERM):
		return errors.Explainf(err, errors.Denied, "its permissions do not allow it")
	case errors.Is(err, unix.ENOSPC), errors.Is(err, unix.EDQUOT):
		return errors.Explainf(err, errors.Exhausted, "no space is left on the disk")
	case errors.Is(err, unix.ENOTDIR), errors.Is(err, unix.EISDIR), errors.Is(err, unix.EEXIST):
		return errors.Explainf(err, errors.Conflict, "something of another kind has that name")
	case errors.Is(err, unix.ENAMETOOLONG):
		return errors.Explainf(err, errors.Unsupported, "its name is too long for the file system")
	}
	return errors.Explainf(err, errors.Internal, "the file system refused it")
}

// details adds the properties that stat does not return: attributes, and the data ranges of a
// sparse file.
func details(f *os.File, e *Entry) error {
	var err error
	if e.Xattrs, err = xattrs(f); err != nil {
		return err
	}
	// A file with far fewer blocks than its size has holes worth keeping.
	if e.Kind == File && e.Size >= minSparse && e.Size-e.blocks*512 >= e.Size/4 {
		e.Extents, err = extents(f, e.Size)
	}
	return err
}

// minSparse is the minimum size of a file that is searched for holes. Smaller files are stored in
// full.
const minSparse = 64 << 20

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
		return nil, explainFile(err)
	}
	var all map[string]string
	for name := range strings.SplitSeq(strings.TrimSuffix(string(buf[:n]), "\x00"), "\x00") {
		if !strings.HasPrefix(name, "user.") || len(all) >= maxXattrs {
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
			return nil, explainFile(err)
		}
		hole, err := unix.Seek(int(f.Fd()), data, unix.SEEK_HOLE)
		if err != nil {
			return nil, explainFile(err)
		}
		if len(all) == maxExtents {
			return nil, errors.Newf(errors.Unsupported, "it is sparse in more than %d places", maxExtents)
		}
		hole = min(hole, size)
		if hole > data {
			all = append(all, Extent{data, hole - data})
		}
		at = hole
	}
	return all, nil
}

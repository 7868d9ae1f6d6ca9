// Package mount mounts places in S3 as file systems of this machine, so that sandboxes can have
// them at a path.
//
// Each mount is served by its own process (Main), which holds the credentials and outlives the
// server. Manager starts these processes, finds them again after a restart, and ends them.
// docs/s3.md describes the guarantees of the file system.
package mount

import (
	"context"
	"hash/crc32"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/hanwen/go-fuse/v2/fs"
	"github.com/hanwen/go-fuse/v2/fuse"

	"github.com/RelevanceAI/harvest/client/errors"
	"github.com/RelevanceAI/harvest/internal/s3/object"
	"github.com/RelevanceAI/harvest/internal/s3/tree"
)

// Tuning of the file system.
const (
	remember   = 3 * time.Second  // lifetime of cached names and attributes
	retryAfter = 20 * time.Second // before another attempt to store a file
	settled    = 10 * time.Second // an open file is stored this long after its last write
	idleSpool  = 30 * time.Second // before a stored file leaves the spool
	idleWindow = 30 * time.Second // before an unread window is dropped
	maxNames   = 500_000          // in one directory
	describing = 32               // concurrent requests for metadata
	oldMeta    = 30 * time.Second // lifetime of an object's metadata while lists show it unchanged
)

// live is a mounted place. Its only lasting state is the spool: files that were written but not
// stored yet.
type live struct {
	b        *object.Bucket
	readOnly bool
	limit    int64  // of the spool, in bytes
	spoolDir string // directory of unstored files
	owner    uint32 // owner of all files, if oneOwner is set because owners cannot be kept
	oneOwner bool
	// first is the machine's user that has the files of user 0, for a sandbox with users of its own. The bucket has
	// the sandbox's users.
	first   atomic.Uint32
	top     *node                        // the root, once mounted
	failed  func(path string, err error) // called for files that could not be stored
	windows windows

	ctx   context.Context // for requests to S3; canceled by quiet
	quiet context.CancelCauseFunc

	mu     sync.Mutex
	spools map[string]*spool // by path; guarded by mu
	used   int64             // bytes of the spool; guarded by mu
	last   int64             // number of the latest file there; guarded by mu
}

// errQuiet is the cause of canceled requests when the sandbox ends.
var errQuiet = errors.Newf(errors.Unavailable, "the sandbox ends")

// newLive returns a file system that works until its quiet is called.
func newLive(ctx context.Context, b *object.Bucket, spoolDir string, s settings) *live {
	m := &live{b: b, readOnly: s.ReadOnly, limit: s.Limit, spoolDir: spoolDir, owner: uint32(s.UID),
		oneOwner: s.UID != 0, spools: map[string]*spool{}, failed: func(string, error) {}}
	m.windows.limit, m.windows.all = maxWindows, map[*window]struct{}{}
	m.ctx, m.quiet = context.WithCancelCause(ctx)
	return m
}

// root returns the root directory.
func (m *live) root() *node {
	return &node{m: m, e: &tree.Entry{Kind: tree.Dir, Mode: 0o755, ModTime: tree.Now()}}
}

// mount mounts the file system at dir and serves it.
func (m *live) mount(dir string) (*fuse.Server, error) {
	ttl := remember
	o := &fs.Options{EntryTimeout: &ttl, AttrTimeout: &ttl, NegativeTimeout: &ttl, MountOptions: fuse.MountOptions{
		Name: "harvest-s3", FsName: "harvest-s3", AllowOther: !m.oneOwner, DirectMountStrict: !m.oneOwner,
		MaxWrite: 1 << 20, MaxBackground: 64,
		MaxReadAhead: 1 << 20, DisableXAttrs: true, DisableReadDirPlus: true, Options: []string{"nosuid", "nodev"},
	}}
	if m.readOnly {
		// A mount flag, since the kernel knows no "ro" option for this file system.
		o.DirectMountFlags = syscall.MS_NOSUID | syscall.MS_NODEV | syscall.MS_RDONLY
		if m.oneOwner {
			o.Options = append(o.Options, "ro")
		}
	}
	m.top = m.root()
	return fs.Mount(dir, m.top, o)
}

// errno converts an error to the errno that programs in the sandbox get.
func errno(err error) syscall.Errno {
	var no syscall.Errno
	if err == nil {
		return 0
	}
	kind := errors.KindOf(err)
	if kind == errors.Internal && errors.As(err, &no) { // errnos of other kinds come from the network
		return no
	}
	switch kind {
	case errors.NotFound:
		return syscall.ENOENT
	case errors.Denied, errors.Unauthenticated:
		return syscall.EACCES
	case errors.Exhausted:
		return syscall.ENOSPC
	case errors.Conflict:
		return syscall.ESTALE
	case errors.Unsupported:
		return syscall.EOPNOTSUPP
	}
	return syscall.EIO
}

// node is a file, link or directory known to the kernel.
type node struct {
	fs.Inode
	m *live

	io       sync.Mutex // held while fetching the content for a write
	mu       sync.Mutex
	path     string          // guarded by mu; "" for the root
	e        *tree.Entry     // guarded by mu; last known state, never changed in place
	at       time.Time       // guarded by mu; time of the request for e
	mine     string          // guarded by mu; ETag of the content that this mount stored last
	seen     string          // guarded by mu; ETag of the content that the kernel may have cached
	opens    int             // guarded by mu; open files
	reads    int             // guarded by mu; open files that may read
	gone     bool            // guarded by mu; the file has lost its path
	orphan   *spool          // guarded by mu; content of a gone file that is open, if kept
	replaced bool            // guarded by mu; the object at the path is not the one that open files read
	kids     map[string]*kid // guarded by mu; names in a directory; nil if not known
	listed   time.Time       // guarded by mu; time of kids; zero if a name changed since
	change   int             // guarded by mu; number of changes to names
	asking   bool            // guarded by mu; a request for all metadata is in progress
}

var _ = interface {
	fs.NodeLookuper
	fs.NodeGetattrer
	fs.NodeReaddirer
	fs.NodeReadlinker
	fs.NodeStatfser
}(&node{})

func join(dir, name string) string {
	if dir == "" {
		return name
	}
	return dir + "/" + name
}

// known returns the last known entry of the node, and its path.
func (n *node) known() (*tree.Entry, string) {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.e, n.path
}

// learned sets the node's entry, unless the node has lost its path.
func (n *node) learned(e *tree.Entry, at time.Time) bool {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.gone {
		return false
	}
	n.e, n.at = e, at
	return true
}

// stored notes that the content written here is now the object. Readers continue with it.
func (n *node) stored(e *tree.Entry) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.e, n.at, n.mine, n.replaced = e, time.Now(), e.ETag, false
}

// Lookup implements fs.NodeLookuper.
func (n *node) Lookup(_ context.Context, name string, out *fuse.EntryOut) (*fs.Inode, syscall.Errno) {
	_, dir := n.known()
	path := join(dir, name)
	if s := n.m.spool(path); s != nil {
		return n.spoolChild(name, s, out), 0
	}
	e, at, err := n.find(name, path)
	if err != nil {
		out.SetEntryTimeout(believed(at))
		return nil, errno(err)
	}
	return n.child(name, e, at, out), 0
}

// believed returns how much longer the kernel may cache an answer of S3. The time counts from the
// request to S3, not from the kernel's lookup.
func believed(at time.Time) time.Duration {
	return max(time.Nanosecond, remember-time.Since(at)) // 0 is the default
}

// child returns the node of a name that S3 described as e at a time. It returns a new node if open
// files of the old node read another object.
func (n *node) child(name string, e *tree.Entry, at time.Time, out *fuse.EntryOut) *fs.Inode {
	out.SetEntryTimeout(believed(at))
	out.SetAttrTimeout(believed(at))
	if c := n.childNode(name); c != nil && c.StableAttr().Mode == typeBits(e.Kind) && c.sees(e, at) {
		e, _ = c.known()
		n.m.fill(&out.Attr, e)
		return c.EmbeddedInode()
	}
	n.m.fill(&out.Attr, e)
	_, inode := n.newChild(e, at)
	return inode
}

// hasName reports whether the kernel can reach the node by a name.
func (n *node) hasName() bool {
	_, dir := n.Parent()
	return dir != nil
}

// spoolChild returns the node of a name whose file is in the spool.
func (n *node) spoolChild(name string, s *spool, out *fuse.EntryOut) *fs.Inode {
	e, at := s.entry(), time.Now()
	n.m.fill(&out.Attr, e)
	s.stamp(&out.Attr)
	out.SetEntryTimeout(remember)
	out.SetAttrTimeout(remember)
	s.mu.Lock()
	defer s.mu.Unlock()
	c := n.childNode(name)
	if c == nil || s.node != nil && s.node.hasName() {
		c = s.node
	}
	if c != nil && c.StableAttr().Mode == typeBits(e.Kind) && c.learned(e, at) {
		s.node = c
		return c.EmbeddedInode()
	}
	c, inode := n.newChild(e, at)
	s.node = c
	return inode
}

const maxTarget = 4095 // bytes of a symlink's target

// Getattr implements fs.NodeGetattrer. If S3 does not answer, it returns the last known attributes.
func (n *node) Getattr(_ context.Context, _ fs.FileHandle, out *fuse.AttrOut) syscall.Errno {
	out.SetTimeout(remember)
	n.mu.Lock()
	e, path, at := n.e, n.path, n.at
	n.mu.Unlock()
	s, gone := n.local()
	if s != nil {
		e = s.entry()
	} else if gone {
	} else if e.Kind == tree.File && time.Since(at) < remember {
		out.SetTimeout(believed(at))
	} else if e.Kind == tree.File {
		asked := time.Now()
		if now, err := n.m.b.Describe(n.m.ctx, path); err == nil && now.Kind == e.Kind && n.sees(now, asked) {
			e, _ = n.known()
		}
	}
	n.m.fill(&out.Attr, e)
	if s != nil {
		s.stamp(&out.Attr)
	}
	if gone {
		out.Nlink = 0
	}
	out.Ino = n.StableAttr().Ino // gVisor treats files with the same inode number as one file
	return 0
}

// fill converts e to the kernel's attributes.
func (m *live) fill(a *fuse.Attr, e *tree.Entry) {
	a.Mode = typeBits(e.Kind) | e.Mode&0o1777
	a.Size = uint64(max(0, e.Size))
	a.Blocks, a.Blksize, a.Nlink = (a.Size+511)/512, 1<<20, 1
	if e.Kind == tree.Symlink {
		a.Mode = syscall.S_IFLNK | 0o777
	}
	a.Uid, a.Gid = m.shown(e.UID), m.shown(e.GID)
	if m.oneOwner { // there is no other owner in an ordinary user's sandbox
		a.Uid, a.Gid = m.owner, m.owner
	}
	t := e.ModTime.Std()
	change := t
	if e.ETag != "" { // the same for all mounts of the object, and another one for other content of the same mtime
		change = time.Unix(t.Unix(), int64(crc32.ChecksumIEEE([]byte(e.ETag))%1e9))
	}
	a.SetTimes(&t, &t, &change)
}

// stamp sets the ctime of a file in the spool whose content has no ETag yet.
func (s *spool) stamp(a *fuse.Attr) {
	s.mu.Lock()
	dirty := s.dirty
	s.mu.Unlock()
	if !dirty {
		return
	}
	if info, err := s.file.Stat(); err == nil { // best effort: the file may have been stored and dropped
		change := info.Sys().(*syscall.Stat_t).Ctim
		a.Ctime, a.Ctimensec = uint64(change.Sec), uint32(change.Nsec)
	}
}

// Users of a sandbox with users of its own.
const (
	ownUsers = 1 << 16
	nobody   = ownUsers - 2
)

// shown returns the machine's user, or group, for one of the sandbox.
func (m *live) shown(id uint32) uint32 {
	first := m.first.Load()
	if first != 0 && id >= ownUsers { // the sandbox has no such user
		id = nobody
	}
	return first + id
}

// kept returns the sandbox's user, or group, for one of the machine. Processes outside of the sandbox are its root.
func (m *live) kept(id uint32) uint32 {
	first := m.first.Load()
	switch {
	case first == 0:
		return id
	case id < first || id-first >= ownUsers:
		return 0
	}
	return id - first
}

// setOwner sets first, and makes the kernel ask for the attributes of the root again. The kernel has no attributes of
// other files yet.
func (m *live) setOwner(first uint32) {
	m.first.Store(first)
	_ = m.top.NotifyContent(-1, 0)
}

func typeBits(k tree.Kind) uint32 {
	switch k {
	case tree.Dir:
		return syscall.S_IFDIR
	case tree.Symlink:
		return syscall.S_IFLNK
	}
	return syscall.S_IFREG
}

// Readlink implements fs.NodeReadlinker.
func (n *node) Readlink(context.Context) ([]byte, syscall.Errno) {
	e, _ := n.known()
	return []byte(e.Target), 0
}

// Statfs implements fs.NodeStatfser. It reports plenty of free space, for programs that check
// before they write.
func (n *node) Statfs(_ context.Context, out *fuse.StatfsOut) syscall.Errno {
	const size, blocks = 4096, 1 << 40 / 4096
	out.Bsize, out.Frsize, out.NameLen = size, size, 255
	out.Blocks, out.Bfree, out.Bavail = blocks, blocks, blocks
	out.Files, out.Ffree = 1<<30, 1<<30
	return 0
}

// Package s3mount mounts places in S3 as file systems of this machine, for sandboxes to have at a path.
//
// Each mount is served by a process of its own (Main), which holds the credentials, and which outlives the server. Manager starts these
// processes, finds them again, and ends them. What the file system promises is in docs/s3.md.
package s3mount

import (
	"context"
	"sync"
	"syscall"
	"time"

	"github.com/hanwen/go-fuse/v2/fs"
	"github.com/hanwen/go-fuse/v2/fuse"

	"github.com/RelevanceAI/harvest/errors"
	"github.com/RelevanceAI/harvest/s3sync"
)

// How the file system behaves where nobody can say.
const (
	remember   = 3 * time.Second  // how long names and attributes are believed
	retryAfter = 20 * time.Second // until a file that could not be stored is tried again
	settled    = 10 * time.Second // after the last write a file is stored though it is still open
	idleSpool  = 30 * time.Second // how long a file that was stored is kept here, too
	idleWindow = 30 * time.Second // how long a part of an object is kept here that nobody reads
	maxNames   = 500_000          // in one directory
	describing = 32               // objects that are asked for at once
	oldMeta    = 30 * time.Second // how long metadata is believed of an object that lists show as it was
)

// live is a mounted place. It has no state that matters but its spool: what was written and is not stored yet.
type live struct {
	b        *s3sync.Bucket
	readOnly bool
	limit    int64  // of the spool, in bytes
	spoolDir string // where files are that are not stored yet
	owner    uint32 // whom all files belong to, where owners cannot be kept; with oneOwner
	oneOwner bool
	failed   func(path string, err error) // is told of files that could not be stored
	windows  windows

	ctx   context.Context // of requests to S3; ends with quiet
	quiet context.CancelCauseFunc

	mu     sync.Mutex
	spools map[string]*spool // by path; guarded by mu
	used   int64             // bytes of the spool; guarded by mu
	last   int64             // number of the latest file there; guarded by mu
}

// errQuiet is what requests end with when the sandbox ends.
var errQuiet = errors.Newf(errors.Unavailable, "the sandbox ends")

// newLive returns the file system, which works until its quiet is called.
func newLive(ctx context.Context, b *s3sync.Bucket, spoolDir string, s settings) *live {
	m := &live{b: b, readOnly: s.ReadOnly, limit: s.Limit, spoolDir: spoolDir, owner: uint32(s.UID), oneOwner: s.UID != 0, spools: map[string]*spool{}, failed: func(string, error) {}}
	m.windows.limit, m.windows.all = maxWindows, map[*window]struct{}{}
	m.ctx, m.quiet = context.WithCancelCause(ctx)
	return m
}

// root is the directory at the top.
func (m *live) root() *node {
	return &node{m: m, e: &s3sync.Entry{Kind: s3sync.Dir, Mode: 0o755, ModTime: s3sync.Now()}}
}

// mount mounts the file system at dir and serves it.
func (m *live) mount(dir string) (*fuse.Server, error) {
	ttl := remember
	o := &fs.Options{EntryTimeout: &ttl, AttrTimeout: &ttl, NegativeTimeout: &ttl, MountOptions: fuse.MountOptions{
		Name: "harvest-s3", FsName: "harvest-s3", AllowOther: !m.oneOwner, DirectMountStrict: !m.oneOwner, MaxWrite: 1 << 20, MaxBackground: 64,
		MaxReadAhead: 1 << 20, DisableXAttrs: true, DisableReadDirPlus: true, Options: []string{"nosuid", "nodev"},
	}}
	if m.readOnly {
		// As a flag: the kernel knows no such option for this kind of file system.
		o.DirectMountFlags = syscall.MS_NOSUID | syscall.MS_NODEV | syscall.MS_RDONLY
		if m.oneOwner {
			o.Options = append(o.Options, "ro")
		}
	}
	return fs.Mount(dir, m.root(), o)
}

// errno is what programs in the sandbox see of an error.
func errno(err error) syscall.Errno {
	var no syscall.Errno
	if err == nil {
		return 0
	}
	kind := errors.KindOf(err)
	if kind == errors.Internal && errors.As(err, &no) { // what other kinds have is the network's
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

// node is a file, link or directory that the kernel knows.
type node struct {
	fs.Inode
	m *live

	io       sync.Mutex // held by who fetches the content to write to it
	mu       sync.Mutex
	path     string          // guarded by mu; "" is the root's
	e        *s3sync.Entry   // guarded by mu; what is known of it, never changed in place
	at       time.Time       // guarded by mu; when that was asked for
	mine     string          // guarded by mu; ETag of the content that was written here and stored last
	seen     string          // guarded by mu; ETag of the content that the kernel may have in its cache
	opens    int             // guarded by mu; open files
	reads    int             // guarded by mu; the number of these that may read
	gone     bool            // guarded by mu; the path is no longer this file's
	orphan   *spool          // guarded by mu; the content of a file that is gone and open, if it was kept
	replaced bool            // guarded by mu; the object at the path is another one than open files read
	kids     map[string]*kid // guarded by mu; a directory's names; nil if not known
	listed   time.Time       // guarded by mu; when they were; zero if one changed since
	change   int             // guarded by mu; counts the times that one changed
	asking   bool            // guarded by mu; somebody asks for all of them
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

// known is what is known of the node, and its path.
func (n *node) known() (*s3sync.Entry, string) {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.e, n.path
}

// learned notes what the node is from now on, unless it has lost its path.
func (n *node) learned(e *s3sync.Entry, at time.Time) bool {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.gone {
		return false
	}
	n.e, n.at = e, at
	return true
}

// stored notes that what was written here is the object now: who reads it goes on with that.
func (n *node) stored(e *s3sync.Entry) {
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

// believed is for how long the kernel may go on believing what was asked for at a time: what it does not ask for again is not younger for that.
func believed(at time.Time) time.Duration {
	return max(time.Nanosecond, remember-time.Since(at)) // 0 is the default
}

// child returns the node of a name, which was e at a time. It is another node than before if open files of that one read another object.
func (n *node) child(name string, e *s3sync.Entry, at time.Time, out *fuse.EntryOut) *fs.Inode {
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

// hasName reports whether the kernel finds the node by a name.
func (n *node) hasName() bool {
	_, dir := n.Parent()
	return dir != nil
}

// spoolChild returns the node of a name at which a file is written.
func (n *node) spoolChild(name string, s *spool, out *fuse.EntryOut) *fs.Inode {
	e, at := s.entry(), time.Now()
	n.m.fill(&out.Attr, e)
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

const maxTarget = 4095 // bytes of a link's path

// Getattr implements fs.NodeGetattrer. Where S3 does not answer, what was known last has to do.
func (n *node) Getattr(_ context.Context, _ fs.FileHandle, out *fuse.AttrOut) syscall.Errno {
	out.SetTimeout(remember)
	n.mu.Lock()
	e, path, at := n.e, n.path, n.at
	n.mu.Unlock()
	s, gone := n.local()
	if s != nil {
		e = s.entry()
	} else if gone {
	} else if e.Kind == s3sync.File && time.Since(at) < remember {
		out.SetTimeout(believed(at))
	} else if e.Kind == s3sync.File {
		asked := time.Now()
		if now, err := n.m.b.Describe(n.m.ctx, path); err == nil && now.Kind == e.Kind && n.sees(now, asked) {
			e, _ = n.known()
		}
	}
	n.m.fill(&out.Attr, e)
	if gone {
		out.Nlink = 0
	}
	out.Ino = n.StableAttr().Ino // files of one number are one file to gVisor
	return 0
}

// fill says what e is in the kernel's words.
func (m *live) fill(a *fuse.Attr, e *s3sync.Entry) {
	a.Mode = typeBits(e.Kind) | e.Mode&0o1777
	a.Size = uint64(max(0, e.Size))
	a.Blocks, a.Blksize, a.Nlink = (a.Size+511)/512, 1<<20, 1
	if e.Kind == s3sync.Symlink {
		a.Mode = syscall.S_IFLNK | 0o777
	}
	a.Uid, a.Gid = e.UID, e.GID
	if m.oneOwner { // an ordinary user's sandbox has no other
		a.Uid, a.Gid = m.owner, m.owner
	}
	t := e.ModTime.Std()
	a.SetTimes(&t, &t, &t)
}

func typeBits(k s3sync.Kind) uint32 {
	switch k {
	case s3sync.Dir:
		return syscall.S_IFDIR
	case s3sync.Symlink:
		return syscall.S_IFLNK
	}
	return syscall.S_IFREG
}

// Readlink implements fs.NodeReadlinker.
func (n *node) Readlink(context.Context) ([]byte, syscall.Errno) {
	e, _ := n.known()
	return []byte(e.Target), 0
}

// Statfs implements fs.NodeStatfser: there is room, as far as programs that ask before they write are concerned.
func (n *node) Statfs(_ context.Context, out *fuse.StatfsOut) syscall.Errno {
	const size, blocks = 4096, 1 << 40 / 4096
	out.Bsize, out.Frsize, out.NameLen = size, size, 255
	out.Blocks, out.Bfree, out.Bavail = blocks, blocks, blocks
	out.Files, out.Ffree = 1<<30, 1<<30
	return 0
}

package mount

import (
	"context"
	"io"
	"syscall"
	"time"

	"github.com/hanwen/go-fuse/v2/fs"
	"github.com/hanwen/go-fuse/v2/fuse"

	"github.com/RelevanceAI/harvest/client/errors"
	"github.com/RelevanceAI/harvest/internal/s3/tree"
)

var _ = interface {
	fs.NodeOpener
	fs.NodeCreater
	fs.NodeSetattrer
	fs.NodeFsyncer
	fs.NodeMkdirer
	fs.NodeRmdirer
	fs.NodeUnlinker
	fs.NodeRenamer
	fs.NodeSymlinker
	fs.NodeLinker
}(&node{})

var _ = interface {
	fs.FileWriter
	fs.FileFlusher
	fs.FileFsyncer
}(&handle{})

func isEOF(err error) bool { return errors.Is(err, io.EOF) }

// keptMode removes the setuid and setgid bits from a mode: a file from a bucket always runs as the
// user who starts it.
func keptMode(mode uint32) uint32 { return mode & 0o1777 }

// newEntry returns an entry for a new file, link or directory.
func (m *live) newEntry(ctx context.Context, path string, kind tree.Kind, mode uint32) tree.Entry {
	e := tree.Entry{Path: path, Kind: kind, Mode: keptMode(mode), ModTime: tree.Now()}
	if who, ok := fuse.FromContext(ctx); ok && !m.oneOwner {
		e.UID, e.GID = m.kept(who.Uid), m.kept(who.Gid)
	}
	return e
}

// place returns the path of a new name in the directory n, or an errno if the name cannot be used.
func (n *node) place(name string) (string, syscall.Errno) {
	_, dir := n.known()
	path := join(dir, name)
	switch {
	case n.m.readOnly:
		return "", syscall.EROFS
	case !n.m.b.Fits(path):
		return "", syscall.ENAMETOOLONG
	}
	return path, 0
}

// Open implements fs.NodeOpener. Nothing is fetched yet.
func (n *node) Open(_ context.Context, flags uint32) (fs.FileHandle, uint32, syscall.Errno) {
	h := newHandle(n, flags)
	if h.writes && n.m.readOnly {
		return nil, 0, syscall.EROFS
	}
	keep, no := n.opened(h)
	if no != 0 {
		return nil, 0, no
	}
	if keep {
		return h, fuse.FOPEN_KEEP_CACHE, 0
	}
	return h, 0, 0
}

func newHandle(n *node, flags uint32) *handle {
	access := flags & syscall.O_ACCMODE
	return &handle{n: n, writes: access != syscall.O_RDONLY, readable: access != syscall.O_WRONLY}
}

// Create implements fs.NodeCreater. The object is stored when the file is closed.
func (n *node) Create(ctx context.Context, name string, flags, mode uint32,
	out *fuse.EntryOut) (*fs.Inode, fs.FileHandle, uint32, syscall.Errno) {
	path, no := n.place(name)
	if no != 0 {
		return nil, nil, 0, no
	}
	s, err := n.m.newSpool(n.m.newEntry(ctx, path, tree.File, mode), false)
	if err == nil {
		s = n.m.publish(s)
		err = s.change(-1, func(*tree.Entry) error { return nil })
	}
	if err != nil {
		return nil, nil, 0, errno(err)
	}
	if c := n.childNode(name); c != nil { // another program has removed its object
		c.lose(nil)
	}
	inode := n.spoolChild(name, s, out)
	c, ok := inode.Operations().(*node)
	if !ok {
		return nil, nil, 0, syscall.EIO
	}
	h := newHandle(c, flags)
	if _, no := c.opened(h); no != 0 {
		return nil, nil, 0, no
	}
	return inode, h, 0, 0
}

// writable returns the spool of the node, or makes one. A new one has the object's content if
// content is set.
func (n *node) writable(content bool) (*spool, error) {
	n.io.Lock() // a second caller uses the content that the first fetched
	defer n.io.Unlock()
	s, gone := n.local()
	switch {
	case s != nil:
		return s, nil
	case gone:
		return nil, errStale
	}
	e, _ := n.known()
	began := *e
	began.Size = 0
	s, err := n.m.newSpool(began, true)
	if err != nil {
		return nil, err
	}
	s.node = n
	if content && e.Size > 0 {
		if err := s.fetch(n.m.ctx, e); err != nil {
			s.drop()
			return nil, err
		}
	}
	return n.m.publish(s), nil
}

// written runs do on the node's spool to change the content.
func (n *node) written(content bool, do func(*spool) error) error {
	for range 3 {
		s, err := n.writable(content)
		if err != nil {
			return err
		}
		if err := do(s); !errors.Is(err, errEnded) {
			return err
		}
	}
	return syscall.EAGAIN
}

// Write implements fs.FileWriter.
func (h *handle) Write(_ context.Context, data []byte, at int64) (uint32, syscall.Errno) {
	err := h.n.written(true, func(s *spool) error { return s.pwrite(data, at) })
	if err != nil {
		return 0, errno(err)
	}
	return uint32(len(data)), 0
}

// Flush implements fs.FileFlusher. It stores the file when a program closes it.
func (h *handle) Flush(context.Context) syscall.Errno {
	if !h.writes {
		return 0
	}
	return h.n.store()
}

// Fsync implements fs.FileFsyncer.
func (h *handle) Fsync(context.Context, uint32) syscall.Errno { return h.n.store() }

// Fsync implements fs.NodeFsyncer. For directories there is nothing to store.
func (n *node) Fsync(context.Context, fs.FileHandle, uint32) syscall.Errno { return n.store() }

// store stores the node's spool, if there is one, and waits for the end.
func (n *node) store() syscall.Errno {
	s, _ := n.local()
	if s == nil {
		return 0
	}
	_, err := s.store(n.m.ctx)
	return errno(err)
}

// Setattr implements fs.NodeSetattrer.
func (n *node) Setattr(ctx context.Context, fh fs.FileHandle, in *fuse.SetAttrIn, out *fuse.AttrOut) syscall.Errno {
	if n.m.readOnly {
		return syscall.EROFS
	}
	if size, ok := in.GetSize(); ok {
		h, _ := fh.(*handle)
		err := n.written(size > 0, func(s *spool) error { return s.truncate(int64(size)) })
		if err == nil && h == nil {
			err = noError(n.store())
		}
		if err != nil {
			return errno(err)
		}
	}
	if no := errno(n.describeAs(in)); no != 0 {
		return no
	}
	return n.Getattr(ctx, fh, out)
}

func noError(no syscall.Errno) error {
	if no == 0 {
		return nil
	}
	return no
}

// describeAs changes the metadata. For a file that is being written, the change is stored with the
// content; for a stored one, S3 makes a copy of the object.
func (n *node) describeAs(in *fuse.SetAttrIn) error {
	e, path := n.known()
	s, gone := n.local()
	if gone && s == nil {
		return errStale
	}
	if s != nil {
		switch err := s.describe(n.m, in); {
		case errors.Is(err, errStored):
		default:
			return err
		}
	}
	for attempt := 0; ; attempt++ {
		now := *e
		if n.m.apply(&now, in); sameMeta(&now, e) {
			return nil
		}
		var err error
		switch {
		case path == "": // the root has no object
		case e.Kind == tree.Dir:
			err = n.m.b.WriteObject(n.m.ctx, &now, nil)
		default:
			err = n.m.b.CopyObject(n.m.ctx, e, &now)
		}
		if errors.Is(err, errors.Conflict) && attempt == 0 { // another writer has replaced the object
			if e, err = n.m.b.Describe(n.m.ctx, path); err == nil {
				continue
			}
		}
		if err == nil {
			if attempt == 0 {
				n.stored(&now)
			} else {
				n.sees(&now, time.Now())
			}
			n.changed()
			s.describedAs(&now)
		}
		return err
	}
}

func sameMeta(a, b *tree.Entry) bool {
	return a.Mode == b.Mode && a.UID == b.UID && a.GID == b.GID && a.ModTime == b.ModTime
}

// apply applies the attributes of in to e, except those that are not kept: access times, and owners
// where there is only one.
func (m *live) apply(e *tree.Entry, in *fuse.SetAttrIn) {
	if mode, ok := in.GetMode(); ok && e.Kind != tree.Symlink {
		e.Mode = keptMode(mode)
	}
	if uid, ok := in.GetUID(); ok && !m.oneOwner {
		e.UID = m.kept(uid)
	}
	if gid, ok := in.GetGID(); ok && !m.oneOwner {
		e.GID = m.kept(gid)
	}
	if t, ok := in.GetMTime(); ok {
		e.ModTime = tree.At(t)
	}
}

// Mkdir implements fs.NodeMkdirer. A directory is an empty object whose key ends with a slash.
func (n *node) Mkdir(ctx context.Context, name string, mode uint32, out *fuse.EntryOut) (*fs.Inode, syscall.Errno) {
	return n.make(name, out, func(path string) tree.Entry { return n.m.newEntry(ctx, path, tree.Dir, mode) })
}

// Symlink implements fs.NodeSymlinker. A link is an object that contains the target, and whose
// metadata marks it as a link.
func (n *node) Symlink(ctx context.Context, target, name string, out *fuse.EntryOut) (*fs.Inode, syscall.Errno) {
	return n.make(name, out, func(path string) tree.Entry {
		e := n.m.newEntry(ctx, path, tree.Symlink, 0o777)
		e.Target, e.Size = target, int64(len(target))
		return e
	})
}

// make stores an entry that is not a file.
func (n *node) make(name string, out *fuse.EntryOut, entry func(path string) tree.Entry) (*fs.Inode, syscall.Errno) {
	path, no := n.place(name)
	if no != 0 {
		return nil, no
	}
	e := entry(path)
	if err := n.m.b.WriteObject(n.m.ctx, &e, nil); err != nil {
		return nil, errno(err)
	}
	n.forget()
	return n.child(name, &e, time.Now(), out), 0
}

// Link implements fs.NodeLinker. It always fails, since an object has only one name.
func (n *node) Link(context.Context, fs.InodeEmbedder, string, *fuse.EntryOut) (*fs.Inode, syscall.Errno) {
	return nil, syscall.EPERM
}

// keep stores an object for a directory that has none, so that the directory survives the removal
// of its last entry.
func (n *node) keep() error {
	e, path := n.known()
	if path == "" || e.ETag != "" {
		return nil
	}
	now := *e
	if err := n.m.b.WriteObject(n.m.ctx, &now, nil); err != nil {
		return err
	}
	n.learned(&now, time.Now())
	return nil
}

// Unlink implements fs.NodeUnlinker.
func (n *node) Unlink(_ context.Context, name string) syscall.Errno {
	path, no := n.place(name)
	if no != 0 {
		return no
	}
	if err := n.keep(); err != nil {
		return errno(err)
	}
	defer n.forget()
	return errno(n.m.remove(path, n.childNode(name)))
}

// remove removes a file or link, and its spool. n may be nil.
func (m *live) remove(path string, n *node) error {
	d := m.leave(path, n)
	if d.stored() {
		if err := m.b.DeleteObject(m.ctx, path, tree.File); err != nil {
			d.cancel()
			return err
		}
	}
	d.commit()
	return nil
}

// Rmdir implements fs.NodeRmdirer.
func (n *node) Rmdir(_ context.Context, name string) syscall.Errno {
	path, no := n.place(name)
	if no != 0 {
		return no
	}
	names := map[string]uint32{}
	if n.m.addSpooled(path, names); len(names) > 0 {
		return syscall.ENOTEMPTY
	}
	err := n.m.b.ReadDir(n.m.ctx, path, func(*tree.Entry) error { return syscall.ENOTEMPTY })
	if err == nil {
		err = n.keep()
	}
	if err == nil {
		err = n.m.b.DeleteObject(n.m.ctx, path, tree.Dir)
	}
	n.forget()
	return errno(err)
}

// Rename implements fs.NodeRenamer. S3 copies the object, and then the old one is deleted. Rename
// refuses directories as if the target were on another file system, so that mv copies them.
func (n *node) Rename(_ context.Context, name string, to fs.InodeEmbedder, newName string, flags uint32) syscall.Errno {
	const noReplace = 1
	dir, ok := to.(*node)
	inode := n.GetChild(name)
	if !ok || inode == nil || flags&^uint32(noReplace) != 0 {
		return syscall.EINVAL
	}
	file, ok := inode.Operations().(*node)
	if !ok {
		return syscall.EINVAL
	}
	path, no := dir.place(newName)
	if no != 0 {
		return no
	}
	e, old := file.known()
	if e.Kind == tree.Dir {
		return syscall.EXDEV
	}
	if flags&noReplace != 0 && n.m.exists(path) {
		return syscall.EEXIST
	}
	if err := n.keep(); err != nil {
		return errno(err)
	}
	defer n.forget()
	defer dir.forget()
	if err := n.m.move(file, e, old, dir.childNode(newName), path); err != nil {
		return errno(err)
	}
	return 0
}

func (m *live) exists(path string) bool {
	if m.spool(path) != nil {
		return true
	}
	_, err := m.b.Describe(m.ctx, path)
	return err == nil
}

// move moves a file or link to another path and takes that path from target, which may be nil.
func (m *live) move(file *node, e *tree.Entry, old string, target *node, path string) error {
	moved := *e
	moved.Path = path
	s := m.spool(old)
	if s != nil {
		if now, err := s.store(m.ctx); err == nil {
			e, moved = now, *now
			moved.Path = path
		} else {
			return err
		}
	}
	d := m.leave(path, target)
	if err := m.b.CopyObject(m.ctx, e, &moved); err != nil {
		d.cancel()
		return err
	}
	d.commit()
	file.moved(path, &moved, s) // before the old object is deleted, for readers of the file
	if err := m.b.DeleteObject(m.ctx, old, tree.File); err != nil {
		file.moved(old, e, s)
		return err
	}
	return nil
}

// moved notes that the node is now at path, with the spool s, which may be nil.
func (n *node) moved(path string, e *tree.Entry, s *spool) {
	if s != nil {
		s.rename(path)
	}
	n.mu.Lock()
	n.path = path
	n.mu.Unlock()
	n.stored(e)
}

// rename makes the spool store later writes at another path.
func (s *spool) rename(path string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.m.mu.Lock()
	defer s.m.mu.Unlock()
	if s.m.spools[s.e.Path] == s {
		delete(s.m.spools, s.e.Path)
		s.m.spools[path] = s
	}
	s.e.Path = path
}

// errStored reports that the file is stored already.
var errStored = errors.Errorf("it is stored")

// describe changes the metadata of a file that is not stored yet. It returns errStored if it is.
func (s *spool) describe(m *live, in *fuse.SetAttrIn) error {
	s.mu.Lock()
	stored := !s.dirty && !s.gone
	s.mu.Unlock()
	if stored {
		return errStored
	}
	return s.change(-1, func(e *tree.Entry) error {
		m.apply(e, in)
		return nil
	})
}

// describedAs notes the object's new metadata. s may be nil.
func (s *spool) describedAs(now *tree.Entry) {
	if s == nil {
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.e.Mode, s.e.UID, s.e.GID, s.e.ModTime, s.e.ETag = now.Mode, now.UID, now.GID, now.ModTime, now.ETag
}

package mount

import (
	"context"
	"os"
	"syscall"
	"time"

	"github.com/hanwen/go-fuse/v2/fs"

	"github.com/RelevanceAI/harvest/internal/s3/tree"
)

// maxKept is the size of the largest file in S3 whose content is fetched when it is removed or replaced while it is
// open. The file reads ESTALE if it is larger. Files that are in the spool stay readable whatever their size.
const maxKept = 64 << 20

// departure is a file that is about to lose its path, because it is removed or another file is renamed to the path.
// Between leave and commit or cancel, nothing stores the file.
type departure struct {
	m    *live
	path string
	n    *node  // nil if the kernel does not know the file
	s    *spool // being written; nil if not
	copy *spool // the object's content, if the file is open; may be nil
}

// leave begins a departure. n may be nil.
func (m *live) leave(path string, n *node) *departure {
	d := &departure{m: m, path: path, n: n}
	for d.s = m.spool(path); d.s != nil; d.s = m.spool(path) {
		d.s.sending.Lock()
		if m.spool(path) == d.s {
			return d
		}
		d.s.sending.Unlock() // dropped meanwhile
	}
	if n != nil {
		d.copy = n.keepContent()
	}
	return d
}

// stored reports whether there is an object at the path.
func (d *departure) stored() bool {
	if d.s == nil {
		return true
	}
	d.s.mu.Lock()
	defer d.s.mu.Unlock()
	return d.s.stored
}

// cancel leaves the file at its path.
func (d *departure) cancel() {
	if d.s != nil {
		d.s.sending.Unlock()
	}
	if d.copy != nil {
		d.copy.detach()
		d.copy.release()
	}
}

// commit takes the path from the file. Its handles keep the content, where it is known.
func (d *departure) commit() {
	kept := d.copy
	if d.s != nil {
		kept = d.s
		defer d.s.sending.Unlock()
	}
	if kept != nil {
		kept.mu.Lock()
		kept.gone = true
		kept.mu.Unlock()
		kept.detach()
	}
	if d.n == nil || !d.n.lose(kept) {
		kept.release()
	}
}

// lose notes that the path is no longer the node's. It takes the content if the node is open.
func (n *node) lose(kept *spool) bool {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.gone = true
	if n.opens > 0 {
		n.orphan = kept
	}
	return n.opens > 0
}

// keepContent fetches the object of an open file; nil if it is not open, too large, or cannot be fetched.
func (n *node) keepContent() *spool {
	n.mu.Lock()
	e, opens := n.e, n.opens
	n.mu.Unlock()
	if opens == 0 || e.Kind != tree.File || e.Size > maxKept {
		return nil
	}
	began := *e
	began.Size = 0
	s, err := n.m.newSpool(began, true)
	if err != nil {
		return nil
	}
	if e.Size > 0 && s.fetch(n.m.ctx, e) != nil {
		s.detach()
		s.release()
		return nil
	}
	return s
}

// release closes a file that no handle uses, and gives its room back. s may be nil.
func (s *spool) release() {
	if s == nil {
		return
	}
	s.mu.Lock()
	size := s.e.Size
	s.ended = true
	s.mu.Unlock()
	_ = s.m.reserve(-size)
	s.file.Close()
}

// detach takes a file out of the spool's names. Its content stays until it is closed.
func (s *spool) detach() {
	s.m.mu.Lock()
	if s.m.spools[s.e.Path] == s {
		delete(s.m.spools, s.e.Path)
	}
	s.m.mu.Unlock()
	os.Remove(s.name + noteSuffix)
	os.Remove(s.name)
}

// errStale is for handles of files whose content is no longer available.
var errStale error = syscall.ESTALE

// local returns the spool that holds the node's content on this machine, or nil. A file that has
// lost its path has only its orphan.
func (n *node) local() (s *spool, gone bool) {
	n.mu.Lock()
	s, gone = n.orphan, n.gone
	path := n.path
	n.mu.Unlock()
	if !gone {
		s = n.m.spool(path)
	}
	return s, gone
}

// sees updates the node to e, as observed at a time. It returns false and changes nothing if e is
// another object than the one that the node's open files read. The name then needs a new node.
func (n *node) sees(e *tree.Entry, at time.Time) bool {
	n.mu.Lock()
	defer n.mu.Unlock()
	switch {
	case n.gone:
		return false
	case n.at.After(at): // it was stored or looked at since
		return true
	case n.reads > 0 && n.e.ETag != "" && e.ETag != n.e.ETag && e.ETag != n.mine:
		n.replaced = true
		return false
	}
	n.e, n.at, n.replaced = e, at, false
	return true
}

// switched updates the node to another object, provided that h is its only reader, has read
// nothing, and the kernel caches nothing of the old object.
func (h *handle) switched(now *tree.Entry) bool {
	h.mu.Lock()
	began := h.began || h.cached
	h.mu.Unlock()
	h.n.mu.Lock()
	defer h.n.mu.Unlock()
	// The kernel reads only up to the size that it knows.
	if began || h.n.gone || h.n.reads != 1 || now.Kind != tree.File || now.Size != h.n.e.Size {
		return false
	}
	h.n.e, h.n.at, h.n.seen = now, time.Now(), now.ETag
	return true
}

// stale makes the next lookup of the node's name ask S3.
func (n *node) stale() {
	n.mu.Lock()
	n.replaced = true
	n.mu.Unlock()
	if _, parent := n.Parent(); parent != nil {
		if dir, ok := parent.Operations().(*node); ok {
			dir.forget()
		}
	}
}

// opened counts a new handle. On ESTALE, the kernel looks up the name again.
func (n *node) opened(h *handle) (keep bool, no syscall.Errno) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.gone && n.orphan == nil || n.replaced {
		return false, syscall.ESTALE
	}
	n.opens++
	if h.readable {
		n.reads++
	}
	keep = n.e.ETag != "" && n.seen == n.e.ETag
	n.seen = n.e.ETag
	h.cached = keep
	return keep, 0
}

// Release implements fs.FileReleaser.
func (h *handle) Release(context.Context) syscall.Errno {
	h.mu.Lock()
	h.reset()
	h.mu.Unlock()
	n := h.n
	n.mu.Lock()
	n.opens--
	if h.readable {
		n.reads--
	}
	var unused *spool
	if n.opens == 0 {
		unused, n.orphan = n.orphan, nil
	}
	n.mu.Unlock()
	unused.release()
	return 0
}

// childNode is the node of a name that the kernel knows, or nil.
func (n *node) childNode(name string) *node {
	inode := n.GetChild(name)
	if inode == nil {
		return nil
	}
	c, _ := inode.Operations().(*node)
	return c
}

// newChild makes a new node for a name. Open handles keep the previous node.
func (n *node) newChild(e *tree.Entry, at time.Time) (*node, *fs.Inode) {
	c := &node{m: n.m, path: e.Path, e: e, at: at}
	return c, n.NewInode(n.m.ctx, c, fs.StableAttr{Mode: typeBits(e.Kind)})
}

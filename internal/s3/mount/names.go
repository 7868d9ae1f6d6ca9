package mount

import (
	"context"
	"sync"
	"syscall"
	"time"

	"github.com/hanwen/go-fuse/v2/fs"
	"github.com/hanwen/go-fuse/v2/fuse"

	"github.com/RelevanceAI/harvest/client/errors"
	"github.com/RelevanceAI/harvest/internal/s3/tree"
)

// kid is a name in a directory.
type kid struct {
	e    *tree.Entry
	time tree.Time // the object's time, from the list
	at   time.Time // time of the request for e's metadata; zero if e comes from a list
}

// full reports whether e has its metadata.
func (k *kid) full() bool { return !k.at.IsZero() }

// find returns the entry of a name, from a list or from S3, and the time at which it was valid.
func (n *node) find(name, path string) (*tree.Entry, time.Time, error) {
	n.mu.Lock()
	fresh, k, listed := n.kids != nil && time.Since(n.listed) < remember, n.kids[name], n.listed
	n.mu.Unlock()
	if fresh && k == nil {
		return nil, listed, syscall.ENOENT
	}
	if fresh && k.full() {
		return k.e, listed, nil
	}
	if fresh {
		n.describeAll()
	}
	asked := time.Now()
	e, err := n.m.b.Describe(n.m.ctx, path)
	if err == nil && k != nil {
		n.described(name, k, e)
	}
	return e, asked, err
}

// described records the metadata of k, a name in a list.
func (n *node) described(name string, k *kid, e *tree.Entry) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.kids[name] == k { // not listed again meanwhile
		n.kids[name] = &kid{e: e, time: k.time, at: time.Now()}
	}
}

// describeAll requests the metadata of all names in a list. A program that asks for one often asks
// for the others next.
func (n *node) describeAll() {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.asking {
		return
	}
	n.asking = true
	undescribed := make(chan string, len(n.kids))
	for _, name := range sortedNames(n.kids) {
		if !n.kids[name].full() {
			undescribed <- name
		}
	}
	close(undescribed)
	var wg sync.WaitGroup
	for range describing {
		wg.Go(func() { n.describe(undescribed) })
	}
	go func() {
		wg.Wait()
		n.mu.Lock()
		defer n.mu.Unlock()
		n.asking = false
	}()
}

func (n *node) describe(undescribed <-chan string) {
	for name := range undescribed {
		n.mu.Lock()
		k, path := n.kids[name], join(n.path, name)
		n.mu.Unlock()
		if k == nil || k.full() || n.m.ctx.Err() != nil {
			continue
		}
		e, err := n.m.b.Describe(n.m.ctx, path)
		if err != nil {
			if !errors.Is(err, errors.NotFound) {
				return // later lookups request their names themselves
			}
			continue
		}
		n.described(name, k, e)
	}
}

// list refreshes the list of the directory, unless it is recent.
func (n *node) list() error {
	n.mu.Lock()
	fresh, change, path := n.kids != nil && time.Since(n.listed) < remember, n.change, n.path
	n.mu.Unlock()
	if fresh {
		return nil
	}
	kids := map[string]*kid{}
	err := n.m.b.ReadDir(n.m.ctx, path, func(e *tree.Entry) error {
		if len(kids) >= maxNames {
			return errors.Newf(errors.Unsupported, "the directory has too many names")
		}
		name := base(e.Path)
		if other := kids[name]; other == nil || other.e.Kind == tree.Dir { // a file hides such a directory
			kids[name] = &kid{e: e, time: e.ModTime}
		}
		return nil
	})
	if err != nil {
		return err
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	for name, k := range kids {
		if was := n.kids[name]; was != nil && was.describes(k) {
			kids[name] = was
		}
	}
	n.kids, n.listed = kids, time.Now()
	if n.change != change { // changed meanwhile; the change may be missing in the list
		n.listed = time.Time{}
	}
	return nil
}

// describes reports whether k's metadata of an object is still valid for now, the object's entry in
// a new list. The validity is short: if another writer changes only the metadata, the object's time
// may stay the same, within the second or entirely.
func (k *kid) describes(now *kid) bool {
	return k.full() && time.Since(k.at) < oldMeta && k.time == now.time && k.e.ETag == now.e.ETag &&
		now.e.Kind != tree.Dir
}

// forget expires the list of the directory after a name has changed.
func (n *node) forget() {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.listed = time.Time{}
	n.change++
}

// changed makes the directory request the node's metadata again, after a change by this mount.
func (n *node) changed() {
	name, parent := n.Parent()
	if parent == nil {
		return
	}
	dir, ok := parent.Operations().(*node)
	if !ok {
		return
	}
	dir.mu.Lock()
	defer dir.mu.Unlock()
	if k := dir.kids[name]; k != nil {
		dir.kids[name] = &kid{e: k.e, time: k.time}
	}
}

// Readdir implements fs.NodeReaddirer.
func (n *node) Readdir(context.Context) (fs.DirStream, syscall.Errno) {
	if err := n.list(); err != nil {
		return nil, errno(err)
	}
	n.mu.Lock()
	names := make(map[string]uint32, len(n.kids))
	for name, k := range n.kids {
		names[name] = typeBits(k.e.Kind)
		// A small object may be a link. Only its metadata shows that.
		if !k.full() && k.e.Kind == tree.File && k.e.Size > 0 && k.e.Size <= maxTarget {
			names[name] = 0
		}
	}
	dir := n.path
	n.mu.Unlock()
	n.m.addSpooled(dir, names)
	var list []fuse.DirEntry
	for _, name := range sortedNames(names) {
		list = append(list, fuse.DirEntry{Name: name, Mode: names[name]})
	}
	return fs.NewListDirStream(list), 0
}

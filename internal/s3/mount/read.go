package mount

import (
	"context"
	"slices"
	"sync"
	"syscall"

	"github.com/hanwen/go-fuse/v2/fs"
	"github.com/hanwen/go-fuse/v2/fuse"

	"github.com/RelevanceAI/harvest/client/errors"
	"github.com/RelevanceAI/harvest/internal/s3/tree"
)

// Read-ahead. A window starts small, since many readers want no more, and grows while a file is
// read in order.
const (
	firstWindow = 128 << 10
	maxWindow   = 8 << 20
	ahead       = 2         // windows to prefetch
	behind      = 1 << 20   // bytes kept behind the reader: the kernel asks slightly out of order
	maxWindows  = 256 << 20 // bytes of all windows of a mount
	shares      = 16        // a window grows to at most 1/shares of the remaining room
)

// handle is an open file.
type handle struct {
	n        *node
	writes   bool // it was opened for writing
	readable bool // it was opened for reading

	mu     sync.Mutex
	e      *tree.Entry // guarded by mu; the object of the windows
	next   int64       // guarded by mu; end of the last window: the next offset of a sequential reader
	size   int64       // guarded by mu; size of the next window
	open   []*window   // guarded by mu; some may have been dropped
	began  bool        // guarded by mu; a read has returned data
	cached bool        // the kernel may have cached content when the file was opened
}

var _ = interface {
	fs.FileReader
	fs.FileReleaser
}(&handle{})

// Read implements fs.FileReader.
func (h *handle) Read(_ context.Context, dest []byte, at int64) (fuse.ReadResult, syscall.Errno) {
	n := 0
	var err error
	s, gone := h.n.local()
	if s != nil {
		n, err = s.file.ReadAt(dest, at)
		if n > 0 || isEOF(err) {
			err = nil
		}
	} else if gone {
		n, err = h.readOld(dest, at)
	} else {
		n, err = h.read(dest, at)
	}
	return fuse.ReadResultData(dest[:n]), errno(err)
}

// read reads from the object. If another program replaced it, the handle reads the new object only if nothing of the
// old one was read. Otherwise it reads ESTALE.
func (h *handle) read(dest []byte, at int64) (int, error) {
	n, again, from := 0, 3, at
	for {
		e, path := h.n.known()
		if n >= len(dest) || at >= e.Size {
			h.mu.Lock()
			h.began = h.began || n > 0
			h.mu.Unlock()
			return n, nil
		}
		got, err := h.part(e, dest[n:], at)
		if err == nil {
			n, at = n+got, at+int64(got)
			continue
		}
		if again--; again < 0 || !isGone(err) {
			return n, err
		}
		if now, _ := h.n.known(); now != e { // it was renamed or stored meanwhile
			if now.ETag != e.ETag {
				n, at = 0, from // one answer must not mix two versions
			}
			continue
		}
		if now, err := h.n.m.b.Describe(h.n.m.ctx, path); n == 0 && err == nil && h.switched(now) {
			continue
		}
		if _, gone := h.n.local(); gone {
			return h.readOld(dest[n:], at)
		}
		h.n.stale()
		return n, errStale
	}
}

// isGone reports whether an error means that the object was replaced or deleted.
func isGone(err error) bool {
	return errors.Is(err, errors.Conflict) || errors.Is(err, errors.NotFound)
}

// readOld reads from a file that has lost its path and whose content was not kept. Another program
// may have put the old object back.
func (h *handle) readOld(dest []byte, at int64) (int, error) {
	if s, _ := h.n.local(); s != nil {
		n, err := s.file.ReadAt(dest, at)
		if n > 0 || isEOF(err) {
			err = nil
		}
		return n, err
	}
	e, _ := h.n.known()
	if at >= e.Size {
		return 0, nil
	}
	return 0, errStale
}

// part reads from the window of e that contains the offset at. If there is no room for a window, it
// reads directly from S3.
func (h *handle) part(e *tree.Entry, dest []byte, at int64) (int, error) {
	dest = dest[:min(int64(len(dest)), e.Size-at)]
	w := h.window(e, at, int64(len(dest)))
	if w == nil {
		return len(dest), h.n.m.b.ReadObject(h.n.m.ctx, e, dest, at)
	}
	defer h.n.m.windows.giveBack(w)
	<-w.done
	if w.err != nil {
		h.n.m.windows.letGo(w) // a later reader fetches it again
		if isGone(w.err) {     // perhaps the request used an older path
			return len(dest), h.n.m.b.ReadObject(h.n.m.ctx, e, dest, at)
		}
		return 0, w.err
	}
	return copy(dest, w.data[at-w.at:]), nil
}

// window returns the part of e that contains the offset at. The caller must give it back. If e is
// read in order, the following windows are fetched too. It returns nil if there is no room; the
// caller then reads without a window.
func (h *handle) window(e *tree.Entry, at, want int64) *window {
	h.mu.Lock()
	defer h.mu.Unlock()
	all := &h.n.m.windows
	if h.e == nil || h.e.ETag != e.ETag {
		h.reset()
	}
	h.e = e // its path may have changed
	h.open = slices.DeleteFunc(h.open, func(w *window) bool {
		if w.end < at-behind {
			all.letGo(w)
		}
		return all.isGone(w)
	})
	i := slices.IndexFunc(h.open, func(w *window) bool { return at >= w.at && at < w.end && all.take(w) })
	inOrder := i >= 0 && at > h.open[i].at || i < 0 && at > 0 && at == h.next
	var found *window
	switch {
	case i >= 0:
		found = h.open[i]
	case inOrder:
		h.size = all.next(h.size)
		found = h.fetch(at, max(h.size, want), 2)
	default:
		h.reset()
		h.size = firstWindow
		found = h.fetch(at, max(h.size, want), 2)
	}
	if found == nil {
		h.next = at + want // where a sequential reader continues
	}
	for n := 0; found != nil && inOrder && n < ahead && h.next < e.Size && h.next-at < ahead*h.size; n++ {
		h.size = all.next(h.size)
		if h.fetch(h.next, h.size, 1) == nil {
			break
		}
	}
	return found
}

// fetch begins to fetch a window. Its users are the fetch itself, and the caller if it reads the
// window at once. It returns nil if there is no room. h.mu is held.
func (h *handle) fetch(at, size int64, users int) *window {
	e, all := h.e, &h.n.m.windows
	w := all.begin(at, min(at+size, e.Size), users)
	if w == nil {
		return nil
	}
	h.open = append(h.open, w)
	h.next = w.end
	go func() {
		defer all.giveBack(w)
		defer close(w.done)
		data := make([]byte, w.end-w.at)
		if w.err = h.n.m.b.ReadObject(h.n.m.ctx, e, data, w.at); w.err == nil {
			w.data = data
		}
	}()
	return w
}

// reset drops all windows. h.mu is held.
func (h *handle) reset() {
	for _, w := range h.open {
		h.n.m.windows.letGo(w)
	}
	h.open, h.next, h.size = nil, 0, 0
}

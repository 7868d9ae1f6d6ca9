package mount

import (
	"sync"
	"time"
)

// window is a part of an object, held in memory for an open file.
type window struct {
	at, end int64
	done    chan struct{} // closed when data or err is set
	data    []byte        // for callers of take
	err     error

	users int       // guarded by windows.mu; fetchers and readers; the data is kept while there are any
	gone  bool      // guarded by windows.mu; dropped: take fails
	used  time.Time // guarded by windows.mu
}

// windows limits the bytes of the windows of all open files. Without room, a read does not wait but
// goes to S3 without a window. It does not evict other windows either: their readers would have to
// fetch the data again.
type windows struct {
	limit int64 // maximum bytes of all windows

	mu    sync.Mutex
	bytes int64                // guarded by mu; bytes of all windows, also of dropped ones in use
	all   map[*window]struct{} // guarded by mu; windows that were not dropped
}

// next returns the size of the window after one of size bytes. It is at most double, and less as
// room runs out, so that other files get room too.
func (a *windows) next(size int64) int64 {
	a.mu.Lock()
	defer a.mu.Unlock()
	return min(2*size, maxWindow, max(firstWindow, (a.limit-a.bytes)/shares))
}

// begin returns a new window that already has the given number of users, or nil if there is no
// room.
func (a *windows) begin(at, end int64, users int) *window {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.bytes+end-at > a.limit {
		return nil
	}
	w := &window{at: at, end: end, done: make(chan struct{}), users: users, used: time.Now()}
	a.all[w] = struct{}{}
	a.bytes += end - at
	return w
}

// take keeps a window until it is given back. It returns false if the window was dropped.
func (a *windows) take(w *window) bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	if w.gone {
		return false
	}
	w.users, w.used = w.users+1, time.Now()
	return true
}

// giveBack releases a window after take or begin.
func (a *windows) giveBack(w *window) {
	a.mu.Lock()
	defer a.mu.Unlock()
	w.users--
	a.free(w)
}

// letGo drops a window: take fails from then on.
func (a *windows) letGo(w *window) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.remove(w)
}

// remove is letGo with mu held.
func (a *windows) remove(w *window) {
	if !w.gone {
		w.gone = true
		delete(a.all, w)
		a.free(w)
	}
}

// free returns the bytes of a window that was dropped and has no users. mu is held.
func (a *windows) free(w *window) {
	if w.gone && w.users == 0 {
		a.bytes -= w.end - w.at
		w.data = nil
	}
}

// isGone reports whether a window was dropped.
func (a *windows) isGone(w *window) bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	return w.gone
}

// tend drops windows of open files that have not been read for idleWindow.
func (a *windows) tend(now time.Time) {
	a.mu.Lock()
	defer a.mu.Unlock()
	for w := range a.all {
		if now.Sub(w.used) > idleWindow {
			a.remove(w)
		}
	}
}

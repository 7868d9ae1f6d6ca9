package s3mount

import (
	"sync"
	"time"
)

// window is a part of an object that an open file has here.
type window struct {
	at, end int64
	done    chan struct{} // closed when data or err is there
	data    []byte        // for who has taken the window
	err     error

	users int       // guarded by windows.mu; who fetches or reads it: it keeps its bytes for as long
	gone  bool      // guarded by windows.mu; it was let go: nobody takes it any more
	used  time.Time // guarded by windows.mu
}

// windows are those of all open files, which have a bounded number of bytes together. Nobody waits for room: where there is none, reading goes without
// a window. Nobody takes room from others either, who would have to fetch again what they have yet to read.
type windows struct {
	limit int64 // bytes of all

	mu    sync.Mutex
	bytes int64                // guarded by mu; of all, also of those that are on their way, and of those that were let go and are in use
	all   map[*window]struct{} // guarded by mu; that were not let go
}

// next is how large the window after one of size bytes may be: twice that, but the less the more there are, so that there is room for others.
func (a *windows) next(size int64) int64 {
	a.mu.Lock()
	defer a.mu.Unlock()
	return min(2*size, maxWindow, max(firstWindow, (a.limit-a.bytes)/shares))
}

// begin returns a new window, which users take at once; nil if there is no room.
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

// take has a window stay until it is given back; false if it was let go.
func (a *windows) take(w *window) bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	if w.gone {
		return false
	}
	w.users, w.used = w.users+1, time.Now()
	return true
}

// giveBack ends what take or begin began.
func (a *windows) giveBack(w *window) {
	a.mu.Lock()
	defer a.mu.Unlock()
	w.users--
	a.free(w)
}

// letGo has nobody take a window any more.
func (a *windows) letGo(w *window) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.remove(w)
}

// remove is letGo where mu is held.
func (a *windows) remove(w *window) {
	if !w.gone {
		w.gone = true
		delete(a.all, w)
		a.free(w)
	}
}

// free counts the bytes of a window no longer if it was let go and nobody uses it. mu is held.
func (a *windows) free(w *window) {
	if w.gone && w.users == 0 {
		a.bytes -= w.end - w.at
		w.data = nil
	}
}

// isGone reports whether a window was let go.
func (a *windows) isGone(w *window) bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	return w.gone
}

// tend lets those go that nobody has read for a while: of files that stay open.
func (a *windows) tend(now time.Time) {
	a.mu.Lock()
	defer a.mu.Unlock()
	for w := range a.all {
		if now.Sub(w.used) > idleWindow {
			a.remove(w)
		}
	}
}

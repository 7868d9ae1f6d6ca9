package sandboxes

import (
	"io"
	"sync"

	"github.com/RelevanceAI/harvest/client/api"
	"github.com/RelevanceAI/harvest/client/errors"
)

// window buffers standard input that a command has not read yet. The client may have api.Window bytes in it and is
// notified of reads. So control messages never wait behind unread input, and memory is bounded.
type window struct {
	took func(n int) // notifies the client

	mu    sync.Mutex
	ready sync.Cond
	buf   []byte // guarded by mu
	ended bool   // guarded by mu: no further input
	lost  bool   // guarded by mu: further input is lost
	read  int    // guarded by mu: read, but not reported yet
}

func newWindow(took func(n int)) *window {
	w := &window{took: took}
	w.ready.L = &w.mu
	return w
}

// add appends the client's input. It returns Invalid if the client exceeds the window.
func (w *window) add(data []byte) error {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.ended {
		return nil
	}
	if len(w.buf)+len(data) > api.Window {
		return errors.Newf(errors.Invalid, "the input exceeds the window of the stream")
	}
	w.buf = append(w.buf, data...)
	w.ready.Broadcast()
	return nil
}

// end marks the end of the input.
func (w *window) end() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.ended = true
	w.ready.Broadcast()
}

// lose makes Read fail, unless the input has ended and was read.
func (w *window) lose() {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.ended && len(w.buf) == 0 {
		return
	}
	w.buf, w.ended, w.lost = nil, true, true
	w.ready.Broadcast()
}

// close ends the input and drops unread data.
func (w *window) close() {
	w.mu.Lock()
	w.buf = nil
	w.mu.Unlock()
	w.end()
}

// Read waits for input. It notifies the client in steps of a quarter of the window, to save messages.
func (w *window) Read(p []byte) (int, error) {
	w.mu.Lock()
	for len(w.buf) == 0 && !w.ended {
		w.ready.Wait()
	}
	if len(w.buf) == 0 {
		defer w.mu.Unlock()
		if w.lost {
			return 0, errors.Newf(errors.Unavailable, "the server stops; the rest of the input is lost")
		}
		return 0, io.EOF
	}
	n := copy(p, w.buf)
	w.buf = w.buf[n:]
	w.read += n
	tell := 0
	if w.read >= api.Window/4 {
		tell, w.read = w.read, 0
	}
	w.mu.Unlock()
	if tell > 0 {
		w.took(tell)
	}
	return n, nil
}

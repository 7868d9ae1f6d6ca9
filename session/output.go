package session

import (
	"bytes"
	"io"
	"sync"
)

// maxLine is the length limit for a line of an agent, in bytes.
const maxLine = 16 << 20

// line is a line of an agent's output.
type line struct {
	text []byte
	end  int64 // offset of its end in the output, including the newline
	cut  bool  // longer than maxLine: text is its beginning
}

// splitter is a writer that splits its input into lines. It blocks until the reader takes them, which throttles the
// agent.
type splitter struct {
	lines chan<- line
	stop  <-chan struct{} // closed when the reader of lines stops
	at    int64           // bytes seen
	rest  []byte
	cut   bool
}

// Write implements io.Writer.
func (w *splitter) Write(b []byte) (int, error) {
	n := len(b)
	for len(b) > 0 {
		text, after, whole := bytes.Cut(b, []byte{'\n'})
		w.at += int64(len(b) - len(after))
		if room := maxLine - len(w.rest); len(text) > room {
			text, w.cut = text[:room], true
		}
		w.rest = append(w.rest, text...)
		b = after
		if !whole {
			return n, nil
		}
		if !w.emit() {
			return 0, io.ErrClosedPipe
		}
	}
	return n, nil
}

// emit sends the line, and reports whether the reader took it.
func (w *splitter) emit() bool {
	l := line{text: w.rest, end: w.at, cut: w.cut}
	w.rest, w.cut = nil, false
	select {
	case w.lines <- l:
		return true
	case <-w.stop:
		return false
	}
}

// inbox is the input of an agent: a reader that waits for more, so that writing never blocks.
type inbox struct {
	mu     sync.Mutex
	more   sync.Cond
	text   []byte // guarded by mu
	closed bool   // guarded by mu
}

func newInbox() *inbox {
	in := &inbox{}
	in.more.L = &in.mu
	return in
}

func (in *inbox) write(text []byte) {
	in.mu.Lock()
	defer in.mu.Unlock()
	in.text = append(in.text, text...)
	in.more.Signal()
}

func (in *inbox) close() {
	in.mu.Lock()
	defer in.mu.Unlock()
	in.closed = true
	in.more.Signal()
}

// Read implements io.Reader.
func (in *inbox) Read(b []byte) (int, error) {
	in.mu.Lock()
	defer in.mu.Unlock()
	for len(in.text) == 0 {
		if in.closed {
			return 0, io.EOF
		}
		in.more.Wait()
	}
	n := copy(b, in.text)
	in.text = in.text[n:]
	return n, nil
}

// Package pipe starts the process of an agent, and connects a session with its input and output.
package pipe

import (
	"bytes"
	"io"
	"sync"
)

// MaxLine is the length limit for a line of an agent, in bytes.
const MaxLine = 16 << 20

// Line is a line of an agent's output.
type Line struct {
	Text []byte
	End  int64 // offset of its end in the output, including the newline
	Cut  bool  // longer than maxLine: text is its beginning
	Lost int64 // bytes of output that are missing before it, up to the offset Gap
	Gap  int64
}

// Splitter is a writer that splits its input into lines. It blocks until the reader takes them, which throttles the
// agent.
type Splitter struct {
	Lines chan<- Line
	Stop  <-chan struct{} // closed when the reader of lines stops
	At    int64           // bytes seen
	rest  []byte
	cut   bool
	lost  int64 // bytes missing before rest
	gap   int64 // offset of their end
}

// Skip counts n bytes that are missing. The beginning of a line before them is dropped.
func (w *Splitter) Skip(n int64) {
	w.lost += n + int64(len(w.rest))
	w.At += n
	w.gap, w.rest, w.cut = w.At, nil, false
}

// Write implements io.Writer.
func (w *Splitter) Write(b []byte) (int, error) {
	n := len(b)
	for len(b) > 0 {
		text, after, whole := bytes.Cut(b, []byte{'\n'})
		w.At += int64(len(b) - len(after))
		if room := MaxLine - len(w.rest); len(text) > room {
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
func (w *Splitter) emit() bool {
	l := Line{Text: w.rest, End: w.At, Cut: w.cut, Lost: w.lost, Gap: w.gap}
	w.rest, w.cut, w.lost, w.gap = nil, false, 0, 0
	select {
	case w.Lines <- l:
		return true
	case <-w.Stop:
		return false
	}
}

// Inbox is the input of an agent: a reader that waits for more, so that writing never blocks.
type Inbox struct {
	mu     sync.Mutex
	more   sync.Cond
	text   []byte // guarded by mu
	closed bool   // guarded by mu
}

// NewInbox returns an empty Inbox.
func NewInbox() *Inbox {
	in := &Inbox{}
	in.more.L = &in.mu
	return in
}

// Append adds text for the reader.
func (in *Inbox) Append(text []byte) {
	in.mu.Lock()
	defer in.mu.Unlock()
	in.text = append(in.text, text...)
	in.more.Signal()
}

// Close ends the input after the text that was added.
func (in *Inbox) Close() {
	in.mu.Lock()
	defer in.mu.Unlock()
	in.closed = true
	in.more.Signal()
}

// Read implements io.Reader.
func (in *Inbox) Read(b []byte) (int, error) {
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

package mcp

import (
	"fmt"
	"strings"
	"sync"
	"time"
)

// Limits of a result, in bytes: clients have limits of their own, and the context of a model is small.
const (
	headBytes = 8 << 10
	tailBytes = 16 << 10
	pageBytes = 24 << 10
)

// window keeps a part of the output of a command: head bytes after from, and the last tail bytes. All methods may be
// called concurrently.
type window struct {
	from, head, tail int64
	tell             func(text string) // receives the end of new output; may be nil

	mu      sync.Mutex
	at      int64     // guarded by mu: position of the next byte
	begin   []byte    // guarded by mu
	end     []byte    // guarded by mu: the last bytes after begin
	missing int64     // guarded by mu: bytes that are no longer kept
	changed time.Time // guarded by mu
}

// Write implements io.Writer.
func (w *window) Write(p []byte) (int, error) {
	w.mu.Lock()
	n := len(p)
	all := p
	if skip := min(max(w.from-w.at, 0), int64(len(p))); skip > 0 {
		p = p[skip:]
	}
	w.at += int64(n)
	if room := w.head - int64(len(w.begin)); room > 0 && len(w.end) == 0 {
		take := min(room, int64(len(p)))
		w.begin, p = append(w.begin, p[:take]...), p[take:]
	}
	w.end = append(w.end, p...)
	if over := int64(len(w.end)) - w.tail; over > w.tail+4096 {
		w.end = append([]byte(nil), w.end[over:]...)
	}
	w.changed = time.Now()
	w.mu.Unlock()
	if w.tell != nil && n > 0 {
		w.tell(strings.TrimSpace(string(all[max(0, len(all)-500):])))
	}
	return n, nil
}

// skip notes bytes that are no longer kept.
func (w *window) skip(bytes int64) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.at += bytes
	w.missing += bytes
}

// quiet returns how long nothing was written.
func (w *window) quiet() time.Duration {
	w.mu.Lock()
	defer w.mu.Unlock()
	return time.Since(w.changed)
}

// text returns the part, and how to read the rest of a command's output.
func (w *window) text(environment, command string) (text string, notes []string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	tail := w.end[max(0, int64(len(w.end))-w.tail):]
	first := w.at - int64(len(tail)) // position of tail
	next := max(w.from, w.missing) + int64(len(w.begin))
	var b strings.Builder
	b.Write(w.begin)
	rest := func(offset int64) string {
		return fmt.Sprintf(`run_output {"environment": %q, "command": %q, "offset": %d}`, environment, command, offset)
	}
	switch {
	case w.tail == 0 && w.at > next:
		notes = append(notes, fmt.Sprintf("bytes %d to %d of %d; the rest: %s", w.from, next, w.at, rest(next)))
	case w.tail > 0 && first > next && w.head > 0:
		if b.Len() > 0 && !strings.HasSuffix(b.String(), "\n") {
			b.WriteByte('\n')
		}
		fmt.Fprintf(&b, "… %d bytes left out; to read them: %s …\n", first-next, rest(next))
	case w.tail > 0 && first > next:
		notes = append(notes, fmt.Sprintf("bytes %d to %d of %d; from the beginning: %s", first, w.at, w.at, rest(0)))
	}
	b.Write(tail)
	if w.missing > 0 {
		notes = append(notes, fmt.Sprintf("the first %d bytes are no longer kept", w.missing))
	}
	return b.String(), notes
}

package gateway

import (
	"bytes"
	"strings"
)

// Refusal is why a connection may not go on, after what it said.
type Refusal struct {
	Domain string // that it named, if any
	Reason string // one sentence
}

// Error returns the reason.
func (r *Refusal) Error() string { return r.Reason }

// maxHeld bounds what is held back of a connection until it can be decided, in bytes.
const maxHeld = 64 << 10

// Inspector reads what a client sends on a TCP connection, and holds back what must not go on before its names are known. It is for one
// goroutine.
type Inspector struct {
	check  Check
	decide func(name string) Verdict
	held   []byte
	// step handles the beginning of held: it returns how many bytes of it may go on, zero if it needs more.
	step func() (int, error)
	seen int   // bytes at the beginning of held that step has looked at in vain, so that each byte is looked at once
	pass int64 // bytes that go on unread
	done bool
	http bool // what follows must be an HTTP request, as what came before was
	tls  tlsState
}

// NewInspector returns an Inspector that asks decide about each name that the connection tells. check is what Connect asked for.
func NewInspector(check Check, decide func(name string) Verdict) *Inspector {
	i := &Inspector{check: check, decide: decide, done: check == CheckNothing}
	i.step = i.start
	return i
}

// Next takes the bytes that follow, and returns those that may go on now. They are valid until the next call, and may be p itself. An error is a *Refusal: then
// nothing may go on.
func (i *Inspector) Next(p []byte) ([]byte, error) {
	if i.done && len(i.held) == 0 {
		return p, nil
	}
	if len(i.held) == 0 && int64(len(p)) <= i.pass {
		i.pass -= int64(len(p))
		return p, nil
	}
	i.held = append(i.held, p...)
	var out []byte
	for len(i.held) > 0 {
		n := 0
		switch {
		case i.done:
			n = len(i.held)
		case i.pass > 0:
			n = int(min(i.pass, int64(len(i.held))))
			i.pass -= int64(n)
		default:
			var err error
			if n, err = i.step(); err != nil {
				return nil, err
			}
		}
		if n == 0 && !i.done && i.pass == 0 {
			i.seen = len(i.held)
			break
		}
		i.seen = 0
		out = append(out, i.held[:n]...)
		i.held = i.held[n:]
	}
	if len(i.held) > maxHeld {
		return nil, &Refusal{Reason: "the connection does not say in time whom it means"}
	}
	if len(i.held) == 0 {
		i.held = nil
	}
	return out, nil
}

// index finds text at the end of what was seen, or behind.
func (i *Inspector) index(text string) int {
	from := max(i.seen-len(text)+1, 0)
	at := bytes.Index(i.held[from:], []byte(text))
	if at >= 0 {
		at += from
	}
	return at
}

// Done reports whether all that follows may go on unread.
func (i *Inspector) Done() bool { return i.done && len(i.held) == 0 }

// Holding reports whether bytes are held back. If no more come for long, the connection should be refused.
func (i *Inspector) Holding() bool { return len(i.held) > 0 }

// name decides on a name that the connection told.
func (i *Inspector) name(name string) error {
	if v := i.decide(name); !v.Allowed {
		if canonical, ok := CanonicalName(name); ok {
			name = canonical
		}
		return &Refusal{Domain: printable(name), Reason: v.Reason}
	}
	return nil
}

// hidden refuses what tells no name, where a name is needed.
func (i *Inspector) hidden(reason string) error {
	if i.check == CheckAllowed {
		return &Refusal{Reason: reason}
	}
	return nil
}

func malformed(what string) error {
	return &Refusal{Reason: "the connection begins with " + what + " that cannot be read"}
}

// printable makes of what a connection said something that can be shown.
func printable(s string) string {
	s = strings.Map(func(r rune) rune {
		if r < 0x21 || r > 0x7e {
			return '?'
		}
		return r
	}, s)
	return s[:min(len(s), 253)]
}

// finish lets all that follows go on.
func (i *Inspector) finish() (int, error) {
	i.done = true
	return len(i.held), nil
}

// The longest method and request line that are waited for.
const (
	maxMethod = 24
	maxLine   = 16 << 10
)

// start finds out what is spoken.
func (i *Inspector) start() (int, error) {
	b := i.held
	switch {
	case b[0] == '\r' || b[0] == '\n': // servers of HTTP skip them, so they decide nothing
		return 1, nil
	case b[0] == recordHandshake && !i.http:
		if len(b) < 2 {
			return 0, nil
		}
		if b[1] == 3 {
			i.step = i.record
			return i.record()
		}
		return i.finish()
	}
	method := 0
	for method < len(b) && isMethod(b[method]) {
		method++
	}
	switch {
	case method == len(b) && method <= maxMethod:
		return 0, nil
	case method == 0 || method > maxMethod || b[method] != ' ' && b[method] != '\t':
		return i.other()
	}
	end := i.index("\n")
	if end < 0 {
		if len(b) > maxLine {
			return 0, malformed("an HTTP request")
		}
		return 0, nil
	}
	line := string(bytes.TrimRight(b[:end], " \t\r"))
	last := line[strings.LastIndexAny(line, " \t")+1:]
	switch {
	case line == "PRI * HTTP/2.0" && !i.http:
		if err := i.hidden("HTTP/2 without TLS hides whom its requests mean; use HTTP/1.1 or TLS"); err != nil {
			return 0, err
		}
		return i.finish()
	case len(last) >= 5 && strings.EqualFold(last[:5], "HTTP/"):
		i.step, i.seen = i.head, 0
		return i.head()
	case plainMethods[line[:method]]:
		if err := i.hidden("the HTTP request does not name a server"); err != nil {
			return 0, err
		}
	}
	return i.other()
}

// other handles what is neither TLS nor HTTP. It has no names, and its address was decided on; but it may not follow HTTP requests, since a server might
// still read a request there.
func (i *Inspector) other() (int, error) {
	if i.http {
		return 0, malformed("an HTTP request")
	}
	return i.finish()
}

func isMethod(c byte) bool {
	return c >= 'A' && c <= 'Z' || c >= 'a' && c <= 'z' || c >= '0' && c <= '9' || c == '-' || c == '_'
}

// plainMethods are those that HTTP/0.9 might have, in which a request has no more than a method and a path.
var plainMethods = map[string]bool{"GET": true, "HEAD": true, "POST": true, "PUT": true}

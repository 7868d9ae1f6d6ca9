package gateway

import (
	"bytes"
	"strings"

	"github.com/RelevanceAI/harvest/client/errors"
)

// Refusal is the reason why a connection was refused because of its data.
type Refusal struct {
	Domain string // domain that the connection named, if any
	Reason string // one sentence
	unread bool   // the data cannot be read, so that it names nothing
}

// Error returns the reason.
func (r *Refusal) Error() string { return r.Reason }

// Handover ends the inspection of a connection whose first name is that of an intercepted server.
type Handover struct {
	Name string // the server, as Policy compares names
	TLS  bool   // Data begins with a ClientHello
	// Connect is set if Data begins with a CONNECT request for the server, to a proxy.
	Connect bool
	Data    []byte // all data of the connection until now; none of it was forwarded
}

// Error implements error.
func (h *Handover) Error() string { return "the connection to " + h.Name + " is intercepted" }

// maxHeld limits the bytes of a connection that are held back until a decision.
const maxHeld = 64 << 10

// Inspector reads the data that a client sends over a TCP connection. It holds back data until the names in it
// are known. It must be used by one goroutine only.
type Inspector struct {
	// Address is the destination of the connection. It stands for the name of a TLS connection without one, as those to
	// addresses are, if it is intercepted.
	Address string

	check  Check
	decide Decide
	held   []byte
	// step handles the beginning of held. It returns the number of bytes to forward, or 0 if it needs more
	// data.
	step func() (int, error)
	// seen counts the bytes at the beginning of held that step has already searched, so that it reads each byte
	// only once.
	seen int
	pass int64 // bytes to forward unread
	done bool
	http bool // an HTTP request must follow, because one came before
	tls  tlsState

	forwarded bool      // data was forwarded
	over      *Handover // to an intercepted server that the message at the beginning of held names
}

// Decide decides on a name in a connection. port is that of the name, or 0 for the connection's.
type Decide func(name string, port uint16) Verdict

// NewInspector returns an Inspector that calls decide for each name in the connection. check is from Connect's
// Verdict.
func NewInspector(check Check, decide Decide) *Inspector {
	i := &Inspector{check: check, decide: decide, done: check == CheckNothing}
	i.step = i.start
	return i
}

// Next takes the next bytes, and returns those to forward now. They are valid until the next call, and may
// alias p. An error is a *Refusal or a *Handover: then nothing more may be forwarded.
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
			if n, err = i.next(); err != nil {
				return nil, err
			}
		}
		if n == 0 && !i.done && i.pass == 0 {
			i.seen = len(i.held)
			break
		}
		i.seen = 0
		i.forwarded = i.forwarded || n > 0
		out = append(out, i.held[:n]...)
		i.held = i.held[n:]
	}
	if len(i.held) > maxHeld {
		return nil, &Refusal{Reason: "the connection does not name its host in time"}
	}
	if len(i.held) == 0 {
		i.held = nil
	}
	return out, nil
}

// next handles the beginning of held.
func (i *Inspector) next() (int, error) {
	n, err := i.step()
	var r *Refusal
	switch {
	case i.check == CheckIntercept && errors.As(err, &r) && r.unread:
		return i.finish()
	case err != nil || i.over == nil:
		return n, err
	case i.forwarded:
		return 0, &Refusal{Domain: i.over.Name,
			Reason: "requests with credentials need a connection of their own; this one was used for another host"}
	}
	i.over.Data = bytes.Clone(i.held)
	return 0, i.over
}

// index returns the position of text in held, or -1. It searches only the bytes that are new.
func (i *Inspector) index(text string) int {
	from := max(i.seen-len(text)+1, 0)
	at := bytes.Index(i.held[from:], []byte(text))
	if at >= 0 {
		at += from
	}
	return at
}

// Done reports whether all further data may be forwarded unread.
func (i *Inspector) Done() bool { return i.done && len(i.held) == 0 }

// Release ends the inspection, and returns the data that was held back.
func (i *Inspector) Release() []byte {
	i.done = true
	held := i.held
	i.held = nil
	return held
}

// Holding reports whether data is held back. If no more data arrives for long, the connection should be
// refused.
func (i *Inspector) Holding() bool { return len(i.held) > 0 }

// name decides on a name in the connection, at a port if that is not the connection's own.
func (i *Inspector) name(name string, port uint16) error {
	v := i.decide(name, port)
	canonical, ok := CanonicalName(name)
	if !ok {
		canonical = name
	}
	if !v.Allowed {
		return &Refusal{Domain: printable(canonical), Reason: v.Reason}
	}
	if v.Intercept && i.over == nil {
		i.over = &Handover{Name: printable(canonical)}
	}
	return nil
}

// hidden refuses a connection without a name, if the check requires one.
func (i *Inspector) hidden(reason string) error {
	if i.check == CheckAllowed {
		return &Refusal{Reason: reason}
	}
	return nil
}

func malformed(what string) error {
	return &Refusal{Reason: "the connection begins with " + what + " that cannot be read", unread: true}
}

// printable makes a name from a connection safe to display.
func printable(s string) string {
	s = strings.Map(func(r rune) rune {
		if r < 0x21 || r > 0x7e {
			return '?'
		}
		return r
	}, s)
	return s[:min(len(s), 253)]
}

// finish forwards everything from here on.
func (i *Inspector) finish() (int, error) {
	i.done = true
	return len(i.held), nil
}

// maxMethod and maxLine limit the length of a method and of a request line.
const (
	maxMethod = 24
	maxLine   = 16 << 10
)

// start detects the protocol.
func (i *Inspector) start() (int, error) {
	b := i.held
	switch {
	case b[0] == '\r' || b[0] == '\n': // HTTP servers skip them, so they decide nothing
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
		if err := i.hidden("HTTP/2 without TLS hides the hosts of its requests; use HTTP/1.1 or TLS"); err != nil {
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

// other handles other protocols than TLS and HTTP. They have no names, and Connect has decided on the address.
// They must not follow HTTP requests, because a server might still read the data as a request.
func (i *Inspector) other() (int, error) {
	if i.http {
		return 0, malformed("an HTTP request")
	}
	return i.finish()
}

func isMethod(c byte) bool {
	return c >= 'A' && c <= 'Z' || c >= 'a' && c <= 'z' || c >= '0' && c <= '9' || c == '-' || c == '_'
}

// plainMethods are possible methods of HTTP/0.9, where a request is only a method and a path.
var plainMethods = map[string]bool{"GET": true, "HEAD": true, "POST": true, "PUT": true}

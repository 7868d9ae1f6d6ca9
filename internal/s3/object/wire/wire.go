// Package wire sends frequent requests to S3 over plain HTTP/1.1, at less cost than net/http.
package wire

import (
	"bufio"
	"bytes"
	"cmp"
	"context"
	"crypto/tls"
	"io"
	"net"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/RelevanceAI/harvest/client/errors"
	"github.com/RelevanceAI/harvest/internal/base/netguard"
)

// Wire requests objects with known content, and stores small ones, over plain HTTP/1.1. The
// goroutine of the caller runs one request at a time on a connection. A transport of net/http needs
// two more goroutines and two buffers for each connection, and builds a map of every answer's
// header, of which only the length and the ETag are used here. With thousands of small files, that
// is a fifth of the processor time. Unusual answers are parsed by net/http. A wire is safe for
// concurrent use.
type Wire struct {
	dial    func(ctx context.Context, network, address string) (net.Conn, error)
	address string      // host and port
	tls     *tls.Config // nil for plain HTTP

	mu   sync.Mutex
	idle []*line // guarded by mu; the last used at the end
}

// line is a connection in use by at most one request.
type line struct {
	conn net.Conn
	in   *bufio.Reader
	out  []byte
	last time.Time // when it became idle
}

const (
	lineIdle   = 60 * time.Second // idle time before a connection is closed: less than that of most servers
	lineBuffer = 16 << 10         // limit for an answer's header
	maxIdle    = 128              // maximum number of idle connections
)

// MaxBody is the maximum size of a body. Each is sent whole before its answer is read.
const MaxBody = 256 << 10

// New returns a wire that reaches the server of base like t, or nil if t does not connect
// directly.
func New(via *netguard.Transport, base *url.URL) *Wire {
	t, direct := via.Direct(base)
	if !direct {
		return nil
	}
	w := &Wire{dial: t.DialContext, address: base.Host}
	port := "80"
	if base.Scheme == "https" {
		port, w.tls = "443", t.TLSClientConfig.Clone()
		w.tls.ServerName = base.Hostname()
	}
	if base.Port() == "" {
		w.address = net.JoinHostPort(base.Hostname(), port)
	}
	return w
}

// Close closes idle connections.
func (w *Wire) Close() {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, l := range w.idle {
		l.conn.Close()
	}
	w.idle = nil
}

// Do sends a request with a body, in place of req.Body, which may be nil. The answer may lack
// its header but for the ETag after a PUT; its body must be closed. Errors are those of net/http.
func (w *Wire) Do(req *http.Request, body []byte) (*http.Response, error) {
	for {
		var err error
		l := w.take()
		fresh := l == nil
		if fresh {
			l, err = w.connect(req.Context())
		}
		var res *http.Response
		if err == nil {
			res, err = w.exchange(l, req, body)
		}
		if err == nil {
			return res, nil
		}
		// A server may close an idle connection at any time: try another one.
		if fresh || req.Context().Err() != nil {
			return nil, &url.Error{Op: req.Method, URL: "http://" + w.address, Err: err}
		}
	}
}

// take returns an idle connection, or nil.
func (w *Wire) take() *line {
	w.mu.Lock()
	defer w.mu.Unlock()
	n := len(w.idle)
	if n == 0 {
		return nil
	}
	l := w.idle[n-1]
	w.idle = w.idle[:n-1]
	if time.Since(l.last) < lineIdle {
		return l
	}
	// The connections before it have been idle for longer.
	for _, old := range append(w.idle, l) {
		old.conn.Close()
	}
	w.idle = nil
	return nil
}

func (w *Wire) put(l *line) {
	l.last = time.Now()
	w.mu.Lock()
	defer w.mu.Unlock()
	if len(w.idle) < maxIdle {
		w.idle = append(w.idle, l)
		return
	}
	l.conn.Close()
}

func (w *Wire) connect(ctx context.Context) (*line, error) {
	conn, err := w.dial(ctx, "tcp", w.address)
	if err != nil {
		return nil, err
	}
	if w.tls != nil {
		ctx, cancel := context.WithTimeout(ctx, HandshakeTime)
		defer cancel()
		secure := tls.Client(conn, w.tls)
		if err := secure.HandshakeContext(ctx); err != nil {
			conn.Close()
			return nil, err
		}
		conn = secure
	}
	return &line{conn: conn, in: bufio.NewReaderSize(conn, lineBuffer), out: make([]byte, 0, 1024)}, nil
}

// exchange sends a request and reads the answer's header. After an error, the connection is closed.
func (w *Wire) exchange(l *line, req *http.Request, body []byte) (_ *http.Response, err error) {
	ctx := req.Context()
	stop := context.AfterFunc(ctx, func() { _ = l.conn.SetDeadline(time.Unix(1, 0)) })
	defer func() {
		if err != nil {
			stop()
			l.conn.Close()
			if ctx.Err() != nil {
				err = context.Cause(ctx)
			}
		}
	}()
	unsent := l.send(req, body)
	if unsent != nil && len(body) == 0 {
		return nil, unsent
	}
	for {
		head, err := l.head()
		if err != nil {
			return nil, cmp.Or(unsent, err) // a server may refuse a body that it has not read
		}
		body := &answer{w: w, l: l, ctx: ctx, stop: stop}
		if n, etag, ok := ordinaryAnswer(head); ok {
			body.left, body.again = n, unsent == nil
			res := &http.Response{StatusCode: http.StatusOK, ContentLength: n, Body: body}
			if req.Method == http.MethodPut {
				res.Header = http.Header{"Etag": {etag}}
			}
			_, err := l.in.Discard(len(head))
			return res, err
		}
		res, err := http.ReadResponse(l.in, req)
		if err != nil {
			return nil, err
		}
		if res.StatusCode < 200 {
			continue // an informational answer; another one follows
		}
		body.other, body.left, body.again = res.Body, 1, unsent == nil && !res.Close
		res.Body = body
		return res, nil
	}
}

// OrdinaryHeader reports whether a request's header can be sent unchanged.
func OrdinaryHeader(h http.Header) bool {
	for name, values := range h {
		if len(values) != 1 || !ascii(name, ' '+1) || strings.IndexByte(name, ':') >= 0 || !ascii(values[0], ' ') {
			return false
		}
	}
	return true
}

// ascii reports whether all bytes are printable, and at least least.
func ascii(text string, least byte) bool {
	for i := range len(text) {
		if c := text[i]; c < least || c >= 0x7f {
			return false
		}
	}
	return true
}

// send sends a request with its body.
func (l *line) send(req *http.Request, body []byte) error {
	if len(body) == 0 {
		_, err := l.conn.Write(l.request(req))
		return err
	}
	all := net.Buffers{l.request(req), body} // one system call
	_, err := all.WriteTo(l.conn)
	return err
}

// request returns the header of a request as sent to the server.
func (l *line) request(req *http.Request) []byte {
	out := append(l.out[:0], req.Method...)
	out = append(append(append(out, ' '), req.URL.RequestURI()...), " HTTP/1.1\r\nHost: "...)
	out = append(append(out, req.Host...), "\r\nUser-Agent: harvest\r\n"...)
	for name, values := range req.Header {
		out = append(append(append(append(out, name...), ": "...), values[0]...), "\r\n"...)
	}
	if req.ContentLength > 0 || req.Method == http.MethodPut {
		out = append(strconv.AppendInt(append(out, "Content-Length: "...), req.ContentLength, 10), "\r\n"...)
	}
	l.out = append(out, "\r\n"...)
	return l.out
}

// head waits for an answer's header, and returns it with its end. A header that does not fit into
// the buffer is incomplete.
func (l *line) head() ([]byte, error) {
	for n := 1; ; {
		if _, err := l.in.Peek(n); err != nil {
			if errors.Is(err, io.EOF) {
				err = io.ErrUnexpectedEOF
			}
			return nil, err
		}
		have, _ := l.in.Peek(l.in.Buffered())
		if i := bytes.Index(have, []byte("\r\n\r\n")); i >= 0 {
			return have[:i+4], nil
		}
		if n = len(have) + 1; n > l.in.Size() {
			return nil, nil
		}
	}
}

// ordinaryAnswer returns the length of the body, and the ETag or "", if head is that of a usual
// answer: a success with a body of known length, on a connection that stays open.
func ordinaryAnswer(head []byte) (length int64, etag string, ok bool) {
	first, rest, found := bytes.Cut(head, []byte("\r\n"))
	if !found || !bytes.HasPrefix(first, []byte("HTTP/1.1 200")) || len(first) > 12 && first[12] != ' ' ||
		control(first) {
		return 0, "", false
	}
	length = -1
	tagged := false
	for len(rest) > 2 {
		var text []byte
		text, rest, _ = bytes.Cut(rest, []byte("\r\n"))
		name, value, found := bytes.Cut(text, []byte(":"))
		if !found || !plainName(name) || control(value) {
			return 0, "", false
		}
		switch len(name) { // only a few headers matter
		case len("ETag"):
			if !bytes.EqualFold(name, []byte("ETag")) {
				continue
			}
			if tagged {
				return 0, "", false
			}
			etag, tagged = string(bytes.Trim(value, " \t")), true
		case len("Connection"):
			if bytes.EqualFold(name, []byte("Connection")) && !bytes.EqualFold(bytes.TrimSpace(value),
				[]byte("keep-alive")) {
				return 0, "", false
			}
		case len("Content-Length"):
			if !bytes.EqualFold(name, []byte("Content-Length")) {
				continue
			}
			n, err := strconv.ParseUint(string(bytes.TrimSpace(value)), 10, 50)
			if err != nil || length >= 0 {
				return 0, "", false
			}
			length = int64(n)
		case len("Transfer-Encoding"):
			if bytes.EqualFold(name, []byte("Transfer-Encoding")) {
				return 0, "", false
			}
		}
	}
	return length, etag, length >= 0
}

func control(text []byte) bool {
	for _, c := range text {
		if c < ' ' && c != '\t' || c == 0x7f {
			return true
		}
	}
	return false
}

func plainName(name []byte) bool {
	for _, c := range name {
		if c|0x20 < 'a' || c|0x20 > 'z' {
			if c != '-' && (c < '0' || c > '9') {
				return false
			}
		}
	}
	return len(name) > 0
}

// answer is the body of an answer. Its connection is reusable only after the body has been read to
// its end.
type answer struct {
	w     *Wire
	l     *line
	ctx   context.Context
	stop  func() bool   // of the function that closes the connection with ctx
	left  int64         // with other, 0 at its end
	again bool          // the connection may be reused
	other io.ReadCloser // body of an answer that net/http parsed; replaces the rest
}

// Read implements io.Reader.
func (a *answer) Read(p []byte) (n int, err error) {
	switch {
	case a.other != nil:
		if n, err = a.other.Read(p); errors.Is(err, io.EOF) {
			a.left = 0
		}
	case a.left == 0:
		return 0, io.EOF
	default:
		n, err = a.l.in.Read(p[:min(int64(len(p)), a.left)])
		if a.left -= int64(n); errors.Is(err, io.EOF) {
			err = io.ErrUnexpectedEOF
		}
	}
	if err != nil && !errors.Is(err, io.EOF) {
		a.again = false
		if a.ctx.Err() != nil {
			err = context.Cause(a.ctx)
		}
	}
	return n, err
}

// Close implements io.Closer.
func (a *answer) Close() error {
	if a.l == nil {
		return nil
	}
	l := a.l
	a.l = nil
	// Unexpected data belongs to no request.
	if stopped := a.stop(); stopped && a.again && a.left == 0 && l.in.Buffered() == 0 {
		a.w.put(l)
		return nil
	}
	return l.conn.Close()
}

// HandshakeTime bounds a TLS handshake.
const HandshakeTime = 15 * time.Second

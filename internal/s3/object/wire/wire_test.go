package wire

import (
	"bufio"
	"bytes"
	"context"
	"crypto/sha256"
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/RelevanceAI/harvest/client/errors"
	"github.com/RelevanceAI/harvest/internal/base/netguard"
)

// wireTo is a wire to a server.
func wireTo(t *testing.T, address string, config *tls.Config) *Wire {
	t.Helper()
	base := &url.URL{Scheme: "http", Host: address}
	if config != nil {
		base.Scheme = "https"
	}
	w := New(netguard.Rules{Any: true}.NewTransport(&http.Transport{TLSClientConfig: config}), base)
	t.Cleanup(w.Close)
	return w
}

func wireGet(ctx context.Context, t *testing.T, w *Wire, path string) (int, string, error) {
	t.Helper()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+w.address+path, nil)
	must(t, err)
	req.Header = http.Header{"If-Match": {`"tag"`}}
	res, err := w.Do(req, nil)
	if err != nil {
		return 0, "", err
	}
	defer res.Body.Close()
	body, err := io.ReadAll(res.Body)
	return res.StatusCode, string(body), err
}

// scripted is a server that answers the requests of all connections, in order, with the given bytes. It closes a
// connection after an answer that ends with "!", which it does not send.
func scripted(t *testing.T, answers ...string) (address string, connections func() int) {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	must(t, err)
	t.Cleanup(func() { l.Close() })
	var mu sync.Mutex
	n := 0
	next := func() (string, bool) {
		mu.Lock()
		defer mu.Unlock()
		if len(answers) == 0 {
			return "", false
		}
		a := answers[0]
		answers = answers[1:]
		return a, true
	}
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			mu.Lock()
			n++
			mu.Unlock()
			go func() {
				defer c.Close()
				in := bufio.NewReader(c)
				for {
					req, err := http.ReadRequest(in)
					if err != nil || req.Header.Get("If-Match") != `"tag"` || req.Host == "" {
						return
					}
					a, ok := next()
					if !ok {
						return
					}
					text, last := strings.CutSuffix(a, "!")
					if _, err := io.WriteString(c, text); err != nil || last {
						return
					}
				}
			}()
		}
	}()
	return l.Addr().String(), func() int {
		mu.Lock()
		defer mu.Unlock()
		return n
	}
}

// TestWireAnswers checks that every answer is read as net/http reads it, and that a connection is reused only if that
// is safe.
func TestWireAnswers(t *testing.T) {
	const ok = "HTTP/1.1 200 OK\r\nContent-Length: 5\r\nETag: \"x\"\r\n\r\nhello"
	for name, c := range map[string]struct {
		answers     []string
		want        string
		fails       bool // the first of them
		connections int
	}{
		"ordinary": {[]string{ok, ok, ok}, "200 hello", false, 1},
		"empty":    {[]string{"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n", ok}, "200 ", false, 1},
		"refused": {[]string{"HTTP/1.1 404 Not Found\r\nContent-Length: 3\r\n\r\nno!", ok},
			"404 no!", false, 2},
		"chunks": {[]string{"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nhel\r\n2\r\nlo\r\n0\r\n" +
			"\r\n", ok}, "200 hello", false, 1},
		"until the end": {[]string{"HTTP/1.0 200 OK\r\n\r\nhello!", ok}, "200 hello", false, 2},
		"the last one": {[]string{"HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: 5\r\n\r\nhello!",
			ok}, "200 hello", false, 2},
		"ended meanwhile": {[]string{ok + "!", ok}, "200 hello", false, 2},
		"early hints": {[]string{"HTTP/1.1 103 Early Hints\r\nLink: x\r\n\r\n" + ok, ok},
			"200 hello", false, 1},
		"bytes that are extra": {[]string{ok + "HTTP/1.1 200 OK\r\nContent-Length: 3\r\n\r\nbad", ok},
			"200 hello", false, 2},
		"cut in the body":   {[]string{"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhel!", ok}, "", true, 2},
		"cut in the header": {[]string{"HTTP/1.1 200 OK\r\nContent-Le!", ok}, "", true, 2},
		"two lengths": {[]string{"HTTP/1.1 200 OK\r\nContent-Length: 5\r\nContent-Length: 3\r\n\r\nhello",
			ok}, "", true, 2},
		"no HTTP": {[]string{"SSH-2.0-OpenSSH\r\n\r\n", ok}, "", true, 2},
		"a header of 20 KiB": {[]string{"HTTP/1.1 200 OK\r\nX: " + strings.Repeat("x",
			20<<10) + "\r\nContent-Length: 5\r\n\r\nhello", ok}, "200 hello", false, 1},
	} {
		t.Run(name, func(t *testing.T) {
			answers := c.answers
			for i, a := range answers { // "!" ends a connection, and is a part of this body
				if strings.HasSuffix(a, "no!") {
					answers[i] += "!"
				}
			}
			address, connections := scripted(t, answers...)
			w := wireTo(t, address, nil)
			for i := range len(c.answers) {
				status, body, err := wireGet(t.Context(), t, w, "/bucket/key")
				got, want := fmt.Sprint(status, " ", body), c.want
				if i > 0 {
					want = "200 hello"
				}
				switch {
				case i == 0 && c.fails:
					if err == nil {
						t.Errorf("answer %d: %s, which it is not", i, got)
					}
				case err != nil || got != want:
					t.Errorf("answer %d: %q, %v; want %q", i, got, err, want)
				}
			}
			if got := connections(); got != c.connections {
				t.Errorf("%d connections, want %d", got, c.connections)
			}
		})
	}
}

// TestWireStores checks that a body arrives as it was, and that its answer has the ETag. Connections are reused, after
// refusals too.
func TestWireStores(t *testing.T) {
	answer := func(w http.ResponseWriter, r *http.Request) {
		body, err := io.ReadAll(r.Body)
		if err != nil || r.Method != http.MethodPut || r.Header.Get("Content-Length") != strconv.Itoa(len(body)) ||
			len(r.TransferEncoding) > 0 || r.Header.Get("If-None-Match") != "*" {
			t.Errorf("%s %v %v: %d bytes, %v", r.Method, r.TransferEncoding, r.Header, len(body), err)
		}
		w.Header().Set("ETag", fmt.Sprintf(`"%x"`, sha256.Sum256(body)))
		if r.URL.Path == "/refused" {
			w.WriteHeader(http.StatusPreconditionFailed)
			fmt.Fprint(w, "why")
		}
	}
	for _, secure := range []bool{false, true} {
		s := httptest.NewUnstartedServer(http.HandlerFunc(answer))
		var config *tls.Config
		if secure {
			s.StartTLS()
			config = s.Client().Transport.(*http.Transport).TLSClientConfig
		} else {
			s.Start()
		}
		defer s.Close()
		w := wireTo(t, s.Listener.Addr().String(), config)
		for _, size := range []int{0, 1, 5000, MaxBody} {
			body := bytes.Repeat([]byte("0123456789abcdef"), size/16+1)[:size]
			for path, want := range map[string]string{"/stored": "", "/refused": "why"} {
				res, text, err := wirePut(t, w, path, body)
				if err != nil || res.Header.Get("ETag") != fmt.Sprintf(`"%x"`, sha256.Sum256(body)) || text != want ||
					(res.StatusCode == 200) != (want == "") {
					t.Fatalf("TLS %v: %d bytes to %s: %+v, %q, %v", secure, size, path, res, text, err)
				}
				if len(w.idle) != 1 {
					t.Fatalf("TLS %v: %d connections wait after %s, want 1", secure, len(w.idle), path)
				}
			}
		}
	}
}

// TestWireReusesOnlyReadConnections checks that a connection is not reused if the server announces its end, or if the
// rest of a refusal is still to come.
func TestWireReusesOnlyReadConnections(t *testing.T) {
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/last" {
			w.Header().Set("Connection", "close")
		}
		w.WriteHeader(http.StatusPreconditionFailed)
		if r.URL.Path == "/long" {
			w.(http.Flusher).Flush()
			<-r.Context().Done() // the client closes the connection
		}
	}))
	defer s.Close()
	w := wireTo(t, s.Listener.Addr().String(), nil)
	if res, _, err := wirePut(t, w, "/last", []byte("x")); err != nil || res.StatusCode != 412 || len(w.idle) != 0 {
		t.Errorf("the last one: %+v, %v; %d connections wait", res, err, len(w.idle))
	}
	req, err := http.NewRequestWithContext(t.Context(), http.MethodPut, s.URL+"/long", nil)
	must(t, err)
	res, err := w.Do(req, nil)
	must(t, err)
	if err := res.Body.Close(); err != nil || len(w.idle) != 0 {
		t.Errorf("unread: %v; %d connections wait", err, len(w.idle))
	}
	for _, l := range w.idle {
		l.conn.Close()
	}
}

// TestWireReadsEarlyRefusals checks that the answer of a server that does not read the whole body is read.
func TestWireReadsEarlyRefusals(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	must(t, err)
	defer l.Close()
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			if _, err := http.ReadRequest(bufio.NewReader(c)); err == nil {
				_, _ = io.WriteString(c, "HTTP/1.1 403 Forbidden\r\nContent-Length: 3\r\n\r\nwhy")
			}
			c.Close() // with the rest of the body unread, so that the connection is reset
		}
	}()
	w := wireTo(t, l.Addr().String(), nil)
	for range 20 {
		res, text, err := wirePut(t, w, "/", make([]byte, 32<<20))
		if err != nil || res.StatusCode != http.StatusForbidden || text != "why" || len(w.idle) != 0 {
			t.Fatalf("%+v, %q, %v; %d connections wait", res, text, err, len(w.idle))
		}
	}
}

// wirePut stores a body on the condition that there is none, and returns the answer with its body.
func wirePut(t *testing.T, w *Wire, path string, body []byte) (*http.Response, string, error) {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), http.MethodPut, "http://"+w.address+path, nil)
	must(t, err)
	req.Header, req.ContentLength = http.Header{"If-None-Match": {"*"}}, int64(len(body))
	res, err := w.Do(req, body)
	if err != nil {
		return nil, "", err
	}
	defer res.Body.Close()
	text, err := io.ReadAll(res.Body)
	return res, string(text), err
}

// TestWireGivesUp checks that a caller that stops waiting is not blocked by a server that does not answer, and leaves
// no connection to the next caller.
func TestWireGivesUp(t *testing.T) {
	asked, release := make(chan struct{}, 2), make(chan struct{})
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/body" {
			w.Header().Set("Content-Length", "10")
			_, _ = io.WriteString(w, "half")
			w.(http.Flusher).Flush()
		}
		asked <- struct{}{}
		select {
		case <-release:
		case <-r.Context().Done():
		}
	}))
	defer s.Close()
	defer close(release)
	w := wireTo(t, s.Listener.Addr().String(), nil)
	gone := errors.Newf(errors.Unavailable, "gone")
	for _, path := range []string{"/header", "/body"} {
		ctx, cancel := context.WithCancelCause(t.Context())
		go func() {
			<-asked
			cancel(gone)
		}()
		if _, _, err := wireGet(ctx, t, w, path); !errors.Is(err, gone) {
			t.Errorf("%s: %v", path, err)
		}
		if len(w.idle) != 0 {
			t.Errorf("%s: its connection waits for another request", path)
		}
	}
}

// TestWireTrusts checks that the wire works over TLS, and only with servers that the transport trusts. Requests through
// a proxy are left to the transport.
func TestWireTrusts(t *testing.T) {
	s := httptest.NewTLSServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		fmt.Fprint(w, "for ",
			r.URL.EscapedPath())
	}))
	defer s.Close()
	s.Config.ErrorLog = nil
	transport := func(roots *x509.CertPool, proxy func(*http.Request) (*url.URL, error)) *netguard.Transport {
		return netguard.Rules{Any: true}.NewTransport(&http.Transport{Proxy: proxy,
			TLSClientConfig: &tls.Config{MinVersion: tls.VersionTLS12, RootCAs: roots}})
	}
	base, err := url.Parse(s.URL)
	must(t, err)
	authority := x509.NewCertPool()
	authority.AddCert(s.Certificate())
	w := New(transport(authority, nil), base)
	defer w.Close()
	for range 2 {
		if status, body, err := wireGet(t.Context(), t, w, "/a%20b"); err != nil || status != 200 ||
			body != "for /a%20b" {
			t.Errorf("%d %q %v", status, body, err)
		}
	}
	if len(w.idle) != 1 {
		t.Errorf("%d connections wait, want 1", len(w.idle))
	}
	if _, _, err := wireGet(t.Context(), t, New(transport(nil, nil), base), "/"); err == nil ||
		!strings.Contains(err.Error(), "certificate") {
		t.Errorf("without its authority: %v", err)
	}
	if New(transport(nil, http.ProxyURL(&url.URL{Scheme: "http", Host: "127.0.0.1:1"})), base) != nil {
		t.Error("a wire goes past the proxy")
	}
}

// TestWireHeader checks that values that no header may have are left to net/http to refuse.
func TestWireHeader(t *testing.T) {
	for value, want := range map[string]bool{`"etag"`: true, "": true, "a\r\nX-Evil: 1": false, "a\x00": false,
		"ü": false} {
		if got := OrdinaryHeader(http.Header{"If-Match": {value}}); got != want {
			t.Errorf("%q: %v", value, got)
		}
	}
	if OrdinaryHeader(http.Header{"a b": {"x"}}) || OrdinaryHeader(http.Header{"A": {"x", "y"}}) {
		t.Error("a name with a space, or two values, are taken for ordinary")
	}
}

// TestWireForgets checks that a connection that has been idle for long is not reused.
func TestWireForgets(t *testing.T) {
	const ok = "HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhello"
	address, connections := scripted(t, ok, ok)
	w := wireTo(t, address, nil)
	for i := range 2 {
		if _, body, err := wireGet(t.Context(), t, w, "/"); err != nil || body != "hello" || connections() != i+1 {
			t.Fatalf("%q, %v, %d connections", body, err, connections())
		}
		for _, l := range w.idle {
			l.last = time.Now().Add(-2 * lineIdle)
		}
	}
}

// FuzzOrdinaryAnswer checks that answers which count as ordinary are read as net/http reads them.
func FuzzOrdinaryAnswer(f *testing.F) {
	for _, seed := range []string{"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\n",
		"HTTP/1.1 200 \r\ncontent-length:0\r\nConnection: Keep-Alive\r\n\r\n",
		"HTTP/1.1 2000\r\nContent-Length: 1\r\n\r\n", "HTTP/1.1 200\r\nContent-Length: 1\r\n Folded: 2\r\n\r\n",
		"HTTP/1.1 200 OK\r\nContent-Length : 1\r\n\r\n",
		"HTTP/1.1 200 OK\r\nX: a\nTransfer-Encoding: chunked\r\nContent-Length: 1\r\n\r\n",
		"HTTP/1.1 200 OK\r\nX: a\x7f\r\nContent-Length: 1\r\n\r\n",
		"HTTP/1.1 200 OK\r\nETag:  \"a\" \r\nContent-Length: 1\r\n\r\n",
		"HTTP/1.1 200 OK\r\nETag: \r\nContent-Length: 1\r\netag: \"b\"\r\n\r\n",
		"HTTP/1.1 200 OK\r\nContent-Length: 1\nTransfer-Encoding: chunked\r\n\r\n",
		"HTTP/1.1 200 OK\r\nTransfer-Encoding: identity\r\nContent-Length: +1\r\n\r\n"} {
		f.Add([]byte(seed))
	}
	f.Fuzz(func(t *testing.T, head []byte) {
		if i := bytes.Index(head, []byte("\r\n\r\n")); i < 0 || i+4 != len(head) {
			return
		}
		n, etag, ok := ordinaryAnswer(head)
		if !ok {
			return
		}
		res, err := http.ReadResponse(bufio.NewReader(bytes.NewReader(head)), &http.Request{Method: http.MethodGet})
		if err != nil {
			t.Fatalf("%q: net/http does not read it: %v", head, err)
		}
		if res.StatusCode != 200 || res.ContentLength != n || len(res.TransferEncoding) > 0 || res.Close ||
			res.Header.Get("ETag") != etag {
			t.Fatalf("%q: %d bytes, %q; net/http: %d %d %v %v %v", head, n, etag, res.StatusCode, res.ContentLength,
				res.TransferEncoding, res.Close, res.Header)
		}
	})
}

package broker

import (
	"bufio"
	"bytes"
	"compress/gzip"
	"context"
	"crypto/sha256"
	"crypto/tls"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/coder/websocket"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/health"
	"google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"

	"github.com/RelevanceAI/harvest/internal/engine"
)

var authorized = map[string]string{"Authorization": "Bearer " + placeholder}

// isAuthorized reports whether a request that the host got has the value.
func isAuthorized(r *http.Request) bool { return r.Header.Get("Authorization") == "Bearer "+value }

// TestBodiesAreStreamed checks that both directions flow at once, and are not kept until they are complete.
func TestBodiesAreStreamed(t *testing.T) {
	t.Parallel()
	for _, protocol := range []string{"h2", "http/1.1"} {
		w := newWorld(t, bound(t, host))
		w.serve(t, http.HandlerFunc(func(rw http.ResponseWriter, r *http.Request) {
			_ = http.NewResponseController(rw).EnableFullDuplex()
			rw.Header().Set("Content-Type", "text/event-stream")
			_ = http.NewResponseController(rw).Flush()
			for lines := bufio.NewScanner(r.Body); lines.Scan(); {
				_, _ = fmt.Fprintf(rw, "data: %s %t\n", lines.Text(), isAuthorized(r))
				_ = http.NewResponseController(rw).Flush()
			}
		}))
		in, out := io.Pipe()
		r, _ := http.NewRequestWithContext(t.Context(), "POST", "https://"+host+"/", in)
		r.Header.Set("Authorization", authorized["Authorization"])
		resp, err := w.client(t, protocol).Do(r)
		if err != nil {
			t.Fatalf("%s: %v", protocol, err)
		}
		lines := bufio.NewReader(resp.Body)
		for i := range 3 {
			_, _ = fmt.Fprintf(out, "line %d\n", i)
			if got, err := lines.ReadString('\n'); err != nil || got != fmt.Sprintf("data: line %d true\n", i) {
				t.Errorf("%s: got %q, %v", protocol, got, err)
			}
		}
		_ = out.Close()
		if rest, err := io.ReadAll(lines); err != nil || len(rest) > 0 {
			t.Errorf("%s: got %q, %v at the end", protocol, rest, err)
		}
		_ = resp.Body.Close()
	}
}

// TestBodiesAreUnchanged checks large bodies, compressed ones, and answers without one.
func TestBodiesAreUnchanged(t *testing.T) {
	t.Parallel()
	for _, protocol := range []string{"h2", "http/1.1"} {
		w := newWorld(t, bound(t, host))
		large := make([]byte, 5<<20+7)
		_, _ = rand.NewChaCha8([32]byte{1}).Read(large)
		var packed bytes.Buffer
		z := gzip.NewWriter(&packed)
		_, _ = z.Write([]byte("text with " + value))
		_ = z.Close()
		w.serve(t, http.HandlerFunc(func(rw http.ResponseWriter, r *http.Request) {
			switch r.URL.Path {
			case "/sum":
				sum := sha256.New()
				n, _ := io.Copy(sum, r.Body)
				_, _ = fmt.Fprintf(rw, "%d %d %x", n, r.ContentLength, sum.Sum(nil))
			case "/large":
				http.ServeContent(rw, r, "large.bin", time.Time{}, bytes.NewReader(large))
			case "/gzip":
				rw.Header().Set("Content-Encoding", "gzip")
				rw.Header().Set("Content-Type", "text/plain")
				_, _ = rw.Write(packed.Bytes())
			case "/none":
				rw.WriteHeader(http.StatusNotModified)
			}
		}))
		c := w.client(t, protocol)
		resp, err := c.Post("https://"+host+"/sum", "", bytes.NewReader(large))
		if err != nil {
			t.Fatal(err)
		}
		got, _ := io.ReadAll(resp.Body)
		_ = resp.Body.Close()
		if want := fmt.Sprintf("%d %[1]d %x", len(large), sha256.Sum256(large)); string(got) != want {
			t.Errorf("%s: the host got %q, want %q", protocol, got, want)
		}
		if status, got := get(t, c, "GET", "https://"+host+"/large", nil); status != 200 || got != string(large) {
			t.Errorf("%s: got %d, %d bytes", protocol, status, len(got))
		}
		if status, got := get(t, c, "GET", "https://"+host+"/large", map[string]string{"Range": "bytes=5-9"}); status !=
			206 || got != string(large[5:10]) {
			t.Errorf("%s: a range: got %d %q", protocol, status, got)
		}
		if _, got := get(t, c, "GET", "https://"+host+"/gzip", authorized); got != packed.String() {
			t.Errorf("%s: a compressed body was changed", protocol)
		}
		if status, got := get(t, c, "GET", "https://"+host+"/none", nil); status != 304 || got != "" {
			t.Errorf("%s: got %d %q", protocol, status, got)
		}
		head, err := c.Head("https://" + host + "/large")
		if err != nil || head.ContentLength != int64(len(large)) {
			t.Errorf("%s: HEAD: got %+v, %v", protocol, head, err)
		}
	}
}

func TestWebSocket(t *testing.T) {
	t.Parallel()
	w := newWorld(t, bound(t, host))
	w.serve(t, http.HandlerFunc(func(rw http.ResponseWriter, r *http.Request) {
		c, err := websocket.Accept(rw, r, nil)
		if err != nil {
			return
		}
		defer c.CloseNow()
		for {
			kind, b, err := c.Read(r.Context())
			if err != nil {
				return
			}
			_ = c.Write(r.Context(), kind, fmt.Appendf(b, " %t", isAuthorized(r)))
		}
	}))
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	c, _, err := websocket.Dial(ctx, "wss://"+host+"/", &websocket.DialOptions{HTTPClient: w.client(t, "http/1.1"),
		HTTPHeader: http.Header{"Authorization": {"Bearer " + placeholder}}})
	if err != nil {
		t.Fatal(err)
	}
	defer c.CloseNow()
	for _, text := range []string{"a", "b"} {
		if err := c.Write(ctx, websocket.MessageText, []byte(text)); err != nil {
			t.Fatal(err)
		}
		if _, got, err := c.Read(ctx); err != nil || string(got) != text+" true" {
			t.Errorf("got %q, %v", got, err)
		}
	}
	if err := c.Close(websocket.StatusNormalClosure, ""); err != nil {
		t.Error(err)
	}
}

// TestGRPC checks calls with their metadata, streams, and the status in the trailers.
func TestGRPC(t *testing.T) {
	t.Parallel()
	w := newWorld(t, bound(t, host))
	seen := make(chan string, 10)
	note := func(ctx context.Context) {
		md, _ := metadata.FromIncomingContext(ctx)
		seen <- strings.Join(md.Get("authorization"), " ")
	}
	s := grpc.NewServer(grpc.UnaryInterceptor(func(ctx context.Context, req any, _ *grpc.UnaryServerInfo,
		next grpc.UnaryHandler) (any, error) {
		note(ctx)
		return next(ctx, req)
	}))
	checks := health.NewServer()
	grpc_health_v1.RegisterHealthServer(s, checks)
	w.serve(t, s)
	conn, err := grpc.NewClient("passthrough:///"+host, grpc.WithTransportCredentials(credentials.NewTLS(&tls.Config{
		RootCAs: w.trusts, ServerName: host})), grpc.WithContextDialer(func(context.Context, string) (net.Conn, error) {
		return w.dial(t, intercepted), nil
	}))
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	ctx, cancel := context.WithTimeout(metadata.AppendToOutgoingContext(t.Context(), "authorization",
		"Bearer "+placeholder), time.Minute)
	defer cancel()
	c := grpc_health_v1.NewHealthClient(conn)
	if _, err := c.Check(ctx, &grpc_health_v1.HealthCheckRequest{}); err != nil {
		t.Errorf("a call: %v", err)
	}
	if got := <-seen; got != "Bearer "+value {
		t.Errorf("the host got %q", got)
	}
	_, err = c.Check(ctx, &grpc_health_v1.HealthCheckRequest{Service: "unknown"})
	if status.Code(err) != codes.NotFound {
		t.Errorf("a failed call: %v", err)
	}
	watch, err := c.Watch(ctx, &grpc_health_v1.HealthCheckRequest{})
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []grpc_health_v1.HealthCheckResponse_ServingStatus{grpc_health_v1.HealthCheckResponse_SERVING,
		grpc_health_v1.HealthCheckResponse_NOT_SERVING} {
		if got, err := watch.Recv(); err != nil || got.Status != want {
			t.Errorf("a stream: got %v, %v, want %v", got, err, want)
		}
		checks.SetServingStatus("", grpc_health_v1.HealthCheckResponse_NOT_SERVING)
	}
}

// TestTheHostChoosesTheProtocol checks that the sandbox speaks HTTP/2 only if the host does.
func TestTheHostChoosesTheProtocol(t *testing.T) {
	t.Parallel()
	w := newWorld(t, bound(t, host))
	w.upgrade = func(c *tls.Config) { c.NextProtos = []string{"http/1.1"} }
	w.serve(t, echo)
	resp, err := w.client(t).Get("https://" + host + "/")
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	if b, _ := io.ReadAll(resp.Body); resp.Proto != "HTTP/1.1" || !strings.HasPrefix(string(b), "HTTP/1.1") {
		t.Errorf("the sandbox speaks %s, the host got %q", resp.Proto, b)
	}
}

// TestHostsThatFail checks that the sandbox gets a sentence if its host cannot be reached or trusted, and sees when an
// answer is incomplete.
func TestHostsThatFail(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		names  []string
		remove bool
		want   string
	}{
		"another name": {names: []string{"other.example.org"}, want: "not api.example.org"},
		"unreachable":  {remove: true, want: "cannot be reached"},
	} {
		w := newWorld(t, bound(t, host))
		w.serve(t, echo, test.names...)
		if test.remove {
			clear(w.hosts)
		}
		status, got := get(t, w.client(t), "GET", "https://"+host+"/", authorized)
		if status != 502 || !strings.Contains(got, test.want) {
			t.Errorf("%s: got %d %q, want %q", name, status, got, test.want)
		}
	}
	w := newWorld(t, bound(t, host))
	w.signs = newAuthority(t) // the broker does not trust it
	w.serve(t, echo)
	if status, got := get(t, w.client(t), "GET", "https://"+host+"/", authorized); status != 502 ||
		!strings.Contains(got, "unknown authority") {
		t.Errorf("an unknown authority: got %d %q", status, got)
	}
	for _, protocol := range []string{"h2", "http/1.1"} {
		w := newWorld(t, bound(t, host))
		w.serve(t, http.HandlerFunc(func(rw http.ResponseWriter, _ *http.Request) {
			_, _ = io.WriteString(rw, "half")
			_ = http.NewResponseController(rw).Flush()
			panic(http.ErrAbortHandler)
		}))
		resp, err := w.client(t, protocol).Get("https://" + host + "/")
		if err != nil {
			t.Fatal(err)
		}
		if b, err := io.ReadAll(resp.Body); err == nil || string(b) != "half" {
			t.Errorf("%s: got %q, %v, want an error", protocol, b, err)
		}
		_ = resp.Body.Close()
	}
}

// TestHostsThatClose checks that requests continue after the host has closed its connection.
func TestHostsThatClose(t *testing.T) {
	t.Parallel()
	w := newWorld(t, bound(t, host))
	w.serve(t, http.HandlerFunc(func(rw http.ResponseWriter, r *http.Request) {
		rw.Header().Set("Connection", "close")
		fmt.Fprint(rw, isAuthorized(r))
	}))
	c := w.client(t, "http/1.1")
	for range 3 {
		if status, got := get(t, c, "GET", "https://"+host+"/", authorized); status != 200 || got != "true" {
			t.Errorf("got %d %q", status, got)
		}
	}
}

// TestHostsWithoutAName checks a binding to an address, which clients of TLS do not send.
func TestHostsWithoutAName(t *testing.T) {
	t.Parallel()
	w := newWorld(t, bound(t, hostAddr))
	w.serve(t, echo, hostAddr)
	c := w.client(t)
	c.Transport.(*http.Transport).DialTLSContext = func(ctx context.Context, _, _ string) (net.Conn, error) {
		i := intercepted
		i.Name = hostAddr
		conn := tls.Client(w.dial(t, i), &tls.Config{RootCAs: w.trusts, ServerName: hostAddr})
		return conn, conn.HandshakeContext(ctx)
	}
	if status, got := get(t, c, "GET", "https://"+hostAddr+"/", authorized); status != 200 ||
		!strings.Contains(got, "Bearer "+value) {
		t.Errorf("got %d %q", status, got)
	}
}

func TestPlainHTTP(t *testing.T) {
	t.Parallel()
	s := httptest.NewServer(echo)
	defer s.Close()
	w := newWorld(t, bound(t, "http://"+host+" bearer"))
	w.hosts[hostAddr+":80"] = s.Listener.Addr().String()
	if status, got := get(t, w.client(t), "GET", "http://"+host+"/a", authorized); status != 200 ||
		!strings.Contains(got, "Bearer "+value) {
		t.Errorf("got %d %q", status, got)
	}
	w = newWorld(t, bound(t, host+" bearer"))
	w.hosts[hostAddr+":80"] = s.Listener.Addr().String()
	if status, got := get(t, w.client(t), "GET", "http://"+host+"/a", authorized); status != 403 ||
		!strings.Contains(got, "not bound to http://"+host) {
		t.Errorf("a binding to TLS: got %d %q", status, got)
	}
}

// proxied is a connection that begins with CONNECT.
var proxied = engine.Interception{Name: host, Addr: netip.MustParseAddrPort("203.0.113.9:3128"), Connect: true}

func TestProxy(t *testing.T) {
	t.Parallel()
	w := newWorld(t, bound(t, host))
	s := w.serve(t, echo)
	proxy := httptest.NewServer(http.HandlerFunc(func(rw http.ResponseWriter, r *http.Request) {
		if r.Method != http.MethodConnect || r.RequestURI != host+":443" {
			http.Error(rw, "unexpected", http.StatusBadRequest)
			return
		}
		if r.Header.Get("Proxy-Authorization") != "Basic secret" {
			http.Error(rw, "password", http.StatusProxyAuthRequired)
			return
		}
		up, err := net.Dial("tcp", s.Listener.Addr().String())
		if err != nil {
			return
		}
		c, _, err := http.NewResponseController(rw).Hijack()
		if err != nil {
			return
		}
		_, _ = io.WriteString(c, "HTTP/1.1 200 OK\r\n\r\n")
		go func() { _, _ = io.Copy(up, c); _ = up.Close() }()
		_, _ = io.Copy(c, up)
		_ = c.Close()
	}))
	defer proxy.Close()
	w.hosts[proxied.Addr.String()] = proxy.Listener.Addr().String()
	connect := func(head string) (net.Conn, string) {
		c := w.dial(t, proxied)
		_, _ = fmt.Fprintf(c, "CONNECT %s:443 HTTP/1.1\r\nHost: %[1]s:443\r\n%s\r\n", host, head)
		line := make([]byte, len("HTTP/1.1 200"))
		_, _ = io.ReadFull(c, line)
		return c, string(line)
	}
	c, line := connect("Proxy-Authorization: Basic secret\r\n")
	rest := make([]byte, len(" Connection established\r\n\r\n"))
	if _, err := io.ReadFull(c, rest); line != "HTTP/1.1 200" || err != nil {
		t.Fatalf("got %q %q, %v", line, rest, err)
	}
	used := false
	tr := &http.Transport{DialTLSContext: func(context.Context, string, string) (net.Conn, error) {
		if used {
			return nil, net.ErrClosed
		}
		used = true
		return tls.Client(c, &tls.Config{RootCAs: w.trusts, ServerName: host}), nil
	}}
	defer tr.CloseIdleConnections()
	if status, got := get(t, &http.Client{Transport: tr}, "GET", "https://"+host+"/", authorized); status != 200 ||
		!strings.Contains(got, "Bearer "+value) {
		t.Errorf("got %d %q", status, got)
	}
	if c, line := connect(""); line != "HTTP/1.1 407" {
		t.Errorf("without the proxy's password: got %q", line)
	} else {
		_ = c.Close()
	}
	clear(w.hosts)
	if c, line := connect(""); line != "HTTP/1.1 502" {
		t.Errorf("without a proxy: got %q", line)
	} else {
		_ = c.Close()
	}
}

package server_test

import (
	"bufio"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/coder/websocket"

	"github.com/RelevanceAI/harvest/client/api"
	"github.com/RelevanceAI/harvest/internal/base/account"
)

// secure also listens with TLS. It returns the address, and a client that trusts the certificate and speaks HTTP/2 if
// possible.
func (w *world) secure() (string, *http.Client) {
	w.t.Helper()
	certified := httptest.NewTLSServer(nil) // for its certificate
	pair := certified.TLS.Certificates[0]
	roots := x509.NewCertPool()
	roots.AddCert(certified.Certificate())
	certified.Close()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		w.t.Fatal(err)
	}
	served := make(chan error, 1)
	go func() {
		served <- w.server.Serve(tls.NewListener(l, &tls.Config{Certificates: []tls.Certificate{pair},
			NextProtos: []string{"h2", "http/1.1"}}))
	}()
	c := &http.Client{Transport: &http.Transport{TLSClientConfig: &tls.Config{RootCAs: roots}, ForceAttemptHTTP2: true}}
	w.t.Cleanup(func() {
		c.CloseIdleConnections()
		if err := w.server.Close(); err != nil {
			w.t.Error(err)
		}
		if err := <-served; err != nil {
			w.t.Error(err)
		}
	})
	return "https://" + l.Addr().String(), c
}

// TestHTTP2 checks that everything works with HTTP/2, many streams on one connection, and WebSockets beside it.
// mission: F1
func TestHTTP2(t *testing.T) {
	t.Parallel()
	w := start(t)
	key := w.as(account.Request{}).headers[1]
	w.create()
	base, c := w.secure()
	ask := func(method, path, body string, header ...string) *http.Response {
		t.Helper()
		req, err := http.NewRequestWithContext(t.Context(), method, base+path, strings.NewReader(body))
		if err != nil {
			t.Fatal(err)
		}
		req.Header.Set("Authorization", key)
		for i := 0; i < len(header); i += 2 {
			req.Header.Set(header[i], header[i+1])
		}
		resp, err := c.Do(req)
		if err != nil {
			t.Fatal(err)
		}
		if resp.ProtoMajor != 2 {
			t.Errorf("%s %s was answered with %s", method, path, resp.Proto)
		}
		return resp
	}
	// Events arrive as they happen, on many streams at once.
	const many = 50
	streams := make([]*bufio.Reader, many)
	for i := range streams {
		resp := ask("POST", "/v1/sandboxes/box/exec", `{"args":["sh","-c","echo first; sleep 300"]}`, "Accept",
			api.TypeEvents)
		defer resp.Body.Close()
		streams[i] = bufio.NewReader(resp.Body)
	}
	for i, s := range streams {
		for line := ""; !strings.Contains(line, "first"); {
			var err error
			if line, err = s.ReadString('\n'); err != nil {
				t.Fatalf("stream %d: %v", i, err)
			}
		}
	}
	// A large body is uploaded and downloaded.
	content := strings.Repeat("0123456789abcdef", 1<<18)
	resp := ask("PUT", "/v1/sandboxes/box/files?path=/tmp/h2", content)
	resp.Body.Close()
	if resp.StatusCode >= 300 {
		t.Fatalf("upload: %s", resp.Status)
	}
	resp = ask("GET", "/v1/sandboxes/box/files?path=/tmp/h2", "")
	got, err := io.ReadAll(resp.Body)
	resp.Body.Close()
	if err != nil || string(got) != content {
		t.Errorf("download: %d bytes, %v", len(got), err)
	}
	// A refused body does not end the connection.
	resp = ask("POST", "/v1/sandboxes", strings.Repeat(" ", 2<<20))
	var p api.Problem
	if err := json.NewDecoder(resp.Body).Decode(&p); err != nil || p.Status != http.StatusRequestEntityTooLarge {
		t.Errorf("too large: %+v, %v", p, err)
	}
	resp.Body.Close()
	conn, _, err := websocket.Dial(t.Context(), base+"/v1/sandboxes/box/exec", &websocket.DialOptions{
		HTTPHeader: http.Header{"Authorization": {key}},
		HTTPClient: &http.Client{Transport: &http.Transport{TLSClientConfig: c.Transport.(*http.Transport).TLSClientConfig.Clone()}},
	})
	if err != nil {
		t.Fatal(err)
	}
	defer conn.CloseNow()
	if err := conn.Write(t.Context(), websocket.MessageText, []byte(`{"args":["echo","out"]}`)); err != nil {
		t.Fatal(err)
	}
	if _, msg, err := conn.Read(t.Context()); err != nil || !strings.Contains(string(msg), "started") {
		t.Errorf("WebSocket: %q, %v", msg, err)
	}
}

package broker

import (
	"bufio"
	"context"
	"crypto/tls"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"
)

// raw sends text over a connection of HTTP/1.1 and TLS, and returns the beginning of the answer.
func (w *world) raw(t *testing.T, text string) string {
	t.Helper()
	c := tls.Client(w.dial(t, intercepted), &tls.Config{RootCAs: w.trusts, ServerName: host,
		NextProtos: []string{"http/1.1"}})
	defer c.Close()
	_ = c.SetDeadline(time.Now().Add(time.Minute))
	go func() { _, _ = io.WriteString(c, text) }() // the broker may answer before it has read everything
	line, _ := bufio.NewReader(c).ReadString('\n')
	return strings.TrimSpace(line)
}

// TestHostileRequests checks that no request of a sandbox gets the value to another place than the binding's, and that
// the broker refuses what hosts read differently.
func TestHostileRequests(t *testing.T) {
	t.Parallel()
	w := newWorld(t, bound(t, host))
	var mu sync.Mutex
	var got []string // requests that the host got
	w.serve(t, http.HandlerFunc(func(rw http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body)
		mu.Lock()
		defer mu.Unlock()
		got = append(got, fmt.Sprintf("%s %s %s %q %q", r.Method, r.Host, r.URL.Path, r.Header.Get("Authorization"),
			body))
	}))
	auth := "Authorization: Bearer " + placeholder + "\r\n"
	for name, test := range map[string]struct{ text, want string }{
		"another Host": {"GET / HTTP/1.1\r\nHost: evil.example\r\n" + auth + "\r\n", "421"},
		"two Hosts":    {"GET / HTTP/1.1\r\nHost: " + host + "\r\nHost: evil.example\r\n" + auth + "\r\n", "400"},
		"no Host":      {"GET / HTTP/1.1\r\n" + auth + "\r\n", "400"},
		"another host in the request line": {"GET https://evil.example/ HTTP/1.1\r\nHost: " + host + "\r\n" + auth +
			"\r\n",
			"421"},
		"TRACE":   {"TRACE / HTTP/1.1\r\nHost: " + host + "\r\n" + auth + "\r\n", "405"},
		"CONNECT": {"CONNECT " + host + ":443 HTTP/1.1\r\nHost: " + host + "\r\n" + auth + "\r\n", "405"},
		"10,000 headers": {"GET / HTTP/1.1\r\nHost: " + host + "\r\n" + strings.Repeat("X-Many: "+placeholder+"\r\n",
			10000) +
			"\r\n", "431"},
		"a space in a name": {"GET / HTTP/1.1\r\nHost: " + host + "\r\nA : b\r\n\r\n", "400"},
		"no request":        {"\x00\x01\x02\r\n\r\n", "400"},
	} {
		if line := w.raw(t, test.text); !strings.HasPrefix(line, "HTTP/1.1 "+test.want) {
			t.Errorf("%s: got %q, want %s", name, line, test.want)
		}
	}
	if len(got) > 0 {
		t.Errorf("the host got %q", got)
	}
	// A length and chunks together: the host gets one request, without the length.
	w.raw(t, "POST /both HTTP/1.1\r\nHost: "+host+"\r\nContent-Length: 4\r\nTransfer-Encoding: chunked\r\n\r\n"+
		"0\r\n\r\nGET /smuggled HTTP/1.1\r\nHost: "+host+"\r\n\r\n")
	mu.Lock()
	defer mu.Unlock()
	for _, r := range got {
		if strings.Contains(r, "/both") && !strings.HasSuffix(r, `""`) {
			t.Errorf("the host got %q", r)
		}
	}
}

// TestHostileHTTP2 checks an :authority that is another host's.
func TestHostileHTTP2(t *testing.T) {
	t.Parallel()
	w := newWorld(t, bound(t, host))
	w.serve(t, echo)
	c := tls.Client(w.dial(t, intercepted), &tls.Config{RootCAs: w.trusts, ServerName: host,
		NextProtos: []string{"h2"}})
	if err := c.HandshakeContext(t.Context()); err != nil {
		t.Fatal(err)
	}
	conn := &http.Transport{ForceAttemptHTTP2: true,
		DialTLSContext: func(context.Context, string, string) (net.Conn, error) { return c, nil }}
	defer conn.CloseIdleConnections()
	for name, want := range map[string]int{host: 200, "evil.example": 421, host + ".": 200, host + ":443": 200} {
		r, _ := http.NewRequestWithContext(t.Context(), "GET", "https://"+host+"/", nil)
		r.Host = name
		r.Header.Set("Authorization", "Bearer "+placeholder)
		resp, err := conn.RoundTrip(r)
		if err != nil {
			t.Fatal(err)
		}
		b, _ := io.ReadAll(resp.Body)
		if resp.StatusCode != want || resp.ProtoMajor != 2 || want == 421 && strings.Contains(string(b), value) {
			t.Errorf("%s: got %d %q, want %d", name, resp.StatusCode, b, want)
		}
		_ = resp.Body.Close()
	}
}

// TestAnotherServerName checks that a ClientHello that the broker reads differently than the gateway gets no
// certificate.
func TestAnotherServerName(t *testing.T) {
	t.Parallel()
	w := newWorld(t, bound(t, host))
	w.serve(t, echo)
	for _, name := range []string{"evil.example", ""} {
		c := tls.Client(w.dial(t, intercepted), &tls.Config{RootCAs: w.trusts, ServerName: name,
			InsecureSkipVerify: true})
		if err := c.HandshakeContext(t.Context()); err == nil {
			t.Errorf("%q: the handshake succeeds", name)
		}
		_ = c.Close()
	}
}

func TestLimits(t *testing.T) {
	t.Parallel()
	w := newWorld(t, bound(t, host))
	w.serve(t, echo)
	w.Broker.mu.Lock()
	w.conns["sb"], w.total = maxConnsOfOne, maxConnsOfOne
	w.Broker.mu.Unlock()
	if status, got := get(t, w.client(t), "GET", "https://"+host+"/", authorized); status != 503 ||
		!strings.Contains(got, "too many connections") || strings.Contains(got, value) {
		t.Errorf("got %d %q", status, got)
	}
	w.Broker.mu.Lock()
	w.conns["sb"] -= maxConnsOfOne
	w.total -= maxConnsOfOne
	w.Broker.mu.Unlock()
}

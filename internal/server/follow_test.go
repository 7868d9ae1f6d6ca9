package server_test

import (
	"bufio"
	"context"
	"io"
	"net/http"
	"net/netip"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/coder/websocket"

	"github.com/RelevanceAI/harvest/client/api"
	"github.com/RelevanceAI/harvest/internal/base/account"
	"github.com/RelevanceAI/harvest/internal/base/testenv"
	"github.com/RelevanceAI/harvest/internal/server"
)

// opened is something that a key has opened: the function returns how it ended.
type opened func() string

// socket opens a WebSocket, and returns the reason with which it is closed.
func (w *world) socket(ctx context.Context, path, first string) opened {
	w.t.Helper()
	conn, resp, err := websocket.Dial(ctx, w.url+path,
		&websocket.DialOptions{HTTPHeader: http.Header{"Authorization": {w.headers[1]}}})
	if err != nil {
		text := []byte(nil)
		if resp != nil {
			text, _ = io.ReadAll(resp.Body)
		}
		w.t.Fatalf("%s: %v: %s", path, err, text)
	}
	w.t.Cleanup(func() { conn.CloseNow() })
	conn.SetReadLimit(-1)
	if first != "" {
		if err := conn.Write(ctx, websocket.MessageText, []byte(first)); err != nil {
			w.t.Fatal(path, err)
		}
	}
	return func() string {
		for {
			if _, _, err := conn.Read(ctx); err != nil {
				return err.Error()
			}
		}
	}
}

// asking sends a request that does not end by itself, and returns its answer from the first byte on, and the error.
func (w *world) asking(ctx context.Context, method, path string, body io.Reader, header ...string) opened {
	w.t.Helper()
	req, err := http.NewRequestWithContext(ctx, method, w.url+path, body)
	if err != nil {
		w.t.Fatal(err)
	}
	for header = append(header, w.headers...); len(header) > 0; header = header[2:] {
		if header[0] == "Host" {
			req.Host = header[1]
		}
		req.Header.Set(header[0], header[1])
	}
	got := make(chan string, 1)
	go func() {
		resp, err := http.DefaultClient.Do(req)
		if err != nil {
			got <- err.Error()
			return
		}
		defer resp.Body.Close()
		text, err := io.ReadAll(io.LimitReader(resp.Body, 1<<20))
		if err == nil {
			_, err = io.Copy(io.Discard, resp.Body)
		}
		if err != nil {
			text = append(text, err.Error()...)
		}
		got <- resp.Status + " " + string(text)
	}()
	return func() string {
		select {
		case text := <-got:
			return text
		case <-ctx.Done():
			return "it goes on"
		}
	}
}

// TestStreamsEndWithTheirKey checks that each stream that a key has opened ends with the key, with the reason if the
// protocol has room for one. TestWorkEndsWithItsKey of package account checks that it ends at that moment.
//
// mission: 6.10
func TestStreamsEndWithTheirKey(t *testing.T) {
	t.Parallel()
	// All streams must be open before the key expires, on a busy machine too.
	for how, life := range map[string]time.Duration{"revoked": 0, "expired": 15 * time.Second} {
		t.Run(how, func(t *testing.T) {
			t.Parallel()
			testStreamsEnd(t, how, life)
		})
	}
}

// testStreamsEnd opens every kind of stream with a key that expires after life, or is revoked if life is 0.
func testStreamsEnd(t *testing.T, how string, life time.Duration) {
	_, events := withJournal(t)
	w := startOn(t, withPorts, events, func(o *server.Options) { o.PortDomain = "ports.example" })
	box := w.create()
	port, _ := servePort(t, nil, func(w http.ResponseWriter, _ *http.Request) {
		for { // a download that never ends
			if _, err := w.Write(make([]byte, 64<<10)); err != nil {
				return
			}
		}
	})
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	made, secret, err := w.ring.Create(ctx, account.Local(), account.Request{Name: how, Life: life})
	if err != nil {
		t.Fatal(err)
	}
	k := &world{t: t, url: w.strict, headers: []string{"Authorization", "Bearer " + secret.Reveal()}}
	upload, rest := io.Pipe()
	defer rest.Close()
	slow := k.asking(ctx, "GET", "/v1/sandboxes/box/ports/"+port+"/events", nil)
	const said, cut = "key ", ""
	all := map[string]struct {
		opened
		reason string
	}{
		"a command by WebSocket": {k.socket(ctx, "/v1/sandboxes/box/exec", `{"args":["sleep","1000"]}`), said},
		"a run by WebSocket":     {k.socket(ctx, "/v1/run", `{"args":["sleep","1000"]}`), said},
		"a tunnel":               {k.socket(ctx, "/v1/sandboxes/box/connect?port="+port, ""), said},
		"events":                 {k.asking(ctx, "GET", "/v1/events", nil), said},
		"a command with events": {k.asking(ctx, "POST", "/v1/sandboxes/box/exec",
			strings.NewReader(`{"args":["sleep","1000"]}`), "Accept", api.TypeEvents), said},
		"a command": {k.asking(ctx, "POST", "/v1/sandboxes/box/exec",
			strings.NewReader(`{"args":["sleep","1000"]}`)), said},
		"an upload":              {k.asking(ctx, "PUT", "/v1/sandboxes/box/archive?path=/tmp", upload), said},
		"an event stream inside": {slow, cut},
		"a download":             {k.asking(ctx, "GET", "/v1/sandboxes/box/ports/"+port+"/", nil), cut},
		"a port's own name": {k.asking(ctx, "GET", "/events", nil, "Host",
			port+"-"+strings.ReplaceAll(box.ID, "_", "-")+".ports.example"), cut},
	}
	if _, err := rest.Write([]byte("x")); err != nil { // it has begun
		t.Fatal(err)
	}
	if life == 0 {
		testenv.Eventually(t, "the commands run", func() bool { return w.fleet.Stats().Commands >= 4 })
		if err := w.ring.Revoke(ctx, account.Local(), made.ID); err != nil {
			t.Fatal(err)
		}
	}
	for name, o := range all {
		got := o.opened()
		switch {
		case ctx.Err() != nil:
			t.Errorf("%s goes on after its key was %s", name, how)
		case o.reason != "" && (!strings.Contains(got, how) || !strings.Contains(got, o.reason)):
			t.Errorf("%s ends without the reason: %.300q", name, got)
		}
	}
}

// TestDownloadThatNobodyReadsEndsWithItsKey checks that a response that waits for its reader ends with the key, too.
func TestDownloadThatNobodyReadsEndsWithItsKey(t *testing.T) {
	t.Parallel()
	w := startOn(t, withPorts)
	w.create()
	var sent atomic.Int64
	port, _ := servePort(t, nil, func(w http.ResponseWriter, _ *http.Request) {
		for {
			n, err := w.Write(make([]byte, 64<<10))
			if err != nil {
				return
			}
			sent.Add(int64(n))
		}
	})
	made, secret, err := w.ring.Create(t.Context(), account.Local(), account.Request{Name: "k"})
	if err != nil {
		t.Fatal(err)
	}
	k := &world{t: t, url: w.strict}
	k.sent("GET /v1/sandboxes/box/ports/" + port + "/ HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer " +
		secret.Reveal() + "\r\n\r\n")
	last := int64(-1)
	testenv.Eventually(t, "all buffers are full", func() bool {
		was := last
		time.Sleep(200 * time.Millisecond)
		last = sent.Load()
		return last > 0 && last == was
	})
	if err := w.ring.Revoke(t.Context(), account.Local(), made.ID); err != nil {
		t.Fatal(err)
	}
	testenv.Eventually(t, "no request is in progress after the revocation", func() bool {
		_, body := w.do("GET", "/readyz", "")
		return parse[api.Server](t, body).Requests == 0
	})
}

// TestTerminalEndsWithItsKey checks that the connection ends with the key that opened it, and the shell does not.
func TestTerminalEndsWithItsKey(t *testing.T) {
	t.Parallel()
	w := start(t)
	w.create()
	made, secret, err := w.ring.Create(t.Context(), account.Local(), account.Request{Name: "k"})
	if err != nil {
		t.Fatal(err)
	}
	k := &world{t: t, url: w.strict, headers: []string{"Authorization", "Bearer " + secret.Reveal()}}
	terminal := k.tty("")
	terminal.send(api.StreamStdin, "n=$((6*7)); echo began $n\n")
	terminal.expect("began 42")
	if err := w.ring.Revoke(t.Context(), account.Local(), made.ID); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	for err == nil {
		_, _, err = terminal.conn.Read(ctx)
	}
	if !strings.Contains(err.Error(), "key was revoked") {
		t.Errorf("it ends with %q", err)
	}
	other := w.tty("")
	other.send(api.StreamStdin, "echo still $n\n")
	other.expect("still 42")
}

// TestReaderOfHalfARequestIsTold checks that a request whose body stalls ends with its key, too.
func TestReaderOfHalfARequestIsTold(t *testing.T) {
	t.Parallel()
	w := start(t)
	w.create()
	made, secret, err := w.ring.Create(t.Context(), account.Local(), account.Request{Name: "k"})
	if err != nil {
		t.Fatal(err)
	}
	k := &world{t: t, url: w.strict}
	conn, in := k.sent("PUT /v1/sandboxes/box/files?path=/tmp/x HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer " +
		secret.Reveal() + "\r\nContent-Length: 100\r\n\r\nhalf")
	defer conn.Close()
	k.headers = []string{"Authorization", "Bearer " + secret.Reveal()}
	for used := false; !used; { // the request has come
		all, err := w.ring.List(t.Context(), account.Local(), false)
		if err != nil {
			t.Fatal(err)
		}
		used = !all[0].LastUsed.IsZero()
	}
	if err := w.ring.Revoke(t.Context(), account.Local(), made.ID); err != nil {
		t.Fatal(err)
	}
	resp, err := http.ReadResponse(bufio.NewReader(in), nil)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	text, _ := io.ReadAll(resp.Body)
	if resp.StatusCode != http.StatusUnauthorized || !strings.Contains(string(text), "revoked") &&
		!strings.Contains(string(text), "not known") {
		t.Errorf("%s %s", resp.Status, text)
	}
}

// TestReadyzTellsOperatorsOnly checks that callers other than the operator learn nothing about other accounts, and that
// callers without a key do not even get the version.
func TestReadyzTellsOperatorsOnly(t *testing.T) {
	t.Parallel()
	w := start(t)
	w.create()
	operator, member, other := w.as(account.Request{Role: account.Admin}), w.as(account.Request{}),
		w.as(account.Request{Account: "acme", Role: account.Admin})
	if _, body := operator.do("GET", "/readyz", ""); !strings.Contains(body, `"pid":`) ||
		!strings.Contains(body, `"sandboxes":1`) {
		t.Errorf("an operator sees %s", body)
	}
	for name, k := range map[string]*world{"member": member, "other": other} {
		resp, body := k.do("GET", "/readyz", "")
		for _, word := range []string{"pid", "sandboxes", "commands", "requests", "background"} {
			if strings.Contains(body, `"`+word+`"`) {
				t.Errorf("the %s sees %s: %s", name, word, body)
			}
		}
		if resp.StatusCode != 200 || !strings.Contains(body, `"engine":"fake"`) ||
			resp.Header.Get(api.HeaderVersion) != "test" {
			t.Errorf("the %s sees too little: %s %s", name, resp.Status, body)
		}
	}
	for _, path := range []string{"/", "/readyz", "/healthz", "/docs", "/v1/openapi.json", "/v1/sandboxes",
		"/nothing", "/sign-in"} {
		resp, body := w.stranger().do("GET", path, "")
		if resp.Header.Get(api.HeaderVersion) != "" || strings.Contains(body, `"version":"test"`) {
			t.Errorf("%s tells strangers the version: %v", path, resp.Header)
		}
	}
}

// TestAnswersAreNotKept checks that answers to a request with a key must not be cached, and that browsers that came
// over TLS return over TLS.
func TestAnswersAreNotKept(t *testing.T) {
	t.Parallel()
	w := start(t, func(o *server.Options) { o.Proxies = []netip.Prefix{netip.MustParsePrefix("127.0.0.0/8")} })
	w.create()
	k := w.as(account.Request{})
	for _, path := range []string{"/v1/sandboxes", "/v1/account", "/v1/sandboxes/box/archive?path=/tmp"} {
		resp, _ := k.do("GET", path, "", "X-Forwarded-Proto", "https")
		if resp.Header.Get("Cache-Control") != "no-store" || resp.Header.Get("Strict-Transport-Security") == "" {
			t.Errorf("%s: %v", path, resp.Header)
		}
		if resp, _ = k.do("GET", path, ""); resp.Header.Get("Strict-Transport-Security") != "" {
			t.Errorf("%s without TLS: %v", path, resp.Header)
		}
	}
}

// TestPortAtWhichNothingListens checks that a port without a listener is reported as such, for every method, and not as
// a fault of the server.
func TestPortAtWhichNothingListens(t *testing.T) {
	t.Parallel()
	w := startOn(t, withPorts)
	w.create()
	port := testenv.FreePort(t)
	port = port[strings.LastIndexByte(port, ':')+1:]
	for _, method := range []string{"GET", "DELETE", "POST", "PUT", "OPTIONS"} {
		resp, body := w.do(method, "/v1/sandboxes/box/ports/"+port+"/", "")
		if resp.StatusCode != http.StatusServiceUnavailable || !strings.Contains(body, "nothing listens") ||
			strings.Contains(body, "inside Harvest") {
			t.Errorf("%s: %s %s", method, resp.Status, body)
		}
	}
}

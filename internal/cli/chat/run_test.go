package chat

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"

	"github.com/charmbracelet/x/vt"
	"github.com/creack/pty"

	"github.com/RelevanceAI/harvest/client"
	"github.com/RelevanceAI/harvest/client/api"
	"github.com/RelevanceAI/harvest/client/errors"
	"github.com/RelevanceAI/harvest/internal/base/testenv"
)

// wire is the protocol of a server: events that a test sends, and the requests that come.
type wire struct {
	mu       sync.Mutex
	requests []string      // guarded by mu
	fail     bool          // guarded by mu: requests are refused
	events   []string      // guarded by mu
	more     chan struct{} // closed and replaced when more events arrive; guarded by mu
}

func newWire(t *testing.T) (*wire, *client.Client) {
	t.Helper()
	w := &wire{more: make(chan struct{})}
	w.event("session.created", `{"status":"ready"}`)
	server := httptest.NewServer(http.HandlerFunc(w.serve))
	c, err := client.At(server.URL, "")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		c.Close()
		server.CloseClientConnections()
		server.Close()
	})
	return w, c
}

func (w *wire) event(kind, data string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.events = append(w.events, fmt.Sprintf("id: %d\nevent: %s\ndata: %s\n\n", len(w.events)+1, kind, data))
	close(w.more)
	w.more = make(chan struct{})
}

func (w *wire) serve(resp http.ResponseWriter, req *http.Request) {
	if req.URL.Path != api.Events {
		body, _ := io.ReadAll(req.Body)
		w.mu.Lock()
		w.requests = append(w.requests, req.Method+" "+req.URL.RequestURI()+" "+strings.TrimSpace(string(body)))
		fail := w.fail
		w.mu.Unlock()
		switch {
		case fail:
			resp.Header().Set("Content-Type", "application/problem+json")
			resp.WriteHeader(http.StatusConflict)
			_ = json.NewEncoder(resp).Encode(map[string]any{"status": 409, "detail": "it is refused",
				"code": "conflict", "remedy": "wait for it"})
		case strings.HasSuffix(req.URL.Path, "/diff"):
			_, _ = io.WriteString(resp, "diff --git a/x b/x\n+new\n")
		case req.Method == http.MethodPost && strings.HasSuffix(req.URL.Path, "/messages"):
			resp.WriteHeader(http.StatusAccepted)
			_, _ = io.WriteString(resp, `{"message_id":"msg_1"}`)
		case strings.HasSuffix(req.URL.Path, "/mcp"):
			resp.Header().Set("Content-Type", "application/json")
			_, _ = io.WriteString(resp, `{"data":[{"name":"memory","status":"connected"},`+
				`{"name":"b","status":"failed","error":"it died"}]}`)
		default:
			resp.WriteHeader(http.StatusNoContent)
		}
		return
	}
	resp.Header().Set("Content-Type", api.TypeEvents)
	from := 0
	if req.URL.Query().Get("tail") == "1" {
		w.mu.Lock()
		from = len(w.events) - 1
		w.mu.Unlock()
	}
	for {
		w.mu.Lock()
		events, more := w.events[from:], w.more
		from = len(w.events)
		w.mu.Unlock()
		for _, e := range events {
			_, _ = io.WriteString(resp, e)
		}
		resp.(http.Flusher).Flush()
		select {
		case <-more:
		case <-req.Context().Done():
			return
		}
	}
}

// asked waits for a request.
func (w *wire) asked(t *testing.T, text string) {
	t.Helper()
	testenv.Try(t, func() error {
		w.mu.Lock()
		defer w.mu.Unlock()
		if !strings.Contains(strings.Join(w.requests, "\n"), text) {
			return errors.Errorf("no request %q: %q", text, w.requests)
		}
		return nil
	})
}

// page is an output that tests read while it grows.
type page struct {
	mu   sync.Mutex
	text strings.Builder // guarded by mu
}

func (p *page) Write(b []byte) (int, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.text.Write(b)
}

func (p *page) String() string {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.text.String()
}

func shows(t *testing.T, what fmt.Stringer, text string) {
	t.Helper()
	testenv.Try(t, func() error {
		if got := what.String(); !strings.Contains(got, text) {
			return errors.Errorf("%q is not in:\n%s", text, got)
		}
		return nil
	})
}

// TestRunPlain checks that a conversation in lines has no escape sequence, and a word for each silence.
// mission: E3
func TestRunPlain(t *testing.T) {
	t.Parallel()
	w, server := newWire(t)
	in, typed := io.Pipe()
	out := &page{}
	over := make(chan error, 1)
	go func() {
		over <- Run(t.Context(), Options{Server: server, Session: api.Session{ID: "ses_1"}, In: in,
			Out: out, Plain: true,
			Checkout: func(_ context.Context, branch string) (string, error) { return "branch " + branch, nil },
			Apply:    func(context.Context) (string, error) { return "", errors.Newf(errors.Conflict, "a conflict") }})
	}()
	lines := func(text string) { _, _ = io.WriteString(typed, text+"\n") }
	lines("first \\\nsecond")
	w.asked(t, `POST /v1/sessions/ses_1/messages {"prompt":"first \nsecond"}`)
	w.event("message.queued", `{"message":{"id":"msg_1","prompt":"first \nsecond"}}`)
	w.event("message.sent", `{"message":{"id":"msg_1","prompt":"first \nsecond"}}`)
	shows(t, out, "> first \n  second\n")
	shows(t, out, "(waiting for the model, ")
	lines("/stop")
	w.asked(t, "POST /v1/sessions/ses_1/stop")
	w.event("agent.asked", `{"id":"q","tool":"Bash","input":{"command":"x"}}`)
	shows(t, out, "? May Bash run?  x\n  1. yes\n")
	lines("1")
	w.asked(t, `POST /v1/sessions/ses_1/answers/q {"allow":true}`)
	lines("/diff")
	shows(t, out, "diff --git a/x b/x\n+new\n")
	lines("/mcp")
	shows(t, out, "memory  ready\nb       failed: it died\n")
	lines("/mcp restart b")
	w.asked(t, "POST /v1/sessions/ses_1/mcp/b/restart")
	lines("/checkout mine")
	shows(t, out, "branch mine")
	lines("/apply")
	shows(t, out, "error: a conflict")
	w.event("message.queued", `{"message":{"id":"msg_2","prompt":"more"}}`)
	lines("/stop")
	lines("more")
	w.asked(t, `{"prompt":"more"}`)
	w.event("done", `{"interrupted":true}`)
	shows(t, out, "stopped")
	lines("/cancel")
	w.asked(t, "DELETE /v1/sessions/ses_1/messages/msg_2")
	w.mu.Lock()
	w.fail = true
	w.mu.Unlock()
	lines("/end discard")
	shows(t, out, "error: it is refused\n  try: wait for it")
	lines("/diff")
	w.event("message.cancelled", `{"message":{"id":"msg_2"}}`)
	typed.Close()
	if err := <-over; err != nil {
		t.Error(err)
	}
	shows(t, out, "Session ses_1 stays. To return:\n  harvest agent --continue ses_1\n")
	if strings.ContainsAny(out.String(), "\x1b\r") {
		t.Errorf("%q", out.String())
	}
}

// brokenPage fails on each write.
type brokenPage struct{}

func (brokenPage) Write([]byte) (int, error) { return 0, io.ErrClosedPipe }

func TestRunFails(t *testing.T) {
	t.Parallel()
	w, server := newWire(t)
	in, typed := io.Pipe()
	defer typed.Close()
	o := Options{Server: server, Session: api.Session{ID: "ses_1"}, In: in, Out: &page{}, Plain: true}
	ended, cancel := context.WithCancel(t.Context())
	cancel()
	if err := Run(ended, o); err == nil {
		t.Error("a context that has ended: no error")
	}
	tty, terminal, err := pty.Open()
	if err != nil {
		t.Fatal(err)
	}
	defer tty.Close()
	defer terminal.Close()
	ctx, leave := context.WithCancel(t.Context())
	over := make(chan error, 1)
	out := &page{}
	o.Out = out
	go func() { over <- Run(ctx, o) }()
	w.event("message.queued", `{"message":{"id":"msg_1","prompt":"go"}}`)
	shows(t, out, "starting the agent")
	leave()
	if err := <-over; err != nil || !strings.Contains(out.String(), "The agent continues in session ses_1.") {
		t.Errorf("left by a signal: %v, %q", err, out.String())
	}
	o.Out = brokenPage{}
	if err := Run(t.Context(), o); err == nil {
		t.Error("output that cannot be written: no error")
	}
	o.Plain, o.Terminal = false, -1
	if err := Run(t.Context(), o); err == nil {
		t.Error("no terminal: no error")
	}
	o.Terminal = int(terminal.Fd())
	if err := Run(t.Context(), o); err == nil {
		t.Error("a terminal that cannot be written: no error")
	}
	w.event("done", `7`)
	for _, plain := range []bool{true, false} {
		o.Plain, o.Out = plain, &page{}
		if err := Run(t.Context(), o); errors.KindOf(err) != errors.Unavailable {
			t.Errorf("an event that cannot be decoded, plain %t: %v", plain, err)
		}
	}
}

// A conversation on a terminal that changes its size.
func TestRunTerminal(t *testing.T) {
	t.Parallel()
	w, server := newWire(t)
	tty, terminal, err := pty.Open()
	if err != nil {
		t.Fatal(err)
	}
	defer tty.Close()
	if err := pty.Setsize(tty, &pty.Winsize{Rows: 10, Cols: 40}); err != nil {
		t.Fatal(err)
	}
	look := &drawn{term: vt.NewEmulator(40, 10)}
	go func() { _, _ = io.Copy(look, tty) }()
	resized := make(chan struct{})
	over := make(chan error, 1)
	go func() {
		over <- Run(t.Context(), Options{Server: server, Session: api.Session{ID: "ses_1"}, In: terminal, Out: terminal,
			Terminal: int(terminal.Fd()), Resized: resized})
		terminal.Close()
	}()
	types := func(text string) {
		if _, err := io.WriteString(tty, text); err != nil {
			t.Error(err)
		}
	}
	shows(t, look, "ready · $0.00 · /help")
	types("hello")
	shows(t, look, "› hello")
	if err := pty.Setsize(tty, &pty.Winsize{Rows: 6, Cols: 30}); err != nil {
		t.Fatal(err)
	}
	look.resize(30, 6)
	resized <- struct{}{}
	types("\r")
	w.asked(t, `{"prompt":"hello"}`)
	w.event("message.queued", `{"message":{"id":"msg_1","prompt":"hello"}}`)
	w.event("message.sent", `{"message":{"id":"msg_1","prompt":"hello"}}`)
	shows(t, look, "waiting for the model")
	types("\x0c\x1b")
	w.asked(t, "POST /v1/sessions/ses_1/stop")
	w.event("session.ended", `{"status":"ended"}`)
	if err := <-over; err != nil {
		t.Error(err)
	}
	shows(t, look, "harvest agent --continue")
}

// drawn is the screen of an emulator.
type drawn struct {
	mu   sync.Mutex
	term *vt.Emulator // guarded by mu
}

func (d *drawn) Write(b []byte) (int, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.term.Write(b)
}

func (d *drawn) String() string {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.term.String()
}

func (d *drawn) resize(width, height int) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.term.Resize(width, height)
}

package client_test

import (
	"cmp"
	"encoding/json"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/RelevanceAI/harvest/client"
	"github.com/RelevanceAI/harvest/client/api"
	"github.com/RelevanceAI/harvest/client/errors"
)

// unsteady is a server whose connections break before they answer, as often as configured.
type unsteady struct {
	mu    sync.Mutex
	fails int      // guarded by mu; how many requests are still cut off
	later int      // guarded by mu; how many are to come later
	seen  []string // guarded by mu; method, path and Idempotency-Key of each request
	after string   // Retry-After of those
	code  int      // status of those, if it is not 429
	done  func(w http.ResponseWriter, r *http.Request)
}

func (u *unsteady) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	_, _ = io.Copy(io.Discard, r.Body) // a request that was read may have been carried out
	u.mu.Lock()
	u.seen = append(u.seen, r.Method+" "+r.URL.Path+" "+r.Header.Get(api.HeaderIdempotency))
	cut, later := u.fails > 0, u.later > 0
	if cut {
		u.fails--
	} else if later {
		u.later--
	}
	u.mu.Unlock()
	switch {
	case cut:
		conn, _, err := http.NewResponseController(w).Hijack()
		if err == nil {
			conn.Close()
		}
	case later:
		w.Header().Set("Retry-After", u.after)
		w.WriteHeader(cmp.Or(u.code, http.StatusTooManyRequests))
		_ = json.NewEncoder(w).Encode(api.Problem{Code: "exhausted", Detail: "later"})
	default:
		u.done(w, r)
	}
}

func (u *unsteady) start(t *testing.T) *client.Client {
	t.Helper()
	if u.done == nil {
		u.done = func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, "{}") }
	}
	s := httptest.NewServer(u)
	t.Cleanup(s.Close)
	c, err := client.At(s.URL, "")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(c.Close)
	return c
}

// keys returns the received Idempotency-Keys.
func (u *unsteady) keys() []string {
	u.mu.Lock()
	defer u.mu.Unlock()
	return slices.Clone(u.seen)
}

// TestLostAnswersAreAskedForAgain checks that a request without an answer is repeated if the server does it only once:
// with the same Idempotency-Key, if it is a POST.
// mission: E10, F1
func TestLostAnswersAreAskedForAgain(t *testing.T) {
	t.Parallel()
	for name, call := range map[string]func(*client.Client) error{
		"POST": func(c *client.Client) error {
			_, err := c.CreateVolume(t.Context(), "v")
			return err
		},
		"POST with events": func(c *client.Client) error {
			_, err := c.CreateSandbox(t.Context(), api.SandboxRequest{}, nil)
			return err
		},
		"GET":    func(c *client.Client) error { _, err := c.Volumes(t.Context()); return err },
		"DELETE": func(c *client.Client) error { return c.DestroySandbox(t.Context(), "box") },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			u := &unsteady{fails: 2}
			if name == "POST with events" {
				u.done = func(w http.ResponseWriter, _ *http.Request) {
					_, _ = io.WriteString(w, "event: "+api.EventReady+"\ndata: {}\n\n")
				}
			}
			if err := call(u.start(t)); err != nil {
				t.Fatal(err)
			}
			seen := u.keys()
			if len(seen) != 3 || seen[0] != seen[1] || seen[1] != seen[2] {
				t.Errorf("sent: %q", seen)
			}
			if key := seen[0][len(seen[0])-1] != ' '; key != (name == "POST" || name == "POST with events") {
				t.Errorf("an Idempotency-Key: %t, in %q", key, seen[0])
			}
		})
	}
}

// mission: E10
func TestWhatIsNotSentAgain(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		u    *unsteady
		call func(*client.Client) error
		sent int
		kind errors.Kind
	}{
		"a command": {&unsteady{fails: 9},
			func(c *client.Client) error { _, err := c.Exec(t.Context(), "box", api.ExecRequest{}); return err }, 1,
			errors.Unavailable},
		"a run": {&unsteady{fails: 9},
			func(c *client.Client) error { _, err := c.RunCommand(t.Context(), api.RunRequest{}); return err }, 1,
			errors.Unavailable},
		"the question whether there is a server": {&unsteady{fails: 9},
			func(c *client.Client) error { _, err := c.Server(t.Context()); return err }, 1, errors.Unavailable},
		"more than four times": {&unsteady{fails: 9},
			func(c *client.Client) error { _, err := c.Volumes(t.Context()); return err }, 4, errors.Unavailable},
		"what is for much later": {&unsteady{later: 9, after: "3600"},
			func(c *client.Client) error { _, err := c.Volumes(t.Context()); return err }, 1, errors.Exhausted},
		"while the server stops": {&unsteady{later: 5, after: "1", code: http.StatusServiceUnavailable},
			func(c *client.Client) error { _, err := c.Exec(t.Context(), "box", api.ExecRequest{}); return err }, 6,
			""},
		"what fails for good": {&unsteady{later: 9},
			func(c *client.Client) error { _, err := c.Volumes(t.Context()); return err }, 1, errors.Exhausted},
		"what comes soon": {&unsteady{later: 1, after: "1"},
			func(c *client.Client) error { _, err := c.Exec(t.Context(), "box", api.ExecRequest{}); return err }, 2,
			""},
		"a stream": {&unsteady{fails: 9}, func(c *client.Client) error {
			return c.CopyIn(t.Context(), "box", "/", io.LimitReader(zeros{}, 1))
		}, 1, errors.Unavailable},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			err := c.call(c.u.start(t))
			if seen := c.u.keys(); len(seen) != c.sent || errors.KindOf(err) != c.kind {
				t.Errorf("sent: %q, then %v", seen, err)
			} else if c.sent == 1 && c.u.after == "" && strings.Contains(seen[0], "POST") &&
				!strings.HasSuffix(seen[0], " ") && !strings.Contains(seen[0], "volumes") {
				t.Errorf("a command is sent with an Idempotency-Key, for which the server would write a record: %q",
					seen[0])
			}
		})
	}
}

type zeros struct{}

func (zeros) Read(p []byte) (int, error) { return len(p), nil }

// TestDeletedTheFirstTime checks that a repeated DELETE that finds nothing succeeds, since the first one's answer was
// lost.
func TestDeletedTheFirstTime(t *testing.T) {
	t.Parallel()
	u := &unsteady{fails: 1, done: func(w http.ResponseWriter, _ *http.Request) {
		w.WriteHeader(http.StatusNotFound)
		_ = json.NewEncoder(w).Encode(api.Problem{Code: "not_found", Detail: "there is no such volume"})
	}}
	c := u.start(t)
	if err := c.DeleteVolume(t.Context(), "v"); err != nil {
		t.Error(err)
	}
	if err := c.DeleteVolume(t.Context(), "v"); !errors.Is(err, errors.NotFound) {
		t.Errorf("%v, want NotFound", err)
	}
}

// TestServerThatComes checks that a client waits a little for a server that has not started yet.
func TestServerThatComes(t *testing.T) {
	t.Parallel()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	address := l.Addr().String()
	l.Close()
	c, err := client.At("http://"+address, "")
	if err != nil {
		t.Fatal(err)
	}
	if _, err := c.Exec(t.Context(), "box", api.ExecRequest{}); errors.KindOf(err) != errors.Unavailable {
		t.Errorf("%v, want Unavailable", err)
	}
}

// TestWatchGoesOn checks that a broken watch is restarted, and reports that it may have missed changes.
// mission: E10
func TestWatchGoesOn(t *testing.T) {
	t.Parallel()
	frame := "event: " + api.EventFile + "\ndata: "
	u := &unsteady{done: func(w http.ResponseWriter, _ *http.Request) {
		_, _ = io.WriteString(w, frame+`{"kind":"ready"}`+"\n\n"+frame+`{"kind":"created","path":"a"}`+"\n\n")
	}}
	c := u.start(t)
	var kinds []string
	end := errors.Newf(errors.Canceled, "enough")
	err := c.WatchFiles(t.Context(), "box", "/", false, func(change api.FileChange) error {
		if kinds = append(kinds, change.Kind); len(kinds) == 4 {
			return end
		}
		return nil
	})
	if want := []string{"ready", "created", "lagged", "created"}; !slices.Equal(kinds, want) || !errors.Is(err, end) {
		t.Errorf("%q, %v", kinds, err)
	}
}

// TestTailKnowsWhereItBegan checks that a client that wants only new events misses none if the connection breaks before
// the first one.
// mission: E10
func TestTailKnowsWhereItBegan(t *testing.T) {
	t.Parallel()
	var mu sync.Mutex
	var asked []string
	u := &unsteady{done: func(w http.ResponseWriter, r *http.Request) {
		mu.Lock()
		asked = append(asked, r.URL.RawQuery)
		first := len(asked) == 1
		mu.Unlock()
		text := "id: 41\n\n"
		if !first {
			text += "id: 42\nevent: x\ndata: {}\n\n"
		}
		_, _ = io.WriteString(w, text)
	}}
	c := u.start(t)
	for e, err := range c.Events(t.Context(), client.Follow{Tail: -1}) {
		if err != nil || e.ID != 42 {
			t.Errorf("%+v, %v", e, err)
		}
		break
	}
	mu.Lock()
	defer mu.Unlock()
	if want := []string{"tail=0", "after=41"}; !slices.Equal(asked, want) {
		t.Errorf("asked %q, want %q", asked, want)
	}
}

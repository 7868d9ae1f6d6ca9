package bridge_test

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/RelevanceAI/harvest/internal/base/testenv"
	"github.com/RelevanceAI/harvest/internal/session/agent/opencode"
	"github.com/RelevanceAI/harvest/internal/session/agent/opencode/bridge"
)

// serverMode makes this test's program a server that speaks OpenCode's protocol as observed. Its value selects the
// behaviour.
const serverMode = "HARVEST_TEST_OPENCODE"

func TestMain(m *testing.M) {
	if mode := os.Getenv(serverMode); mode != "" {
		os.Exit(serve(mode))
	}
	os.Exit(m.Run())
}

// stand is the server. It turns each request into an event, so that the bridge's output shows it.
type stand struct {
	mu     sync.Mutex
	events []chan string // guarded by mu; streams that are open
}

func serve(mode string) int {
	if mode == "fails" {
		fmt.Fprintln(os.Stderr, "no configuration")
		return 3
	}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return 1
	}
	s := &stand{}
	mux := http.NewServeMux()
	mux.HandleFunc("GET /event", s.stream)
	mux.HandleFunc("POST /session", func(w http.ResponseWriter,
		r *http.Request) {
		fmt.Fprint(w, `{"id":"ses_new","version":"1.18.33"}`)
	})
	mux.HandleFunc("GET /session/status",
		func(w http.ResponseWriter, r *http.Request) {
			status := map[string]map[string]string{"ses_other": {"type": "busy"}}
			if mode == "works" {
				status["ses_new"] = map[string]string{"type": "busy"}
			}
			_ = json.NewEncoder(w).Encode(status)
		})
	mux.HandleFunc("GET /session/{id}", func(w http.ResponseWriter, r *http.Request) {
		if r.PathValue("id") != "ses_old" {
			http.Error(w, "no such session", http.StatusNotFound)
			return
		}
		fmt.Fprint(w, `{"id":"ses_old","version":"1.18.33"}`)
	})
	mux.HandleFunc("GET /mcp", func(w http.ResponseWriter, r *http.Request) {
		fmt.Fprint(w, `{"good":{"status":"connected"},"bad":{"status":"failed","error":"it died"}}`)
	})
	mux.HandleFunc("POST /mcp/{name}/connect", func(w http.ResponseWriter, r *http.Request) {
		if name := r.PathValue("name"); name != "good" && name != "bad" {
			http.Error(w, "no such server", http.StatusNotFound)
			return
		}
		fmt.Fprint(w, "true")
	})
	mux.HandleFunc("GET /config", func(w http.ResponseWriter, _ *http.Request) {
		config, ok := configurations[mode]
		if !ok {
			config = "{}"
		}
		fmt.Fprint(w, config)
	})
	mux.HandleFunc("GET /config/providers", func(w http.ResponseWriter, _ *http.Request) {
		fmt.Fprint(w, `{"providers":[],"default":{"other":"wrong","good":"default"}}`)
	})
	mux.HandleFunc("POST /", s.echo)
	fmt.Println("some noise")
	fmt.Println("opencode server listening on http://" + l.Addr().String())
	return map[bool]int{true: 0, false: 1}[http.Serve(l, auth(mux)) == nil]
}

func auth(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if user, password, ok := r.BasicAuth(); !ok || user != "opencode" ||
			password != os.Getenv("OPENCODE_SERVER_PASSWORD") || password == "" {
			w.WriteHeader(http.StatusUnauthorized)
			return
		}
		next.ServeHTTP(w, r)
	})
}

func (s *stand) stream(w http.ResponseWriter, r *http.Request) {
	events := make(chan string, 100)
	s.mu.Lock()
	s.events = append(s.events, events)
	s.mu.Unlock()
	fmt.Fprint(w, ": comment\n\ndata: {\"type\":\"server.connected\"}\n\n")
	http.NewResponseController(w).Flush()
	for {
		select {
		case e := <-events:
			if e == "cut" {
				return
			}
			fmt.Fprintf(w, "data: %s\n\n", e)
			http.NewResponseController(w).Flush()
		case <-r.Context().Done():
			return
		}
	}
}

// echo sends the request back as an event, and follows the commands in a prompt.
func (s *stand) echo(w http.ResponseWriter, r *http.Request) {
	body, _ := io.ReadAll(r.Body)
	switch {
	case bytes.Contains(body, []byte("die")):
		os.Exit(9)
	case bytes.Contains(body, []byte("killed")):
		_ = syscall.Kill(os.Getpid(), syscall.SIGKILL)
	case bytes.Contains(body, []byte("refuse")):
		http.Error(w, "not now", http.StatusInternalServerError)
		return
	}
	event, _ := json.Marshal(map[string]any{"type": "asked", "path": r.URL.Path, "body": json.RawMessage(body)})
	if bytes.Contains(body, []byte("cut")) {
		event = []byte("cut")
	}
	if bytes.Contains(body, []byte("idle")) {
		event = []byte(`{"type":"session.idle","properties":{"sessionID":"ses_new"}}`)
	}
	if _, status, ok := bytes.Cut(body, []byte("retry ")); ok {
		var attempt, seconds int
		_, _ = fmt.Sscanf(string(status), "%d %d", &attempt, &seconds)
		next := time.Now().Add(time.Duration(seconds) * time.Second).UnixMilli()
		event = fmt.Appendf(nil,
			`{"type":"session.status","properties":{"sessionID":"ses_new","status":{"type":"retry","attempt":%d,`+
				`"message":"overloaded","next":%d}}}`, attempt, next)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, events := range s.events {
		events <- string(event)
	}
	if string(event) == "cut" {
		s.events = nil
	}
	w.WriteHeader(http.StatusNoContent)
}

// run is a bridge at work.
type run struct {
	in     *io.PipeWriter
	lines  chan string // of the output; closed at its end
	came   []string    // lines that were received
	code   chan int
	stderr testenv.Output
}

func start(t *testing.T, mode string, args ...string) *run {
	t.Helper()
	stdin, in := io.Pipe()
	out, stdout := io.Pipe()
	r := &run{in: in, lines: make(chan string), code: make(chan int, 1)}
	server := []string{"/usr/bin/env", serverMode + "=" + mode, os.Args[0]}
	go func() {
		r.code <- bridge.Main(context.WithoutCancel(t.Context()), args, server, stdin, stdout, &r.stderr)
		stdout.Close()
	}()
	go func() {
		defer close(r.lines)
		for lines := bufio.NewScanner(out); lines.Scan(); {
			r.lines <- lines.Text()
		}
	}()
	t.Cleanup(func() {
		in.Close()
		for range r.lines {
		}
	})
	return r
}

// line returns the next line that is not about the connection, and whether there is one before the output ends.
func (r *run) line(t *testing.T, awaited string) (string, bool) {
	t.Helper()
	limit := time.After(testenv.Limit)
	for {
		select {
		case line, ok := <-r.lines:
			if strings.Contains(line, "server.connected") {
				continue
			}
			r.came = append(r.came, line)
			return line, ok
		case <-limit:
			t.Fatalf("awaited %s, and no line came within %s. The lines were:\n%s", awaited, testenv.Limit,
				strings.Join(r.came, "\n"))
		}
	}
}

// next is line where the output must not end.
func (r *run) next(t *testing.T, awaited string) string {
	t.Helper()
	line, ok := r.line(t, awaited)
	if !ok {
		t.Fatalf("awaited %s, and the bridge's output has ended. The lines were:\n%s", awaited,
			strings.Join(r.came, "\n"))
	}
	return line
}

// exit returns the bridge's exit code.
func (r *run) exit(t *testing.T) int {
	t.Helper()
	select {
	case code := <-r.code:
		return code
	case <-time.After(testenv.Limit):
		t.Fatalf("the bridge has not ended within %s: %s", testenv.Limit, r.stderr.String())
		return 0
	}
}

func (r *run) send(t *testing.T, req opencode.Request) {
	t.Helper()
	data, err := json.Marshal(req)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := r.in.Write(append(data, '\n')); err != nil {
		t.Fatal(err)
	}
}

// mission: E2
func TestBridge(t *testing.T) {
	t.Parallel()
	r := start(t, "plain", "-model", "p/m", "-effort", "high", "-system", "Be brief.", "-dir", t.TempDir())
	if diff := cmp.Diff(`{"type":"harvest.ready","session":"ses_new","version":"1.18.33"}`,
		r.next(t, "the session")); diff != "" {
		t.Error(diff)
	}
	for _, c := range []struct {
		req  opencode.Request
		want string
	}{
		{opencode.Request{Op: "prompt", ID: "1", Text: "go"},
			`{"body":{"model":{"modelID":"m","providerID":"p"},"parts":[{"text":"go","type":"text"}],"system":"Be ` +
				`brief.","variant":"high"},"path":"/session/ses_new/prompt_async","type":"asked"}`},
		{opencode.Request{Op: "abort"}, `{"body":{},"path":"/session/ses_new/abort","type":"asked"}`},
		{opencode.Request{Op: "reply", ID: "per/1", Reply: "reject", Text: "no"},
			`{"body":{"message":"no","reply":"reject"},"path":"/permission/per/1/reply","type":"asked"}`},
		{opencode.Request{Op: "answer", ID: "que/1", Answers: [][]string{{"a", "b"}, {}}},
			`{"body":{"answers":[["a","b"],[]]},"path":"/question/que/1/reply","type":"asked"}`},
		{opencode.Request{Op: "dismiss", ID: "que/1"}, `{"body":{},"path":"/question/que/1/reject","type":"asked"}`},
		{opencode.Request{Op: "mcp"},
			`{"type":"harvest.mcp","mcp":[{"name":"bad","status":"failed","error":"it ` +
				`died"},{"name":"good","status":"connected"}]}`},
		{opencode.Request{Op: "restart", ID: "good"}, `{"type":"harvest.mcp_restarted","server":"good"}`},
		{opencode.Request{Op: "restart", ID: "bad"},
			`{"type":"harvest.mcp_restarted","message":"it died","server":"bad"}`},
		{opencode.Request{Op: "restart", ID: "a/b"}, `{"type":"harvest.mcp_restarted",` +
			`"message":"OpenCode's server answered with status 404: no such server","server":"a/b"}`},
		{opencode.Request{Op: "odd"}, `{"type":"harvest.error","message":"unknown operation \"odd\""}`},
		{opencode.Request{Op: "prompt", Text: "refuse"},
			`{"type":"harvest.error","message":"OpenCode's server answered with status 500: not now"}`},
	} {
		r.send(t, c.req)
		if diff := cmp.Diff(c.want, r.next(t, c.want)); diff != "" {
			t.Error(diff)
		}
	}
	r.in.Close()
	if code := r.exit(t); code != 0 {
		t.Errorf("exit %d: %s", code, r.stderr.String())
	}
}

// TestLateIdle checks that a report of an idle session does not reach the session if the server works on it.
//
// mission: E2
func TestLateIdle(t *testing.T) {
	t.Parallel()
	for mode, want := range map[string]string{"works": `"asked"`, "plain": `"session.idle"`} {
		r := start(t, mode)
		r.next(t, "the session")
		r.send(t, opencode.Request{Op: "prompt", Text: "idle"})
		r.send(t, opencode.Request{Op: "abort"})
		if line := r.next(t, want); !strings.Contains(line, want) {
			t.Errorf("%s: %s, want %s", mode, line, want)
		}
		r.in.Close()
		r.exit(t)
	}
}

// configurations are the configurations of the server, by mode.
var configurations = map[string]string{
	"foreign":       `{"model":"evil/m","enabled_providers":["good"]}`,
	"foreign agent": `{"model":"good/m","enabled_providers":["good"],"agent":{"build":{"model":"evil/m"}}}`,
	"foreign mode":  `{"enabled_providers":["good"],"mode":{"build":{"model":"evil/m"}}}`,
	"own":           `{"model":"good/m","enabled_providers":["good"],"agent":{"build":{"model":"good/b"}}}`,
	"all":           `{"model":"any/m"}`,
}

// TestModelOfRepository checks that a prompt names a model of an enabled provider if a file of the repository names
// another one, and that otherwise OpenCode chooses.
//
// mission: E2
func TestModelOfRepository(t *testing.T) {
	t.Parallel()
	for mode, want := range map[string]string{
		"foreign":       `"model":{"modelID":"default","providerID":"good"}`,
		"foreign agent": `"model":{"modelID":"m","providerID":"good"}`,
		"foreign mode":  `"model":{"modelID":"default","providerID":"good"}`,
		"own":           "", "all": "", "plain": "",
	} {
		t.Run(mode, func(t *testing.T) {
			t.Parallel()
			r := start(t, mode)
			r.next(t, "the session")
			for range 2 {
				r.send(t, opencode.Request{Op: "prompt", Text: "go"})
				line := r.next(t, "the prompt")
				if !strings.Contains(line, `"asked"`) || !strings.Contains(line, want) ||
					want == "" && strings.Contains(line, "modelID") {
					t.Errorf("the prompt is %s", line)
				}
			}
			r.in.Close()
			r.exit(t)
		})
	}
}

// TestRetriesAreBounded checks that the bridge ends the turn if the server retries the model's API endlessly, or only
// after hours.
//
// mission: E2
func TestRetriesAreBounded(t *testing.T) {
	t.Parallel()
	r := start(t, "plain")
	r.next(t, "the session")
	for _, c := range []struct{ prompt, want string }{
		{"retry 9 60", ""},
		{"retry 10 2", "failed 10 times: overloaded"},
		{"retry 1 3600", "asked again only after 1h0m0s: overloaded"},
	} {
		r.send(t, opencode.Request{Op: "prompt", Text: c.prompt})
		if line := r.next(t, "the retry of "+c.prompt); !strings.Contains(line, `"retry"`) {
			t.Errorf("%s: %s", c.prompt, line)
		}
		if c.want == "" {
			continue
		}
		if line := r.next(t, c.want); !strings.Contains(line, `"harvest.tired"`) || !strings.Contains(line, c.want) {
			t.Errorf("%s: %s", c.prompt, line)
		}
		if line := r.next(t, "the end of the turn after "+c.prompt); !strings.Contains(line, "/session/ses_new/abort") {
			t.Errorf("%s: %s", c.prompt, line)
		}
	}
}

// TestReconnect checks that a broken event stream is reopened, and that an end from the time in between is not missed.
func TestReconnect(t *testing.T) {
	t.Parallel()
	r := start(t, "plain", "-session", "ses_old")
	if diff := cmp.Diff(`{"type":"harvest.ready","session":"ses_old","version":"1.18.33"}`,
		r.next(t, "the session")); diff != "" {
		t.Error(diff)
	}
	r.send(t, opencode.Request{Op: "prompt", Text: "cut"})
	if diff := cmp.Diff(`{"properties":{"sessionID":"ses_old"},"type":"session.idle"}`,
		r.next(t, "the idle session")); diff != "" {
		t.Error(diff)
	}
	r.send(t, opencode.Request{Op: "abort"})
	if line := r.next(t, "the end of the turn"); !strings.Contains(line, "/abort") {
		t.Error(line)
	}
}

// TestServerKilledBySignal checks that the bridge passes on the end of its server by a signal as its own end. No line
// may end the turn, because the session may restart it.
//
// mission: E2
func TestServerKilledBySignal(t *testing.T) {
	t.Parallel()
	r := start(t, "plain")
	_ = r.next(t, "the session")
	r.send(t, opencode.Request{Op: "prompt", Text: "killed"})
	for line, ok := r.line(t, "the end of the output"); ok; line, ok = r.line(t, "the end of the output") {
		if strings.Contains(line, "harvest.error") {
			t.Errorf("a line says %s", line)
		}
	}
	if code := r.exit(t); code != 137 || !strings.Contains(r.stderr.String(), "died of SIGKILL") {
		t.Errorf("exit %d: %s", code, r.stderr.String())
	}
}

// TestFailures checks that each failure is reported on the output and ends the program, and that nothing is left.
func TestFailures(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		mode string
		args []string
		want string
	}{
		"the server fails":   {"fails", nil, "server has ended"},
		"no such session":    {"plain", []string{"-session", "ses_gone"}, "status 404: no such session"},
		"the server dies":    {"plain", nil, "server has ended"},
		"input without JSON": {"plain", nil, "error"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := start(t, c.mode, c.args...)
			line := r.next(t, "the first line")
			switch name {
			case "the server dies":
				r.send(t, opencode.Request{Op: "prompt", Text: "die"})
				for !strings.Contains(line, "has ended") {
					line = r.next(t, "the end of the server")
				}
			case "input without JSON":
				if _, err := r.in.Write([]byte("noise\n")); err != nil {
					t.Fatal(err)
				}
				line = r.next(t, "the error")
			}
			if !strings.Contains(line, `"harvest.error"`) || !strings.Contains(line, c.want) {
				t.Errorf("%s", line)
			}
			if code := r.exit(t); code != 1 {
				t.Errorf("exit %d: %s", code, r.stderr.String())
			}
		})
	}
	var stderr bytes.Buffer
	if code := bridge.Main(t.Context(), []string{"-odd"}, nil, strings.NewReader(""), io.Discard, &stderr); code != 2 {
		t.Errorf("exit %d", code)
	}
	var out bytes.Buffer
	if code := bridge.Main(t.Context(), nil, []string{"/nosuch/opencode"}, strings.NewReader(""), &out,
		&stderr); code != 1 || !strings.Contains(out.String(), "cannot be started") {
		t.Errorf("exit %d: %s", code, out.String())
	}
}

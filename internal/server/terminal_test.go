package server_test

import (
	"bytes"
	"encoding/json"
	"io"
	"net/http"
	"strconv"
	"strings"
	"testing"

	"github.com/coder/websocket"

	"github.com/RelevanceAI/harvest/client/api"
	"github.com/RelevanceAI/harvest/internal/base/account"
	"github.com/RelevanceAI/harvest/internal/base/testenv"
)

// tty is a client of a terminal.
type tty struct {
	t    *testing.T
	conn *websocket.Conn
	got  []byte
	end  *api.End
}

func (w *world) tty(query string) *tty {
	w.t.Helper()
	header := http.Header{}
	for i := 0; i < len(w.headers); i += 2 {
		header.Set(w.headers[i], w.headers[i+1])
	}
	conn, resp, err := websocket.Dial(w.t.Context(), w.url+"/v1/sandboxes/box/terminal?"+query,
		&websocket.DialOptions{HTTPHeader: header})
	if err != nil {
		w.t.Fatalf("%v %v", resp, err)
	}
	conn.SetReadLimit(-1)
	w.t.Cleanup(func() { conn.CloseNow() })
	return &tty{t: w.t, conn: conn}
}

// expect reads up to text, or to the end if text is "".
func (c *tty) expect(text string) {
	c.t.Helper()
	for text == "" || !bytes.Contains(c.got, []byte(text)) {
		_, msg, err := c.conn.Read(c.t.Context())
		if err != nil {
			if text != "" {
				c.t.Fatalf("%q did not come, only %q: %v", text, c.got, err)
			}
			return
		}
		switch msg[0] {
		case api.StreamStdout:
			c.got = append(c.got, msg[1:]...)
		case api.StreamEnd:
			c.end = new(api.End)
			if err := json.Unmarshal(msg[1:], c.end); err != nil {
				c.t.Fatal(err)
			}
		}
	}
}

func (c *tty) send(id byte, data string) {
	c.t.Helper()
	if err := c.conn.Write(c.t.Context(), websocket.MessageBinary, append([]byte{id}, data...)); err != nil {
		c.t.Fatal(err)
	}
}

// mission: A4, 4.7
func TestTerminal(t *testing.T) {
	t.Parallel()
	w := start(t)
	w.create()
	one := w.tty("rows=11&cols=33")
	one.send(api.StreamStdin, "PS1=; echo be''gun; stty size\n")
	one.expect("begun")
	one.expect("11 33")
	one.send(api.StreamStdin, "echo $TERM, $COLORTERM.\n")
	one.expect("xterm-256color, truecolor.")
	one.send(api.StreamControl, `{"resize":{"rows":22,"cols":44}}`)
	one.send(api.StreamStdin, "stty size; X=kept\n")
	one.expect("22 44")
	// A second client sees the earlier output and takes over the same shell. The first client is notified.
	two := w.tty("rows=30&cols=90")
	two.expect("begun")
	one.expect("")
	if one.end == nil || one.end.Problem == nil || one.end.Problem.Code != "conflict" {
		t.Errorf("the first one was told %+v", one.end)
	}
	two.send(api.StreamStdin, "stty size; echo X is $X\n")
	two.expect("30 90")
	two.expect("X is kept")
	// The shell continues when its client disconnects.
	two.send(api.StreamStdin, "sleep 0.2; echo by my''self\n")
	two.conn.CloseNow()
	three := w.tty("")
	three.expect("by myself")
	// Bytes that are not text arrive unchanged, and a flood does no harm.
	three.send(api.StreamStdin,
		"printf '\\377\\000\\376<'; head -c 3000000 /dev/zero | tr '\\0' x; echo; echo fl''ooded\n")
	three.expect("\xff\x00\xfe<")
	three.expect("flooded")
	if n := bytes.Count(three.got, []byte("x")); n < 3000000 {
		t.Errorf("%d bytes of 3000000 came", n)
	}
	three.send(api.StreamStdin, "exit 5\n")
	three.expect("")
	if three.end == nil || three.end.Exit == nil || three.end.Exit.ReturnCode != 5 {
		t.Errorf("the end: %+v", three.end)
	}
	four := w.tty("") // a new one
	four.send(api.StreamStdin, "echo X is \"<$X>\"\n")
	four.expect("X is <>")
	// A forbidden message ends the connection.
	four.send(9, "x")
	four.expect("")
	five := w.tty("")
	if err := five.conn.Write(t.Context(), websocket.MessageBinary,
		append([]byte{api.StreamControl}, `{"unknown":1}`...)); err != nil {
		t.Fatal(err)
	}
	five.expect("")
	for query, want := range map[string]int{"dir=relative": 400, "rows=0": 400, "cols=1001": 400, "rows=x": 400} {
		if _, resp, err := websocket.Dial(t.Context(), w.url+"/v1/sandboxes/box/terminal?"+query, nil); err == nil ||
			resp.StatusCode != want {
			t.Errorf("%s: %v", query, resp)
		}
	}
	w.want(400, "GET", "/v1/sandboxes/box/terminal", "")
	if _, resp, err := websocket.Dial(t.Context(), w.url+"/v1/sandboxes/none/terminal", nil); err == nil ||
		resp.StatusCode != 404 {
		t.Errorf("no sandbox: %v", resp)
	}
}

// TestTerminalNames checks that a sandbox has several shells, each with a name, which are apart and limited in number.
// mission: A4, 4.7
func TestTerminalNames(t *testing.T) {
	t.Parallel()
	w := start(t)
	w.create()
	first, second := w.tty(""), w.tty("name=2")
	first.send(api.StreamStdin, "PS1=; X=one; echo be''gun\n")
	first.expect("begun")
	second.send(api.StreamStdin, "PS1=; echo X is \"<$X>\"\n")
	second.expect("X is <>")
	first.send(api.StreamStdin, "echo X is \"<$X>\"\n")
	first.expect("X is <one>")
	again := w.tty("name=2") // takes over the second shell only
	again.expect("X is <>")
	second.expect("")
	if second.end == nil || second.end.Problem == nil || second.end.Problem.Code != "conflict" {
		t.Errorf("the second one was told %+v", second.end)
	}
	first.send(api.StreamStdin, "echo still ''here\n")
	first.expect("still here")
	_, list := w.do("GET", "/v1/sandboxes/box/processes", "")
	if strings.Count(list, `"harvest-terminal"`) != 1 || strings.Count(list, `"harvest-terminal:2"`) != 1 {
		t.Errorf("the processes are %s", list)
	}
	again.send(api.StreamControl, `{"signal":"SIGHUP"}`)
	again.expect("")
	if again.end == nil || again.end.Exit == nil {
		t.Errorf("after SIGHUP: %+v", again.end)
	}
	for _, query := range []string{"name=A", "name=a/b", "name=" + strings.Repeat("x", 33), "name=%00", "name=a:b"} {
		if _, resp, err := websocket.Dial(t.Context(), w.url+"/v1/sandboxes/box/terminal?"+query, nil); err == nil ||
			resp.StatusCode != 400 {
			t.Errorf("%s: %v", query, resp)
		}
	}
	for i := range 15 {
		c := w.tty("name=n" + strconv.Itoa(i))
		c.send(api.StreamStdin, "echo up''right\n")
		c.expect("upright")
	}
	if _, resp, err := websocket.Dial(t.Context(), w.url+"/v1/sandboxes/box/terminal?name=more", nil); err == nil ||
		resp.StatusCode != 429 {
		t.Errorf("one shell too many: %v", resp)
	}
}

// TestPortsAnswerEarly sends the end of a request for a port after the beginning of the answer.
//
// mission: A6
func TestPortsAnswerEarly(t *testing.T) {
	t.Parallel()
	w := startOn(t, withPorts)
	made := w.create()
	port, _ := servePort(t, nil, testenv.AnswerEarly)
	user := w.as(account.Request{})
	testenv.EarlyAnswer(t, user.url+"/v1/sandboxes/"+made.ID+"/ports/"+port+"/", user.headers...)
}

// mission: A6, F1
func TestPorts(t *testing.T) {
	t.Parallel()
	w := startOn(t, withPorts)
	made := w.create()
	port, end := servePort(t, &websocket.AcceptOptions{InsecureSkipVerify: true},
		func(w http.ResponseWriter, r *http.Request) {
			body, _ := io.ReadAll(r.Body)
			w.Header().Add("Set-Cookie", "theirs=1")
			w.Header().Add("Set-Cookie", "harvest=stolen; Path=/")
			w.Header().Set("Content-Type", "text/html")
			w.WriteHeader(http.StatusTeapot)
			text, _ := json.Marshal(map[string]any{"method": r.Method, "uri": r.URL.RequestURI(), "host": r.Host,
				"header": r.Header, "body": string(body)})
			_, _ = w.Write(text)
		})
	user := w.as(account.Request{})
	base := "/v1/sandboxes/" + made.ID + "/ports/" + port
	resp, body := user.do("POST", base+"/a%2Fb/c?x=1&y", "the body", "Cookie",
		"harvest=ours; theirs=2; __Host-harvest=ours", "X-Forwarded-For", "1.2.3.4", "Idempotency-Key", "k")
	var got struct {
		Method, URI, Host, Body string
		Header                  http.Header
	}
	if err := json.Unmarshal([]byte(body), &got); err != nil {
		t.Fatalf("%s: %v", body, err)
	}
	if resp.StatusCode != http.StatusTeapot || got.Method != "POST" || got.URI != "/a%2Fb/c?x=1&y" ||
		got.Body != "the body" || got.Host != "localhost:"+port {
		t.Errorf("passed on: %s", body)
	}
	if got.Header.Get("Authorization") != "" || got.Header.Get("Cookie") != "theirs=2" ||
		got.Header.Get("X-Forwarded-For") != "127.0.0.1" || got.Header.Get("Idempotency-Key") != "" ||
		got.Header.Get("X-Forwarded-Prefix") != base {
		t.Errorf("the sandbox sees %v", got.Header)
	}
	if c := resp.Header.Values("Set-Cookie"); len(c) != 1 || c[0] != "theirs=1" ||
		!strings.HasPrefix(resp.Header.Get("Content-Security-Policy"), "sandbox ") ||
		strings.Contains(resp.Header.Get("Content-Security-Policy"), "same-origin") {
		t.Errorf("the answer has %v", resp.Header)
	}
	header := http.Header{"Authorization": {user.headers[1]}}
	conn, _, err := websocket.Dial(t.Context(), user.url+base+"/ws", &websocket.DialOptions{HTTPHeader: header})
	if err != nil {
		t.Fatal(err)
	}
	defer conn.CloseNow()
	if err := conn.Write(t.Context(), websocket.MessageText, []byte("hello")); err != nil {
		t.Fatal(err)
	}
	if _, msg, err := conn.Read(t.Context()); err != nil || string(msg) != "echo hello" {
		t.Errorf("WebSocket: %q, %v", msg, err)
	}
	req, err := http.NewRequestWithContext(t.Context(), "GET", user.url+base+"/events", nil)
	if err != nil {
		t.Fatal(err)
	}
	req.Header = header
	events, err := http.DefaultClient.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	buf := make([]byte, 100)
	if n, err := events.Body.Read(buf); err != nil || string(buf[:n]) != "data: first\n\n" {
		t.Errorf("events: %q, %v", buf[:n], err)
	}
	events.Body.Close()
	end()
	testenv.Eventually(t, "the port answers 503", func() bool { // 502 while connections from before break
		resp, _ := user.do("GET", base+"/", "")
		return resp.StatusCode == http.StatusServiceUnavailable
	})
	user.want(400, "GET", "/v1/sandboxes/box/ports/0/", "")
	user.want(400, "GET", "/v1/sandboxes/box/ports/x/", "")
	user.want(404, "GET", "/v1/sandboxes/none/ports/80/", "")
	w.as(account.Request{Account: "acme"}).want(404, "GET", base+"/", "")
	w.stranger().want(401, "GET", base+"/", "")
	w.as(account.Request{Scopes: []account.Scope{account.Read}}).want(403, "GET", base+"/", "")
	w.want(204, "DELETE", "/v1/sandboxes/box", "")
	user.want(410, "GET", base+"/", "")
}

func TestMetrics(t *testing.T) {
	t.Parallel()
	w := start(t)
	w.create()
	w.want(404, "GET", "/v1/sandboxes/secret-name", "")
	w.want(404, "GET", "/secret-path", "")
	_, body := w.do("GET", "/metrics", "")
	for _, want := range []string{
		"harvest_sandboxes 1", "harvest_sandboxes_running 1",
		`harvest_http_requests_total{route="GET /v1/sandboxes/{id}",status="404"} 1`,
		`harvest_http_requests_total{route="none",status="404"} 1`, "go_goroutines", "process_open_fds",
		"harvest_http_request_seconds_bucket",
	} {
		if !strings.Contains(body, want) {
			t.Errorf("%s is not in\n%s", want, body)
		}
	}
	if strings.Contains(body, "secret") {
		t.Error("what clients write is a label")
	}
	w.stranger().want(401, "GET", "/metrics", "")
	w.as(account.Request{Account: "acme", Role: account.Admin}).want(403, "GET", "/metrics", "")
	w.as(account.Request{Scopes: []account.Scope{account.Read}}).want(200, "GET", "/metrics", "")
}

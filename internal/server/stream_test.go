package server_test

import (
	"encoding/json"
	"strconv"
	"strings"
	"testing"

	"github.com/coder/websocket"

	"github.com/RelevanceAI/harvest/client/api"
)

// dial opens a stream and sends its first message.
func (w *world) dial(t *testing.T, path, first string) *websocket.Conn {
	t.Helper()
	conn, _, err := websocket.Dial(t.Context(), w.url+path, nil)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { conn.CloseNow() })
	conn.SetReadLimit(-1)
	if err := conn.Write(t.Context(), websocket.MessageText, []byte(first)); err != nil {
		t.Fatal(err)
	}
	return conn
}

func send(t *testing.T, conn *websocket.Conn, id byte, data string) {
	t.Helper()
	if err := conn.Write(t.Context(), websocket.MessageBinary, append([]byte{id}, data...)); err != nil {
		t.Fatal(err)
	}
}

// read returns the data of every stream up to the end, and how it ended: with an End, or with the connection's own end.
func read(t *testing.T, conn *websocket.Conn) (data map[byte]string, end *api.End, err error) {
	t.Helper()
	data = map[byte]string{}
	for {
		_, msg, err := conn.Read(t.Context())
		if err != nil {
			return data, end, err
		}
		data[msg[0]] += string(msg[1:])
		if msg[0] == api.StreamEnd {
			end = new(api.End)
			if err := json.Unmarshal(msg[1:], end); err != nil {
				t.Fatal(err)
			}
		}
	}
}

// mission: A4
func TestStreamProtocol(t *testing.T) {
	t.Parallel()
	w := start(t)
	w.create()
	conn := w.dial(t, "/v1/sandboxes/box/exec", `{"args":["sh","-c","cat; echo e >&2; exit 3"]}`)
	send(t, conn, api.StreamStdin, "one ")
	send(t, conn, api.StreamStdin, "two")
	send(t, conn, api.StreamControl, `{"stdin_eof":true}`)
	send(t, conn, api.StreamStdin, "too late")
	data, end, err := read(t, conn)
	if end == nil || end.Exit == nil || end.Exit.ReturnCode != 3 || data[api.StreamStdout] != "one two" ||
		data[api.StreamStderr] != "e\n" {
		t.Errorf("%q, %+v", data, end)
	}
	if websocket.CloseStatus(err) != websocket.StatusNormalClosure {
		t.Errorf("it closes with %v", err)
	}
	if !strings.Contains(data[api.StreamControl], `"process_id"`) {
		t.Errorf("it was not told that the command has started: %q", data[api.StreamControl])
	}
}

// Control messages take effect, those before the start included.
func TestStreamControl(t *testing.T) {
	t.Parallel()
	w := start(t)
	w.create()
	conn := w.dial(t, "/v1/run", `{"args":["sh","-c","stty size; cat"],"terminal":{"rows":24,"cols":80}}`)
	send(t, conn, api.StreamControl, `{"resize":{"rows":10,"cols":20}}`)
	send(t, conn, api.StreamControl, `{"signal":"nonsense"}`) // no reason to end anything, once it runs
	_, end, _ := read(t, conn)
	if end == nil || (end.Exit == nil) == (end.Problem == nil) {
		t.Errorf("resize and an unknown signal: %+v", end)
	}
	conn = w.dial(t, "/v1/sandboxes/box/exec", `{"args":["sleep","100"]}`)
	if _, _, err := conn.Read(t.Context()); err != nil { // it has started
		t.Fatal(err)
	}
	send(t, conn, api.StreamControl, `{"signal":"nonsense"}`)
	send(t, conn, api.StreamControl, `{"resize":{"rows":1,"cols":1}}`)
	send(t, conn, api.StreamControl, `{"kill":true}`)
	if _, end, _ := read(t, conn); end == nil || end.Exit == nil || end.Exit.Signal != "KILL" {
		t.Errorf("kill: %+v", end)
	}
}

func TestStreamProblems(t *testing.T) {
	t.Parallel()
	w := start(t)
	w.create()
	for name, c := range map[string]struct{ path, first, code string }{
		"no JSON":     {"/v1/run", `nonsense`, "invalid"},
		"unknown":     {"/v1/sandboxes/box/exec", `{"arg":[]}`, "invalid"},
		"no sandbox":  {"/v1/sandboxes/nosuch/exec", `{"args":["true"]}`, "not_found"},
		"no process":  {"/v1/sandboxes/box/exec", `{"process_id":"nosuch"}`, "not_found"},
		"bad sandbox": {"/v1/run", `{"args":["true"],"sandbox":{"cpu":-1}}`, "invalid"},
	} {
		_, end, _ := read(t, w.dial(t, c.path, c.first))
		if end == nil || end.Problem == nil || end.Problem.Code != c.code || end.Problem.RequestID == "" {
			t.Errorf("%s: %+v", name, end)
		}
	}
}

// TestStreamViolations checks that a client that violates the protocol loses its connection, and its command with it.
func TestStreamViolations(t *testing.T) {
	t.Parallel()
	w := start(t)
	w.create()
	for name, violate := range map[string]func(conn *websocket.Conn){
		"text":    func(conn *websocket.Conn) { conn.Write(t.Context(), websocket.MessageText, []byte("x")) },
		"empty":   func(conn *websocket.Conn) { conn.Write(t.Context(), websocket.MessageBinary, nil) },
		"stream":  func(conn *websocket.Conn) { send(t, conn, api.StreamStdout, "x") },
		"control": func(conn *websocket.Conn) { send(t, conn, api.StreamControl, `{"sing":"x"}`) },
		"large":   func(conn *websocket.Conn) { send(t, conn, api.StreamStdin, strings.Repeat("x", api.MaxFrame)) },
		"beyond input": func(conn *websocket.Conn) {
			input := append([]byte{api.StreamStdin}, make([]byte, api.Window/2)...)
			for conn.Write(t.Context(), websocket.MessageBinary, input) == nil {
			}
		},
	} {
		t.Run(name, func(t *testing.T) {
			conn := w.dial(t, "/v1/sandboxes/box/exec", `{"args":["sleep","100"]}`)
			if _, _, err := conn.Read(t.Context()); err != nil {
				t.Fatal(err)
			}
			violate(conn)
			if _, end, err := read(t, conn); err == nil || end != nil && end.Exit != nil && end.Exit.Signal != "KILL" {
				t.Errorf("%+v, %v", end, err)
			}
		})
	}
	for w.fleet.Stats().Commands > 0 {
		if t.Context().Err() != nil {
			t.Fatal("commands are left")
		}
	}
}

// TestAttachFromAnOffset checks that a client that attaches at an offset gets the output after it, and that an
// unavailable offset is refused.
// mission: A4
func TestAttachFromAnOffset(t *testing.T) {
	t.Parallel()
	w := start(t)
	w.create()
	_, body := w.do("POST", "/v1/sandboxes/box/exec",
		`{"args":["sh","-c","printf abc; sleep 0.2; printf def >&2; sleep 0.2; printf ghi; exit 4"],"detach":true}`)
	id := parse[api.Started](t, body).ProcessID
	for offset, want := range map[int]string{0: "abcghi def", 2: "cghi def", 3: "ghi def", 4: "ghi ef",
		8: "i ", 9: " "} {
		data, end, _ := read(t, w.dial(t, "/v1/sandboxes/box/exec",
			`{"process_id":"`+id+`","offset":`+strconv.Itoa(offset)+`}`))
		if got := data[api.StreamStdout] + " " + data[api.StreamStderr]; end == nil || end.Exit == nil ||
			end.Exit.ReturnCode != 4 || got != want {
			t.Errorf("from %d: %q, %+v; want %q", offset, got, end, want)
		}
	}
	for _, first := range []string{`"offset":10`, `"offset":-1`, `"attachment":"` + strings.Repeat("x", 65) + `"`} {
		_, end, _ := read(t, w.dial(t, "/v1/sandboxes/box/exec", `{"process_id":"`+id+`",`+first+`}`))
		if end == nil || end.Problem == nil || end.Problem.Code != "invalid" || end.Problem.Remedy == "" {
			t.Errorf("%s: %+v", first, end)
		}
	}
}

// TestAttachmentIsTakenOver checks that a client that reconnects under its name ends its earlier connection, which may
// be dead without having been noticed.
func TestAttachmentIsTakenOver(t *testing.T) {
	t.Parallel()
	w := start(t)
	w.create()
	_, body := w.do("POST", "/v1/sandboxes/box/exec", `{"args":["sh","-c","seq 1 3000000; exit 4"],"detach":true}`)
	first := `{"process_id":"` + parse[api.Started](t, body).ProcessID + `","attachment":"mine"}`
	one := w.dial(t, "/v1/sandboxes/box/exec", first)
	if _, _, err := one.Read(t.Context()); err != nil { // and nothing more: the command waits for it
		t.Fatal(err)
	}
	two := w.dial(t, "/v1/sandboxes/box/exec", first)
	size, end := 0, api.End{}
	for {
		_, msg, err := two.Read(t.Context())
		if err != nil {
			break
		}
		switch msg[0] {
		case api.StreamStdout:
			size += len(msg) - 1
		case api.StreamEnd:
			if err := json.Unmarshal(msg[1:], &end); err != nil {
				t.Fatal(err)
			}
		}
	}
	if end.Exit == nil || end.Exit.ReturnCode != 4 || size != 22888896 {
		t.Errorf("who came back got %d bytes, %+v", size, end)
	}
	for {
		_, msg, err := one.Read(t.Context())
		if err != nil {
			break
		}
		if msg[0] == api.StreamEnd && strings.Contains(string(msg), "returncode") {
			t.Errorf("the earlier connection was told the exit: %s", msg[1:])
		}
	}
}

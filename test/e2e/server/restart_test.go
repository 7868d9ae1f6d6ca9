package server

import (
	"bytes"
	"encoding/json"
	"net/http"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/coder/websocket"

	"github.com/RelevanceAI/harvest/client"
	"github.com/RelevanceAI/harvest/client/api"
	"github.com/RelevanceAI/harvest/internal/base/testenv"
	"github.com/RelevanceAI/harvest/test/host"
)

// TestTerminalAfterRestart checks that a terminal continues through a restart of the server: the shell is the same, and
// its output is still there.
// mission: A4, 4.7
func TestTerminalAfterRestart(t *testing.T) {
	testenv.Long(t)
	t.Parallel()
	host.OnEngines(t, func(t *testing.T, h *host.Host) {
		listen := testenv.FreePort(t)
		stop := h.UpUntil("--listen", "127.0.0.1:"+listen)
		key := h.Must("key", "create", "terminal", "--quiet")
		id := h.Must("sandbox", "create")
		dial := func() *websocket.Conn {
			t.Helper()
			conn, _, err := websocket.Dial(t.Context(), "http://127.0.0.1:"+listen+api.Path(api.SandboxTerminal, id),
				&websocket.DialOptions{HTTPHeader: http.Header{"Authorization": {"Bearer " + key}}})
			if err != nil {
				t.Fatalf("%v\n%s", err, h.Log())
			}
			conn.SetReadLimit(-1)
			t.Cleanup(func() { conn.CloseNow() })
			return conn
		}
		say := func(conn *websocket.Conn, text string) {
			t.Helper()
			if err := conn.Write(t.Context(), websocket.MessageBinary,
				append([]byte{api.StreamStdin}, text...)); err != nil {
				t.Fatal(err)
			}
		}
		see := func(conn *websocket.Conn, text string) {
			t.Helper()
			var got []byte
			for !bytes.Contains(got, []byte(text)) {
				_, msg, err := conn.Read(t.Context())
				if err != nil {
					t.Fatalf("%q did not come, only %q: %v", text, got, err)
				}
				switch msg[0] {
				case api.StreamStdout:
					got = append(got, msg[1:]...)
				case api.StreamEnd:
					var end api.End
					_ = json.Unmarshal(msg[1:], &end)
					t.Fatalf("the terminal ended before %q: %+v", text, end)
				}
			}
		}
		conn := dial()
		say(conn, "X=ke''pt; echo be''gun\n")
		see(conn, "begun")
		stop()
		stop = h.UpUntil("--listen", "127.0.0.1:"+listen)
		defer stop()
		conn = dial()
		see(conn, "begun") // the scrollback
		say(conn, "echo it is $X\n")
		see(conn, "it is kept")
		conn.CloseNow()
	})
}

// TestAttachThroughRestarts checks that a client attached to a command gets all of its output, once, and its exit,
// through restarts of the server, one of them by SIGKILL.
// mission: A4, E10
func TestAttachThroughRestarts(t *testing.T) {
	t.Parallel()
	host.OnEngines(t, func(t *testing.T, h *host.Host) {
		id := h.Must("sandbox", "create")
		c := client.New(h.Data)
		defer c.Close()
		const script = "i=0; while [ $i -lt 100 ]; do i=$((i+1)); echo $i; echo e$i >&2; until [ $i -lt 50 ] || [ -e " +
			"go ]; do sleep 0.1; done; sleep 0.05; done; exit 9"
		started, err := c.ExecDetached(t.Context(), id, api.ExecRequest{Args: []string{"sh", "-c", script}})
		if err != nil {
			t.Fatal(err)
		}
		var out, err2 strings.Builder
		broken := make(chan struct{}, 1000)
		p, err := c.Attach(t.Context(), id, started.ProcessID, client.Streams{Stdout: &out, Stderr: &err2,
			Broken: func(error) { broken <- struct{}{} }})
		if err != nil {
			t.Fatal(err)
		}
		breaks := func() {
			t.Helper()
			select {
			case <-broken:
			case <-time.After(3 * time.Minute):
				t.Fatalf("the connection did not break\n%s", h.Log())
			}
		}
		h.Must("down")
		breaks()
		h.Must("volume", "ls") // starts the next one
		if err := syscall.Kill(h.Server().PID, syscall.SIGKILL); err != nil {
			t.Fatal(err)
		}
		breaks()
		h.Must("volume", "ls")
		h.Must("sandbox", "exec", id, "--", "touch", "go")
		res, err := p.Wait(t.Context())
		want, wantErr := "", ""
		for i := range 100 {
			want += strconv.Itoa(i+1) + "\n"
			wantErr += "e" + strconv.Itoa(i+1) + "\n"
		}
		if err != nil || res.ReturnCode != 9 || out.String() != want || err2.String() != wantErr {
			t.Errorf("%+v, %v\n%q\n%q", res, err, out.String(), err2.String())
		}
	})
}

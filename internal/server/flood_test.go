package server_test

import (
	"context"
	"errors"
	"io"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/coder/websocket"

	"github.com/RelevanceAI/harvest/client/api"
	"github.com/RelevanceAI/harvest/internal/base/testenv"
	"github.com/RelevanceAI/harvest/internal/server"
)

// TestSocketsThatFlood checks that clients that send far more than allowed, to a terminal, their own command or an
// attached one, are disconnected with a reason, take no memory, and affect no other client.
// mission: F1
func TestSocketsThatFlood(t *testing.T) { // not parallel: it measures the memory of the whole process
	testenv.Long(t)
	w := start(t)
	w.create()
	_, body := w.do("POST", "/v1/sandboxes/box/exec", `{"args":["sleep","1000"],"detach":true}`)
	attach := `{"process_id":"` + parse[api.Started](t, body).ProcessID + `"}`
	before := heap()
	var told atomic.Int64
	var floods sync.WaitGroup
	for range 10 {
		for path, first := range map[string]string{
			"/v1/sandboxes/box/exec?own": `{"args":["sleep","1000"]}`, "/v1/sandboxes/box/exec?attach": attach,
			"/v1/sandboxes/box/terminal": "",
		} {
			floods.Go(func() {
				conn, _, err := websocket.Dial(t.Context(), w.url+path, nil)
				if err != nil {
					t.Error(err)
					return
				}
				defer conn.CloseNow()
				conn.SetReadLimit(-1)
				if first != "" {
					if err := conn.Write(t.Context(), websocket.MessageText, []byte(first)); err != nil {
						t.Error(err)
						return
					}
				}
				input := append([]byte{api.StreamStdin}, strings.Repeat("x", api.MaxFrame-1)...)
				pushed := make(chan struct{})
				go func() {
					defer close(pushed)
					for n := 0; n < 64<<20; n += len(input) {
						if conn.Write(t.Context(), websocket.MessageBinary, input) != nil {
							return
						}
					}
				}()
				var why error
				for why == nil {
					_, _, why = conn.Read(t.Context())
				}
				conn.CloseNow()
				<-pushed
				// Ten clients take the terminal from one another. A client that has lost it gets that reason instead.
				var closed websocket.CloseError
				switch {
				case !errors.As(why, &closed) || closed.Code == websocket.StatusNormalClosure && first == "":
				case closed.Code == websocket.StatusPolicyViolation && strings.Contains(closed.Reason,
					"exceeds the window"):
					told.Add(1)
				default:
					t.Errorf("%s: the answer is %v", path, why)
				}
			})
		}
	}
	for range 20 {
		if resp, body := w.do("POST", "/v1/sandboxes/box/exec", `{"args":["echo","others"]}`); resp.StatusCode != 200 ||
			!strings.Contains(body, "others") {
			t.Errorf("others get %s %s", resp.Status, body)
		}
	}
	floods.Wait()
	if used := heap() - before; used > 64<<20 {
		t.Errorf("they took %d MiB", used>>20)
	}
	if n := told.Load(); n < 10 { // a connection may be reset before its client has read that
		t.Errorf("%d of 30 were told why", n)
	}
}

// TestControlsThatFlood checks that an endless series of control messages is processed one by one: the client waits,
// and no other client does.
func TestControlsThatFlood(t *testing.T) { // not parallel: it measures the memory of the whole process
	w := start(t)
	w.create()
	conn := w.dial(t, "/v1/sandboxes/box/exec", `{"args":["sleep","1000"],"terminal":{"rows":1,"cols":1}}`)
	if _, _, err := conn.Read(t.Context()); err != nil {
		t.Fatal(err)
	}
	before := heap()
	for range 500 {
		send(t, conn, api.StreamControl, `{"resize":{"rows":10,"cols":20}}`)
	}
	if resp, body := w.do("POST", "/v1/sandboxes/box/exec", `{"args":["echo","others"]}`); resp.StatusCode != 200 {
		t.Errorf("others get %s %s", resp.Status, body)
	}
	if used := heap() - before; used > 32<<20 {
		t.Errorf("they took %d MiB", used>>20)
	}
	send(t, conn, api.StreamControl, `{"kill":true}`)
	if _, end, _ := read(t, conn); end == nil || end.Exit == nil || end.Exit.Signal != "KILL" {
		t.Errorf("%+v", end)
	}
}

// TestSocketsThatNobodyReads checks that a client that does not read a command's output blocks that command until its
// time limit, takes no memory, and is then disconnected.
func TestSocketsThatNobodyReads(t *testing.T) { // not parallel: it measures the memory of the whole process
	testenv.Long(t)
	w := start(t, func(o *server.Options) { o.Patience = 100 * time.Millisecond })
	w.create()
	_, body := w.do("POST", "/v1/sandboxes/box/exec", `{"args":["sh","-c","head -c 40000000 /dev/zero"],"detach":true}`)
	before := heap()
	var conns []*websocket.Conn
	for range 5 {
		conns = append(conns, w.dial(t, "/v1/sandboxes/box/exec", `{"args":["yes"],"timeout_seconds":1}`),
			w.dial(t, "/v1/sandboxes/box/exec", `{"process_id":"`+parse[api.Started](t, body).ProcessID+`"}`))
	}
	for _, conn := range conns {
		if _, _, err := conn.Read(t.Context()); err != nil { // and nothing more
			t.Fatal(err)
		}
	}
	if resp, body := w.do("POST", "/v1/sandboxes/box/exec", `{"args":["echo","others"]}`); resp.StatusCode != 200 {
		t.Errorf("others get %s %s", resp.Status, body)
	}
	if used := heap() - before; used > 64<<20 {
		t.Errorf("they took %d MiB", used>>20)
	}
	for i, conn := range conns {
		if i%2 == 1 {
			conn.CloseNow() // an attached client may wait as long as the command lives
		}
	}
	for w.server.Idle() == 0 {
		if t.Context().Err() != nil {
			t.Fatal("who does not read is not given up")
		}
		time.Sleep(10 * time.Millisecond)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	defer cancel()
	for {
		if _, _, err := conns[0].Read(ctx); err != nil {
			if errors.Is(err, io.EOF) || ctx.Err() == nil {
				break
			}
			t.Fatalf("it still has a connection: %v", err)
		}
	}
}

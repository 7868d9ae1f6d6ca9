package wire

import (
	"bytes"
	"io"
	"net"
	"strings"
	"testing"
	"time"

	"github.com/RelevanceAI/harvest/client/errors"
)

// pair returns two ends of a connection.
func pair(t *testing.T) (a, b *Conn) {
	t.Helper()
	x, y := net.Pipe()
	t.Cleanup(func() { _ = x.Close(); _ = y.Close() })
	return NewConn(x), NewConn(y)
}

func TestFramesArriveAsSent(t *testing.T) {
	t.Parallel()
	a, b := pair(t)
	big := bytes.Repeat([]byte("abc"), 100_000)
	go func() {
		_ = a.Send(KindStdout, []byte("hello"))
		_ = a.Send(KindStdinEnd, nil)
		_ = a.Send(KindStderr, big)
		_ = a.Close()
	}()
	for _, want := range []struct {
		kind    Kind
		payload []byte
	}{{KindStdout, []byte("hello")}, {KindStdinEnd, nil}, {KindStderr, big}} {
		kind, payload, err := b.Receive()
		if err != nil {
			t.Fatal(err)
		}
		if kind != want.kind || !bytes.Equal(payload, want.payload) {
			t.Errorf("received %q with %d bytes", kind, len(payload))
		}
	}
	if _, _, err := b.Receive(); err != io.EOF {
		t.Errorf("at the end: %v", err)
	}
}

func TestReplyComesWithItsStages(t *testing.T) {
	t.Parallel()
	a, b := pair(t)
	go func() {
		_ = a.SendJSON(KindStage, Stage{Name: "boot", Took: time.Second})
		_ = a.SendJSON(KindReply, Reply{ID: "p1"})
	}()
	var stages []Stage
	reply, err := b.ReceiveReply(func(s Stage) { stages = append(stages, s) })
	if err != nil {
		t.Fatal(err)
	}
	if reply.ID != "p1" || len(stages) != 1 || stages[0] != (Stage{Name: "boot", Took: time.Second}) {
		t.Errorf("reply %+v, stages %+v", reply, stages)
	}
}

// mission: A9
func TestFailureKeepsWhatTheErrorSays(t *testing.T) {
	t.Parallel()
	a, b := pair(t)
	sent := errors.Remedy(errors.Stage(errors.Explainf(errors.Errorf("secret detail"), errors.Exhausted, "no space"),
		"boot"), "delete something")
	go func() { _ = a.SendJSON(KindFailure, FailureOf(sent)) }()
	_, err := b.ReceiveReply(nil)
	if !errors.Is(err, errors.Exhausted) || errors.Message(err) != "no space" || errors.StageOf(err) != "boot" ||
		errors.RemedyOf(err) != "delete something" {
		t.Errorf("kind %v, message %q, stage %q, remedy %q", errors.KindOf(err), errors.Message(err),
			errors.StageOf(err), errors.RemedyOf(err))
	}
	if !strings.Contains(err.Error(), "secret detail") {
		t.Errorf("operators cannot read the detail: %v", err)
	}
}

func TestBrokenConnections(t *testing.T) {
	t.Parallel()
	var large [HeaderSize]byte
	PutHeader(large[:], KindReply, MaxFrame+1)
	for name, sent := range map[string]string{
		"in a header":      "r\x00\x00",
		"in a payload":     "r\x00\x00\x00\x05ab",
		"nothing at all":   "",
		"no JSON":          "r\x00\x00\x00\x02{x",
		"a bad stage":      "s\x00\x00\x00\x01[",
		"a bad failure":    "e\x00\x00\x00\x01[",
		"an unknown frame": "?\x00\x00\x00\x00",
		"a huge frame":     string(large[:]),
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			a, b := pair(t)
			go func() {
				_, _ = io.WriteString(a.Conn, sent)
				_ = a.Close()
			}()
			if _, err := b.ReceiveReply(nil); err == nil {
				t.Error("no error")
			}
		})
	}
}

func TestSendToNobody(t *testing.T) {
	t.Parallel()
	a, b := pair(t)
	_ = b.Close()
	if err := a.Send(KindStdout, []byte("x")); !errors.Is(err, errors.Unavailable) {
		t.Errorf("Send: %v", err)
	}
	if err := a.SendFrames([]byte("xxxxxx")); !errors.Is(err, errors.Unavailable) {
		t.Errorf("SendFrames: %v", err)
	}
	if err := a.SendJSON(KindReply, make(chan int)); err == nil {
		t.Error("a channel has no JSON")
	}
}

// constConn is a connection that only returns its given bytes.
type constConn struct {
	net.Conn
	r io.Reader
}

func (c constConn) Read(b []byte) (int, error) { return c.r.Read(b) }

// FuzzReceive reads frames that a hostile peer could send: no panic, and no more memory than was sent.
func FuzzReceive(f *testing.F) {
	f.Add([]byte("r\x00\x00\x00\x02{}"))
	f.Add([]byte("s\x00\x00\x00\x02{}e\x00\x00\x00\x02{}"))
	f.Add([]byte("o\xff\xff\xff\xff"))
	f.Add([]byte("o\x00\x00\x00\x03abcr\x00\x00\x00\x0d{\"ID\":\"p\\u0031\"}"))
	f.Fuzz(func(t *testing.T, data []byte) {
		c := NewConn(constConn{r: bytes.NewReader(data)})
		total := 0
		for {
			_, payload, err := c.Receive()
			if err != nil {
				break
			}
			total += HeaderSize + len(payload)
		}
		if total > len(data) {
			t.Errorf("received %d bytes of %d", total, len(data))
		}
		_, _ = NewConn(constConn{r: bytes.NewReader(data)}).ReceiveReply(nil)
		var out bytes.Buffer
		if _, err := NewConn(constConn{r: bytes.NewReader(data)}).ReceiveOutput(&out); out.Len() > len(data) {
			t.Errorf("%d bytes of output of %d, %v", out.Len(), len(data), err)
		}
	})
}

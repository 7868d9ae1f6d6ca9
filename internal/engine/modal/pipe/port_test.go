package pipe

import (
	"io"
	"net"
	"strings"
	"testing"
	"time"

	"github.com/hashicorp/yamux"

	"github.com/RelevanceAI/harvest/client/errors"
	"github.com/RelevanceAI/harvest/internal/engine/gvisor/wire"
	"github.com/RelevanceAI/harvest/internal/engine/modal/inside"
)

// portPair is a connection as Dial makes it, and the other end, which receives frames.
func portPair(t *testing.T) (*Conn, *wire.Conn, *yamux.Session) {
	t.Helper()
	a, b := net.Pipe()
	ours, err := yamux.Client(a, inside.Mux())
	if err != nil {
		t.Fatal(err)
	}
	theirs, err := yamux.Server(b, inside.Mux())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = ours.Close()
		_ = theirs.Close()
	})
	stream, err := ours.Open()
	if err != nil {
		t.Fatal(err)
	}
	other, err := theirs.Accept()
	if err != nil {
		t.Fatal(err)
	}
	conn := wire.NewConn(stream)
	return Port(conn), wire.NewConn(other), theirs
}

func TestPortConn(t *testing.T) {
	t.Parallel()
	c, other, _ := portPair(t)
	text := strings.Repeat("0123456789", frame/4)
	written := make(chan error, 1)
	go func() {
		_, err := io.WriteString(c, text)
		written <- errors.Join(err, c.CloseWrite())
	}()
	var got strings.Builder
	for {
		kind, payload, err := other.Receive()
		if err != nil {
			t.Fatal(err)
		}
		if kind == wire.KindStdinEnd {
			break
		}
		got.Write(payload)
	}
	if err := <-written; err != nil || got.String() != text {
		t.Errorf("%d bytes of %d, %v", got.Len(), len(text), err)
	}
	if _, err := io.WriteString(other.Conn, "still here"); err != nil {
		t.Fatal(err)
	}
	buf := make([]byte, 10)
	if _, err := io.ReadFull(c, buf); err != nil || string(buf) != "still here" {
		t.Errorf("after the end of what is written: %q, %v", buf, err)
	}
	reading := make(chan error, 1)
	go func() {
		_, err := c.Read(buf)
		reading <- err
	}()
	if err := errors.Join(c.Close(), c.Close()); err != nil {
		t.Error(err)
	}
	if err := <-reading; !errors.Is(err, net.ErrClosed) {
		t.Errorf("a read when it was closed: %v", err)
	}
	_, read := c.Read(buf)
	_, wrote := c.Write(buf)
	for what, err := range map[string]error{"Read": read, "Write": wrote, "CloseWrite": c.CloseWrite()} {
		if !errors.Is(err, net.ErrClosed) {
			t.Errorf("%s afterwards: %v", what, err)
		}
	}

	c, other, _ = portPair(t)
	if err := c.SetReadDeadline(time.Unix(1, 0)); err != nil {
		t.Fatal(err)
	}
	var late net.Error
	if _, err := c.Read(buf); !errors.As(err, &late) || !late.Timeout() {
		t.Errorf("after its time: %v", err)
	}
	if err := errors.Join(c.SetReadDeadline(time.Time{}), other.Conn.Close()); err != nil {
		t.Fatal(err)
	}
	if _, err := c.Read(buf); err != io.EOF {
		t.Errorf("at the end: %v", err)
	}
	c, _, session := portPair(t)
	if err := session.Close(); err != nil {
		t.Fatal(err)
	}
	if _, err := c.Read(buf); errors.KindOf(err) != errors.Unavailable {
		t.Errorf("a link that broke: %v", err)
	}
	if _, err := c.Write(buf); err == nil {
		t.Error("a write to a link that broke")
	}
}

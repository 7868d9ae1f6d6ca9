package bytestream_test

import (
	"bytes"
	"context"
	"crypto/rand"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"testing"
	"time"

	"github.com/coder/websocket"

	"github.com/RelevanceAI/harvest/client/errors"
	"github.com/RelevanceAI/harvest/client/transport/bytestream"
)

// pair returns two ends of a stream.
func pair(t *testing.T) (a, b *bytestream.Conn) {
	t.Helper()
	accepted := make(chan *bytestream.Conn, 1)
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		ws, err := websocket.Accept(w, r, nil)
		if err != nil {
			t.Error(err)
			return
		}
		accepted <- bytestream.New(context.WithoutCancel(r.Context()), ws)
	}))
	t.Cleanup(s.Close)
	ws, _, err := websocket.Dial(t.Context(), s.URL, nil)
	if err != nil {
		t.Fatal(err)
	}
	a, b = bytestream.New(t.Context(), ws), <-accepted
	t.Cleanup(func() { _ = a.Close(); _ = b.Close() })
	return a, b
}

// echo listens on TCP, reads all of a client's data, and only then echoes it.
func echo(t *testing.T) net.Listener {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = l.Close() })
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			go func() {
				defer c.Close()
				said, _ := io.ReadAll(c)
				_, _ = c.Write(said)
			}()
		}
	}()
	return l
}

func TestEachDirectionEndsByItself(t *testing.T) {
	t.Parallel()
	a, b := pair(t)
	up, err := net.Dial("tcp", echo(t).Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	joined := make(chan struct{})
	go func() {
		bytestream.Join(b, up)
		close(joined)
	}()
	want := make([]byte, 3<<20)
	_, _ = rand.Read(want)
	go func() {
		_, _ = a.Write(want)
		_ = a.CloseWrite()
		_ = a.CloseWrite()
	}()
	got, err := io.ReadAll(a)
	if err != nil || !bytes.Equal(got, want) {
		t.Errorf("%d bytes came back, %v; want %d", len(got), err, len(want))
	}
	if _, err := a.Write([]byte("x")); !errors.Is(err, net.ErrClosed) {
		t.Errorf("Write after CloseWrite: %v", err)
	}
	if err := a.Close(); err != nil {
		t.Errorf("Close: %v", err)
	}
	<-joined
}

func TestBrokenConnection(t *testing.T) {
	t.Parallel()
	a, b := pair(t)
	if err := b.SetReadDeadline(time.Now().Add(-time.Second)); err != nil {
		t.Fatal(err)
	}
	if _, err := b.Read(make([]byte, 1)); !errors.Is(err, errors.Unavailable) {
		t.Errorf("Read after the deadline: %v", err)
	}
	if _, err := io.ReadAll(a); err == nil {
		t.Error("the other side saw an orderly end")
	}
	if _, err := b.Write([]byte("x")); err == nil {
		t.Error("Write worked after the deadline")
	}
	_ = b.SetWriteDeadline(time.Time{})
	if a.LocalAddr().Network() != "websocket" || a.RemoteAddr().String() == "" {
		t.Error("no address")
	}
}

func TestCloseWithoutAnEndIsNoOrderlyEnd(t *testing.T) {
	t.Parallel()
	a, b := pair(t)
	go a.Close()
	if _, err := io.ReadAll(b); err == nil {
		t.Error("the other side saw an orderly end")
	}
}

// TestLeftAfterTheEnd checks that the end of a peer that has sent everything and left is noticed, although the other
// side sends nothing and keeps its connection open.
func TestLeftAfterTheEnd(t *testing.T) {
	t.Parallel()
	a, b := pair(t)
	silent, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = silent.Close() })
	up, err := net.Dial("tcp", silent.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	kept, err := silent.Accept()
	if err != nil {
		t.Fatal(err)
	}
	defer kept.Close()
	joined := make(chan struct{})
	go func() {
		bytestream.Join(b, up)
		close(joined)
	}()
	if err := a.CloseWrite(); err != nil {
		t.Fatal(err)
	}
	if _, err := io.ReadAll(kept); err != nil { // the end arrives
		t.Fatal(err)
	}
	_ = a.Close()
	select {
	case <-joined:
	case <-time.After(time.Minute):
		t.Error("the connection is still there a minute after its peer has left")
	}
}

// TestLeftAfterTheEndOfTCP is TestLeftAfterTheEnd for a peer at the other end of a TCP connection.
func TestLeftAfterTheEndOfTCP(t *testing.T) {
	t.Parallel()
	a, b := pair(t)
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = l.Close() })
	peer, err := net.Dial("tcp", l.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	local, err := l.Accept()
	if err != nil {
		t.Fatal(err)
	}
	joined := make(chan struct{})
	go func() {
		bytestream.Join(local, b)
		close(joined)
	}()
	if err := peer.(*net.TCPConn).CloseWrite(); err != nil {
		t.Fatal(err)
	}
	if _, err := io.ReadAll(a); err != nil { // the end arrives
		t.Fatal(err)
	}
	if err := peer.(*net.TCPConn).SetLinger(0); err != nil { // with a reset, as the kernel of a vanished peer sends
		t.Fatal(err)
	}
	_ = peer.Close()
	select {
	case <-joined:
	case <-time.After(time.Minute):
		t.Error("the connection is still there a minute after its peer has left")
	}
}

package transfer_test

import (
	"io"
	"net"
	"testing"

	"github.com/RelevanceAI/harvest/client/errors"
	"github.com/RelevanceAI/harvest/internal/modal/transfer"
)

// TestSplitByFirstBytes checks that connections reach the listener of their protocol whole, that one which sends
// nothing holds up no other, and that closing the first listener ends both.
func TestSplitByFirstBytes(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	two, one := transfer.Split(l)
	dial := func(text string) net.Conn {
		t.Helper()
		c, err := net.Dial("tcp", l.Addr().String())
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { c.Close() })
		if _, err := io.WriteString(c, text); err != nil {
			t.Fatal(err)
		}
		return c
	}
	silent := dial("")
	for _, c := range []struct {
		to   net.Listener
		text string
	}{{one, "GET / HTTP/1.1\r\n"}, {two, "PRI * HTTP/2.0\r\n"}, {one, "PUT /x HTTP/1.1\r\n"}, {one, "PRX"}} {
		client := dial(c.text)
		got, err := c.to.Accept()
		if err != nil {
			t.Fatal(err)
		}
		if err := client.(*net.TCPConn).CloseWrite(); err != nil {
			t.Fatal(err)
		}
		text, err := io.ReadAll(got)
		if err != nil || string(text) != c.text {
			t.Errorf("%q arrived as %q, %v", c.text, text, err)
		}
		if err := got.Close(); err != nil {
			t.Error(err)
		}
	}
	for range 2 {
		if err := one.Close(); err != nil {
			t.Error(err)
		}
	}
	dial("PRI * HTTP/2.0\r\n") // the first one continues
	if got, err := two.Accept(); err != nil {
		t.Error(err)
	} else if err := got.Close(); err != nil {
		t.Error(err)
	}
	if _, err := dial("GET / HTTP/1.1\r\n").Read(make([]byte, 1)); err == nil {
		t.Error("there is an answer without a server")
	}
	if err := two.Close(); err != nil {
		t.Error(err)
	}
	for _, half := range []net.Listener{one, two} {
		if _, err := half.Accept(); !errors.Is(err, net.ErrClosed) {
			t.Errorf("after the end: %v", err)
		}
	}
	if _, err := silent.Read(make([]byte, 1)); err == nil {
		t.Error("the silent connection remains")
	}
}

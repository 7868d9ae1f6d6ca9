package netstack_test

import (
	"bytes"
	"crypto/rand"
	"io"
	"net"
	"testing"
	"time"
)

// mission: A6
func TestEchoOverTCP(t *testing.T) {
	t.Parallel()
	w := newWorld(t, policy(t, "default"))
	real := listen(t, func(c net.Conn) { _, _ = io.Copy(c, c); _ = c.(*net.TCPConn).CloseWrite() })
	for _, as := range []string{"203.0.113.7:443", "[2001:db8::7]:443"} {
		w.serve("tcp", as, real)
		c, err := w.guest.dial(t, as)
		if err != nil {
			t.Fatalf("%s: %v", as, err)
		}
		sent := make([]byte, 5<<20)
		_, _ = rand.Read(sent)
		go func() {
			_, _ = c.Write(sent)
			_ = c.CloseWrite()
		}()
		got, err := io.ReadAll(c)
		if err != nil || !bytes.Equal(got, sent) {
			t.Errorf("%s: %d of %d bytes came back, %v", as, len(got), len(sent), err)
		}
		_ = c.Close()
	}
}

func TestUDP(t *testing.T) {
	t.Parallel()
	w := newWorld(t, policy(t, "default"))
	s, err := net.ListenPacket("udp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	go func() {
		b := make([]byte, 65536)
		for {
			n, from, err := s.ReadFrom(b)
			if err != nil {
				return
			}
			_, _ = s.WriteTo(b[:n], from)
		}
	}()
	for _, as := range []string{"203.0.113.7:5000", "[2001:db8::7]:5000"} {
		w.serve("udp", as, s.LocalAddr().String())
		c := w.guest.dialUDP(t, as)
		for _, size := range []int{1, 1200, 60000} {
			sent := bytes.Repeat([]byte{7}, size)
			if _, err := c.Write(sent); err != nil {
				t.Fatal(err)
			}
			_ = c.SetReadDeadline(time.Now().Add(patience))
			b := make([]byte, 65536)
			n, err := c.Read(b)
			if err != nil || !bytes.Equal(b[:n], sent) {
				t.Errorf("%s: %d of %d bytes came back, %v", as, n, size, err)
			}
		}
	}
}

package netstack_test

import (
	"io"
	"net"
	"sync"
	"testing"
	"time"
)

// BenchmarkDownload measures one connection from a server of the host through the gateway into a second stack. It
// asserts nothing.
func BenchmarkDownload(b *testing.B) {
	const size = 256 << 20
	w := newWorld(b, policy(b, "default"))
	real := listen(b, func(c net.Conn) {
		buf := make([]byte, 1<<20)
		for range size >> 20 {
			if _, err := c.Write(buf); err != nil {
				return
			}
		}
	})
	w.serve("tcp", "203.0.113.7:80", real)
	b.SetBytes(size)
	for b.Loop() {
		c, err := w.guest.dial(b, "203.0.113.7:80")
		if err != nil {
			b.Fatal(err)
		}
		if n, err := io.CopyBuffer(io.Discard, struct{ io.Reader }{c}, make([]byte, 1<<20)); n != size {
			b.Fatal(n, err)
		}
		_ = c.Close()
	}
	b.Logf("%+v", w.Stats())
}

func BenchmarkUpload(b *testing.B) {
	const size = 256 << 20
	w := newWorld(b, policy(b, "default"))
	got := make(chan int64, 1)
	real := listen(b, func(c net.Conn) {
		n, _ := io.CopyBuffer(io.Discard, struct{ io.Reader }{c}, make([]byte, 1<<20))
		got <- n
	})
	w.serve("tcp", "203.0.113.7:80", real)
	b.SetBytes(size)
	buf := make([]byte, 1<<20)
	for b.Loop() {
		c, err := w.guest.dial(b, "203.0.113.7:80")
		if err != nil {
			b.Fatal(err)
		}
		for range size >> 20 {
			if _, err := c.Write(buf); err != nil {
				b.Fatal(err)
			}
		}
		_ = c.CloseWrite()
		if n := <-got; n != size {
			b.Fatal(n)
		}
		_ = c.Close()
	}
}

func BenchmarkConnect(b *testing.B) {
	w := newWorld(b, policy(b, "default"), unlimited)
	real := listen(b, func(c net.Conn) { _, _ = io.Copy(io.Discard, c) })
	w.serve("tcp", "203.0.113.7:80", real)
	for b.Loop() {
		c, err := w.guest.dial(b, "203.0.113.7:80")
		if err != nil {
			b.Fatal(err)
		}
		_ = c.Close()
	}
}

// BenchmarkManyConnections keeps a thousand connections open and has all download at once.
func BenchmarkManyConnections(b *testing.B) {
	const size = 256 << 10
	w := newWorld(b, policy(b, "default"), unlimited)
	real := listen(b, func(c net.Conn) {
		var one [1]byte
		for {
			if _, err := io.ReadFull(c, one[:]); err != nil {
				return
			}
			if _, err := c.Write(make([]byte, size)); err != nil {
				return
			}
		}
	})
	w.serve("tcp", "203.0.113.7:80", real)
	var conns []net.Conn
	for range 1000 {
		c, err := w.guest.dial(b, "203.0.113.7:80")
		if err != nil {
			b.Fatal(err)
		}
		conns = append(conns, c)
	}
	b.SetBytes(size * 1000)
	for b.Loop() {
		var wg sync.WaitGroup
		for _, c := range conns {
			wg.Go(func() {
				_ = c.SetDeadline(time.Now().Add(time.Minute))
				if _, err := c.Write([]byte{1}); err != nil {
					b.Error(err)
				}
				if _, err := io.CopyN(io.Discard, c, size); err != nil {
					b.Error(err)
				}
			})
		}
		wg.Wait()
	}
}

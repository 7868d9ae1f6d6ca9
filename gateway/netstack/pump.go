package netstack

import (
	"bytes"
	"io"
	"net"
	"sync"
	"syscall"

	"golang.org/x/sys/unix"
	"gvisor.dev/gvisor/pkg/tcpip"
	"gvisor.dev/gvisor/pkg/waiter"

	"github.com/RelevanceAI/harvest/errors"
	"github.com/RelevanceAI/harvest/gateway"
)

// chunk is how much is carried at once. A connection holds a chunk only while it has something to carry, so that idle ones cost little.
const chunk = 128 << 10

var chunks = sync.Pool{New: func() any { b := make([]byte, chunk); return &b }}

// pumpFromGuest carries what the sandbox sends until it says that this is all. An error means that the connection is broken, or that it said
// what the policy forbids.
func (g *Gateway) pumpFromGuest(c *conn, check gateway.Check, guest *endpoint, up net.Conn) error {
	entry, readable := waiter.NewChannelEntry(waiter.ReadableEvents | waiter.EventHUp | waiter.EventErr)
	guest.queue.EventRegister(&entry)
	defer guest.queue.EventUnregister(&entry)
	out := g.inspect(c, check, up)
	defer out.stop()
	for {
		b := chunks.Get().(*[]byte)
		w := tcpip.SliceWriter(*b)
		res, terr := guest.ep.Read(&w, tcpip.ReadOptions{})
		var err error
		if terr == nil || res.Count > 0 {
			_, err = out.Write((*b)[:res.Count])
		}
		chunks.Put(b)
		switch terr.(type) {
		case nil:
			if err != nil {
				return err
			}
		case *tcpip.ErrWouldBlock:
			<-readable
		case *tcpip.ErrClosedForReceive:
			if err := out.Close(); err != nil {
				return err
			}
			return closeWrite(up)
		case *tcpip.ErrBadBuffer: // the chunk is full
		default:
			return errors.Errorf("read from the sandbox: %s", terr)
		}
	}
}

// pumpToGuest carries what the host's connection receives until it ends.
func pumpToGuest(guest *endpoint, up net.Conn) error {
	entry, writable := waiter.NewChannelEntry(waiter.WritableEvents | waiter.EventHUp | waiter.EventErr)
	guest.queue.EventRegister(&entry)
	defer guest.queue.EventUnregister(&entry)
	for {
		b, n, err := readChunk(up)
		if n > 0 {
			if werr := writeGuest(guest.ep, (*b)[:n], writable); werr != nil {
				chunks.Put(b)
				return werr
			}
		}
		if b != nil {
			chunks.Put(b)
		}
		switch {
		case err == io.EOF:
			// Data that the sandbox has not yet read goes before the end.
			if terr := guest.ep.Shutdown(tcpip.ShutdownWrite); terr != nil {
				return errors.Errorf("end the stream to the sandbox: %s", terr)
			}
			return nil
		case err != nil:
			return err
		}
	}
}

// writeGuest writes all of p, waiting for room.
func writeGuest(ep tcpip.Endpoint, p []byte, writable <-chan struct{}) error {
	for r := bytes.NewReader(p); r.Len() > 0; {
		_, terr := ep.Write(r, tcpip.WriteOptions{})
		switch terr.(type) {
		case nil:
		case *tcpip.ErrWouldBlock:
			<-writable
		default:
			return errors.Errorf("write to the sandbox: %s", terr)
		}
	}
	return nil
}

// readChunk reads what there is, and takes a chunk for it only then, where the connection tells.
func readChunk(c net.Conn) (b *[]byte, n int, err error) {
	s, ok := c.(syscall.Conn)
	if !ok {
		b = chunks.Get().(*[]byte)
		n, err = c.Read(*b)
		return b, n, err
	}
	raw, err := s.SyscallConn()
	if err != nil {
		return nil, 0, err
	}
	rerr := raw.Read(func(fd uintptr) bool {
		b = chunks.Get().(*[]byte)
		for {
			n, err = unix.Read(int(fd), *b)
			if err == unix.EINTR {
				continue
			}
			if err == unix.EAGAIN {
				chunks.Put(b)
				b = nil
				return false
			}
			return true
		}
	})
	switch {
	case rerr != nil:
		return b, 0, rerr
	case err != nil:
		return b, 0, err
	case n == 0:
		return b, 0, io.EOF
	}
	return b, n, nil
}

func closeWrite(c net.Conn) error {
	if w, ok := c.(interface{ CloseWrite() error }); ok {
		return w.CloseWrite()
	}
	return nil
}

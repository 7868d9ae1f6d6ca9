package netstack

import (
	"io"
	"net"
	"sync"
	"syscall"

	"golang.org/x/sys/unix"
	"gvisor.dev/gvisor/pkg/tcpip"
	"gvisor.dev/gvisor/pkg/waiter"

	"github.com/RelevanceAI/harvest/client/errors"
	"github.com/RelevanceAI/harvest/internal/engine/gateway"
)

// chunk is the size of a copy buffer. A connection holds one only while it has data to copy, so that idle ones
// cost little.
const chunk = 128 << 10

var chunks = sync.Pool{New: func() any { b := make([]byte, chunk); return &b }}

// pumpFromGuest forwards the sandbox's data until the sandbox ends its direction. An error means that the
// connection is broken, or that the policy forbids its content.
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

// pumpToGuest forwards the data of the host's connection until its end.
func pumpToGuest(guest *endpoint, up net.Conn, from *hostBytes) error {
	entry, writable := waiter.NewChannelEntry(waiter.WritableEvents | waiter.EventHUp | waiter.EventErr)
	guest.queue.EventRegister(&entry)
	defer guest.queue.EventUnregister(&entry)
	for {
		took, err := from.passOn(up, guest.ep)
		switch {
		case err == io.EOF:
			// Data that the sandbox has not read yet is sent before the FIN.
			if terr := guest.ep.Shutdown(tcpip.ShutdownWrite); terr != nil {
				return errors.Errorf("end the stream to the sandbox: %s", terr)
			}
			return nil
		case err != nil:
			return err
		case !took:
			// The buffer is full. Wait until half of it is empty, so that many full segments can be sent at
			// once.
			<-writable
		}
	}
}

// segmentsAtOnce is the number of segments that are passed to the stack at once.
const segmentsAtOnce = 4

// hostBytes is the readable data of a host socket. The stack reads it directly into the buffers of its
// segments.
type hostBytes struct {
	fd    int
	ready int // readable bytes
	most  int // most bytes to pass on at once: whole segments
	sent  int64
	err   error
}

// passOn waits until up is readable, and passes ep as much as it accepts. took is false if ep is full. io.EOF
// is the end of up.
func (h *hostBytes) passOn(up net.Conn, ep tcpip.Endpoint) (took bool, err error) {
	s, ok := up.(syscall.Conn)
	if !ok {
		return false, errors.Errorf("the host's connection is no socket")
	}
	raw, err := s.SyscallConn()
	if err != nil {
		return false, err
	}
	var terr tcpip.Error
	rerr := raw.Read(func(fd uintptr) bool {
		h.fd = int(fd)
		if h.ready, h.err = waiting(h.fd); h.err == unix.EAGAIN {
			return false
		}
		if h.err == nil {
			h.ready = min(h.ready, h.most)
			want := int64(h.ready)
			var n int64
			n, terr = ep.Write(h, tcpip.WriteOptions{})
			took = n == want
			h.sent += n
		}
		return true
	})
	switch terr.(type) {
	case nil, *tcpip.ErrWouldBlock:
	default:
		if h.err == nil {
			h.err = errors.Errorf("write to the sandbox: %s", terr)
		}
	}
	if rerr != nil {
		return false, rerr
	}
	return took, h.err
}

// waiting returns the number of readable bytes of a socket. It returns io.EOF at the end of the stream, and
// EAGAIN if no data is available yet.
func waiting(fd int) (int, error) {
	n, err := unix.IoctlGetInt(fd, unix.TIOCINQ)
	if err != nil || n > 0 {
		return n, err
	}
	var one [1]byte
	for {
		switch n, _, err := unix.Recvfrom(fd, one[:], unix.MSG_PEEK|unix.MSG_DONTWAIT); {
		case err == unix.EINTR:
		case err != nil:
			return 0, err
		case n == 0:
			return 0, io.EOF
		default:
			return n, nil
		}
	}
}

// Len implements tcpip.Payloader.
func (h *hostBytes) Len() int { return h.ready }

// Read implements tcpip.Payloader. It never blocks: the bytes that Len reported are available.
func (h *hostBytes) Read(p []byte) (int, error) {
	if len(p) == 0 {
		return 0, nil
	}
	for {
		n, err := unix.Read(h.fd, p)
		switch {
		case err == unix.EINTR:
			continue
		case err == nil && n == 0:
			err = io.ErrUnexpectedEOF
		}
		if err != nil {
			h.err = err
		}
		return max(n, 0), err
	}
}

// readChunk reads the available data. If the connection is a socket, it takes a chunk from the pool only once
// there is data.
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

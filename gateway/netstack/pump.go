package netstack

import (
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
func (g *Gateway) pumpToGuest(guest *endpoint, up net.Conn) error {
	entry, writable := waiter.NewChannelEntry(waiter.WritableEvents | waiter.EventHUp | waiter.EventErr)
	guest.queue.EventRegister(&entry)
	defer guest.queue.EventUnregister(&entry)
	from := &hostBytes{most: g.link.segment() * segmentsAtOnce}
	for {
		took, err := from.passOn(up, guest.ep)
		switch {
		case err == io.EOF:
			// Data that the sandbox has not yet read goes before the end.
			if terr := guest.ep.Shutdown(tcpip.ShutdownWrite); terr != nil {
				return errors.Errorf("end the stream to the sandbox: %s", terr)
			}
			return nil
		case err != nil:
			return err
		case !took:
			// The buffer is full. What is left waits until half of it is empty, so that full segments go out, many at once.
			<-writable
		}
	}
}

// segmentsAtOnce is how many segments are handed to the stack at once.
const segmentsAtOnce = 4

// hostBytes is what waits at a socket of the host. The stack reads it straight into the buffers of its segments.
type hostBytes struct {
	fd    int
	ready int // bytes to be read
	most  int // bytes to hand on at once: whole segments
	err   error
}

// passOn waits until there is something to be read from up, and gives ep as much as it takes. took is false if ep has no room for more; io.EOF
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

// waiting returns how many bytes can be read from a socket; io.EOF if there never will be more, EAGAIN if there are none yet.
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

// Read implements tcpip.Payloader. It never waits: what Len promised is there.
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

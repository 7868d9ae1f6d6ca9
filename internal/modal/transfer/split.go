package transfer

import (
	"io"
	"net"
	"sync"
	"time"

	"github.com/RelevanceAI/harvest/client/errors"
)

// preface is how every connection with HTTP/2 begins, and no request of HTTP/1.1.
const preface = "PRI"

// Patience with clients that connect and send nothing, and with a machine that has no more descriptors.
const (
	firstBytes = 10 * time.Second
	acceptLull = 50 * time.Millisecond
)

// Split returns two listeners for the connections of l: those with HTTP/2, and those with HTTP/1.1. Closing the first
// one closes l and both; after closing the second one, connections with HTTP/1.1 are refused.
func Split(l net.Listener) (two, one net.Listener) {
	s := &splitter{Listener: l, waiting: map[net.Conn]bool{}, done: make(chan struct{})}
	a := &half{splitter: s, conns: make(chan net.Conn), closed: s.done}
	b := &half{splitter: s, conns: make(chan net.Conn), closed: make(chan struct{}), alone: true}
	go s.accept(a, b)
	return a, b
}

type splitter struct {
	net.Listener
	done chan struct{} // closed at the end
	err  error         // set before done is closed
	once sync.Once

	mu      sync.Mutex
	waiting map[net.Conn]bool // guarded by mu; nil after the end
}

// end ends the splitter with the error of Accept.
func (s *splitter) end(err error) {
	s.once.Do(func() {
		s.err = err
		close(s.done)
		s.mu.Lock()
		defer s.mu.Unlock()
		for c := range s.waiting {
			_ = c.Close() // nothing was read from it
		}
		s.waiting = nil
	})
}

// wait adds a connection to those that have sent nothing, or closes it after the end.
func (s *splitter) wait(c net.Conn) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.waiting == nil {
		_ = c.Close() // nothing was read from it
		return false
	}
	s.waiting[c] = true
	return true
}

func (s *splitter) accept(two, one *half) {
	for {
		c, err := s.Listener.Accept()
		var temporary interface{ Temporary() bool }
		switch {
		case err == nil && s.wait(c):
			go s.sort(c, two, one)
		case err == nil:
		case errors.As(err, &temporary) && temporary.Temporary():
			select {
			case <-time.After(acceptLull):
			case <-s.done:
				return
			}
		default:
			s.end(err)
			return
		}
	}
}

// sort reads the beginning of a connection and hands it on.
func (s *splitter) sort(c net.Conn, two, one *half) {
	first := make([]byte, len(preface))
	_ = c.SetReadDeadline(time.Now().Add(firstBytes)) // a closed connection fails below
	_, err := io.ReadFull(c, first)
	_ = c.SetReadDeadline(time.Time{})
	s.mu.Lock()
	delete(s.waiting, c)
	s.mu.Unlock()
	if err != nil {
		_ = c.Close() // the client has gone, or says nothing
		return
	}
	to := one
	if string(first) == preface {
		to = two
	}
	select {
	case to.conns <- &begun{Conn: c, first: first}:
		return
	case <-to.closed:
	case <-s.done:
	}
	_ = c.Close() // there is no server for it
}

// half is one of the two listeners.
type half struct {
	*splitter
	conns  chan net.Conn
	closed chan struct{}
	alone  bool // closing it ends no other
	ending sync.Once
}

// Accept implements net.Listener.
func (h *half) Accept() (net.Conn, error) {
	select {
	case c := <-h.conns:
		return c, nil
	case <-h.done:
		return nil, h.err
	case <-h.closed:
		if !h.alone { // the same as done
			return nil, h.err
		}
		return nil, net.ErrClosed
	}
}

// Close implements net.Listener.
func (h *half) Close() error {
	if h.alone {
		h.ending.Do(func() { close(h.closed) })
		return nil
	}
	err := h.Listener.Close()
	h.end(net.ErrClosed)
	return err
}

// begun is a connection whose first bytes were read.
type begun struct {
	net.Conn
	first []byte
}

func (b *begun) Read(p []byte) (int, error) {
	if len(b.first) > 0 {
		n := copy(p, b.first)
		b.first = b.first[n:]
		return n, nil
	}
	return b.Conn.Read(p)
}

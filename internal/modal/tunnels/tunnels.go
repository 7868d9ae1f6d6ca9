// Package tunnels listens on the loopback interface for connections to ports of sandboxes, with TLS and without.
package tunnels

import (
	"context"
	"crypto/tls"
	"io"
	"net"
	"net/netip"
	"strconv"
	"sync"

	"github.com/RelevanceAI/harvest/client/errors"
	"github.com/RelevanceAI/harvest/internal/base/logf"
)

// Host is the address of tunnels.
const Host = "127.0.0.1"

// Hole is a port of a sandbox that can be reached from outside.
type Hole struct {
	Port    uint32 `json:"port"`
	Plain   bool   `json:"plain,omitempty"` // also without TLS
	H2      bool   `json:"h2,omitempty"`
	Address string `json:"address"`       // with TLS
	Raw     string `json:"raw,omitempty"` // the address without TLS, if Plain
}

// upgraded returns a Hole of a version whose plain holes had no TLS.
func (h Hole) upgraded() Hole {
	if h.Plain && h.Raw == "" {
		h.Address, h.Raw = "", h.Address
	}
	return h
}

// Split returns the host and the port of an address of a Hole.
func Split(address string) (host string, port uint32) {
	host, text, _ := net.SplitHostPort(address)
	n, _ := strconv.ParseUint(text, 10, 16)
	return host, uint32(n)
}

// Sandbox is the target of tunnels.
type Sandbox struct {
	ID      string
	Allowed []string                                                 // CIDRs of clients; none: all
	Dial    func(ctx context.Context, port uint32) (net.Conn, error) // connects to a port
	Go      func(f func()) bool                                      // starts f in the background
}

// Set holds the listeners of all sandboxes. Its methods may be called concurrently.
type Set struct {
	ctx         context.Context // of connections
	certificate func(*tls.ClientHelloInfo) (*tls.Certificate, error)

	mu     sync.Mutex
	byBox  map[string][]net.Listener // guarded by mu
	closed bool                      // guarded by mu
}

// New returns a Set whose connections end with ctx.
func New(ctx context.Context, certificate func(*tls.ClientHelloInfo) (*tls.Certificate, error)) *Set {
	return &Set{ctx: ctx, certificate: certificate, byBox: map[string][]net.Listener{}}
}

// Open opens holes of a sandbox and returns them with their addresses. Ports that were open earlier keep their
// addresses, unless other programs use them.
func (s *Set) Open(ctx context.Context, sb Sandbox, holes, earlier []Hole) (opened []Hole, err error) {
	before := map[uint32]Hole{}
	for _, h := range earlier {
		before[h.Port] = h.upgraded()
	}
	for _, h := range holes {
		h.Address, err = s.dig(ctx, sb, h.Port, before[h.Port].Address, s.secure(h.H2))
		if err == nil && h.Plain {
			h.Raw, err = s.dig(ctx, sb, h.Port, before[h.Port].Raw, nil)
		}
		if err != nil {
			s.Drop(sb.ID)
			return nil, err
		}
		opened = append(opened, h)
	}
	return opened, nil
}

// dig opens one side of a hole, without TLS if config is nil, and returns its address.
func (s *Set) dig(ctx context.Context, sb Sandbox, port uint32, earlier string, config *tls.Config) (string, error) {
	l, err := listen(ctx, earlier)
	if err != nil {
		return "", err
	}
	if config != nil {
		l = tls.NewListener(l, config)
	}
	if err := s.add(sb.ID, l); err != nil {
		return "", err
	}
	sb.Go(func() { s.accept(l, sb, port) })
	return l.Addr().String(), nil
}

// listen listens at an earlier address, or at another one if that is "" or in use.
func listen(ctx context.Context, earlier string) (l net.Listener, err error) {
	var lc net.ListenConfig
	if earlier != "" {
		l, err = lc.Listen(ctx, "tcp", earlier)
	}
	if earlier == "" || err != nil {
		l, err = lc.Listen(ctx, "tcp", net.JoinHostPort(Host, "0"))
	}
	return l, errors.Explainf(err, errors.Exhausted, "no tunnel can be opened on this machine")
}

// secure returns the configuration of TLS.
func (s *Set) secure(h2 bool) *tls.Config {
	protocols := []string{"http/1.1"}
	if h2 {
		protocols = []string{"h2"}
	}
	return &tls.Config{GetCertificate: s.certificate, MinVersion: tls.VersionTLS12, NextProtos: protocols}
}

// add registers a listener. It fails, and closes the listener, if the Set is closed.
func (s *Set) add(id string, l net.Listener) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		return errors.Join(errors.Newf(errors.Unavailable, "Harvest is shutting down"), l.Close())
	}
	s.byBox[id] = append(s.byBox[id], l)
	return nil
}

// Drop closes the listeners of a sandbox.
func (s *Set) Drop(id string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, l := range s.byBox[id] {
		_ = l.Close() // nothing was buffered
	}
	delete(s.byBox, id)
}

// Close closes all listeners.
func (s *Set) Close() {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, ls := range s.byBox {
		for _, l := range ls {
			_ = l.Close()
		}
	}
	s.byBox, s.closed = map[string][]net.Listener{}, true
}

// accept serves the connections of a listener.
func (s *Set) accept(l net.Listener, sb Sandbox, port uint32) {
	for {
		c, err := l.Accept()
		if err != nil {
			return
		}
		if !Allowed(sb.Allowed, c.RemoteAddr().String()) || !sb.Go(func() { s.carry(c, sb, port) }) {
			_ = c.Close()
		}
	}
}

// Allowed reports whether a client with that address may connect, by a list of CIDRs; without a list all may.
func Allowed(list []string, from string) bool {
	addr, err := netip.ParseAddrPort(from)
	if len(list) == 0 || err != nil {
		return len(list) == 0
	}
	for _, text := range list {
		if prefix, err := netip.ParsePrefix(text); err == nil && prefix.Contains(addr.Addr().Unmap()) {
			return true
		}
	}
	return false
}

// carry connects a client to a port of the sandbox until both directions have ended.
func (s *Set) carry(outside net.Conn, sb Sandbox, port uint32) {
	defer outside.Close()
	defer context.AfterFunc(s.ctx, func() { _ = outside.Close() })()
	inside, err := sb.Dial(s.ctx, port)
	if err != nil {
		logf.Debugf(s.ctx, "a tunnel to port %d of %s: %v", port, sb.ID, err)
		return
	}
	defer inside.Close()
	var both sync.WaitGroup
	half := func(to, from net.Conn) {
		_, _ = io.Copy(to, from) // one side has closed; closing the other ends it, too
		if w, ok := to.(interface{ CloseWrite() error }); !ok || w.CloseWrite() != nil {
			_ = to.Close()
		}
	}
	both.Go(func() { half(inside, outside) })
	both.Go(func() { half(outside, inside) })
	both.Wait()
}

package modal

import (
	"context"
	"crypto/tls"
	"io"
	"net"
	"net/netip"
	"strconv"
	"sync"

	pb "github.com/modal-labs/modal-client/go/proto/modal_proto"

	"github.com/RelevanceAI/harvest/client/errors"
	"github.com/RelevanceAI/harvest/internal/base/logf"
)

// TunnelHost is the address of tunnels.
const TunnelHost = "127.0.0.1"

// hole is a port of a sandbox that is reachable from outside.
type hole struct {
	Port    uint32 `json:"port"`
	Plain   bool   `json:"plain,omitempty"` // also without TLS
	H2      bool   `json:"h2,omitempty"`
	Address string `json:"address"`       // with TLS
	Raw     string `json:"raw,omitempty"` // the address without TLS, if Plain
}

// upgraded returns a hole of a version whose plain holes had no TLS.
func (h hole) upgraded() hole {
	if h.Plain && h.Raw == "" {
		h.Address, h.Raw = "", h.Address
	}
	return h
}

// tunnels are listeners on the loopback interface. Each leads to a port of a sandbox.
type tunnels struct {
	certificate func(*tls.ClientHelloInfo) (*tls.Certificate, error)

	mu     sync.Mutex
	byBox  map[string][]net.Listener // guarded by mu
	closed bool                      // guarded by mu
}

// open opens the ports of the definition, at their earlier addresses if they had any.
func (t *tunnels) open(ctx context.Context, b *box) error {
	before := map[uint32]hole{}
	for _, h := range b.ports {
		before[h.Port] = h.upgraded()
	}
	b.ports = nil
	for _, spec := range b.def.GetOpenPorts().GetPorts() {
		h := hole{Port: spec.GetPort(), Plain: spec.GetUnencrypted(),
			H2: spec.GetTunnelType() == pb.TunnelType_TUNNEL_TYPE_H2}
		earlier := before[h.Port]
		err := t.dig(ctx, b, h, &h.Address, earlier.Address, t.secure(h.H2))
		if err == nil && h.Plain {
			err = t.dig(ctx, b, h, &h.Raw, earlier.Raw, func(l net.Listener) net.Listener { return l })
		}
		if err != nil {
			t.drop(b.id)
			return err
		}
		b.ports = append(b.ports, h)
	}
	return nil
}

// dig opens one side of a hole, at its earlier address if that is free, and sets its address.
func (t *tunnels) dig(ctx context.Context, b *box, h hole, address *string, earlier string,
	wrap func(net.Listener) net.Listener) error {
	l, err := t.listen(ctx, earlier)
	if err != nil {
		return err
	}
	l = wrap(l)
	if err := t.add(b.id, l); err != nil {
		return err
	}
	*address = l.Addr().String()
	b.s.tasks.Go(func() { b.accept(l, h) })
	return nil
}

// add registers a listener. It fails, and closes the listener, if the tunnels are closed.
func (t *tunnels) add(id string, l net.Listener) error {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.closed {
		return errors.Join(closing(), l.Close())
	}
	if t.byBox == nil {
		t.byBox = map[string][]net.Listener{}
	}
	t.byBox[id] = append(t.byBox[id], l)
	return nil
}

// reopen opens the tunnels of a sandbox that an earlier server created.
func (t *tunnels) reopen(ctx context.Context, b *box) {
	if err := t.open(ctx, b); err != nil {
		logf.Errorf(ctx, "open the tunnels of %s: %v", b.id, err)
	}
}

// listen listens at an earlier address, or at another one if that is "" or in use.
func (t *tunnels) listen(ctx context.Context, earlier string) (l net.Listener, err error) {
	var lc net.ListenConfig
	if earlier != "" {
		l, err = lc.Listen(ctx, "tcp", earlier)
	}
	if earlier == "" || err != nil {
		l, err = lc.Listen(ctx, "tcp", net.JoinHostPort(TunnelHost, "0"))
	}
	return l, errors.Explainf(err, errors.Exhausted, "no tunnel can be opened on this machine")
}

// secure returns a function that adds TLS to a listener.
func (t *tunnels) secure(h2 bool) func(net.Listener) net.Listener {
	protocols := []string{"http/1.1"}
	if h2 {
		protocols = []string{"h2"}
	}
	config := &tls.Config{GetCertificate: t.certificate, MinVersion: tls.VersionTLS12, NextProtos: protocols}
	return func(l net.Listener) net.Listener { return tls.NewListener(l, config) }
}

// of describes b's tunnels to clients.
func (t *tunnels) of(b *box) []*pb.TunnelData {
	b.mu.Lock()
	defer b.mu.Unlock()
	var list []*pb.TunnelData
	for _, h := range b.ports {
		data := pb.TunnelData_builder{ContainerPort: h.Port}
		data.Host, data.Port = hostPort(h.Address)
		if h.Plain {
			host, port := hostPort(h.Raw)
			data.UnencryptedHost, data.UnencryptedPort = &host, &port
		}
		list = append(list, data.Build())
	}
	return list
}

func hostPort(address string) (host string, port uint32) {
	host, text, _ := net.SplitHostPort(address)
	n, _ := strconv.ParseUint(text, 10, 16)
	return host, uint32(n)
}

// drop closes the tunnels of a sandbox.
func (t *tunnels) drop(id string) {
	t.mu.Lock()
	defer t.mu.Unlock()
	for _, l := range t.byBox[id] {
		_ = l.Close() // nothing was buffered
	}
	delete(t.byBox, id)
}

func (t *tunnels) close() {
	t.mu.Lock()
	defer t.mu.Unlock()
	for _, ls := range t.byBox {
		for _, l := range ls {
			_ = l.Close()
		}
	}
	t.byBox, t.closed = nil, true
}

// accept serves the connections of a tunnel.
func (b *box) accept(l net.Listener, h hole) {
	for {
		c, err := l.Accept()
		if err != nil {
			return
		}
		if !b.allowed(c.RemoteAddr().String()) {
			_ = c.Close()
			continue
		}
		b.s.tasks.Go(func() { b.carry(c, h) })
	}
}

// allowed reports whether a client with that address may connect.
func (b *box) allowed(from string) bool {
	list := b.def.GetInboundCidrAllowlist()
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
func (b *box) carry(outside net.Conn, h hole) {
	defer outside.Close()
	defer context.AfterFunc(b.s.ctx, func() { _ = outside.Close() })()
	inside, err := b.s.opts.Fleet.Dial(b.s.ctx, b.account, b.id, int(h.Port))
	if err != nil {
		logf.Debugf(b.s.ctx, "a tunnel to port %d of %s: %v", h.Port, b.id, err)
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

// SandboxGetTunnelsV2 implements ModalClient.
func (c *control) SandboxGetTunnelsV2(ctx context.Context,
	req *pb.SandboxGetTunnelsRequest) (*pb.SandboxGetTunnelsResponse, error) {
	b, err := c.s.box(ctx, req.GetSandboxId())
	if err != nil {
		return nil, err
	}
	return pb.SandboxGetTunnelsResponse_builder{Result: succeeded(), Tunnels: c.s.tunnels.of(b)}.Build(), nil
}

// SandboxGetTunnels implements ModalClient.
func (c *control) SandboxGetTunnels(ctx context.Context,
	req *pb.SandboxGetTunnelsRequest) (*pb.SandboxGetTunnelsResponse, error) {
	return c.SandboxGetTunnelsV2(ctx, req)
}

package modal

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"io"
	"math/big"
	"net"
	"net/netip"
	"strconv"
	"sync"
	"time"

	pb "github.com/modal-labs/modal-client/go/proto/modal_proto"

	"github.com/RelevanceAI/harvest/client/errors"
	"github.com/RelevanceAI/harvest/internal/base/logf"
)

// hole is a port of a sandbox that is reachable from outside.
type hole struct {
	Port    uint32 `json:"port"`
	Plain   bool   `json:"plain,omitempty"` // without TLS
	H2      bool   `json:"h2,omitempty"`
	Address string `json:"address"` // its address outside
}

// tunnels are listeners on the loopback interface. Each leads to a port of a sandbox.
type tunnels struct {
	mu     sync.Mutex
	byBox  map[string][]net.Listener // guarded by mu
	closed bool                      // guarded by mu
	cert   *tls.Certificate          // guarded by mu; made on first use
}

// open opens the ports of the definition, at their earlier addresses if they had any.
func (t *tunnels) open(ctx context.Context, b *box) error {
	before := map[uint32]string{}
	for _, h := range b.ports {
		before[h.Port] = h.Address
	}
	b.ports = nil
	for _, spec := range b.def.GetOpenPorts().GetPorts() {
		h := hole{Port: spec.GetPort(), Plain: spec.GetUnencrypted(),
			H2: spec.GetTunnelType() == pb.TunnelType_TUNNEL_TYPE_H2, Address: before[spec.GetPort()]}
		l, err := t.listen(ctx, h)
		if err != nil {
			t.drop(b.id)
			return err
		}
		h.Address = l.Addr().String()
		b.ports = append(b.ports, h)
		if err := t.add(b.id, l); err != nil {
			return err
		}
		b.s.tasks.Go(func() { b.accept(l, h) })
	}
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

func (t *tunnels) listen(ctx context.Context, h hole) (net.Listener, error) {
	var lc net.ListenConfig
	l, err := lc.Listen(ctx, "tcp", h.Address)
	if h.Address == "" || err != nil { // another program uses its address
		l, err = lc.Listen(ctx, "tcp", "127.0.0.1:0")
	}
	if err != nil {
		return nil, errors.Explainf(err, errors.Exhausted, "no tunnel can be opened on this machine")
	}
	if h.Plain {
		return l, nil
	}
	cert, err := t.certificate()
	if err != nil {
		return nil, errors.Join(err, l.Close())
	}
	protocols := []string{"http/1.1"}
	if h.H2 {
		protocols = []string{"h2"}
	}
	return tls.NewListener(l, &tls.Config{Certificates: []tls.Certificate{*cert}, MinVersion: tls.VersionTLS12,
		NextProtos: protocols}), nil
}

// certificate returns a self-signed certificate: no authority vouches for a local name.
func (t *tunnels) certificate() (*tls.Certificate, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.cert != nil {
		return t.cert, nil
	}
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, errors.Wrapf(err, "make a key for tunnels")
	}
	template := &x509.Certificate{
		SerialNumber: big.NewInt(time.Now().UnixNano()), Subject: pkix.Name{CommonName: "Harvest tunnels"},
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().AddDate(1, 0, 0), DNSNames: []string{"localhost"},
		IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)}, KeyUsage: x509.KeyUsageDigitalSignature,
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth},
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, &key.PublicKey, key)
	if err != nil {
		return nil, errors.Wrapf(err, "make a certificate for tunnels")
	}
	t.cert = &tls.Certificate{Certificate: [][]byte{der}, PrivateKey: key}
	return t.cert, nil
}

// of describes b's tunnels to clients.
func (t *tunnels) of(b *box) []*pb.TunnelData {
	b.mu.Lock()
	defer b.mu.Unlock()
	var list []*pb.TunnelData
	for _, h := range b.ports {
		host, text, _ := net.SplitHostPort(h.Address)
		n, _ := strconv.ParseUint(text, 10, 16)
		port := uint32(n)
		data := pb.TunnelData_builder{Host: host, Port: port, ContainerPort: h.Port}
		if h.Plain {
			data.UnencryptedHost, data.UnencryptedPort = &host, &port
		}
		list = append(list, data.Build())
	}
	return list
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

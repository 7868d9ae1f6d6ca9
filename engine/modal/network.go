package modal

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"io"
	"net"
	"net/netip"
	"slices"
	"strings"
	"sync/atomic"
	"time"

	"github.com/hashicorp/yamux"
	sdk "github.com/modal-labs/modal-client/go"

	"github.com/RelevanceAI/harvest/engine"
	"github.com/RelevanceAI/harvest/engine/gvisor/wire"
	"github.com/RelevanceAI/harvest/errors"
	"github.com/RelevanceAI/harvest/gateway"
)

// tagNetwork is the tag with the active policy, in the form of policy.String. Modal does not report the policy.
const tagNetwork = "harvest-network"

// changing is the value of the tag while the policy is being changed.
const changing = "changing"

// Modal's wildcards for addresses and names.
const (
	everyAddress = "0.0.0.0/0"
	everyName    = "*"
)

// policy is a network policy in Modal's terms: unrestricted, or limited to the lists. Empty lists allow
// nothing.
type policy struct {
	open           bool
	cidrs, domains []string // sorted
}

// policyOf translates a network. Invalid for a malformed one, Unsupported for one that Modal cannot express.
func policyOf(n engine.Network) (policy, error) {
	if n.Mode == "" {
		n.Mode = engine.NetworkNone
	}
	if _, err := gateway.Compile(string(n.Mode), n.Allow, n.Deny); err != nil {
		return policy{}, err
	}
	p := policy{open: n.Mode == engine.NetworkDefault, cidrs: []string{}, domains: []string{}}
	switch {
	case len(n.Deny) > 0:
		return policy{}, errors.Remedy(errors.Newf(errors.Unsupported,
			"Modal's networks cannot deny %.120q: they have no rules that deny", n.Deny[0]),
			"use the network mode allow, and list the permitted hosts")
	case p.open && len(n.Allow) > 0:
		return policy{}, errors.Remedy(errors.Newf(errors.Unsupported,
			"at Modal nothing can be allowed beside the internet, such as %.120q", n.Allow[0]),
			"leave the rules out, or use the network mode allow to reach nothing else")
	}
	for _, rule := range n.Allow {
		if err := p.add(rule); err != nil {
			return policy{}, err
		}
	}
	slices.Sort(p.cidrs)
	slices.Sort(p.domains)
	p.cidrs, p.domains = slices.Compact(p.cidrs), slices.Compact(p.domains)
	return p, nil
}

// add adds a rule in the syntax of package gateway.
func (p *policy) add(rule string) error {
	host, port := rule, strings.Count(rule, ":") == 1
	if inside, ok := strings.CutPrefix(rule, "["); ok {
		var after string
		host, after, _ = strings.Cut(inside, "]")
		port = after != ""
	}
	if port {
		return errors.Remedy(errors.Newf(errors.Unsupported,
			"the network rule %.120q names a port, which Modal's networks cannot", rule),
			"leave the port out: at Modal an address is reached at every port, and a domain by TLS at port 443 alone")
	}
	if prefix, err := netip.ParsePrefix(host); err == nil {
		if prefix.Addr().Is4In6() {
			prefix = netip.PrefixFrom(prefix.Addr().Unmap(), prefix.Bits()-96)
		}
		p.cidrs = append(p.cidrs, prefix.String())
		return nil
	}
	if addr, err := netip.ParseAddr(host); err == nil {
		addr = addr.Unmap()
		p.cidrs = append(p.cidrs, netip.PrefixFrom(addr, addr.BitLen()).String())
		return nil
	}
	domain, below := strings.CutPrefix(host, "*.")
	name, ok := gateway.CanonicalName(domain)
	if !ok {
		return errors.Newf(errors.Invalid, "the network rule %.120q names no domain", rule)
	}
	if below {
		name = "*." + name
	}
	p.domains = append(p.domains, name)
	return nil
}

// none reports whether the policy allows nothing.
func (p policy) none() bool { return !p.open && len(p.cidrs) == 0 && len(p.domains) == 0 }

// String returns a name for the policy. Equal policies have the same name.
func (p policy) String() string {
	switch {
	case p.open:
		return string(engine.NetworkDefault)
	case p.none():
		return string(engine.NetworkNone)
	}
	sum := sha256.Sum256([]byte(strings.Join(p.cidrs, " ") + "\n" + strings.Join(p.domains, " ")))
	return string(engine.NetworkAllow) + "-" + hex.EncodeToString(sum[:8])
}

// network sets the network policy of a new sandbox.
func network(params *sdk.SandboxCreateParams, n engine.Network) error {
	p, err := policyOf(n)
	if err != nil {
		return err
	}
	params.Tags[tagNetwork] = p.String()
	switch {
	case p.none():
		params.BlockNetwork = true
	case !p.open:
		params.OutboundCIDRAllowlist, params.OutboundDomainAllowlist = &sdk.Allowlist{Entries: p.cidrs},
			&sdk.Allowlist{Entries: p.domains}
	}
	return nil
}

// SetNetwork implements engine.Networker. It does not send a policy that is already active: Modal's API for
// running sandboxes can express less than the one for new sandboxes. For a running sandbox, "none" is an empty
// list.
func (s *Sandbox) SetNetwork(ctx context.Context, n engine.Network) error {
	p, err := policyOf(n)
	if err != nil {
		return err
	}
	if s.e.endOf(s.h.Ref) != nil {
		return s.over()
	}
	if err := s.setPolicy(ctx, p); err != nil {
		if ctx.Err() == nil && s.hasEnded(ctx) {
			return s.over()
		}
		return errors.Stage(err, "network")
	}
	return nil
}

func (s *Sandbox) setPolicy(ctx context.Context, p policy) error {
	tags, err := ask(ctx, s.e, "look at a sandbox", func(ctx context.Context) (map[string]string,
		error) {
		return s.box.GetTags(ctx, nil)
	})
	if err != nil {
		return err
	}
	if tags[tagNetwork] == p.String() {
		if s.hasEnded(ctx) {
			return s.over()
		}
		return nil
	}
	note := func(text string) error {
		tags[tagNetwork] = text
		_, err := ask(ctx, s.e, "note a sandbox's network", func(ctx context.Context) (struct{}, error) {
			return struct{}{}, s.box.SetTags(ctx, tags, nil)
		})
		return err
	}
	if err := note(changing); err != nil {
		return err
	}
	cidrs, domains := p.cidrs, p.domains
	if p.open {
		cidrs, domains = []string{everyAddress}, []string{everyName}
	}
	if _, err := ask(ctx, s.e, "change a sandbox's network", func(ctx context.Context) (struct{}, error) {
		return struct{}{}, s.box.UpdateNetworkPolicy(ctx, &sdk.SandboxUpdateNetworkPolicyParams{
			OutboundCIDRAllowlist:   &sdk.Allowlist{Entries: cidrs},
			OutboundDomainAllowlist: &sdk.Allowlist{Entries: domains},
		})
	}); err != nil {
		return err
	}
	return note(p.String())
}

// Denials implements engine.Networker. Modal does not report denials, so it waits for the end of the sandbox.
func (s *Sandbox) Denials(ctx context.Context, _ uint64) ([]engine.Denial, error) {
	if s.e.endOf(s.h.Ref) == nil {
		if _, err := s.Wait(ctx); err != nil {
			return nil, err
		}
	}
	return nil, s.over()
}

// Dial implements engine.Dialer.
func (s *Sandbox) Dial(ctx context.Context, port int) (net.Conn, error) {
	conn, err := s.connect(ctx)
	if err != nil {
		return nil, err
	}
	stop := context.AfterFunc(ctx, func() { _ = conn.Close() })
	if err = conn.SendJSON(wire.KindRequest,
		wire.Request{Op: wire.Connect, Dial: &wire.DialArgs{Port: port}}); err == nil {
		_, err = conn.ReceiveReply(nil)
	}
	if !stop() {
		err = errors.Wrapf(ctx.Err(), "connect to port %d of sandbox %s", port, s.h.ID)
	}
	if err != nil {
		_ = conn.Close()
		return nil, err
	}
	return newPortConn(conn), nil
}

// portConn is a connection to a port of a sandbox. Writes are framed, because the end of the written data is
// not the end of the connection.
type portConn struct {
	net.Conn // raw data from the sandbox
	frames   *wire.Conn
	closed   atomic.Bool
}

// newPortConn returns the connection that a keeper's answer on conn has opened.
func newPortConn(conn *wire.Conn) *portConn { return &portConn{Conn: conn.Stream(), frames: conn} }

// Read implements net.Conn.
func (c *portConn) Read(b []byte) (int, error) {
	if c.closed.Load() {
		return 0, net.ErrClosed
	}
	n, err := c.Conn.Read(b)
	switch stream, ok := c.frames.Conn.(*yamux.Stream); {
	case err == nil:
		return n, nil
	case c.closed.Load():
		err = net.ErrClosed
	case err == io.EOF && ok && stream.Session().IsClosed():
		err = errors.Newf(errors.Unavailable, "the connection to the sandbox broke")
	}
	return n, err
}

// frame is the maximum size of one write, so that other streams of the link get their turn.
const frame = 256 << 10

// Write implements net.Conn.
func (c *portConn) Write(b []byte) (int, error) {
	written := 0
	for chunk := range slices.Chunk(b, frame) {
		if c.closed.Load() {
			return written, net.ErrClosed
		}
		if err := c.frames.Send(wire.KindStdin, chunk); err != nil {
			return written, err
		}
		written += len(chunk)
	}
	return written, nil
}

// CloseWrite ends the direction into the sandbox.
func (c *portConn) CloseWrite() error {
	if c.closed.Load() {
		return net.ErrClosed
	}
	return c.frames.Send(wire.KindStdinEnd, nil)
}

// Close closes the connection, and unblocks readers.
func (c *portConn) Close() error {
	if c.closed.Swap(true) {
		return nil
	}
	_ = c.Conn.SetReadDeadline(time.Unix(1, 0)) // closing the stream alone would not unblock Read
	return c.frames.Close()
}

var (
	_ engine.Networker = (*Sandbox)(nil)
	_ engine.Dialer    = (*Sandbox)(nil)
)

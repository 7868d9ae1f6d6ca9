package netstack

import (
	"context"
	"encoding/binary"
	"io"
	"net"
	"net/netip"
	"strings"
	"time"

	"golang.org/x/net/dns/dnsmessage"
	"gvisor.dev/gvisor/pkg/tcpip"
	"gvisor.dev/gvisor/pkg/tcpip/adapters/gonet"
	"gvisor.dev/gvisor/pkg/tcpip/network/ipv4"
	"gvisor.dev/gvisor/pkg/tcpip/network/ipv6"
	"gvisor.dev/gvisor/pkg/tcpip/transport/tcp"

	"github.com/RelevanceAI/harvest/client/errors"
	"github.com/RelevanceAI/harvest/internal/engine/gateway"
)

const (
	dnsPort     = 53
	maxLookUps  = 128              // at once; more are dropped, and programs retry
	dnsTime     = 10 * time.Second // for one lookup
	dnsIdleTime = 30 * time.Second // idle limit of a DNS connection over TCP
	maxDNSConns = 16
	maxDNSQuery = 4096 // bytes
)

// startDNS serves DNS at the DNS address of both families. Elsewhere, traffic to port 53 is an ordinary
// connection.
func (g *Gateway) startDNS() error {
	for _, a := range []netip.Addr{g.o.V4.DNS, g.o.V6.DNS} {
		proto := ipv4.ProtocolNumber
		if a.Is6() {
			proto = ipv6.ProtocolNumber
		}
		at := tcpip.FullAddress{NIC: nic, Addr: address(a), Port: dnsPort}
		c, err := gonet.DialUDP(g.stack, &at, nil, proto)
		if err != nil {
			return errors.Wrapf(err, "listen for DNS")
		}
		g.wg.Add(1)
		go g.serveDNS(c)
	}
	return nil
}

func (g *Gateway) serveDNS(c *gonet.UDPConn) {
	defer g.wg.Done()
	defer context.AfterFunc(g.ctx, func() { _ = c.Close() })()
	b := make([]byte, maxDNSQuery)
	for {
		n, from, err := c.ReadFrom(b)
		if err != nil {
			if g.ctx.Err() == nil {
				continue // such as an ICMP error for an answer
			}
			return
		}
		select {
		case g.dns.busy <- struct{}{}:
		default:
			continue
		}
		msg := append([]byte(nil), b[:n]...)
		g.wg.Add(1)
		go func() {
			defer g.wg.Done()
			defer func() { <-g.dns.busy }()
			if reply := g.answerDNS(msg); reply.UDP != nil {
				_, _ = c.WriteTo(reply.UDP, from)
			}
		}()
	}
}

// acceptDNS handles a TCP connection to the DNS address.
func (g *Gateway) acceptDNS(r *tcp.ForwarderRequest, port uint16) {
	select {
	case g.dns.conns <- struct{}{}:
		defer func() { <-g.dns.conns }()
	default:
		port = 0
	}
	if port != dnsPort {
		r.Complete(true)
		return
	}
	e, err := accept(r, buffers[len(buffers)-1].size)
	if err != nil {
		return
	}
	c := gonet.NewTCPConn(&e.queue, e.ep)
	defer func() { _ = c.Close() }()
	defer context.AfterFunc(g.ctx, func() { _ = c.SetDeadline(time.Unix(1, 0)) })()
	for g.ctx.Err() == nil {
		_ = c.SetDeadline(time.Now().Add(dnsIdleTime))
		if g.answerStream(c) != nil {
			return
		}
	}
}

// answerStream answers one query over TCP.
func (g *Gateway) answerStream(c net.Conn) error {
	msg, err := readMessage(c, maxDNSQuery)
	if err != nil {
		return err
	}
	reply := g.answerDNS(msg)
	if reply.Message == nil {
		return io.ErrUnexpectedEOF
	}
	_, err = c.Write(append(binary.BigEndian.AppendUint16(nil, uint16(len(reply.Message))), reply.Message...))
	return err
}

// readMessage reads a DNS message with a length prefix.
func readMessage(r io.Reader, most int) ([]byte, error) {
	var size [2]byte
	if _, err := io.ReadFull(r, size[:]); err != nil {
		return nil, err
	}
	n := int(binary.BigEndian.Uint16(size[:]))
	if n > most {
		return nil, errors.Errorf("a DNS message has %d bytes", n)
	}
	msg := make([]byte, n)
	_, err := io.ReadFull(r, msg)
	return msg, err
}

// noDot is the reason for which a name is not looked up: the resolver of the host would answer with addresses of the
// host's own network.
const noDot = "a name without a dot is looked up only if a rule allows exactly this name"

// answerDNS answers one query, and pins the addresses in the answer. The zero Reply means no answer.
func (g *Gateway) answerDNS(msg []byte) gateway.Reply {
	q, reply, ok := gateway.ParseQuery(msg)
	if !ok {
		return gateway.Reply{Message: reply, UDP: reply}
	}
	if r, ok := g.private.Load().answer(q); ok {
		return r
	}
	policy := g.Policy()
	if addr, ok := gateway.ReverseAddr(q.Name); ok {
		if !policy.Connect(g.target(addr, 0)).Allowed {
			return q.Refuse()
		}
	} else if v := policy.LookUp(q.Name); !v.Allowed {
		g.deny(gateway.Denial{Protocol: "dns", Domain: q.Name, Reason: v.Reason})
		return q.Refuse()
	} else if !strings.Contains(q.Name, ".") && !policy.Names(q.Name) {
		g.deny(gateway.Denial{Protocol: "dns", Domain: q.Name, Reason: noDot})
		return q.Refuse()
	}
	ctx, cancel := context.WithTimeout(g.ctx, dnsTime)
	defer cancel()
	answer, age, err := g.dns.ask(ctx, q)
	if err != nil {
		return q.Fail(dnsmessage.RCodeServerFailure)
	}
	r := q.Reply(policy, g.o.Host, answer, age)
	for _, addr := range r.Refused {
		t := g.target(addr, 0)
		t.Names = []string{q.Name}
		g.deny(gateway.Denial{Protocol: "dns", Domain: q.Name, Address: addr.String(),
			Reason: policy.Connect(t).Reason})
	}
	now := time.Now()
	for _, addr := range r.Addrs {
		g.pins.Add(addr, q.Name, r.TTL, now)
	}
	return r
}

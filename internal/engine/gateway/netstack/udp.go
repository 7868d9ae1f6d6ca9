package netstack

import (
	"bytes"
	"context"
	"io"
	"net"
	"net/netip"
	"os"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"gvisor.dev/gvisor/pkg/tcpip"
	"gvisor.dev/gvisor/pkg/tcpip/header"
	"gvisor.dev/gvisor/pkg/tcpip/stack"
	"gvisor.dev/gvisor/pkg/tcpip/transport/udp"
	"gvisor.dev/gvisor/pkg/waiter"

	"github.com/RelevanceAI/harvest/client/errors"
	"github.com/RelevanceAI/harvest/internal/engine/gateway"
)

// Idle timeouts of a flow: before the first answer, and after it.
const (
	udpUnanswered = 30 * time.Second
	udpAnswered   = 3 * time.Minute
)

// maxFlows limits the UDP flows. At the limit, a new flow is refused rather than an old one closed, so that a
// flood harms only itself.
const maxFlows = 1024

// flowKey identifies a flow of the sandbox.
type flowKey struct {
	guest, dst netip.AddrPort // dst as the sandbox sees it
}

// udpFlow is the traffic between one port of the sandbox and one destination.
type udpFlow struct {
	key      flowKey
	conn     *conn
	guest    *endpoint
	up       net.Conn
	answered atomic.Bool
	active   atomic.Int64 // time of the last datagram, in nanoseconds
}

// handleUDP handles the first packet of a flow, which the stack does not know yet. It must not block.
func (g *Gateway) handleUDP(id stack.TransportEndpointID, pkt *stack.PacketBuffer) bool {
	dst := netipAddr(id.LocalAddress)
	if dst == g.o.V4.DNS || dst == g.o.V6.DNS {
		return false // only DNS is served there: the stack answers with port unreachable
	}
	if !g.allowNew() || !g.begin() {
		return true
	}
	outside := g.outside(dst)
	quote := quoteOf(pkt)
	v := g.verdict("udp", outside, id.LocalPort)
	if !v.Allowed {
		g.wg.Done()
		g.refuseUDP(netip.AddrPortFrom(netipAddr(id.RemoteAddress), id.RemotePort), dst, quote)
		return true
	}
	key := flowKey{netip.AddrPortFrom(netipAddr(id.RemoteAddress), id.RemotePort),
		netip.AddrPortFrom(dst, id.LocalPort)}
	f := &udpFlow{key: key, guest: &endpoint{}}
	if !g.reserve(f) {
		g.wg.Done()
		g.deny(gateway.Denial{Protocol: "udp", Address: outside.String(), Port: int(id.LocalPort),
			Reason: "the sandbox has too many connections open"})
		return true
	}
	// Create the endpoint now, so that it queues the following packets in order.
	ep, terr := udp.NewForwarderRequest(g.stack, id, pkt.Clone()).CreateEndpoint(&f.guest.queue)
	if terr != nil {
		g.release(f)
		g.wg.Done()
		return true
	}
	f.guest.ep = ep
	ep.SocketOptions().SetReceiveBufferSize(256<<10, true)
	go func() {
		defer g.wg.Done()
		defer g.release(f)
		defer f.guest.close()
		g.carryUDP(f, outside, quote)
	}()
	return true
}

// refuseUDP sends port unreachable for a datagram, whatever the reason. It is the only ICMP error that gVisor's
// UDP handles. Without it, a program would wait in vain.
func (g *Gateway) refuseUDP(guest netip.AddrPort, dst netip.Addr, quote []byte) {
	g.sendUnreachable(portUnreachable, guest.Addr(), dst, header.UDPProtocolNumber, quote)
}

// quoteOf returns the transport header of a packet for an ICMP error.
func quoteOf(pkt *stack.PacketBuffer) []byte {
	return append([]byte(nil), pkt.TransportHeader().Slice()...)
}

func (g *Gateway) reserve(f *udpFlow) bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	if len(g.flows) >= maxFlows || len(g.conns) >= g.o.Connections || g.flows[f.key] != nil {
		return false
	}
	g.flows[f.key] = f
	return true
}

func (g *Gateway) release(f *udpFlow) {
	g.mu.Lock()
	defer g.mu.Unlock()
	delete(g.flows, f.key)
}

// carryUDP connects a flow, and forwards it until it is idle, broken or cut.
func (g *Gateway) carryUDP(f *udpFlow, dst netip.Addr, quote []byte) {
	port := f.key.dst.Port()
	ctx, cancel := context.WithTimeout(g.ctx, dialTime)
	up, err := g.o.Dial(ctx, "udp", netip.AddrPortFrom(dst, port))
	cancel()
	if err != nil {
		g.refuseUDP(f.key.guest, f.key.dst.Addr(), quote)
		return
	}
	f.up = up
	var once sync.Once
	closed := make(chan struct{})
	f.conn = &conn{protocol: "udp", addr: dst, port: port}
	f.conn.cut = func() { once.Do(func() { close(closed); _ = up.Close() }) }
	defer f.conn.cut()
	v := g.add(f.conn)
	if !v.Allowed {
		g.deny(gateway.Denial{Protocol: "udp", Address: dst.String(), Port: int(port), Reason: v.Reason})
		return
	}
	defer g.remove(f.conn)
	f.touch()
	sent := make(chan struct{})
	go func() {
		defer close(sent)
		defer f.conn.cut()
		g.sendUDP(f, v.Check, quote, closed)
	}()
	err = g.receiveUDP(f)
	f.conn.cut()
	<-sent
	if errors.Is(err, syscall.ECONNREFUSED) {
		g.refuseUDP(f.key.guest, f.key.dst.Addr(), quote)
	}
}

func (f *udpFlow) touch() { f.active.Store(time.Now().UnixNano()) }

// expires returns when the flow ends if it stays idle.
func (f *udpFlow) expires() time.Time {
	patience := udpUnanswered
	if f.answered.Load() {
		patience = udpAnswered
	}
	return time.Unix(0, f.active.Load()).Add(patience)
}

// sendUDP forwards the sandbox's datagrams.
func (g *Gateway) sendUDP(f *udpFlow, check gateway.Check, quote []byte, closed <-chan struct{}) {
	entry, readable := waiter.NewChannelEntry(waiter.ReadableEvents | waiter.EventHUp | waiter.EventErr)
	f.guest.queue.EventRegister(&entry)
	defer f.guest.queue.EventUnregister(&entry)
	names := gateway.NewDatagramInspector(check, f.conn.port, g.decider(f.conn))
	for {
		b := chunks.Get().(*[]byte)
		w := tcpip.SliceWriter(*b)
		res, terr := f.guest.ep.Read(&w, tcpip.ReadOptions{})
		if terr == nil {
			f.touch()
			datagrams, err := names.Next((*b)[:res.Count])
			for _, d := range datagrams {
				_, _ = f.up.Write(d) // a datagram that the host cannot send, for example because of its size, is lost
			}
			chunks.Put(b)
			if err != nil {
				g.refused(f.conn, err)
				g.refuseUDP(f.key.guest, f.key.dst.Addr(), quote)
				return
			}
			continue
		}
		chunks.Put(b)
		if _, wait := terr.(*tcpip.ErrWouldBlock); !wait {
			return
		}
		select {
		case <-readable:
		case <-closed:
			return
		}
	}
}

// receiveUDP forwards the answers, until the flow expires or breaks.
func (g *Gateway) receiveUDP(f *udpFlow) error {
	for {
		until := f.expires()
		if !time.Now().Before(until) {
			return nil
		}
		if err := f.up.SetReadDeadline(until); err != nil {
			return err
		}
		b, n, err := readChunk(f.up)
		if err == nil || err == io.EOF { // an empty datagram
			f.answered.Store(true)
			f.touch()
			var p []byte
			if b != nil {
				p = (*b)[:n]
			}
			writeDatagram(f.guest.ep, p)
		}
		if b != nil {
			chunks.Put(b)
		}
		if err != nil && err != io.EOF && !errors.Is(err, os.ErrDeadlineExceeded) {
			return err
		}
	}
}

// writeDatagram sends one datagram to the sandbox. If the link has no room, the datagram is lost.
func writeDatagram(ep tcpip.Endpoint, p []byte) {
	_, _ = ep.Write(bytes.NewReader(p), tcpip.WriteOptions{})
}

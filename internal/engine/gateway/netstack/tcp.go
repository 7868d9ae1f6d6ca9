package netstack

import (
	"context"
	"net"
	"net/netip"
	"sync"
	"syscall"
	"time"

	"gvisor.dev/gvisor/pkg/tcpip"
	"gvisor.dev/gvisor/pkg/tcpip/header"
	"gvisor.dev/gvisor/pkg/tcpip/stack"
	"gvisor.dev/gvisor/pkg/tcpip/transport/tcp"
	"gvisor.dev/gvisor/pkg/waiter"

	"github.com/RelevanceAI/harvest/client/errors"
	"github.com/RelevanceAI/harvest/internal/engine/gateway"
)

// maxDials limits the dials in progress. Further connections wait until the sandbox repeats its SYN.
const maxDials = 512

// dialTime limits how long the host tries to connect. The sandbox repeats its SYN for about as long.
const dialTime = 2 * time.Minute

// buffers are the sizes in bytes of a connection's receive and send buffers, by the number of open connections:
// large buffers for a few fast connections, small ones for many that may all stall at once. 1,000 connections
// that stall in one direction hold some 90 MB. The largest size is as much as a sandbox's stack accepts at
// once, so that a sandbox that is scheduled late on a busy machine then finds much data.
var buffers = [...]struct{ below, size int }{{8, 4 << 20}, {32, 512 << 10}, {160, 128 << 10}, {1 << 30, 32 << 10}}

func tuneTCP(s *stack.Stack) {
	largest := buffers[0].size
	receive := tcpip.TCPReceiveBufferSizeRangeOption{Min: tcp.MinBufferSize, Default: largest, Max: largest}
	send := tcpip.TCPSendBufferSizeRangeOption{Min: tcp.MinBufferSize, Default: largest, Max: largest}
	moderate := tcpip.TCPModerateReceiveBufferOption(false)
	sack := tcpip.TCPSACKEnabled(true)
	// On a link with one hop, no segment is late, and endpoints in TIME-WAIT cost memory.
	timeWait := tcpip.TCPTimeWaitTimeoutOption(time.Second)
	linger := tcpip.TCPLingerTimeoutOption(10 * time.Second)
	s.SetTransportProtocolOption(tcp.ProtocolNumber, &receive)
	s.SetTransportProtocolOption(tcp.ProtocolNumber, &send)
	s.SetTransportProtocolOption(tcp.ProtocolNumber, &moderate)
	s.SetTransportProtocolOption(tcp.ProtocolNumber, &sack)
	s.SetTransportProtocolOption(tcp.ProtocolNumber, &timeWait)
	s.SetTransportProtocolOption(tcp.ProtocolNumber, &linger)
}

func (g *Gateway) startTCP() {
	for _, b := range buffers {
		g.tcp = append(g.tcp, tcp.NewForwarder(g.stack, b.size, maxDials,
			func(r *tcp.ForwarderRequest) { g.acceptTCP(r, b.size) }))
	}
	g.stack.SetTransportProtocolHandler(tcp.ProtocolNumber,
		func(id stack.TransportEndpointID, pkt *stack.PacketBuffer) bool {
			g.mu.Lock()
			open := len(g.conns)
			g.mu.Unlock()
			for i, b := range buffers {
				if open < b.below {
					return g.tcp[i].HandlePacket(id, pkt)
				}
			}
			return false
		})
}

// acceptTCP answers one SYN: with a reset, an ICMP error, silence, or a connection.
func (g *Gateway) acceptTCP(r *tcp.ForwarderRequest, bufferSize int) {
	id := r.ID()
	defer g.syns.forget(id)
	if !g.begin() {
		r.Complete(true)
		return
	}
	defer g.wg.Done()
	dst, port := netipAddr(id.LocalAddress), id.LocalPort
	if dst == g.o.V4.DNS || dst == g.o.V6.DNS {
		g.acceptDNS(r, port)
		return
	}
	dst = g.outside(dst)
	if v := g.verdict("tcp", dst, port); !v.Allowed {
		r.Complete(true)
		return
	}
	if g.full() {
		g.deny(gateway.Denial{Protocol: "tcp", Address: dst.String(), Port: int(port),
			Reason: "the sandbox has too many connections open"})
		r.Complete(true)
		return
	}
	ctx, cancel := context.WithTimeout(g.ctx, dialTime)
	up, err := g.o.Dial(ctx, "tcp", netip.AddrPortFrom(dst, port))
	cancel()
	if err != nil {
		g.answerDialError(r, err)
		return
	}
	guest, err := accept(r, bufferSize)
	if err != nil {
		abort(up)
		return
	}
	g.relay(guest, up, dst, port)
}

// begin adds a goroutine that Close waits for. It returns false if the gateway is closed.
func (g *Gateway) begin() bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	if !g.closed {
		g.wg.Add(1)
	}
	return !g.closed
}

// accept completes the handshake.
func accept(r *tcp.ForwarderRequest, bufferSize int) (*endpoint, error) {
	e := &endpoint{}
	ep, terr := r.CreateEndpoint(&e.queue)
	r.Complete(false)
	if terr != nil {
		return nil, errors.Errorf("accept a connection of the sandbox: %s", terr)
	}
	e.ep = ep
	ep.SocketOptions().SetSendBufferSize(int64(bufferSize), true)
	ep.SocketOptions().SetDelayOption(false)
	return e, nil
}

// answerDialError gives the sandbox the equivalent of the host socket's error.
func (g *Gateway) answerDialError(r *tcp.ForwarderRequest, err error) {
	id := r.ID()
	var timeout net.Error
	switch {
	case errors.Is(err, syscall.ECONNREFUSED):
		r.Complete(true)
	case errors.Is(err, syscall.EHOSTUNREACH):
		g.unreachableTCP(id, hostUnreachable)
		r.Complete(false)
	case errors.Is(err, syscall.ENETUNREACH), errors.Is(err, syscall.EADDRNOTAVAIL),
		errors.Is(err, syscall.EAFNOSUPPORT), errors.Is(err, syscall.ENETDOWN):
		g.unreachableTCP(id, netUnreachable)
		r.Complete(false)
	case errors.Is(err, syscall.EACCES), errors.Is(err, syscall.EPERM):
		g.unreachableTCP(id, prohibited)
		r.Complete(false)
	case errors.As(err, &timeout) && timeout.Timeout():
		r.Complete(false)
	default:
		r.Complete(true)
	}
}

// relay forwards a connection until both directions have ended, or it is cut.
func (g *Gateway) relay(guest *endpoint, up net.Conn, dst netip.Addr, port uint16) {
	r := &relay{g: g, guest: guest, up: up}
	c := &conn{protocol: "tcp", addr: dst, port: port, cut: r.cut}
	v := g.add(c)
	if !v.Allowed {
		g.deny(gateway.Denial{Protocol: "tcp", Address: dst.String(), Port: int(port), Reason: v.Reason})
		c.cut()
		guest.close()
		return
	}
	defer g.remove(c)
	entry, gone := waiter.NewChannelEntry(waiter.EventHUp | waiter.EventErr)
	guest.queue.EventRegister(&entry)
	defer guest.queue.EventUnregister(&entry)
	r.toGuest()
	err := g.pumpFromGuest(c, v.Check, guest, up)
	if over := (*gateway.Handover)(nil); errors.As(err, &over) {
		err = r.handOver(c, over)
	}
	if err != nil {
		c.cut()
	}
	for open := true; open; {
		select {
		case <-r.received:
			open = false
		case <-gone: // the sandbox may send a reset after it has ended its direction
			if tcp.EndpointState(guest.ep.State()) == tcp.StateError {
				c.cut()
			}
		}
	}
	r.close()
	guest.close()
}

// relay is a connection of the sandbox with its other end.
type relay struct {
	g        *Gateway
	guest    *endpoint
	received chan struct{} // closed when no more data goes to the sandbox
	from     *hostBytes    // the data that goes to the sandbox; belongs to the goroutine that closes received

	mu      sync.Mutex
	up      net.Conn // guarded by mu
	ended   bool     // guarded by mu: cut or closed
	leaving bool     // guarded by mu: up is about to be replaced
}

// toGuest begins to forward the data of the other end.
func (r *relay) toGuest() {
	up, received := r.up, make(chan struct{})
	from := &hostBytes{most: r.g.link.segment() * segmentsAtOnce}
	r.received, r.from = received, from
	go func() {
		defer close(received)
		if pumpToGuest(r.guest, up, from) == nil {
			return
		}
		r.mu.Lock()
		leaving := r.leaving
		r.mu.Unlock()
		if !leaving {
			r.cut()
		}
	}()
}

// end marks the relay as ended, and returns the other end, or nil if it had ended before.
func (r *relay) end() net.Conn {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.ended {
		return nil
	}
	r.ended = true
	return r.up
}

func (r *relay) cut() {
	if up := r.end(); up != nil {
		abort(up)
		r.guest.ep.Abort()
	}
}

func (r *relay) close() {
	if up := r.end(); up != nil {
		_ = up.Close()
	}
}

// abort closes a connection of the host with a reset, so that the peer does not mistake the data for complete.
func abort(up net.Conn) {
	if t, ok := up.(*net.TCPConn); ok {
		_ = t.SetLinger(0)
	}
	_ = up.Close()
}

// endpoint is the stack's end of a connection of the sandbox.
type endpoint struct {
	ep    tcpip.Endpoint
	queue waiter.Queue
	once  sync.Once
}

func (e *endpoint) close() { e.once.Do(e.ep.Close) }

// synTable holds the sequence numbers of SYNs in progress, which ICMP errors quote.
type synTable struct {
	mu   sync.Mutex
	seqs map[stack.TransportEndpointID]uint32 // guarded by mu
}

func (t *synTable) remember(id stack.TransportEndpointID, seq uint32) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.seqs == nil || len(t.seqs) > 4*maxDials { // SYNs that the stack dropped were not forgotten
		t.seqs = map[stack.TransportEndpointID]uint32{}
	}
	t.seqs[id] = seq
}

func (t *synTable) forget(id stack.TransportEndpointID) {
	t.mu.Lock()
	defer t.mu.Unlock()
	delete(t.seqs, id)
}

func (t *synTable) seq(id stack.TransportEndpointID) uint32 {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.seqs[id]
}

// unreachableTCP answers the SYN of id with an ICMP error.
func (g *Gateway) unreachableTCP(id stack.TransportEndpointID, why unreachable) {
	syn := make(header.TCP, header.TCPMinimumSize)
	syn.Encode(&header.TCPFields{SrcPort: id.RemotePort, DstPort: id.LocalPort, SeqNum: g.syns.seq(id),
		DataOffset: header.TCPMinimumSize, Flags: header.TCPFlagSyn})
	g.sendUnreachable(why, netipAddr(id.RemoteAddress), netipAddr(id.LocalAddress), header.TCPProtocolNumber, syn)
}

package netstack_test

import (
	"context"
	"fmt"
	"io"
	"net"
	"net/netip"
	"runtime"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"
	"gvisor.dev/gvisor/pkg/tcpip"
	"gvisor.dev/gvisor/pkg/tcpip/header"
	"gvisor.dev/gvisor/pkg/tcpip/transport/tcp"

	"github.com/RelevanceAI/harvest/internal/base/testenv"
	"github.com/RelevanceAI/harvest/internal/engine/gateway/netstack"
)

// TestMemoryOfAThousandConnectionsIsBounded checks that a thousand downloads without a reader fill their buffers, and
// no more.
// mission: A11
func TestMemoryOfAThousandConnectionsIsBounded(t *testing.T) {
	testenv.Long(t)
	w := newWorld(t, policy(t, "default"), unlimited)
	small := tcpip.TCPReceiveBufferSizeRangeOption{Min: 4 << 10, Default: 4 << 10,
		Max: 4 << 10} // the guest's part must not count
	w.guest.SetTransportProtocolOption(tcp.ProtocolNumber, &small)
	var written atomic.Int64
	w.serve("tcp", "203.0.113.7:80", listen(t, func(c net.Conn) {
		for b := make([]byte, 16<<10); ; {
			n, err := c.Write(b)
			written.Add(int64(n))
			if err != nil {
				return
			}
		}
	}))
	before := heapInUse()
	for range 1000 {
		c, err := w.guest.dial(t, "203.0.113.7:80")
		if err != nil {
			t.Fatal(err)
		}
		if _, err := io.ReadFull(c, make([]byte, 1)); err != nil { // it has begun
			t.Fatal(err)
		}
	}
	waitFor(t, func() bool { return w.Stats().Open == 1000 })
	last, same := int64(0), 0
	waitFor(t, func() bool { // until all data stands still
		if now := written.Load(); now != last {
			last, same = now, 0
		}
		same++
		return same > 100
	})
	const most = 250 << 20
	grown := heapInUse() - before
	t.Logf("1,000 stalled downloads take %d MiB here, guest and server included", grown>>20)
	if grown > most {
		t.Errorf("that is more than %d MiB", most>>20)
	}
}

// heapInUse is the memory in use on this process's heap.
func heapInUse() int64 {
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return int64(m.HeapInuse + m.StackInuse)
}

// flooder sends SYNs over a link, to ever other addresses and ports, as fast as the machine can.
type flooder struct {
	raw        syscall.RawConn
	sent, held int // frames that the link took, and for which it had no room
	answers    []byte
}

func (f *flooder) send() error {
	n := f.sent + 1
	dst := fmt.Sprintf("203.0.%d.%d", n>>8&0xff, n&0xff)
	frame := packet(guest4, dst, header.TCPProtocolNumber, checked(guest4, dst, syn(uint16(n))))
	full := false
	err := f.raw.Control(func(fd uintptr) {
		switch _, err := unix.Write(int(fd), frame); err {
		case nil:
			f.sent++
		case unix.EAGAIN:
			f.held++
			full = true
		}
		for { // so that the answers do not fill the link
			if _, err := unix.Read(int(fd), f.answers); err != nil {
				break
			}
		}
	})
	if full {
		runtime.Gosched()
	}
	return err
}

// outcomes are the results of connections to addresses by their last number: no answer, a refusal, or a listener.
type outcomes struct {
	real           string
	now, most, all atomic.Int64
}

func (o *outcomes) dial(ctx context.Context, network string, addr netip.AddrPort) (net.Conn, error) {
	o.all.Add(1)
	now := o.now.Add(1)
	defer o.now.Add(-1)
	for most := o.most.Load(); now > most && !o.most.CompareAndSwap(most, now); most = o.most.Load() {
	}
	switch addr.Addr().As4()[3] % 3 {
	case 0:
		<-ctx.Done()
		return nil, ctx.Err()
	case 1:
		return nil, unix.ECONNREFUSED
	}
	return new(net.Dialer).DialContext(ctx, network, o.real)
}

// TestAFloodHoldsUpItsSandboxOnly checks that a flood of a hundred thousand SYNs, and many more that the link does not
// accept, affects only its own sandbox. As fast as the machine can, one sandbox tries to connect to hosts that do not
// answer, that refuse, and that exist, and never completes a handshake. It is delayed at its own link. The gateway
// dials and stores a bounded number of connections. Another sandbox's connections continue all the while, and so do the
// sandbox's own after the flood.
// mission: A11
func TestAFloodHoldsUpItsSandboxOnly(t *testing.T) {
	testenv.Long(t)
	const attempts, most = 100_000, 128 << 20
	echo := listen(t, func(c net.Conn) { _, _ = io.Copy(c, c) })
	out := &outcomes{real: echo}
	flooded := newWire(t, policy(t, "default"), func(o *netstack.Options) { o.Dial = out.dial })
	other := newWorld(t, policy(t, "default"))
	other.serve("tcp", "203.0.113.7:80", echo)
	raw, err := flooded.end.SyscallConn()
	if err != nil {
		t.Fatal(err)
	}
	f := &flooder{raw: raw, answers: make([]byte, 70000)}
	soon := tcpip.TCPTimeWaitTimeoutOption(time.Millisecond) // the other guest's part must not count
	other.guest.SetTransportProtocolOption(tcp.ProtocolNumber, &soon)
	before, begin := heapInUse(), time.Now()
	done := make(chan error, 1)
	go func() {
		for f.sent < attempts {
			if err := f.send(); err != nil {
				done <- err
				return
			}
		}
		done <- nil
	}()
	connections := 0
	for over := false; !over; {
		select {
		case err := <-done:
			if err != nil {
				t.Fatal(err)
			}
			over = true
		default:
		}
		reaches(t, other)
		connections++
	}
	// The flooding sandbox itself gets an answer as soon as its packets are read.
	flooded.send(t, packet(guest4, "10.0.2.2", header.ICMPv4ProtocolNumber, echo4("alive")))
	flooded.receive(t, func(e header.Ethernet) bool {
		return e.Type() == header.IPv4ProtocolNumber && ip4(e).TransportProtocol() == header.ICMPv4ProtocolNumber &&
			header.ICMPv4(ip4(e).Payload()).Type() == header.ICMPv4EchoReply
	})
	took, grown := time.Since(begin), heapInUse()-before
	t.Logf("%d SYNs went on the link and %d found it full, %.0f a second; %d were dropped, %d dialled, %d at once; "+
		"another sandbox connected %d times; %d MiB",
		f.sent, f.held, float64(f.sent+f.held)/took.Seconds(), flooded.Stats().Dropped, out.all.Load(), out.most.Load(),
		connections, grown>>20)
	allowed := int64(1000*took.Seconds()) + 2000
	if n := out.all.Load(); n > allowed {
		t.Errorf("%d connections were dialled, where %d may be in that time", n, allowed)
	}
	if n := int64(flooded.Stats().Dropped); n < attempts-allowed {
		t.Errorf("%d of %d SYNs were dropped, where %d may be let in", n, attempts, allowed)
	}
	if n := out.most.Load(); n > 4*512 {
		t.Errorf("%d were dialled at once", n)
	}
	if grown > most {
		t.Errorf("it takes more than %d MiB", most>>20)
	}
}

// reaches connects from a sandbox, and expects an answer.
func reaches(t *testing.T, w *world) {
	t.Helper()
	c, err := w.guest.dial(t, "203.0.113.7:80")
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	_ = c.SetDeadline(time.Now().Add(time.Minute))
	if _, err := c.Write([]byte("hi")); err != nil {
		t.Fatal(err)
	}
	if _, err := io.ReadFull(c, make([]byte, 2)); err != nil {
		t.Fatal(err)
	}
}

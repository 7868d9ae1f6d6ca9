package netstack_test

import (
	"io"
	"net"
	"runtime"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sys/unix"
	"gvisor.dev/gvisor/pkg/tcpip"
	"gvisor.dev/gvisor/pkg/tcpip/header"
	"gvisor.dev/gvisor/pkg/tcpip/transport/tcp"

	"github.com/RelevanceAI/harvest/gateway/netstack"
)

// A thousand downloads that nobody reads fill their buffers, and no more.
// mission: A11
func TestMemoryOfAThousandConnectionsIsBounded(t *testing.T) {
	w := newWorld(t, policy(t, "default"), unlimited)
	small := tcpip.TCPReceiveBufferSizeRangeOption{Min: 4 << 10, Default: 4 << 10, Max: 4 << 10} // the guest's part shall not count
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
	heap := func() int64 {
		runtime.GC()
		var m runtime.MemStats
		runtime.ReadMemStats(&m)
		return int64(m.HeapInuse + m.StackInuse)
	}
	before := heap()
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
	waitFor(t, func() bool { // until nothing moves any more
		if now := written.Load(); now != last {
			last, same = now, 0
		}
		same++
		return same > 100
	})
	const most = 250 << 20
	grown := heap() - before
	t.Logf("1,000 stalled downloads take %d MiB here, guest and server included", grown>>20)
	if grown > most {
		t.Errorf("that is more than %d MiB", most>>20)
	}
}

// Whoever sends SYNs as fast as the link takes them is held up there, and another sandbox's connections go on.
// mission: A11
func TestAFloodHoldsUpItsSandboxOnly(t *testing.T) {
	t.Parallel()
	flooded := newWire(t, policy(t, "default"), func(o *netstack.Options) { o.Rate = 100 })
	other := newWorld(t, policy(t, "default"))
	other.serve("tcp", "203.0.113.7:80", listen(t, func(c net.Conn) { _, _ = io.Copy(c, c) }))
	raw, err := flooded.end.SyscallConn()
	if err != nil {
		t.Fatal(err)
	}
	var sent, held int
	stop, done := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(done)
		answers := make([]byte, 70000)
		for n := 0; ; n++ {
			select {
			case <-stop:
				return
			default:
			}
			f := packet(guest4, "203.0.113.7", header.TCPProtocolNumber, checked(guest4, "203.0.113.7", syn(uint16(n))))
			_ = raw.Control(func(fd uintptr) {
				switch _, err := unix.Write(int(fd), f); err {
				case nil:
					sent++
				case unix.EAGAIN:
					held++
				}
				for { // so that the answers do not fill the link
					if _, err := unix.Read(int(fd), answers); err != nil {
						break
					}
				}
			})
			if held > sent {
				runtime.Gosched()
			}
		}
	}()
	for range 50 {
		c, err := other.guest.dial(t, "203.0.113.7:80")
		if err != nil {
			t.Fatal(err)
		}
		_ = c.SetDeadline(time.Now().Add(time.Minute))
		if _, err := c.Write([]byte("hi")); err != nil {
			t.Fatal(err)
		}
		if _, err := io.ReadFull(c, make([]byte, 2)); err != nil {
			t.Fatal(err)
		}
		_ = c.Close()
	}
	waitFor(t, func() bool { return flooded.Stats().Dropped > 0 })
	close(stop)
	<-done
	flooded.mu.Lock()
	dialled := len(flooded.dialled)
	flooded.mu.Unlock()
	t.Logf("%d SYNs went on the link, %d found it full, %d were dropped, %d dialled", sent, held, flooded.Stats().Dropped, dialled)
	if sent > 1000 && dialled > sent/2 {
		t.Errorf("of %d SYNs %d were dialled", sent, dialled)
	}
}

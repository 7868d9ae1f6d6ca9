package netstack

import (
	"encoding/binary"
	"os"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
	"gvisor.dev/gvisor/pkg/buffer"
	"gvisor.dev/gvisor/pkg/tcpip"
	"gvisor.dev/gvisor/pkg/tcpip/header"
	"gvisor.dev/gvisor/pkg/tcpip/stack"

	"github.com/RelevanceAI/harvest/client/errors"
)

// sendPatience is how long a frame waits for a sandbox that accepts no frames. After that it is dropped, as by
// the full queue of a network card.
const sendPatience = 20 * time.Millisecond

// viewSizes are the sizes of the buffers for one frame. Only the buffers that a frame fills are replaced.
// Together they hold the largest frame.
var viewSizes = [...]int{2 << 10, 8 << 10, 56 << 10}

// link is the stack's network card. It reads frames with Ethernet headers from a file, and writes them to it.
// It differs from gVisor's own (package fdbased): it waits in Go's poller rather than in a thread, drops
// malformed frames rather than stopping, waits for a full peer rather than dropping frames, and calls admit for
// each frame first.
type link struct {
	file  *os.File
	raw   syscall.RawConn
	mtu   uint32
	addr  tcpip.LinkAddress
	admit func(frame []byte) bool // gets at least the headers of a frame
	// divert gets the beginning of a frame first, and a function that returns all of it. It returns true if it
	// takes the frame.
	divert func(first []byte, whole func() []byte) bool
	head   []byte        // receives the header of the kernel before each frame of a tap device; nil without one
	done   chan struct{} // closed when reading has ended
	peer   atomic.Uint64 // the sandbox's link address in its last frame, 0 before the first

	received, sent, dropped atomic.Uint64 // bytes, bytes, frames

	mu         sync.RWMutex
	dispatcher stack.NetworkDispatcher // guarded by mu

	sending sync.Mutex
}

// newLink returns a link on a duplicate of file.
func newLink(file *os.File, mtu uint32, addr tcpip.LinkAddress, admit func([]byte) bool,
	divert func([]byte, func() []byte) bool) (*link, error) {
	fd, err := unix.FcntlInt(file.Fd(), unix.F_DUPFD_CLOEXEC, 0)
	if err != nil {
		return nil, errors.Wrapf(err, "duplicate the link")
	}
	if err := unix.SetNonblock(fd, true); err != nil {
		_ = unix.Close(fd)
		return nil, errors.Wrapf(err, "make the link non-blocking")
	}
	l := &link{file: os.NewFile(uintptr(fd), "link"), mtu: mtu, addr: addr, admit: admit, divert: divert,
		done: make(chan struct{})}
	if hasHeader(fd) {
		l.head = make([]byte, headSize)
	}
	if l.raw, err = l.file.SyscallConn(); err != nil {
		_ = l.file.Close()
		return nil, errors.Wrapf(err, "watch the link")
	}
	if err := l.file.SetReadDeadline(time.Time{}); err != nil {
		_ = l.file.Close()
		return nil, errors.Wrapf(err, "watch the link: neither a socket nor a tap device")
	}
	return l, nil
}

// headSize is the size of the header that a tap device with IFF_VNET_HDR has before each frame: struct virtio_net_hdr.
const headSize = 10

// uncheckedHead returns the header of a frame, given in parts, whose TCP or UDP checksum is left out, as in all frames
// of the stack and of other sandboxes. The receiving kernel takes the frame as one of its own (CHECKSUM_PARTIAL), and
// checks nothing. The header of other frames is zero.
func uncheckedHead(parts [][]byte) []byte {
	const needsChecksum = 1 // VIRTIO_NET_HDR_F_NEEDS_CSUM
	head := make([]byte, headSize)
	var first [header.EthernetMinimumSize + header.IPv4MaximumHeaderSize]byte
	n := 0
	for _, part := range parts {
		n += copy(first[n:], part)
	}
	protocol, size := transportOf(first[:n])
	offset := uint16(0)
	switch protocol {
	case header.TCPProtocolNumber:
		offset = header.TCPChecksumOffset
	case header.UDPProtocolNumber:
		offset = 6
	default:
		return head
	}
	head[0] = needsChecksum
	binary.LittleEndian.PutUint16(head[6:], uint16(header.EthernetMinimumSize+size))
	binary.LittleEndian.PutUint16(head[8:], offset)
	return head
}

// transportOf returns the transport protocol of a frame by its beginning, and the size of the IP header; 0 for
// fragments and for what is not IP.
func transportOf(frame []byte) (tcpip.TransportProtocolNumber, int) {
	if len(frame) < header.EthernetMinimumSize {
		return 0, 0
	}
	packet := frame[header.EthernetMinimumSize:]
	switch header.Ethernet(frame).Type() {
	case header.IPv4ProtocolNumber:
		ip := header.IPv4(packet)
		if len(packet) < header.IPv4MinimumSize || ip.More() || ip.FragmentOffset() > 0 {
			return 0, 0
		}
		return ip.TransportProtocol(), int(ip.HeaderLength())
	case header.IPv6ProtocolNumber:
		if len(packet) < header.IPv6MinimumSize {
			return 0, 0
		}
		return tcpip.TransportProtocolNumber(header.IPv6(packet).NextHeader()), header.IPv6MinimumSize
	}
	return 0, 0
}

// hasHeader reports whether the file is a tap device with such headers.
func hasHeader(fd int) bool {
	request, err := unix.NewIfreq("")
	return err == nil && unix.IoctlIfreq(fd, unix.TUNGETIFF, request) == nil &&
		request.Uint16()&unix.IFF_VNET_HDR != 0
}

// readLoop delivers frames until either end of the link is closed.
func (l *link) readLoop() {
	defer close(l.done)
	var views [len(viewSizes)]*buffer.View
	bufs := make([][]byte, len(viewSizes))
	for {
		for i, size := range viewSizes {
			if views[i] == nil {
				views[i] = buffer.NewViewSize(size)
				bufs[i] = views[i].AsSlice()
			}
		}
		n, err := l.read(bufs)
		if err != nil || n == 0 {
			for _, v := range views {
				v.Release()
			}
			return
		}
		l.received.Add(uint64(n))
		if l.divert(bufs[0][:min(n, len(bufs[0]))], func() []byte { return joined(bufs, n) }) {
			continue
		}
		if n < header.EthernetMinimumSize || !l.admit(bufs[0][:min(n, len(bufs[0]))]) {
			l.dropped.Add(1)
			continue
		}
		var data buffer.Buffer
		for i := 0; n > 0 && i < len(views); i++ {
			used := min(n, viewSizes[i])
			views[i].CapLength(used)
			_ = data.Append(views[i])
			views[i] = nil
			n -= used
		}
		l.deliver(data)
	}
}

// joined returns the first n bytes of bufs in one slice.
func joined(bufs [][]byte, n int) []byte {
	all := make([]byte, 0, n)
	for _, b := range bufs {
		all = append(all, b[:min(len(b), n-len(all))]...)
	}
	return all
}

// read reads one frame. It returns 0 at the end.
func (l *link) read(bufs [][]byte) (int, error) {
	var n int
	var err error
	if l.head != nil {
		bufs = append([][]byte{l.head}, bufs...)
	}
	rerr := l.raw.Read(func(fd uintptr) bool {
		for {
			n, err = unix.Readv(int(fd), bufs)
			switch err {
			case unix.EINTR:
				continue
			case unix.EAGAIN:
				return false
			}
			return true
		}
	})
	if rerr != nil {
		return 0, rerr
	}
	return max(n-len(l.head), 0), err
}

func (l *link) deliver(data buffer.Buffer) {
	pkt := stack.NewPacketBuffer(stack.PacketBufferOptions{Payload: data})
	defer pkt.DecRef()
	hdr, ok := pkt.LinkHeader().Consume(header.EthernetMinimumSize)
	if !ok {
		return
	}
	proto := header.Ethernet(hdr).Type()
	// Data from memory of the same machine is not corrupted, and a wrong checksum harms only its sender.
	pkt.RXChecksumValidated = true
	if src := header.Ethernet(hdr).SourceAddress(); src[0]&1 == 0 {
		l.peer.Store(packLinkAddress(src))
	}
	l.mu.RLock()
	d := l.dispatcher
	l.mu.RUnlock()
	if d != nil {
		d.DeliverNetworkPacket(proto, pkt)
	}
}

// send writes one frame, given in parts. It waits for room for up to sendPatience, then drops the frame.
func (l *link) send(parts [][]byte) tcpip.Error {
	l.sending.Lock()
	defer l.sending.Unlock()
	if l.head != nil {
		parts = append([][]byte{uncheckedHead(parts)}, parts...)
	}
	var n int
	var err error
	patient := false
	werr := l.raw.Write(func(fd uintptr) bool {
		for {
			n, err = unix.Writev(int(fd), parts)
			switch err {
			case unix.EINTR:
				continue
			case unix.EAGAIN:
				if !patient {
					patient = l.file.SetWriteDeadline(time.Now().Add(sendPatience)) == nil
				}
				return !patient
			}
			return true
		}
	})
	if patient {
		_ = l.file.SetWriteDeadline(time.Time{})
	}
	switch {
	case werr != nil || err != nil:
		l.dropped.Add(1)
		return &tcpip.ErrNoBufferSpace{}
	}
	l.sent.Add(uint64(n))
	return nil
}

// WritePackets implements stack.LinkWriter.
func (l *link) WritePackets(pkts stack.PacketBufferList) (int, tcpip.Error) {
	n := 0
	for _, pkt := range pkts.AsSlice() {
		if err := l.send(pkt.AsSlices()); err != nil {
			return n, err
		}
		n++
	}
	return n, nil
}

// close ends reading and writing. It returns when the reader has ended, if one was started.
func (l *link) close() { _ = l.file.Close() }

// The remaining methods implement stack.NetworkLinkEndpoint.

// MTU implements stack.NetworkLinkEndpoint.
func (l *link) MTU() uint32 { return l.mtu }

// segment returns the payload size of a full TCP segment of either family, with timestamps.
func (l *link) segment() int {
	const options = 12
	return int(l.mtu) - header.IPv6MinimumSize - header.TCPMinimumSize - options
}

// SetMTU implements stack.NetworkLinkEndpoint. The MTU is fixed.
func (l *link) SetMTU(uint32) {}

// MaxHeaderLength implements stack.NetworkLinkEndpoint.
func (l *link) MaxHeaderLength() uint16 { return header.EthernetMinimumSize }

// LinkAddress implements stack.NetworkLinkEndpoint.
func (l *link) LinkAddress() tcpip.LinkAddress { return l.addr }

// SetLinkAddress implements stack.NetworkLinkEndpoint. The address is fixed.
func (l *link) SetLinkAddress(tcpip.LinkAddress) {}

// Capabilities implements stack.NetworkLinkEndpoint.
func (l *link) Capabilities() stack.LinkEndpointCapabilities {
	return stack.CapabilityRXChecksumOffload | stack.CapabilityTXChecksumOffload
}

// Attach implements stack.NetworkLinkEndpoint.
func (l *link) Attach(d stack.NetworkDispatcher) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.dispatcher == nil && d != nil {
		go l.readLoop()
	}
	l.dispatcher = d
}

// IsAttached implements stack.NetworkLinkEndpoint.
func (l *link) IsAttached() bool {
	l.mu.RLock()
	defer l.mu.RUnlock()
	return l.dispatcher != nil
}

// Wait implements stack.NetworkLinkEndpoint.
func (l *link) Wait() {}

// ARPHardwareType implements stack.NetworkLinkEndpoint.
func (l *link) ARPHardwareType() header.ARPHardwareType { return header.ARPHardwareEther }

// packLinkAddress returns addr as a number, for atomic access.
func packLinkAddress(addr tcpip.LinkAddress) (n uint64) {
	for i := range len(addr) {
		n = n<<8 | uint64(addr[i])
	}
	return n
}

// peerAddress returns the destination of all frames: the only other end of the link, regardless of the
// addresses that it claims.
func (l *link) peerAddress() tcpip.LinkAddress {
	n := l.peer.Load()
	if n == 0 {
		return tcpip.LinkAddress(GuestLinkAddress()) // Linux takes no TCP segments from a frame to all
	}
	return tcpip.LinkAddress([]byte{byte(n >> 40), byte(n >> 32), byte(n >> 24), byte(n >> 16), byte(n >> 8), byte(n)})
}

// AddHeader implements stack.NetworkLinkEndpoint.
func (l *link) AddHeader(pkt *stack.PacketBuffer) {
	header.Ethernet(pkt.LinkHeader().Push(header.EthernetMinimumSize)).Encode(&header.EthernetFields{
		SrcAddr: l.addr, DstAddr: l.peerAddress(), Type: pkt.NetworkProtocolNumber,
	})
}

// ParseHeader implements stack.NetworkLinkEndpoint.
func (l *link) ParseHeader(pkt *stack.PacketBuffer) bool {
	_, ok := pkt.LinkHeader().Consume(header.EthernetMinimumSize)
	return ok
}

// Close implements stack.NetworkLinkEndpoint.
func (l *link) Close() {}

// SetOnCloseAction implements stack.NetworkLinkEndpoint.
func (l *link) SetOnCloseAction(func()) {}

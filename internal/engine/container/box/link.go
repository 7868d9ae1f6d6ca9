package box

import (
	"fmt"
	"net"
	"net/netip"
	"os"
	"runtime"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/RelevanceAI/harvest/client/errors"
	"github.com/RelevanceAI/harvest/internal/engine/gateway/netstack"
)

// linkName is the name of the interface in a container.
const linkName = "eth0"

// Connect adds a network interface to the container: a tap device, with the addresses of a sandbox. The file is its
// other end, for netstack.New. It works once.
func (b *Box) Connect() (*os.File, error) {
	type result struct {
		f   *os.File
		err error
	}
	done := make(chan result, 1)
	go func() {
		runtime.LockOSThread() // the thread ends with the goroutine: it stays in the container's network
		f, err := b.connect()
		done <- result{f, err}
	}()
	got := <-done
	return got.f, got.err
}

func (b *Box) connect() (*os.File, error) {
	space, err := os.Open(fmt.Sprintf("/proc/%d/ns/net", b.Pid()))
	if err != nil {
		return nil, errors.Wrapf(err, "open the network of the container")
	}
	defer space.Close()
	if err := unix.Setns(int(space.Fd()), unix.CLONE_NEWNET); err != nil {
		return nil, errors.Wrapf(err, "enter the network of the container")
	}
	device, err := openTun() // it belongs to the network in which it is opened
	if err != nil {
		return nil, err
	}
	tap := os.NewFile(uintptr(device), "tap")
	if err := setUp(device); err != nil {
		_ = tap.Close()
		return nil, err
	}
	return tap, nil
}

func openTun() (int, error) {
	fd, err := unix.Open("/dev/net/tun", unix.O_RDWR|unix.O_CLOEXEC|unix.O_NONBLOCK, 0)
	if err != nil {
		err = errors.Explainf(err, errors.Unsupported,
			"this machine has no usable /dev/net/tun for networks of containers")
		return -1, errors.Remedy(err, "load the module tun, and let the server open the device: chmod 666 /dev/net/tun")
	}
	return fd, nil
}

// setUp makes the device a tap, and gives it the addresses and routes of a sandbox.
func setUp(device int) error {
	request, err := unix.NewIfreq(linkName)
	if err != nil {
		return errors.Wrapf(err, "name the interface")
	}
	request.SetUint16(unix.IFF_TAP | unix.IFF_NO_PI | unix.IFF_VNET_HDR)
	if err := unix.IoctlIfreq(device, unix.TUNSETIFF, request); err != nil {
		return errors.Wrapf(err, "make a tap device")
	}
	// The container's kernel leaves checksums out: the gateway checks none.
	if err := unix.IoctlSetInt(device, unix.TUNSETOFFLOAD, unix.TUN_F_CSUM); err != nil {
		return errors.Wrapf(err, "set the offloads of a tap device")
	}
	link, err := netlink.LinkByName(linkName)
	if err != nil {
		return errors.Wrapf(err, "find the interface")
	}
	if err := netlink.LinkSetMTU(link, netstack.MTU); err != nil {
		return errors.Wrapf(err, "set the size of packets")
	}
	if err := netlink.LinkSetHardwareAddr(link, netstack.GuestLinkAddress()); err != nil {
		return errors.Wrapf(err, "set the Ethernet address")
	}
	if err := netlink.LinkSetUp(link); err != nil {
		return errors.Wrapf(err, "bring the interface up")
	}
	for _, a := range []netstack.Addresses{netstack.IPv4(), netstack.IPv6()} {
		if err := address(link, a); err != nil {
			return err
		}
	}
	return nil
}

// address gives the interface the addresses of one family, the route to everything else, and its neighbours.
func address(link netlink.Link, a netstack.Addresses) error {
	own := &netlink.Addr{IPNet: prefix(a.Guest, a.Bits)}
	if a.Guest.Is6() {
		own.Flags = unix.IFA_F_NODAD // nobody else is on the link
	}
	if err := netlink.AddrAdd(link, own); err != nil {
		return errors.Wrapf(err, "add the address %s", a.Guest)
	}
	for _, neighbor := range []netip.Addr{a.Gateway, a.DNS} {
		if err := netlink.NeighSet(&netlink.Neigh{LinkIndex: link.Attrs().Index, State: netlink.NUD_PERMANENT,
			IP: neighbor.AsSlice(), HardwareAddr: netstack.LinkAddress()}); err != nil {
			return errors.Wrapf(err, "add the neighbour %s", neighbor)
		}
	}
	err := netlink.RouteAdd(&netlink.Route{LinkIndex: link.Attrs().Index, Gw: a.Gateway.AsSlice()})
	return errors.Wrapf(err, "add the route over %s", a.Gateway)
}

func prefix(a netip.Addr, bits int) *net.IPNet {
	return &net.IPNet{IP: a.AsSlice(), Mask: net.CIDRMask(bits, a.BitLen())}
}

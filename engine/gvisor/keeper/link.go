package keeper

import (
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"strconv"

	"golang.org/x/sys/unix"
	"gvisor.dev/gvisor/pkg/control/client"
	"gvisor.dev/gvisor/pkg/urpc"
	"gvisor.dev/gvisor/runsc/boot"
	"gvisor.dev/gvisor/runsc/config"

	"github.com/RelevanceAI/harvest/errors"
	"github.com/RelevanceAI/harvest/gateway/netstack"
)

const (
	linkName = "eth0"
	// createLinks is a method of gVisor's control socket that its own runsc does not call.
	createLinks = "Network.CreateLinksAndRoutes"
)

// linkAddress is the sandbox's Ethernet address, the same for each: links are not connected.
func linkAddress() net.HardwareAddr { return net.HardwareAddr{0x02, 0x68, 0x76, 0, 0, 1} }

// addLink gives the sandbox a network interface whose other end is that of file. It works once per sandbox. No device and no
// namespace of the host takes part: the link is a pair of sockets, and gVisor's network is told of it while it runs.
func (g *guest) addLink(file *os.File) error {
	link := boot.FDBasedLink{
		Name: linkName, MTU: netstack.MTU, NumChannels: 1, QDisc: config.QDiscNone, LinkAddress: linkAddress(),
		// What is received goes straight on to TCP, which has goroutines of its own, rather than through one more.
		ProcessorsPerChannel: 1,
		// Nothing on the way can change a packet.
		TXChecksumOffload: true, RXChecksumOffload: true,
		// The system call filter does not let gVisor ask what kind of socket it is.
		PreConfigured: true, IsPacket: []bool{false},
	}
	var routes [2]boot.Route
	for i, a := range []netstack.Addresses{netstack.IPv4(), netstack.IPv6()} {
		link.Addresses = append(link.Addresses, boot.IPWithPrefix{Address: a.Guest.AsSlice(), PrefixLen: a.Bits})
		link.Routes = append(link.Routes, boot.Route{Destination: networkOf(netip.PrefixFrom(a.Guest, a.Bits))})
		for _, neighbor := range []netip.Addr{a.Gateway, a.DNS} {
			link.Neighbors = append(link.Neighbors, boot.Neighbor{IP: neighbor.AsSlice(), HardwareAddr: netstack.LinkAddress()})
		}
		routes[i] = boot.Route{Destination: networkOf(netip.PrefixFrom(a.Guest, 0)), Gateway: a.Gateway.AsSlice()}
	}
	return g.call(createLinks, &boot.CreateLinksAndRoutesArgs{
		FilePayload: urpc.FilePayload{Files: []*os.File{file}}, FDBasedLinks: []boot.FDBasedLink{link},
		Defaultv4Gateway: boot.DefaultRoute{Name: linkName, Route: routes[0]},
		Defaultv6Gateway: boot.DefaultRoute{Name: linkName, Route: routes[1]},
	})
}

// networkOf is the network that p lies in.
func networkOf(p netip.Prefix) net.IPNet {
	p = p.Masked()
	return net.IPNet{IP: p.Addr().AsSlice(), Mask: net.CIDRMask(p.Bits(), p.Addr().BitLen())}
}

// call calls a method of gVisor's control socket for which its sandbox package has no function.
func (g *guest) call(method string, args any) error {
	path := g.sb.GetControlSocketPath()
	dir, err := os.OpenFile(filepath.Dir(path), unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0) // the path may be too long for a socket
	if err != nil {
		return errors.Wrapf(err, "open the directory of the control socket")
	}
	defer dir.Close()
	conn, err := client.ConnectTo(filepath.Join("/proc/self/fd", strconv.Itoa(int(dir.Fd())), filepath.Base(path)))
	if err != nil {
		return errors.Wrapf(err, "connect to the control socket")
	}
	defer conn.Close()
	return errors.Wrapf(conn.Call(method, args, nil), "call %s", method)
}

// nameFiles are the files by which programs find addresses by their names. They belong to the sandbox, whatever its image has:
// nothing of the host's own gets in.
func nameFiles(hostname string) []initStep {
	hosts := "127.0.0.1\tlocalhost\n::1\tlocalhost ip6-localhost ip6-loopback\n"
	if hostname != "" && hostname != "localhost" {
		hosts += "127.0.1.1\t" + hostname + "\n"
	}
	return []initStep{
		{dir: "/etc", file: "/etc/.harvest-hosts", content: hosts, rename: "/etc/hosts"},
		{dir: "/etc", file: "/etc/.harvest-resolv.conf", content: "nameserver " + netstack.IPv4().DNS.String() + "\n", rename: "/etc/resolv.conf"},
	}
}

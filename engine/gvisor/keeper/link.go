package keeper

import (
	"crypto/sha256"
	"encoding/hex"
	"net"
	"net/netip"
	"os"

	"gvisor.dev/gvisor/pkg/urpc"

	"github.com/RelevanceAI/harvest/engine/gvisor/runsc"
	"github.com/RelevanceAI/harvest/gateway/netstack"
)

const linkName = "eth0"

// linkAddress is the sandbox's Ethernet address, the same for each: links are not connected.
func linkAddress() net.HardwareAddr { return net.HardwareAddr{0x02, 0x68, 0x76, 0, 0, 1} }

// addLink gives the sandbox a network interface whose other end is that of file. It works once per sandbox. No device and no
// namespace of the host takes part: the link is a pair of sockets, and gVisor's network is told of it while it runs.
func (g *guest) addLink(file *os.File) error { return g.sb.AddLinks(linkTo(file)) }

// linkTo describes the interface.
func linkTo(file *os.File) *runsc.Links {
	link := runsc.Link{
		Name: linkName, MTU: netstack.MTU, NumChannels: 1, LinkAddress: linkAddress(),
		// What is received goes straight on to TCP, which has goroutines of its own, rather than through one more.
		ProcessorsPerChannel: 1,
		// Nothing on the way can change a packet.
		TXChecksumOffload: true, RXChecksumOffload: true,
		// The system call filter does not let gVisor ask what kind of socket it is.
		PreConfigured: true, IsPacket: []bool{false},
	}
	var routes [2]runsc.Route
	for i, a := range []netstack.Addresses{netstack.IPv4(), netstack.IPv6()} {
		link.Addresses = append(link.Addresses, runsc.Address{Address: a.Guest.AsSlice(), PrefixLen: a.Bits})
		link.Routes = append(link.Routes, runsc.Route{Destination: networkOf(netip.PrefixFrom(a.Guest, a.Bits))})
		for _, neighbor := range []netip.Addr{a.Gateway, a.DNS} {
			link.Neighbors = append(link.Neighbors, runsc.Neighbor{IP: neighbor.AsSlice(), HardwareAddr: netstack.LinkAddress()})
		}
		routes[i] = runsc.Route{Destination: networkOf(netip.PrefixFrom(a.Guest, 0)), Gateway: a.Gateway.AsSlice()}
	}
	return &runsc.Links{
		FilePayload: urpc.FilePayload{Files: []*os.File{file}}, FDBasedLinks: []runsc.Link{link},
		Defaultv4Gateway: runsc.DefaultRoute{Name: linkName, Route: routes[0]},
		Defaultv6Gateway: runsc.DefaultRoute{Name: linkName, Route: routes[1]},
	}
}

// networkOf is the network that p lies in.
func networkOf(p netip.Prefix) net.IPNet {
	p = p.Masked()
	return net.IPNet{IP: p.Addr().AsSlice(), Mask: net.CIDRMask(p.Bits(), p.Addr().BitLen())}
}

// nameFiles are the files by which programs find addresses by their names. They belong to the sandbox, whatever its image has:
// nothing of the host's own gets in.
// They agree on the host name. machineID is "" in checkpoints of earlier versions, whose init program was told less.
func nameFiles(hostname, machineID string) []initStep {
	hosts := "127.0.0.1\tlocalhost\n::1\tlocalhost ip6-localhost ip6-loopback\n"
	if hostname != "" && hostname != "localhost" {
		hosts += "127.0.1.1\t" + hostname + "\n"
	}
	steps := []initStep{
		{dir: "/etc", file: "/etc/.harvest-hosts", content: hosts, rename: "/etc/hosts"},
		{dir: "/etc", file: "/etc/.harvest-resolv.conf", content: "nameserver " + netstack.IPv4().DNS.String() + "\n", rename: "/etc/resolv.conf"},
	}
	if machineID != "" {
		steps = append(steps, initStep{dir: "/etc", file: "/etc/.harvest-hostname", content: hostname + "\n", rename: "/etc/hostname"},
			initStep{dir: "/etc", file: "/etc/.harvest-machine-id", content: machineID + "\n", rename: "/etc/machine-id"})
	}
	return steps
}

// machineID is the content of /etc/machine-id of a sandbox: other sandboxes of the same image have another one.
func machineID(id string) string {
	sum := sha256.Sum256([]byte("machine-id of " + id))
	return hex.EncodeToString(sum[:16])
}

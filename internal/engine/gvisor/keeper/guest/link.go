package guest

import (
	"crypto/sha256"
	"encoding/hex"
	"net"
	"net/netip"
	"os"

	"gvisor.dev/gvisor/pkg/urpc"

	"github.com/RelevanceAI/harvest/internal/engine/gateway/netstack"
	"github.com/RelevanceAI/harvest/internal/engine/gvisor/keeper/initprog"
	"github.com/RelevanceAI/harvest/internal/engine/gvisor/runsc"
)

const linkName = "eth0"

// linkAddress returns the sandbox's Ethernet address. It is the same for each sandbox, since links are not
// connected.
func linkAddress() net.HardwareAddr { return net.HardwareAddr{0x02, 0x68, 0x76, 0, 0, 1} }

// AddLink adds a network interface to the sandbox. Its other end is that of file. It works once per sandbox. It
// needs no device or namespace of the host: the link is a pair of sockets, and gVisor adds the interface while
// it runs.
func (g *Guest) AddLink(file *os.File) error { return g.Sandbox.AddLinks(LinkTo(file)) }

// LinkTo returns the interface's configuration.
func LinkTo(file *os.File) *runsc.Links {
	link := runsc.Link{
		Name: linkName, MTU: netstack.MTU, NumChannels: 1, LinkAddress: linkAddress(),
		// Received packets go directly to TCP, which has its own goroutines, rather than through another one.
		ProcessorsPerChannel: 1,
		// Packets cannot be corrupted in transit.
		TXChecksumOffload: true, RXChecksumOffload: true,
		// gVisor's system call filter forbids it to query the type of the socket.
		PreConfigured: true, IsPacket: []bool{false},
	}
	var routes [2]runsc.Route
	for i, a := range []netstack.Addresses{netstack.IPv4(), netstack.IPv6()} {
		link.Addresses = append(link.Addresses, runsc.Address{Address: a.Guest.AsSlice(), PrefixLen: a.Bits})
		link.Routes = append(link.Routes, runsc.Route{Destination: networkOf(netip.PrefixFrom(a.Guest, a.Bits))})
		for _, neighbor := range []netip.Addr{a.Gateway, a.DNS} {
			link.Neighbors = append(link.Neighbors,
				runsc.Neighbor{IP: neighbor.AsSlice(), HardwareAddr: netstack.LinkAddress()})
		}
		routes[i] = runsc.Route{Destination: networkOf(netip.PrefixFrom(a.Guest, 0)), Gateway: a.Gateway.AsSlice()}
	}
	return &runsc.Links{
		FilePayload: urpc.FilePayload{Files: []*os.File{file}}, FDBasedLinks: []runsc.Link{link},
		Defaultv4Gateway: runsc.DefaultRoute{Name: linkName, Route: routes[0]},
		Defaultv6Gateway: runsc.DefaultRoute{Name: linkName, Route: routes[1]},
	}
}

// networkOf returns the network of p.
func networkOf(p netip.Prefix) net.IPNet {
	p = p.Masked()
	return net.IPNet{IP: p.Addr().AsSlice(), Mask: net.CIDRMask(p.Bits(), p.Addr().BitLen())}
}

// nameFiles returns the files for name resolution. The sandbox has its own, regardless of its image, and none
// of them comes from the host. They are consistent with the host name.
func nameFiles(hostname, machineID string) []initprog.Step {
	hosts := "127.0.0.1\tlocalhost\n::1\tlocalhost ip6-localhost ip6-loopback\n"
	if hostname != "" && hostname != "localhost" {
		hosts += "127.0.1.1\t" + hostname + "\n"
	}
	return []initprog.Step{
		{Dir: "/etc", File: "/etc/.harvest-hosts", Content: hosts, Rename: "/etc/hosts"},
		{Dir: "/etc", File: "/etc/.harvest-resolv.conf", Content: "nameserver " + netstack.IPv4().DNS.String() + "\n",
			Rename: "/etc/resolv.conf"},
		{Dir: "/etc", File: "/etc/.harvest-hostname", Content: hostname + "\n", Rename: "/etc/hostname"},
		{Dir: "/etc", File: "/etc/.harvest-machine-id", Content: machineID + "\n", Rename: "/etc/machine-id"},
	}
}

// machineID returns the content of a sandbox's /etc/machine-id. It differs between sandboxes of the same image.
func machineID(id string) string {
	sum := sha256.Sum256([]byte("machine-id of " + id))
	return hex.EncodeToString(sum[:16])
}

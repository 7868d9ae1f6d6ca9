package guest

import (
	"net"
	"net/netip"
	"os"
	"path"

	"gvisor.dev/gvisor/pkg/urpc"

	"github.com/RelevanceAI/harvest/internal/engine/gateway/netstack"
	"github.com/RelevanceAI/harvest/internal/engine/gvisor/keeper/initprog"
	"github.com/RelevanceAI/harvest/internal/engine/gvisor/keeper/kept"
	"github.com/RelevanceAI/harvest/internal/engine/gvisor/runsc"
)

const linkName = "eth0"

// LinkTo returns the configuration of an interface whose other end is that of file.
func LinkTo(file *os.File) *runsc.Links {
	link := runsc.Link{
		Name: linkName, MTU: netstack.MTU, NumChannels: 1, LinkAddress: netstack.GuestLinkAddress(),
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

// nameFiles returns the steps that write kept.NameFiles.
func nameFiles(hostname, machineID string) (steps []initprog.Step) {
	for _, f := range kept.NameFiles(hostname, machineID) {
		dir, name := path.Split(f.Path)
		steps = append(steps, initprog.Step{Dir: path.Clean(dir), File: dir + ".harvest-" + name, Content: f.Content,
			Rename: f.Path})
	}
	return steps
}

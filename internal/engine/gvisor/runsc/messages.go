package runsc

import (
	"net"

	"gvisor.dev/gvisor/pkg/urpc"
	"gvisor.dev/gvisor/runsc/config"
)

// Methods of gVisor's control socket.
const (
	setNetworkArgs      = "containerManager.SetNetworkArgs"
	startRoot           = "containerManager.StartRoot"
	createSubcontainer  = "containerManager.CreateSubcontainer"
	startSubcontainer   = "containerManager.StartSubcontainer"
	destroySubcontainer = "containerManager.DestroySubcontainer"
	executeAsync        = "containerManager.ExecuteAsync"
	wait                = "containerManager.Wait"
	waitPID             = "containerManager.WaitPID"
	signal              = "containerManager.Signal"
	processes           = "containerManager.Processes"
	pause               = "containerManager.Pause"
	resume              = "containerManager.Resume"
	checkpoint          = "containerManager.Checkpoint"
	restore             = "containerManager.Restore"
	restoreSubcontainer = "containerManager.RestoreSubcontainer"
	createTraceSession  = "containerManager.CreateTraceSession"
	createLinks         = "Network.CreateLinksAndRoutes"
	collectUsage        = "Usage.Collect"
	readFile            = "Fs.Read"
)

// The messages have the JSON of gVisor's types with similar names. Omitted fields are zero there.
type (
	createArgs struct {
		CID string
		urpc.FilePayload
	}

	startArgs struct {
		Spec                 *spec
		Conf                 *config.Config
		CID                  string
		NumGoferFilestoreFDs int
		GoferMountConfs      []MountConf
		urpc.FilePayload     // standard streams, file stores, and one per mount
	}

	waitPIDArgs struct {
		PID int32
		CID string
	}

	signalArgs struct {
		CID   string
		Signo int32
		PID   int32
		Mode  int
	}

	readArgs struct {
		ContainerID string `json:"container_id"`
		Path        string `json:"path"`
		Offset      int64  `json:"offset"`
		Size        int64  `json:"size"`
		urpc.FilePayload
	}

	usageArgs struct{ Full bool }

	usage struct{ Total uint64 }

	traceArgs struct {
		Config traceConfig
		Force  bool
		urpc.FilePayload
	}

	traceConfig struct {
		Name  string      `json:"name"`
		Sinks []traceSink `json:"sinks"`
	}

	traceSink struct {
		Name   string         `json:"name"`
		Config map[string]any `json:"config"`
	}
)

// traceSession is the only trace session of gVisor.
const traceSession = "Default"

// Modes of signalArgs.
const (
	toProcess    = 0
	toForeground = 2
)

// Exec is a command to start.
type Exec struct {
	Argv             []string `json:"argv"`
	Envv             []string `json:"envv"`
	WorkingDirectory string   `json:"wd"`
	KUID             uint32
	KGID             uint32
	ExtraKGIDs       []uint32
	NoNewPrivileges  bool
	Capabilities     *Capabilities
	StdioIsPty       bool
	ContainerID      string
	GuestFDs         []int // descriptors of the files in the command; an additional file is the program
	urpc.FilePayload
}

// Capabilities are bit sets, as in Linux.
type Capabilities struct{ PermittedCaps, InheritableCaps, EffectiveCaps, BoundingCaps, AmbientCaps uint64 }

// Process is a process in the sandbox.
type Process struct {
	PID  int32 `json:"pid"`
	PPID int32 `json:"ppid"`
	PGID int32 `json:"pgid"`
}

// Links describe network interfaces. Their other ends are the files.
type Links struct {
	LoopbackLinks    []LoopbackLink
	FDBasedLinks     []Link
	Defaultv4Gateway DefaultRoute
	Defaultv6Gateway DefaultRoute
	urpc.FilePayload
}

// LoopbackLink is a loopback interface.
type LoopbackLink struct {
	Name      string
	Addresses []Address
	Routes    []Route
	GVisorGRO bool
}

// Link is an interface whose other end is a file.
type Link struct {
	Name                 string
	MTU                  int
	Addresses            []Address
	Routes               []Route
	TXChecksumOffload    bool
	RXChecksumOffload    bool
	LinkAddress          net.HardwareAddr
	Neighbors            []Neighbor
	NumChannels          int
	ProcessorsPerChannel int
	IsPacket             []bool
	PreConfigured        bool
}

// Address is an IP address with the length of its network's prefix in bits.
type Address struct {
	Address   net.IP
	PrefixLen int
}

// Route is a route to a network.
type Route struct {
	Destination net.IPNet
	Gateway     net.IP
}

// DefaultRoute is the default route, through an interface.
type DefaultRoute struct {
	Route Route
	Name  string
}

// Neighbor is a host on a link.
type Neighbor struct {
	IP           net.IP
	HardwareAddr net.HardwareAddr
}

// loopback returns the links of every sandbox.
func loopback(gro bool) *Links {
	v4, v6 := net.IPv4(127, 0, 0, 0), net.IPv6loopback
	return &Links{LoopbackLinks: []LoopbackLink{{Name: "lo", GVisorGRO: gro,
		Addresses: []Address{{net.IPv4(127, 0, 0, 1).To4(), 8}, {v6, 128}},
		Routes: []Route{{Destination: net.IPNet{IP: v4, Mask: net.CIDRMask(8, 32)}},
			{Destination: net.IPNet{IP: v6, Mask: net.CIDRMask(128, 128)}}}}}}
}

// Lower is the backing of a mount.
type Lower byte

// The kinds of Lower.
const (
	Gofer Lower = 1 // gVisor's file server
	Erofs Lower = 2 // an image
)

// Upper is the destination of writes to a mount.
type Upper byte

// The kinds of Upper.
const (
	NoOverlay Upper = 0 // to the Lower
	Anonymous Upper = 3 // to an unlinked file
)

// MountConf configures a mount of a container: first the root's, then those of the spec's mounts that have a
// file.
type MountConf struct {
	Lower Lower  `json:"lower"`
	Upper Upper  `json:"upper"`
	Size  string `json:"size,omitempty"` // maximum size of Upper
}

// String returns the form for arguments.
func (c MountConf) String() string {
	text := map[Lower]string{Gofer: "lisafs", Erofs: "erofs"}[c.Lower] + ":" + map[Upper]string{NoOverlay: "none",
		Anonymous: "anon"}[c.Upper]
	if c.Size != "" {
		text += ":size=" + c.Size
	}
	return text
}

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

// The messages have the JSON of gVisor's types of similar names; what is left out is zero there.
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

// traceSession is the only one that gVisor has.
const traceSession = "Default"

// The modes of signalArgs.
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
	GuestFDs         []int // which descriptors the files are in the command; one file more is the program
	urpc.FilePayload
}

// Capabilities are sets of bits, as in Linux.
type Capabilities struct{ PermittedCaps, InheritableCaps, EffectiveCaps, BoundingCaps, AmbientCaps uint64 }

// Process is one in the sandbox.
type Process struct {
	PID  int32 `json:"pid"`
	PPID int32 `json:"ppid"`
	PGID int32 `json:"pgid"`
}

// Links describe network interfaces, whose other ends are the files.
type Links struct {
	LoopbackLinks    []LoopbackLink
	FDBasedLinks     []Link
	Defaultv4Gateway DefaultRoute
	Defaultv6Gateway DefaultRoute
	urpc.FilePayload
}

// LoopbackLink is an interface to the sandbox itself.
type LoopbackLink struct {
	Name      string
	Addresses []Address
	Routes    []Route
	GVisorGRO bool
}

// Link is an interface to a file.
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

// Address is one with the length of its network's prefix in bits.
type Address struct {
	Address   net.IP
	PrefixLen int
}

// Route is a way to a network.
type Route struct {
	Destination net.IPNet
	Gateway     net.IP
}

// DefaultRoute is a way to everywhere else, through an interface.
type DefaultRoute struct {
	Route Route
	Name  string
}

// Neighbor is a machine on a link.
type Neighbor struct {
	IP           net.IP
	HardwareAddr net.HardwareAddr
}

// loopback is what every sandbox has.
func loopback(gro bool) *Links {
	v4, v6 := net.IPv4(127, 0, 0, 0), net.IPv6loopback
	return &Links{LoopbackLinks: []LoopbackLink{{Name: "lo", GVisorGRO: gro,
		Addresses: []Address{{net.IPv4(127, 0, 0, 1).To4(), 8}, {v6, 128}},
		Routes:    []Route{{Destination: net.IPNet{IP: v4, Mask: net.CIDRMask(8, 32)}}, {Destination: net.IPNet{IP: v6, Mask: net.CIDRMask(128, 128)}}}}}}
}

// Lower is what serves a mount.
type Lower byte

// The kinds of Lower.
const (
	Gofer Lower = 1 // gVisor's file server
	Erofs Lower = 2 // an image
)

// Upper is what is written to a mount.
type Upper byte

// The kinds of Upper.
const (
	NoOverlay Upper = 0 // goes where Lower is
	Anonymous Upper = 3 // goes to a file without a name
)

// MountConf says how a mount of a container is made: the root's, and then of each mount in the spec that has a file.
type MountConf struct {
	Lower Lower  `json:"lower"`
	Upper Upper  `json:"upper"`
	Size  string `json:"size,omitempty"` // the most bytes of Upper
}

// String is the form that arguments have.
func (c MountConf) String() string {
	text := map[Lower]string{Gofer: "lisafs", Erofs: "erofs"}[c.Lower] + ":" + map[Upper]string{NoOverlay: "none", Anonymous: "anon"}[c.Upper]
	if c.Size != "" {
		text += ":size=" + c.Size
	}
	return text
}

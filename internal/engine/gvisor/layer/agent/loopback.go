package agent

import (
	goContext "context"
	"net/netip"
	"sync"
	_ "unsafe" // for go:linkname

	"gvisor.dev/gvisor/pkg/abi/linux"
	"gvisor.dev/gvisor/pkg/context"
	"gvisor.dev/gvisor/pkg/errors/linuxerr"
	"gvisor.dev/gvisor/pkg/hostarch"
	"gvisor.dev/gvisor/pkg/log"
	"gvisor.dev/gvisor/pkg/sentry/arch"
	"gvisor.dev/gvisor/pkg/sentry/inet"
	"gvisor.dev/gvisor/pkg/sentry/kernel"
	"gvisor.dev/gvisor/pkg/sentry/kernel/auth"
	"gvisor.dev/gvisor/pkg/sentry/socket"
	"gvisor.dev/gvisor/pkg/sentry/socket/netlink"
	"gvisor.dev/gvisor/pkg/sentry/socket/netlink/nlmsg"
	"gvisor.dev/gvisor/pkg/sentry/socket/netlink/route"
	"gvisor.dev/gvisor/pkg/sentry/socket/netstack"
	"gvisor.dev/gvisor/pkg/state"
	"gvisor.dev/gvisor/pkg/syserr"

	"github.com/RelevanceAI/harvest/client/errors"
)

// In Linux, the interface lo of a new network namespace is down and has no address. It gets its addresses when a
// program brings it up. In gVisor, lo is always up and has its addresses from the beginning, so that bubblewrap fails,
// which adds the address itself. This file replaces gVisor's behaviour: see
// docs/decisions/050-namespaces-as-in-linux.md.

const (
	loopbackName  = "lo"
	siocSIFFlags  = 0x8914 // SIOCSIFFLAGS
	linkFlagsAt   = linux.NetlinkMessageHeaderSize + 8
	upFlags       = linux.IFF_UP | linux.IFF_LOWER_UP | linux.IFF_RUNNING
	ifreqFlagSize = 2
)

// loopbackAddresses are the addresses that lo gets when it is brought up.
var loopbackAddresses = []netip.Prefix{netip.MustParsePrefix("127.0.0.1/8"), netip.MustParsePrefix("::1/128")}

// netlinkProtocols is gVisor's list of the protocols of netlink.
//
//go:linkname netlinkProtocols gvisor.dev/gvisor/pkg/sentry/socket/netlink.protocols
var netlinkProtocols map[int]netlink.Provider

// loopbackMu serializes changes of the state of lo, in all namespaces.
var loopbackMu sync.Mutex

// replaceRoutes makes new sockets of NETLINK_ROUTE use routeProtocol, and registers the types that checkpoints contain.
func replaceRoutes() {
	state.Register((*stackCreator)(nil))
	state.Register((*routeProtocol)(nil))
	if netlinkProtocols[linux.NETLINK_ROUTE] == nil {
		log.Warningf("gVisor's package netlink has no list of protocols: lo cannot be brought up")
		return
	}
	netlinkProtocols[linux.NETLINK_ROUTE] = func(*kernel.Task) (netlink.Protocol, *syserr.Error) {
		return &routeProtocol{}, nil
	}
}

// replaceCreator makes network namespaces begin with lo down. No program of a user may run yet. A kernel that is
// restored from a checkpoint has a replaced creator already, unless an earlier version made the checkpoint.
func replaceCreator(k *kernel.Kernel) {
	creator, err := field[inet.NetworkStackCreator](k.RootNetworkNamespace(), "creator")
	if err != nil {
		log.Warningf("New network namespaces begin with lo up: %v", err)
		return
	}
	if _, replaced := (*creator).(*stackCreator); !replaced && *creator != nil {
		*creator = &stackCreator{own: *creator}
	}
}

// stackCreator creates the network stacks of namespaces. A checkpoint contains it, for each namespace: gVisor creates
// the stacks of namespaces anew when it restores one.
type stackCreator struct {
	own inet.NetworkStackCreator // gVisor's
	up  bool                     // lo begins up
}

// CreateStack implements inet.NetworkStackCreator.
func (c *stackCreator) CreateStack() (inet.Stack, error) {
	created, err := c.own.CreateStack()
	stack, ok := created.(*netstack.Stack)
	if err != nil || !ok || c.up {
		return created, err
	}
	for _, address := range stack.InterfaceAddrs()[linux.LOOPBACK_IFINDEX] {
		if err := stack.RemoveInterfaceAddr(linux.LOOPBACK_IFINDEX, address); err != nil {
			return nil, errors.Wrapf(err, "remove an address of lo")
		}
	}
	if err := stack.Stack.DisableNIC(linux.LOOPBACK_IFINDEX); err != nil {
		return nil, errors.Errorf("disable lo: %s", err)
	}
	return stack, nil
}

// StateTypeName implements state.Type.
func (*stackCreator) StateTypeName() string { return "harvest.stackCreator" }

// StateFields implements state.Type.
func (*stackCreator) StateFields() []string { return []string{"own", "up"} }

// StateSave implements state.SaverLoader.
func (c *stackCreator) StateSave(sink state.Sink) {
	sink.Save(0, &c.own)
	sink.Save(1, &c.up)
}

// StateLoad implements state.SaverLoader.
func (c *stackCreator) StateLoad(_ goContext.Context, source state.Source) {
	source.LoadWait(0, &c.own)
	source.Load(1, &c.up)
}

// loopbackIsUp reports whether lo of a namespace is up. A namespace without a network stack of gVisor has none that
// could be down.
func loopbackIsUp(ns *inet.Namespace) bool {
	stack, ok := ns.Stack().(*netstack.Stack)
	return !ok || stack.Stack.CheckNIC(linux.LOOPBACK_IFINDEX)
}

// setLoopback brings lo of a namespace up or down. When lo comes up, it gets the addresses that it lacks, as in Linux.
func setLoopback(ns *inet.Namespace, up bool) *syserr.Error {
	loopbackMu.Lock()
	defer loopbackMu.Unlock()
	stack, ok := ns.Stack().(*netstack.Stack)
	if !ok || loopbackIsUp(ns) == up {
		return nil
	}
	if !up {
		for _, address := range stack.InterfaceAddrs()[linux.LOOPBACK_IFINDEX] {
			if address.Family != linux.AF_INET6 { // Linux removes only these
				continue
			}
			if err := stack.RemoveInterfaceAddr(linux.LOOPBACK_IFINDEX, address); err != nil {
				return syserr.FromError(err)
			}
		}
		if err := stack.Stack.DisableNIC(linux.LOOPBACK_IFINDEX); err != nil {
			return syserr.TranslateNetstackError(err)
		}
		return rememberLoopback(ns, up)
	}
	if err := stack.Stack.EnableNIC(linux.LOOPBACK_IFINDEX); err != nil {
		return syserr.TranslateNetstackError(err)
	}
	for _, p := range loopbackAddresses {
		address := inet.InterfaceAddr{Family: linux.AF_INET, PrefixLen: uint8(p.Bits()), Addr: p.Addr().AsSlice()}
		if p.Addr().Is6() {
			address.Family = linux.AF_INET6
		}
		if err := stack.AddInterfaceAddr(linux.LOOPBACK_IFINDEX, address); err != nil &&
			!linuxerr.Equals(linuxerr.EEXIST, err) {
			return syserr.FromError(err)
		}
	}
	return rememberLoopback(ns, up)
}

// rememberLoopback makes gVisor restore the namespace from a checkpoint with the same state of lo. The keeper
// configures the root namespace of a restored sandbox, whose creator is the one of new namespaces.
func rememberLoopback(ns *inet.Namespace, up bool) *syserr.Error {
	if ns.IsRoot() {
		return nil
	}
	creator, err := field[inet.NetworkStackCreator](ns, "creator")
	if err != nil {
		return syserr.FromError(err)
	}
	if c, ok := (*creator).(*stackCreator); ok {
		*creator = &stackCreator{own: c.own, up: up}
	}
	return nil
}

// routeProtocol is gVisor's NETLINK_ROUTE, except that it brings lo up and down. gVisor accepts such requests, and has
// interfaces that are always up. Checkpoints contain it for each open socket.
type routeProtocol struct{ gvisorRoutes }

type gvisorRoutes = route.Protocol

// StateTypeName implements state.Type.
func (*routeProtocol) StateTypeName() string { return "harvest.routeProtocol" }

// StateFields implements state.Type.
func (*routeProtocol) StateFields() []string { return nil }

// StateSave implements state.SaverLoader.
func (*routeProtocol) StateSave(state.Sink) {}

// StateLoad implements state.SaverLoader.
func (*routeProtocol) StateLoad(goContext.Context, state.Source) {}

// ProcessMessage implements netlink.Protocol.
func (p *routeProtocol) ProcessMessage(ctx context.Context, s *netlink.Socket, msg *nlmsg.Message,
	answer *nlmsg.MessageSet) *syserr.Error {
	ns := s.NetworkNamespace()
	if concernsLoopback(msg) && mayAdminister(ctx, ns) {
		ctx = withCapability(ctx, linux.CAP_NET_ADMIN)
	}
	if err := p.gvisorRoutes.ProcessMessage(ctx, s, msg, answer); err != nil {
		return err
	}
	switch msg.Header().Type {
	case linux.RTM_NEWLINK, linux.RTM_SETLINK:
		if up, ok := loopbackChange(msg); ok {
			return setLoopback(ns, up)
		}
	case linux.RTM_GETLINK:
		if !loopbackIsUp(ns) {
			reportDown(answer)
		}
	}
	return nil
}

// loopbackChange returns the state that a message requests for lo. It returns false if it requests none.
func loopbackChange(msg *nlmsg.Message) (up, ok bool) {
	var info linux.InterfaceInfoMessage
	attributes, ok := msg.GetData(&info)
	if !ok || info.Flags == 0 && info.Change == 0 || info.Change != 0 && info.Change&linux.IFF_UP == 0 {
		return false, false
	}
	if info.Index == 0 {
		all, parsed := attributes.Parse()
		name, named := all[linux.IFLA_IFNAME]
		return info.Flags&linux.IFF_UP != 0, parsed && named && name.String() == loopbackName
	}
	return info.Flags&linux.IFF_UP != 0, info.Index == linux.LOOPBACK_IFINDEX
}

// concernsLoopback reports whether a message only brings lo up or down, or changes its addresses.
func concernsLoopback(msg *nlmsg.Message) bool {
	switch msg.Header().Type {
	case linux.RTM_NEWADDR, linux.RTM_DELADDR:
		var info linux.InterfaceAddrMessage
		_, ok := msg.GetData(&info)
		return ok && info.Index == linux.LOOPBACK_IFINDEX
	case linux.RTM_NEWLINK, linux.RTM_SETLINK:
		var info linux.InterfaceInfoMessage
		attributes, ok := msg.GetData(&info)
		return ok && info.Index == linux.LOOPBACK_IFINDEX && attributes.Empty()
	}
	return false
}

// mayAdminister reports whether the caller may set up lo of a namespace: with CAP_NET_ADMIN as in Linux, and with
// CAP_SYS_ADMIN in namespaces that programs have created, because root of a sandbox has only the latter.
func mayAdminister(ctx context.Context, ns *inet.Namespace) bool {
	return ns.HasCapability(ctx, linux.CAP_NET_ADMIN) || !ns.IsRoot() && ns.HasCapability(ctx, linux.CAP_SYS_ADMIN)
}

// withCapability returns a context whose credentials have one more capability in their user namespace.
func withCapability(ctx context.Context, capability linux.Capability) context.Context {
	creds := auth.CredentialsFromContext(ctx).Fork()
	creds.EffectiveCaps |= auth.CapabilitySetOf(capability)
	return withCredentials{ctx, creds}
}

type withCredentials struct {
	context.Context
	creds *auth.Credentials
}

// Value implements context.Context.
func (c withCredentials) Value(key any) any {
	if key == auth.CtxCredentials {
		return c.creds
	}
	return c.Context.Value(key)
}

// reportDown removes the flags of an interface that is up from gVisor's description of lo.
func reportDown(answer *nlmsg.MessageSet) {
	for _, msg := range answer.Messages {
		var info linux.InterfaceInfoMessage
		b := msg.Buffer()
		if msg.Header().Type != linux.RTM_NEWLINK || len(b) < linkFlagsAt+4 {
			continue
		}
		info.UnmarshalBytes(b[linux.NetlinkMessageHeaderSize:])
		if info.Index == linux.LOOPBACK_IFINDEX {
			hostarch.ByteOrder.PutUint32(b[linkFlagsAt:], info.Flags&^upFlags)
		}
	}
}

// watchLoopback adds SIOCSIFFLAGS for lo to ioctl, which gVisor lacks, and makes SIOCGIFFLAGS report its state. Both
// apply to the namespace of the task, as gVisor's other requests do.
func watchLoopback(own kernel.SyscallFn) kernel.SyscallFn {
	return func(t *kernel.Task, number uintptr, args arch.SyscallArguments) (uintptr, *kernel.SyscallControl, error) {
		request := args[1].Uint()
		if request != siocSIFFlags && request != linux.SIOCGIFFLAGS {
			return own(t, number, args)
		}
		var ifr linux.IFReq
		if _, err := ifr.CopyIn(t, args[2].Pointer()); err != nil || ifr.Name() != loopbackName || !isSocket(t, args) {
			return own(t, number, args)
		}
		ns := t.GetNetworkNamespace()
		if ns == nil {
			return own(t, number, args)
		}
		defer ns.DecRef(t)
		if request == siocSIFFlags {
			if !mayAdminister(t, ns) {
				return 0, nil, linuxerr.EPERM
			}
			up := hostarch.ByteOrder.Uint16(ifr.Data[:ifreqFlagSize])&linux.IFF_UP != 0
			if err := setLoopback(ns, up); err != nil {
				return 0, nil, err.ToError()
			}
			return 0, nil, nil
		}
		n, control, err := own(t, number, args)
		if err != nil || loopbackIsUp(ns) {
			return n, control, err
		}
		if _, err := ifr.CopyIn(t, args[2].Pointer()); err != nil {
			return 0, control, err
		}
		flags := hostarch.ByteOrder.Uint16(ifr.Data[:ifreqFlagSize])
		hostarch.ByteOrder.PutUint16(ifr.Data[:ifreqFlagSize], flags&^uint16(linux.IFF_UP|linux.IFF_RUNNING))
		_, err = ifr.CopyOut(t, args[2].Pointer())
		return n, control, err
	}
}

// isSocket reports whether the first argument is a socket.
func isSocket(t *kernel.Task, args arch.SyscallArguments) bool {
	file := t.GetFile(args[0].Int())
	if file == nil {
		return false
	}
	defer file.DecRef(t)
	_, ok := file.Impl().(socket.Socket)
	return ok
}

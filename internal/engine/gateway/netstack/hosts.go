package netstack

import (
	"bufio"
	"encoding/binary"
	"encoding/hex"
	"net"
	"net/netip"
	"os"
	"slices"
	"strings"
	"sync"
	"time"
)

// hostsFresh is how long the machine's addresses are cached.
const hostsFresh = 5 * time.Second

// hostAddresses are the addresses of this machine's interfaces, their broadcast addresses, and its routers.
type hostAddresses struct {
	more  []netip.Addr // further addresses of this machine
	mu    sync.Mutex
	at    time.Time               // guarded by mu
	addrs map[netip.Addr]struct{} // guarded by mu
}

func (h *hostAddresses) contains(addr netip.Addr) bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	if now := time.Now(); h.addrs == nil || now.Sub(h.at) > hostsFresh {
		h.addrs, h.at = readHostAddresses(), now
	}
	addr = addr.Unmap().WithZone("")
	_, ok := h.addrs[addr]
	return ok || slices.Contains(h.more, addr)
}

func readHostAddresses() map[netip.Addr]struct{} {
	all := map[netip.Addr]struct{}{}
	addrs, _ := net.InterfaceAddrs()
	for _, a := range addrs {
		if p, err := netip.ParsePrefix(a.String()); err == nil {
			all[p.Addr().Unmap().WithZone("")] = struct{}{}
			if last := broadcast(p); last.IsValid() {
				all[last] = struct{}{}
			}
		}
	}
	for _, file := range []string{"/proc/net/route", "/proc/net/ipv6_route"} {
		text, _ := os.ReadFile(file)
		for _, a := range routers(string(text)) {
			all[a] = struct{}{}
		}
	}
	return all
}

// routers returns the gateways in the text of /proc/net/route or /proc/net/ipv6_route, in the format of
// proc(5).
func routers(text string) []netip.Addr {
	var all []netip.Addr
	lines := bufio.NewScanner(strings.NewReader(text))
	for lines.Scan() {
		f := strings.Fields(lines.Text())
		if len(f) < 5 {
			continue
		}
		var addr netip.Addr
		if v4, err := hex.DecodeString(f[2]); err == nil && len(v4) == 4 {
			addr = netip.AddrFrom4([4]byte(binary.LittleEndian.AppendUint32(nil, binary.BigEndian.Uint32(v4))))
		} else if v6, err := hex.DecodeString(f[4]); err == nil && len(v6) == 16 {
			addr = netip.AddrFrom16([16]byte(v6))
		}
		if addr.IsValid() && !addr.IsUnspecified() {
			all = append(all, addr)
		}
	}
	return all
}

// broadcast returns the broadcast address of an IPv4 network, or the zero Addr if it has none.
func broadcast(p netip.Prefix) netip.Addr {
	if !p.Addr().Is4() || p.Bits() > 30 {
		return netip.Addr{}
	}
	b := p.Addr().As4()
	n := binary.BigEndian.Uint32(b[:]) | (1<<(32-p.Bits()) - 1)
	binary.BigEndian.PutUint32(b[:], n)
	return netip.AddrFrom4(b)
}

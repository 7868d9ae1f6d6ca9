package gateway

import (
	"maps"
	"net/netip"
	"slices"
	"sync"
	"time"
)

// The bounds of Pins. Programs keep addresses beyond the time that DNS gave them, so each is kept for a while more.
const (
	maxPins     = 4096
	maxPinNames = 16
	minPinTime  = 5 * time.Minute
	maxPinTime  = 24 * time.Hour
)

// Pins remembers by which names a sandbox looked addresses up. It is bounded: old addresses make room. The zero
// Pins is ready, and may be used concurrently.
type Pins struct {
	mu    sync.Mutex
	addrs map[netip.Addr][]pin // guarded by mu
}

type pin struct {
	name  string
	until time.Time
}

// Add remembers that name had the address at now, for ttl and a while more.
func (p *Pins) Add(addr netip.Addr, name string, ttl time.Duration, now time.Time) {
	addr = addr.Unmap().WithZone("")
	fresh := pin{name, now.Add(min(max(ttl, minPinTime), maxPinTime))}
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.addrs == nil {
		p.addrs = map[netip.Addr][]pin{}
	}
	pins := slices.DeleteFunc(p.addrs[addr], func(old pin) bool { return old.name == name || !now.Before(old.until) })
	if len(pins) >= maxPinNames {
		pins = pins[1:]
	}
	p.addrs[addr] = append(pins, fresh)
	if len(p.addrs) > maxPins {
		p.makeRoom(addr, now)
	}
}

// makeRoom removes what has ended, and some of the rest if that is not enough, but not keep. p.mu is held. It removes many at once, so that a sandbox
// that looks up names without end costs little.
func (p *Pins) makeRoom(keep netip.Addr, now time.Time) {
	maps.DeleteFunc(p.addrs, func(addr netip.Addr, pins []pin) bool {
		return addr != keep && !slices.ContainsFunc(pins, func(pin pin) bool { return now.Before(pin.until) })
	})
	for addr := range p.addrs {
		if len(p.addrs) <= maxPins*7/8 {
			return
		}
		if addr != keep {
			delete(p.addrs, addr)
		}
	}
}

// Names returns the names by which addr is known at now, the newest first.
func (p *Pins) Names(addr netip.Addr, now time.Time) []string {
	addr = addr.Unmap().WithZone("")
	p.mu.Lock()
	defer p.mu.Unlock()
	var names []string
	for _, pin := range slices.Backward(p.addrs[addr]) {
		if now.Before(pin.until) {
			names = append(names, pin.name)
		}
	}
	return names
}

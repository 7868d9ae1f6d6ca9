package gateway

import (
	"maps"
	"net/netip"
	"slices"
	"sync"
	"time"
)

// Limits of Pins. Programs use addresses beyond the TTL, so Pins keeps each of them for some more time.
const (
	maxPins     = 4096
	maxPinNames = 16
	minPinTime  = 5 * time.Minute
	maxPinTime  = 24 * time.Hour
)

// Pins records the names by which a sandbox looked addresses up. Its size is limited: it evicts old addresses.
// The zero value is ready to use. Its methods may be called concurrently.
type Pins struct {
	mu    sync.Mutex
	addrs map[netip.Addr][]pin // guarded by mu
}

type pin struct {
	name  string
	until time.Time
}

// Add records that name had the address at now, for ttl and some more time.
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

// makeRoom removes expired addresses, and evicts others if that is not enough, but never keep. p.mu is held. It
// evicts many at once, so that a sandbox with endless lookups costs little.
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

// Names returns the names of addr at now, newest first.
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

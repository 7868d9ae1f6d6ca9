package netstack

import (
	"bufio"
	"context"
	"crypto/rand"
	"encoding/binary"
	"net"
	"net/netip"
	"os"
	"strings"
	"sync"
	"time"

	"golang.org/x/net/dns/dnsmessage"

	"github.com/RelevanceAI/harvest/client/errors"
	"github.com/RelevanceAI/harvest/internal/engine/gateway"
)

// The limits of the cache: a thousand names, with some hundred bytes each.
const (
	maxCached      = 1024
	maxCachedBytes = 2048
)

// serverTime is how long the resolver waits for one name server before it asks the next.
const serverTime = 3 * time.Second

// resolver queries the host's name servers, and caches their answers for their TTL.
type resolver struct {
	exchange func(ctx context.Context, query []byte) ([]byte, error)
	busy     chan struct{} // holds one element per lookup in progress
	conns    chan struct{} // holds one element per DNS connection over TCP

	mu    sync.Mutex
	cache map[cacheKey]cached // guarded by mu
}

type cacheKey struct {
	name string
	kind dnsmessage.Type
}

type cached struct {
	msg   []byte
	asked time.Time
	until time.Time
}

func newResolver(exchange func(context.Context, []byte) ([]byte, error)) *resolver {
	if exchange == nil {
		exchange = new(hostServers).exchange
	}
	return &resolver{exchange: exchange, busy: make(chan struct{}, maxLookUps), conns: make(chan struct{}, maxDNSConns),
		cache: map[cacheKey]cached{}}
}

// ask returns a name server's answer and its age.
func (r *resolver) ask(ctx context.Context, q gateway.Query) ([]byte, time.Duration, error) {
	key, now := cacheKey{q.Name, q.Type}, time.Now()
	r.mu.Lock()
	c, ok := r.cache[key]
	r.mu.Unlock()
	if ok && now.Before(c.until) {
		return c.msg, now.Sub(c.asked), nil
	}
	id := randomID()
	query, err := q.Message(id)
	if err != nil {
		return nil, 0, err
	}
	msg, err := r.exchange(ctx, query)
	switch {
	case err != nil:
		return nil, 0, err
	case !q.Answers(msg, id):
		return nil, 0, errors.Errorf("a name server answered another question")
	}
	if ttl := gateway.TTL(msg); ttl > 0 && len(msg) <= maxCachedBytes {
		r.keep(key, cached{msg, now, now.Add(ttl)})
	}
	return msg, 0, nil
}

func (r *resolver) keep(key cacheKey, c cached) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if len(r.cache) >= maxCached {
		for k, old := range r.cache {
			if !c.asked.Before(old.until) {
				delete(r.cache, k)
			}
		}
	}
	for k := range r.cache { // evict any others, many at once
		if len(r.cache) < maxCached*7/8 {
			break
		}
		delete(r.cache, k)
	}
	r.cache[key] = c
}

func randomID() uint16 {
	var b [2]byte
	_, _ = rand.Read(b[:]) // never fails
	return binary.BigEndian.Uint16(b[:])
}

// resolvConf is the file with the host's name servers.
const resolvConf = "/etc/resolv.conf"

// hostServers queries the name servers of the host. It ignores the host's search domains and /etc/hosts.
type hostServers struct {
	mu      sync.Mutex
	checked time.Time        // guarded by mu
	changed time.Time        // guarded by mu
	servers []netip.AddrPort // guarded by mu
}

// current returns the name servers. It reads the file again if it has changed.
func (h *hostServers) current() []netip.AddrPort {
	h.mu.Lock()
	defer h.mu.Unlock()
	now := time.Now()
	if h.servers != nil && now.Sub(h.checked) < hostsFresh {
		return h.servers
	}
	h.checked = now
	info, err := os.Stat(resolvConf)
	if err == nil && h.servers != nil && info.ModTime().Equal(h.changed) {
		return h.servers
	}
	text, _ := os.ReadFile(resolvConf)
	h.servers = nameServers(string(text))
	if err == nil {
		h.changed = info.ModTime()
	}
	return h.servers
}

// nameServers returns the first three servers in a resolv.conf(5), or this machine if there are none.
func nameServers(text string) []netip.AddrPort {
	var all []netip.AddrPort
	lines := bufio.NewScanner(strings.NewReader(text))
	for lines.Scan() && len(all) < 3 {
		f := strings.Fields(lines.Text())
		if len(f) < 2 || f[0] != "nameserver" {
			continue
		}
		if addr, err := netip.ParseAddr(f[1]); err == nil {
			all = append(all, netip.AddrPortFrom(addr, dnsPort))
		}
	}
	if all == nil {
		all = append(all, netip.AddrPortFrom(netip.AddrFrom4([4]byte{127, 0, 0, 1}), dnsPort))
	}
	return all
}

func (h *hostServers) exchange(ctx context.Context, query []byte) ([]byte, error) {
	var last error
	for _, server := range h.current() {
		msg, err := askServer(ctx, server, query)
		if err == nil || ctx.Err() != nil {
			return msg, err
		}
		last = err
	}
	return nil, errors.Wrapf(last, "ask the host's name servers")
}

// askServer queries one server over UDP, and again over TCP if the answer was truncated.
func askServer(ctx context.Context, server netip.AddrPort, query []byte) ([]byte, error) {
	msg, err := askOver(ctx, "udp", server, query)
	if err == nil && gateway.Truncated(msg) {
		return askOver(ctx, "tcp", server, query)
	}
	return msg, err
}

func askOver(ctx context.Context, network string, server netip.AddrPort, query []byte) ([]byte, error) {
	ctx, cancel := context.WithTimeout(ctx, serverTime)
	defer cancel()
	c, err := new(net.Dialer).DialContext(ctx, network, server.String())
	if err != nil {
		return nil, errors.Wrapf(err, "reach the name server %s", server)
	}
	defer func() { _ = c.Close() }()
	defer context.AfterFunc(ctx, func() { _ = c.SetDeadline(time.Unix(1, 0)) })()
	if network == "tcp" {
		query = append(binary.BigEndian.AppendUint16(nil, uint16(len(query))), query...)
	}
	if _, err := c.Write(query); err != nil {
		return nil, errors.Wrapf(err, "ask the name server %s", server)
	}
	if network == "tcp" {
		msg, err := readMessage(c, 65535)
		return msg, errors.Wrapf(err, "hear the name server %s", server)
	}
	b := make([]byte, 4096)
	for {
		n, err := c.Read(b)
		if err != nil {
			return nil, errors.Wrapf(err, "hear the name server %s", server)
		}
		if n >= 2 && b[0] == query[0] && b[1] == query[1] { // other answers are late or forged
			return b[:n], nil
		}
	}
}

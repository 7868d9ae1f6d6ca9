package ssh

import (
	"context"
	"fmt"
	"net"
	"strconv"

	gossh "golang.org/x/crypto/ssh"

	"github.com/RelevanceAI/harvest/client/errors"
	"github.com/RelevanceAI/harvest/client/transport/bytestream"
	"github.com/RelevanceAI/harvest/internal/ssh/inside"
)

// target is what a client wants to connect to. The host is "" for a port of the sandbox itself.
type target struct {
	network string // "tcp" or "unix"
	address string // host and port, or path
	port    int    // of the sandbox itself; 0 for another address
}

// tcpTarget decodes a channel of the type direct-tcpip (RFC 4254, 7.2).
func tcpTarget(payload []byte) (target, error) {
	var wanted struct {
		Host       string
		Port       uint32
		Origin     string
		OriginPort uint32
	}
	if err := gossh.Unmarshal(payload, &wanted); err != nil {
		return target{}, errors.Explainf(err, errors.Invalid, "the request for a connection is damaged")
	}
	if wanted.Port == 0 || wanted.Port > 65535 {
		return target{}, errors.Newf(errors.Invalid, "there is no port %d", wanted.Port)
	}
	t := target{network: "tcp", address: net.JoinHostPort(wanted.Host, strconv.FormatUint(uint64(wanted.Port), 10))}
	if addr := net.ParseIP(wanted.Host); wanted.Host == "" || wanted.Host == "localhost" ||
		addr != nil && (addr.IsLoopback() || addr.IsUnspecified()) {
		t.port = int(wanted.Port)
	}
	return t, nil
}

// unixTarget decodes a channel of the type direct-streamlocal@openssh.com.
func unixTarget(payload []byte) (target, error) {
	var wanted struct {
		Path     string
		Reserved string
		Unused   uint32
	}
	if err := gossh.Unmarshal(payload, &wanted); err != nil || wanted.Path == "" {
		return target{}, errors.Explainf(err, errors.Invalid, "the request for a connection is damaged")
	}
	return target{network: "unix", address: wanted.Path}, nil
}

// direct connects a channel to a port or a socket of the sandbox, or to another address as the sandbox may.
func (c *conn) direct(wanted gossh.NewChannel, decode func([]byte) (target, error)) {
	t, err := decode(wanted.ExtraData())
	var up net.Conn
	if err == nil {
		up, err = c.connect(t)
	}
	if err != nil {
		_ = wanted.Reject(gossh.ConnectionFailed, sentence(err))
		return
	}
	defer up.Close()
	channel, requests, err := wanted.Accept()
	if err != nil {
		return
	}
	go gossh.DiscardRequests(requests)
	bytestream.Join(channel, up)
}

// connect connects to a target.
func (c *conn) connect(t target) (net.Conn, error) {
	id, err := c.sandbox()
	if err != nil {
		return nil, err
	}
	c.audit("forward", t.address)
	if t.port != 0 {
		return c.server.opts.Fleet.Dial(c.ctx, c.who.Account, id, t.port)
	}
	r, err := c.relayOf(id)
	if err != nil {
		return nil, err
	}
	conn, _, err := r.ask(inside.Head{Dial: t.network, Address: t.address})
	return conn, err
}

// place is where a client wants connections to be accepted, and how they are announced to it.
type place struct {
	key  string
	head inside.Head
	// reply is the answer to the client, and open the payload of the channel for a connection.
	reply func(address string) []byte
	kind  string
	open  func(address, from string) []byte
}

// tcpListen decodes a request of the type tcpip-forward, or the one that cancels it (RFC 4254, 7.1). The port listens
// on the loopback of the sandbox, whatever address the client names.
func tcpListen(payload []byte) (place, error) {
	var wanted struct {
		Host string
		Port uint32
	}
	if err := gossh.Unmarshal(payload, &wanted); err != nil || wanted.Port > 65535 {
		return place{}, errors.Explainf(err, errors.Invalid, "the request for a port is damaged")
	}
	port := func(address string) uint32 {
		_, text, _ := net.SplitHostPort(address)
		n, _ := strconv.ParseUint(text, 10, 16)
		return uint32(n)
	}
	return place{
		key:  fmt.Sprintf("tcp %s %d", wanted.Host, wanted.Port),
		head: inside.Head{Listen: "tcp", Address: fmt.Sprintf("127.0.0.1:%d", wanted.Port)},
		reply: func(address string) []byte {
			if wanted.Port != 0 {
				return nil
			}
			return gossh.Marshal(struct{ Port uint32 }{port(address)})
		},
		kind: "forwarded-tcpip",
		open: func(address, from string) []byte {
			host, _, _ := net.SplitHostPort(from)
			return gossh.Marshal(struct {
				Host       string
				Port       uint32
				Origin     string
				OriginPort uint32
			}{wanted.Host, port(address), host, port(from)})
		},
	}, nil
}

// unixListen decodes a request of the type streamlocal-forward@openssh.com, or the one that cancels it.
func unixListen(payload []byte) (place, error) {
	var wanted struct{ Path string }
	if err := gossh.Unmarshal(payload, &wanted); err != nil || wanted.Path == "" {
		return place{}, errors.Explainf(err, errors.Invalid, "the request for a socket is damaged")
	}
	return place{
		key:   "unix " + wanted.Path,
		head:  inside.Head{Listen: "unix", Address: wanted.Path},
		reply: func(string) []byte { return nil },
		kind:  "forwarded-streamlocal@openssh.com",
		open: func(string, string) []byte {
			return gossh.Marshal(struct{ Path, Reserved string }{wanted.Path, ""})
		},
	}, nil
}

// forward accepts connections in the sandbox for the client.
func (c *conn) forward(r *gossh.Request, decode func([]byte) (place, error)) {
	p, err := decode(r.Payload)
	var l *listener
	if err == nil {
		l, err = c.listen(c.ctx, p.head, func(h inside.Head) (gossh.Channel, error) {
			channel, requests, err := c.client.OpenChannel(p.kind, p.open(h.Accepted, h.From))
			if err == nil {
				go gossh.DiscardRequests(requests)
			}
			return channel, err
		})
	}
	if err != nil {
		_ = r.Reply(false, []byte(sentence(err)))
		return
	}
	c.audit("listen", p.head.Address)
	key := p.key
	if reply := p.reply(l.address); reply != nil { // the client cancels it by the port that it gets
		if q, err := tcpListen(append(r.Payload[:len(r.Payload)-4:len(r.Payload)-4], reply...)); err == nil {
			key = q.key
		}
	}
	c.mu.Lock()
	c.listeners[key] = l
	c.mu.Unlock()
	_ = r.Reply(true, p.reply(l.address))
}

// cancelForward ends forward.
func (c *conn) cancelForward(r *gossh.Request, decode func([]byte) (place, error)) {
	p, err := decode(r.Payload)
	c.mu.Lock()
	l := c.listeners[p.key]
	delete(c.listeners, p.key)
	c.mu.Unlock()
	if l != nil {
		l.close()
	}
	_ = r.Reply(err == nil && l != nil, nil)
}

// listen accepts connections in the sandbox until ctx ends or the listener is closed.
func (c *conn) listen(ctx context.Context, head inside.Head,
	open func(inside.Head) (gossh.Channel, error)) (*listener, error) {
	id, err := c.sandbox()
	if err != nil {
		return nil, err
	}
	r, err := c.relayOf(id)
	if err != nil {
		return nil, err
	}
	return r.listen(ctx, head, open)
}

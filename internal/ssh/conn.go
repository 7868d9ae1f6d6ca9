package ssh

import (
	"context"
	"strings"
	"sync"

	gossh "golang.org/x/crypto/ssh"

	"github.com/RelevanceAI/harvest/client/errors"
	"github.com/RelevanceAI/harvest/internal/base/account"
)

// conn is the connection of a client.
type conn struct {
	server *Server
	ctx    context.Context // ends with the connection, and with the client's key
	who    account.Principal
	client *gossh.ServerConn
	name   string // of the sandbox, as the client has it
	from   string // address of the client

	mu        sync.Mutex
	found     string               // guarded by mu: ID of the sandbox, "" until it was looked up
	relay     *relay               // guarded by mu: nil until it is needed
	listeners map[string]*listener // guarded by mu: by the address that the client named
}

// serve serves channels and requests until the connection ends, and waits for what it has begun. Requests are handled
// in their order with channels: a command finds the port in the sandbox that its client has asked for before.
func (c *conn) serve(channels <-chan gossh.NewChannel, requests <-chan *gossh.Request) {
	var all sync.WaitGroup
	defer all.Wait()
	ctx, cancel := context.WithCancel(c.ctx)
	c.ctx = ctx
	defer c.closeRelay()
	defer cancel()
	places := make(chan struct{}, mostChannels)
	for channels != nil {
		select {
		case r, ok := <-requests:
			if !ok {
				requests = nil
				continue
			}
			c.answer(r)
		case wanted, ok := <-channels:
			if !ok {
				channels = nil
				continue
			}
			c.answerAll(requests)
			select {
			case places <- struct{}{}:
			default:
				_ = wanted.Reject(gossh.ResourceShortage, "too many open channels")
				continue
			}
			all.Go(func() {
				defer func() { <-places }()
				c.open(wanted)
			})
		}
	}
}

// answerAll answers the requests that have come.
func (c *conn) answerAll(requests <-chan *gossh.Request) {
	for {
		select {
		case r, ok := <-requests:
			if !ok {
				return
			}
			c.answer(r)
		default:
			return
		}
	}
}

// open serves a channel.
func (c *conn) open(wanted gossh.NewChannel) {
	switch wanted.ChannelType() {
	case "session":
		c.session(wanted)
	case "direct-tcpip":
		c.direct(wanted, tcpTarget)
	case "direct-streamlocal@openssh.com":
		c.direct(wanted, unixTarget)
	default:
		_ = wanted.Reject(gossh.UnknownChannelType, "Harvest does not know channels of the type "+
			wanted.ChannelType())
	}
}

// answer answers a request of the connection itself.
func (c *conn) answer(r *gossh.Request) {
	switch r.Type {
	case "tcpip-forward":
		c.forward(r, tcpListen)
	case "streamlocal-forward@openssh.com":
		c.forward(r, unixListen)
	case "cancel-tcpip-forward":
		c.cancelForward(r, tcpListen)
	case "cancel-streamlocal-forward@openssh.com":
		c.cancelForward(r, unixListen)
	default: // keepalive@openssh.com, for example: any answer shows that the connection is alive
		_ = r.Reply(false, nil)
	}
}

// sandbox returns the ID of the sandbox, which the name of the user stands for.
func (c *conn) sandbox() (string, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.found != "" {
		return c.found, nil
	}
	if err := c.who.May(account.Exec); err != nil {
		return "", err
	}
	id, err := c.server.opts.Find(c.ctx, c.who, c.name)
	if err != nil {
		return "", err
	}
	c.found = id
	return id, nil
}

// audit records that the client has begun something.
func (c *conn) audit(what, detail string) {
	if c.server.opts.Audit == nil {
		return
	}
	c.mu.Lock()
	id := c.found
	c.mu.Unlock()
	c.server.opts.Audit(c.ctx, Begun{Who: c.who, From: c.from, Sandbox: id, What: what,
		Detail: strings.ToValidUTF8(detail[:min(len(detail), mostDetail)], "")})
}

// sentence returns an error as one line for the client.
func sentence(err error) string {
	text := errors.Message(err)
	if remedy := errors.RemedyOf(err); remedy != "" {
		text += "; " + remedy
	}
	return text
}

package ssh

import (
	"context"
	"io"
	"net"
	"sync"
	"time"

	"github.com/hashicorp/yamux"
	gossh "golang.org/x/crypto/ssh"

	"github.com/RelevanceAI/harvest/client/errors"
	"github.com/RelevanceAI/harvest/client/transport/bytestream"
	"github.com/RelevanceAI/harvest/internal/base/logf"
	"github.com/RelevanceAI/harvest/internal/fleet"
	"github.com/RelevanceAI/harvest/internal/ssh/inside"
)

const (
	// answerTime limits how long the relay may take to answer.
	answerTime = 45 * time.Second
	// endTime limits how long it may take to end.
	endTime = 10 * time.Second
)

// relay is the program in the sandbox that forwards the connections of a client.
type relay struct {
	session *yamux.Session
	end     context.CancelFunc // kills the program
	ended   chan struct{}      // closed when it has ended

	mu        sync.Mutex
	listeners map[string]*listener // guarded by mu: by their addresses in the sandbox
}

// listener accepts connections in the sandbox.
type listener struct {
	address string
	open    func(inside.Head) (gossh.Channel, error)
	close   func()
}

// relayOf returns the relay of the connection, and starts it first if need be.
func (c *conn) relayOf(id string) (*relay, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.relay != nil && !c.relay.session.IsClosed() {
		return c.relay, nil
	}
	if c.relay != nil {
		c.relay.end() // the connection to it is broken
	}
	r, err := startRelay(c, id)
	if err == nil {
		c.relay = r
	}
	return r, err
}

// closeRelay ends the relay, and waits for it. It removes its sockets itself, unless it takes too long.
func (c *conn) closeRelay() {
	c.mu.Lock()
	r := c.relay
	c.mu.Unlock()
	if r == nil {
		return
	}
	_ = r.session.Close()
	select {
	case <-r.ended:
	case <-time.After(endTime):
		r.end()
		<-r.ended
	}
}

func startRelay(c *conn, id string) (*relay, error) {
	// After its start, it ends by closeRelay.
	ctx, cancel := context.WithCancel(context.WithoutCancel(c.ctx))
	defer context.AfterFunc(c.ctx, cancel)()
	input, toProgram := io.Pipe()
	fromProgram, output := io.Pipe()
	x, err := c.server.opts.Fleet.Exec(ctx, c.who.Account, id, fleet.ExecRequest{
		Args: []string{inside.Program, inside.Relay}, Own: true, Timeout: life, Stdin: input, InputOnce: true,
		Stdout: output})
	if err != nil {
		cancel()
		return nil, err
	}
	r := &relay{end: cancel, ended: make(chan struct{}), listeners: map[string]*listener{}}
	go func() {
		defer close(r.ended)
		defer cancel()
		result, err := x.Wait(context.WithoutCancel(ctx))
		if err == nil && result.ReturnCode != 0 && ctx.Err() == nil {
			err = errors.Errorf("it ended with %d: %s", result.ReturnCode, result.Stderr)
		}
		if err != nil {
			logf.Warnf(c.ctx, "the relay of SSH in the sandbox %s: %v", id, err)
		}
		_ = output.Close()
		_ = input.Close()
	}()
	r.session, err = yamux.Client(pipes{fromProgram, toProgram}, inside.Yamux())
	if err != nil {
		cancel()
		<-r.ended
		return nil, errors.Wrapf(err, "connect to the relay")
	}
	go r.accept()
	return r, nil
}

// pipes are the standard streams of the program.
type pipes struct {
	*io.PipeReader
	to *io.PipeWriter
}

func (p pipes) Write(b []byte) (int, error) { return p.to.Write(b) }

func (p pipes) Close() error { return errors.Join(p.to.Close(), p.PipeReader.Close()) }

// ask opens a stream for a request.
func (r *relay) ask(head inside.Head) (net.Conn, inside.Answer, error) {
	opened, err := r.session.OpenStream()
	if err != nil {
		return nil, inside.Answer{}, errors.Explainf(err, errors.Unavailable, "the relay in the sandbox has ended")
	}
	stream := inside.Stream{Stream: opened}
	var answer inside.Answer
	_ = stream.SetDeadline(time.Now().Add(answerTime))
	if err = inside.Send(stream, head); err == nil {
		err = inside.Receive(stream, &answer)
	}
	if err == nil && answer.Error != "" {
		err = errors.Newf(errors.Unavailable, "%s: %s", head.Address, answer.Error)
	}
	if err != nil {
		_ = stream.Close()
		return nil, answer, errors.Explainf(err, errors.Unavailable, "%s", errors.Message(err))
	}
	_ = stream.SetDeadline(time.Time{})
	return stream, answer, nil
}

// listen accepts connections in the sandbox.
func (r *relay) listen(ctx context.Context, head inside.Head,
	open func(inside.Head) (gossh.Channel, error)) (*listener, error) {
	r.mu.Lock()
	defer r.mu.Unlock() // no connection is accepted before the listener is known
	stream, answer, err := r.ask(head)
	if err != nil {
		return nil, err
	}
	l := &listener{address: answer.Address, open: open}
	stop := context.AfterFunc(ctx, func() { _ = stream.Close() })
	l.close = sync.OnceFunc(func() {
		stop()
		_ = stream.Close()
		r.mu.Lock()
		defer r.mu.Unlock()
		delete(r.listeners, l.address)
	})
	r.listeners[l.address] = l
	return l, nil
}

// accept takes the connections of the listeners to the client.
func (r *relay) accept() {
	places := make(chan struct{}, mostChannels)
	for {
		accepted, err := r.session.AcceptStream()
		if err != nil {
			return
		}
		stream := inside.Stream{Stream: accepted}
		select {
		case places <- struct{}{}:
		default: // a program of the sandbox opens connections without end
			_ = stream.Close()
			continue
		}
		go func() {
			defer func() { <-places }()
			r.pass(stream)
		}()
	}
}

func (r *relay) pass(stream inside.Stream) {
	defer stream.Close()
	var head inside.Head
	_ = stream.SetReadDeadline(time.Now().Add(answerTime))
	if inside.Receive(stream, &head) != nil {
		return
	}
	_ = stream.SetReadDeadline(time.Time{})
	r.mu.Lock()
	l := r.listeners[head.Accepted]
	r.mu.Unlock()
	if l == nil {
		return
	}
	channel, err := l.open(head)
	if err != nil {
		return // the client does not want it
	}
	bytestream.Join(channel, stream)
}

package gvisor

import (
	"context"
	"io"
	"net"

	"github.com/RelevanceAI/harvest/client/errors"
	"github.com/RelevanceAI/harvest/internal/engine"
	"github.com/RelevanceAI/harvest/internal/engine/gvisor/wire"
)

// SetNetwork implements engine.Networker.
func (s *Container) SetNetwork(ctx context.Context, network engine.Network) error {
	_, err := s.Call(ctx, wire.Request{Op: wire.SetNetwork, Network: &network})
	return err
}

// SetPeers implements engine.Peered.
func (s *Container) SetPeers(ctx context.Context, p engine.Private) error {
	args := &wire.PeersArgs{Addr: p.Addr, Names: p.Names}
	for _, peer := range p.Peers {
		args.Peers = append(args.Peers, wire.Peer{Addr: peer.Addr, Names: peer.Names, Dir: s.e.dir(peer.Handle.Ref)})
	}
	_, err := s.Call(ctx, wire.Request{Op: wire.SetPeers, Peers: args})
	return err
}

// Denials implements engine.Networker.
func (s *Container) Denials(ctx context.Context, seq uint64) ([]engine.Denial, error) {
	reply, err := s.Call(ctx, wire.Request{Op: wire.Denials, Denials: &wire.DenialsArgs{Seq: seq}})
	return reply.Denials, err
}

// Intercepted implements engine.Interceptor.
func (s *Container) Intercepted(ctx context.Context) (*engine.Intercepted, error) {
	conn, err := s.connect(ctx)
	if err != nil {
		return nil, err
	}
	stop := context.AfterFunc(ctx, func() { _ = conn.Close() })
	err = conn.SendJSON(wire.KindRequest, wire.Request{Op: wire.Intercepted})
	var reply wire.Reply
	if err == nil {
		reply, err = conn.ReceiveReply(nil)
	}
	if !stop() {
		err = errors.Wrapf(context.Cause(ctx), "wait for a connection of sandbox %s", s.h.ID)
	}
	if err == nil && reply.Intercepted == nil {
		err = errors.Errorf("the keeper sent no connection")
	}
	if err != nil {
		_ = conn.Close()
		return nil, err
	}
	return &engine.Intercepted{Conn: conn.Stream(), Interception: *reply.Intercepted}, nil
}

// dialTries is how often Dial tries to connect if the relay in the sandbox is killed from inside.
const dialTries = 3

// Dial implements engine.Dialer.
func (s *Container) Dial(ctx context.Context, port int) (c net.Conn, err error) {
	for range dialTries {
		if c, err = s.dialOnce(ctx, port); !errors.Is(err, io.EOF) {
			break
		}
	}
	return c, err
}

func (s *Container) dialOnce(ctx context.Context, port int) (net.Conn, error) {
	conn, err := s.connect(ctx)
	if err != nil {
		return nil, err
	}
	stop := context.AfterFunc(ctx, func() { _ = conn.Close() })
	c, err := s.dialPort(conn, port)
	if !stop() {
		err = errors.Wrapf(ctx.Err(), "connect to port %d of sandbox %s", port, s.h.ID)
	}
	if err != nil {
		_ = conn.Close()
		return nil, err
	}
	return c, nil
}

// dialPort turns conn into a connection to a port of the sandbox.
func (s *Container) dialPort(conn *wire.Conn, port int) (net.Conn, error) {
	if err := conn.SendJSON(wire.KindRequest,
		wire.Request{Op: wire.Dial, Dial: &wire.DialArgs{Port: port}}); err != nil {
		return nil, err
	}
	if _, err := conn.ReceiveReply(nil); err != nil {
		return nil, err
	}
	c := conn.Stream()
	var first [1]byte
	if _, err := c.Read(first[:]); err != nil {
		return nil, errors.Explainf(err, errors.Unavailable, "the connection to port %d of the sandbox broke", port)
	}
	if first[0] != wire.DialOK {
		err := errors.Newf(errors.Unavailable, "nothing listens on port %d in the sandbox", port)
		return nil, errors.Remedy(err, "start the program that serves it, and make it listen on that port")
	}
	return c, nil
}

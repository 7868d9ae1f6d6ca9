package wire

import (
	"context"
	"io"
	"net"

	"github.com/RelevanceAI/harvest/client/errors"
	"github.com/RelevanceAI/harvest/internal/engine"
)

// Keeper is a Client of a keeper that serves all operations: those of networks, ports, usage and snapshots, too. It
// implements engine.Networker, engine.Interceptor, engine.Dialer, engine.Meter, engine.Snapshotter and
// engine.Described.
type Keeper struct{ Client }

// Usage implements engine.Meter.
func (k *Keeper) Usage(ctx context.Context) (engine.Usage, error) {
	reply, err := k.Call(ctx, Request{Op: Usage})
	if err == nil && reply.Usage == nil {
		err = errors.Errorf("the keeper of sandbox %s reports no usage", k.ID)
	}
	if err != nil {
		return engine.Usage{}, err
	}
	return *reply.Usage, nil
}

// Spec implements engine.Described.
func (k *Keeper) Spec(ctx context.Context) (engine.Spec, error) {
	reply, err := k.Call(ctx, Request{Op: Info})
	if err == nil && (reply.Claim == nil || reply.Claim.Spec == nil) {
		err = Undescribed(k.ID)
	}
	if err != nil {
		return engine.Spec{}, err
	}
	return *reply.Claim.Spec, nil
}

// Undescribed is the error of Spec if the keeper lacks it.
func Undescribed(id string) error {
	return errors.Newf(errors.Unsupported,
		"an earlier version of Harvest made the sandbox %s, and another one cannot be made like it", id)
}

// SetNetwork implements engine.Networker.
func (k *Keeper) SetNetwork(ctx context.Context, network engine.Network) error {
	_, err := k.Call(ctx, Request{Op: SetNetwork, Network: &network})
	return err
}

// Denials implements engine.Networker.
func (k *Keeper) Denials(ctx context.Context, seq uint64) ([]engine.Denial, error) {
	reply, err := k.Call(ctx, Request{Op: Denials, Denials: &DenialsArgs{Seq: seq}})
	return reply.Denials, err
}

// Intercepted implements engine.Interceptor.
func (k *Keeper) Intercepted(ctx context.Context) (*engine.Intercepted, error) {
	conn, err := k.Connect(ctx)
	if err != nil {
		return nil, err
	}
	stop := context.AfterFunc(ctx, func() { _ = conn.Close() })
	err = conn.SendJSON(KindRequest, Request{Op: Intercepted})
	var reply Reply
	if err == nil {
		reply, err = conn.ReceiveReply(nil)
	}
	if !stop() {
		err = errors.Wrapf(context.Cause(ctx), "wait for a connection of sandbox %s", k.ID)
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
func (k *Keeper) Dial(ctx context.Context, port int) (c net.Conn, err error) {
	for range dialTries {
		if c, err = k.dialOnce(ctx, port); !errors.Is(err, io.EOF) {
			break
		}
	}
	return c, err
}

func (k *Keeper) dialOnce(ctx context.Context, port int) (net.Conn, error) {
	conn, err := k.Connect(ctx)
	if err != nil {
		return nil, err
	}
	stop := context.AfterFunc(ctx, func() { _ = conn.Close() })
	c, err := dialPort(conn, port)
	if !stop() {
		err = errors.Wrapf(ctx.Err(), "connect to port %d of sandbox %s", port, k.ID)
	}
	if err != nil {
		_ = conn.Close()
		return nil, err
	}
	return c, nil
}

// dialPort turns conn into a connection to a port of the sandbox.
func dialPort(conn *Conn, port int) (net.Conn, error) {
	if err := conn.SendJSON(KindRequest, Request{Op: Dial, Dial: &DialArgs{Port: port}}); err != nil {
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
	if first[0] != DialOK {
		err := errors.Newf(errors.Unavailable, "nothing listens on port %d in the sandbox", port)
		return nil, errors.Remedy(err, "start the program that serves it, and make it listen on that port")
	}
	return c, nil
}

// Snapshot implements engine.Snapshotter. The sandbox is paused until the last byte is written.
func (k *Keeper) Snapshot(ctx context.Context, path string, w io.Writer) error {
	if path != "" {
		if err := CheckPath(path); err != nil {
			return err
		}
	}
	conn, err := k.Connect(ctx)
	if err != nil {
		return err
	}
	defer conn.Close()
	defer context.AfterFunc(ctx, func() { _ = conn.Close() })()
	if err = conn.SendJSON(KindRequest, Request{Op: Snapshot, Path: path}); err == nil {
		_, err = conn.ReceiveOutput(w)
	}
	if ctx.Err() != nil {
		err = errors.Wrapf(context.Cause(ctx), "snapshot of sandbox %s", k.ID)
	}
	return errors.Stage(k.ended(ctx, err), "snapshot")
}

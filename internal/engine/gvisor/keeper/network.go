package keeper

import (
	"net"
	"os"
	"time"

	"golang.org/x/sys/unix"

	"github.com/RelevanceAI/harvest/client/errors"
	"github.com/RelevanceAI/harvest/internal/engine"
	"github.com/RelevanceAI/harvest/internal/engine/gvisor/wire"
)

// setNetwork replaces the policy of a running sandbox.
func (k *Keeper) setNetwork(want engine.Network) error {
	if err := k.awaitReady(); err != nil {
		return err
	}
	if err := k.network.Set(want, k.sandbox.Link); err != nil {
		return err
	}
	k.saveState()
	return nil
}

// serveDenials sends the denials after seq as soon as there are any. Conflict when the sandbox ends before.
func (k *Keeper) serveDenials(conn *wire.Conn, seq uint64) error {
	gone := make(chan struct{})
	go func() {
		_, _, _ = conn.Receive()
		close(gone)
	}()
	for {
		found, more := k.network.Denied.After(seq)
		if len(found) > 0 {
			return conn.SendJSON(wire.KindReply, wire.Reply{Denials: found})
		}
		select {
		case <-more:
		case <-gone:
			return nil
		case <-k.ended:
			return k.errEnded()
		}
	}
}

// serveIntercepted sends the next intercepted connection, and then its data.
func serveIntercepted(k *Keeper, conn *wire.Conn) error {
	client, ok := conn.Conn.(*net.UnixConn)
	if !ok {
		return errors.Errorf("connections of the type %T cannot be handed over", conn.Conn)
	}
	gone := watchEnd(client)
	defer gone.stop()
	select {
	case o := <-k.network.Intercepted():
		if !gone.stop() {
			o.Fail()
			return nil
		}
		if err := conn.SendJSON(wire.KindReply, wire.Reply{Intercepted: &o.Interception}); err != nil {
			o.Fail()
			return nil
		}
		ended := o.Take(client)
		select {
		case <-ended:
		case <-k.ended:
		}
		return nil
	case <-gone.ended:
		return nil
	case <-k.ended:
		return k.errEnded()
	}
}

// endWatch waits for the end of a connection over which nothing is sent meanwhile.
type endWatch struct {
	conn  *net.UnixConn
	ended chan struct{} // closed when the other end is gone
	done  chan struct{} // closed when the watch is over
}

func watchEnd(conn *net.UnixConn) *endWatch {
	w := &endWatch{conn, make(chan struct{}), make(chan struct{})}
	go func() {
		defer close(w.done)
		raw, err := conn.SyscallConn()
		if err == nil {
			err = raw.Read(func(fd uintptr) bool {
				_, _, err = unix.Recvfrom(int(fd), make([]byte, 1), unix.MSG_PEEK|unix.MSG_DONTWAIT)
				return err != unix.EAGAIN
			})
		}
		if !errors.Is(err, os.ErrDeadlineExceeded) {
			close(w.ended)
		}
	}()
	return w
}

// stop ends the watch, and reports whether the other end is still there. It may be called several times.
func (w *endWatch) stop() bool {
	_ = w.conn.SetReadDeadline(time.Unix(1, 0))
	<-w.done
	_ = w.conn.SetReadDeadline(time.Time{})
	select {
	case <-w.ended:
		return false
	default:
		return true
	}
}

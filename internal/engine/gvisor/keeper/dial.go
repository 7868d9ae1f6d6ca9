package keeper

import (
	"encoding/binary"
	"net"
	"os"
	"sync"
	"time"

	"golang.org/x/sys/unix"
	"gvisor.dev/gvisor/pkg/log"

	"github.com/RelevanceAI/harvest/client/errors"
	"github.com/RelevanceAI/harvest/internal/engine/gvisor/keeper/kept"
	"github.com/RelevanceAI/harvest/internal/engine/gvisor/wire"
)

// relay is a tool inside the sandbox. It connects to ports there, including those on loopback, which packets
// from outside never reach. It receives the connections themselves as open files, so that their data does not
// pass through the keeper. The first connection starts it.
type relay struct {
	mu   sync.Mutex
	conn *net.UnixConn // connection to the relay; guarded by mu; nil while none runs
	pid  int32         // its process; guarded by mu
}

// relayTime limits how long the relay takes to accept a connection.
const relayTime = 10 * time.Second

// serveDial hands a connection over to the relay. After the reply, data flows directly between
// its two ends.
func (k *Keeper) serveDial(conn *wire.Conn, args *wire.DialArgs) error {
	if args.Port < 1 || args.Port > 65535 {
		return errors.Newf(errors.Invalid, "%d is not a port", args.Port)
	}
	client, ok := conn.Conn.(*net.UnixConn)
	if !ok {
		return errors.Errorf("connections of the type %T cannot be handed over", conn.Conn)
	}
	to, err := k.startRelay(nil)
	if err != nil {
		return err
	}
	if err := conn.SendJSON(wire.KindReply, wire.Reply{}); err != nil {
		return nil // the client has disconnected
	}
	if err := handOver(to, client, args.Port); err == nil {
		return nil
	}
	// The relay was killed from inside, or has just ended.
	if to, err = k.startRelay(to); err == nil {
		err = handOver(to, client, args.Port)
	}
	if err != nil {
		log.Warningf("hand a connection to port %d over: %v", args.Port, err)
	}
	return nil
}

// handOver passes a connection and its port to the relay.
func handOver(to, conn *net.UnixConn, port int) error {
	raw, err := conn.SyscallConn()
	if err != nil {
		return errors.Wrapf(err, "connection")
	}
	if err := to.SetWriteDeadline(time.Now().Add(relayTime)); err != nil {
		return errors.Wrapf(err, "relay")
	}
	var sent error
	err = raw.Control(func(fd uintptr) {
		_, _, sent = to.WriteMsgUnix(binary.BigEndian.AppendUint16(nil, uint16(port)), unix.UnixRights(int(fd)), nil)
	})
	return errors.Wrapf(errors.Join(err, sent), "relay")
}

// startRelay returns a connection to the relay. It starts a relay if none runs, or if the current connection is old, a
// broken one.
func (k *Keeper) startRelay(old *net.UnixConn) (*net.UnixConn, error) {
	if err := k.awaitReady(); err != nil {
		return nil, err
	}
	r := &k.relay
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.conn != nil && r.conn != old {
		return r.conn, nil
	}
	fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_SEQPACKET|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return nil, errors.Wrapf(err, "socket pair")
	}
	ours, theirs := os.NewFile(uintptr(fds[0]), "relay"), os.NewFile(uintptr(fds[1]), "relay")
	defer ours.Close()
	defer theirs.Close()
	null, err := os.OpenFile(os.DevNull, os.O_RDWR, 0)
	if err != nil {
		return nil, errors.Wrapf(err, "open null device")
	}
	defer null.Close()
	c, err := net.FileConn(ours)
	if err != nil {
		return nil, errors.Wrapf(err, "relay")
	}
	pid, err := k.sandbox.Execute(&kept.Command{Args: []string{wire.ToolName, wire.ToolRelay, "."}, Dir: "/",
		Bare: true, Program: k.tools, Files: map[int]*os.File{0: theirs, 1: null, 2: null}})
	if err != nil {
		return nil, errors.Join(kept.StartError(err, wire.ToolName, "/", k.args.Limits.Processes), c.Close())
	}
	r.conn, r.pid = c.(*net.UnixConn), pid
	go k.tendRelay(r.conn, pid)
	return r.conn, nil
}

// tendRelay waits for the end of the relay, and clears its state.
func (k *Keeper) tendRelay(conn *net.UnixConn, pid int32) {
	_, _ = k.sandbox.WaitPID(pid)
	k.relay.mu.Lock()
	defer k.relay.mu.Unlock()
	if k.relay.conn == conn {
		k.relay.conn = nil
	}
	_ = conn.Close()
}

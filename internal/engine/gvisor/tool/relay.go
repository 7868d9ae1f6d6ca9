package tool

import (
	"encoding/binary"
	"io"
	"net"
	"os"
	"strconv"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/RelevanceAI/harvest/client/errors"
	"github.com/RelevanceAI/harvest/internal/engine/gvisor/wire"
)

// localTime limits how long an address of the sandbox may take to answer. Only a listener that does not accept
// connections takes time. Others answer immediately.
const localTime = 30 * time.Second

// Relay connects to ports of this sandbox until its own connection, the descriptor control, ends.
func Relay(control int) error {
	for {
		port, conn, err := receiveConn(control)
		if err == io.EOF {
			return nil
		}
		if err != nil {
			return err
		}
		go relayTo(port, conn)
	}
}

// receiveConn waits for a connection with its port.
func receiveConn(control int) (int, *os.File, error) {
	var port [2]byte
	rights := make([]byte, unix.CmsgSpace(4))
	n, size, _, _, err := unix.Recvmsg(control, port[:], rights, unix.MSG_CMSG_CLOEXEC)
	if err == unix.EINTR {
		return receiveConn(control)
	}
	if err != nil {
		return 0, nil, errors.Wrapf(err, "receive a connection")
	}
	if n == 0 && size == 0 {
		return 0, nil, io.EOF
	}
	messages, err := unix.ParseSocketControlMessage(rights[:size])
	if err != nil || len(messages) != 1 || n != len(port) {
		return 0, nil, errors.Errorf("not a connection: %d bytes, %d control messages, %v", n, len(messages), err)
	}
	fds, err := unix.ParseUnixRights(&messages[0])
	if err != nil || len(fds) != 1 {
		return 0, nil, errors.Errorf("not a connection: %d files, %v", len(fds), err)
	}
	if err := unix.SetNonblock(fds[0], true); err != nil {
		return 0, nil, errors.Wrapf(err, "connection")
	}
	return int(binary.BigEndian.Uint16(port[:])), os.NewFile(uintptr(fds[0]), "connection"), nil
}

// relayTo connects conn to the listener on port here. It closes conn.
func relayTo(port int, conn *os.File) {
	defer conn.Close()
	local, err := dialLocal(port)
	if err != nil {
		_, _ = conn.Write([]byte{0})
		return
	}
	defer local.Close()
	if _, err := conn.Write([]byte{wire.DialOK}); err != nil {
		return
	}
	var both sync.WaitGroup
	both.Go(func() {
		_, _ = io.Copy(local, conn)
		_ = local.CloseWrite()
	})
	both.Go(func() {
		_, _ = io.Copy(conn, local)
		if raw, err := conn.SyscallConn(); err == nil {
			_ = raw.Control(func(fd uintptr) { _ = unix.Shutdown(int(fd), unix.SHUT_WR) })
		}
	})
	both.Wait()
}

// dialLocal connects to port on the first of this machine's addresses with a listener.
func dialLocal(port int) (*net.TCPConn, error) {
	hosts := []string{"127.0.0.1", "::1"}
	addrs, _ := net.InterfaceAddrs()
	for _, a := range addrs {
		if ip, ok := a.(*net.IPNet); ok && !ip.IP.IsLoopback() {
			hosts = append(hosts, ip.IP.String())
		}
	}
	var errs []error
	for _, host := range hosts {
		c, err := net.DialTimeout("tcp", net.JoinHostPort(host, strconv.Itoa(port)), localTime)
		if err == nil {
			return c.(*net.TCPConn), nil
		}
		errs = append(errs, err)
	}
	return nil, errors.Join(errs...)
}

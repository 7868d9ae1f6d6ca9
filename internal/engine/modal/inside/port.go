package inside

import (
	"context"
	"io"
	"net"
	"strconv"
	"sync"
	"time"

	"github.com/RelevanceAI/harvest/client/errors"
	"github.com/RelevanceAI/harvest/internal/engine/gvisor/wire"
)

// localTime limits how long an address of the sandbox may take to answer. Only a listener that does not accept
// connections takes noticeable time.
const localTime = 30 * time.Second

// port connects the engine to a port of the sandbox, until both directions have ended or the engine has
// disconnected.
func (s *server) port(ctx context.Context, conn *wire.Conn, port int) error {
	if port < 1 || port > 65535 {
		return errors.Newf(errors.Invalid, "%d is not a port", port)
	}
	local, err := dialLocal(ctx, port)
	if err != nil {
		err := errors.Explainf(err, errors.Unavailable, "nothing listens on port %d in the sandbox", port)
		return errors.Remedy(err, "start the program that serves it, and make it listen on that port")
	}
	defer local.Close()
	if err := conn.SendJSON(wire.KindReply, wire.Reply{}); err != nil {
		return nil
	}
	var received sync.WaitGroup
	received.Go(func() {
		takeFrames(conn, local)
		_ = local.Close() // the engine has disconnected and uses neither direction
		_ = conn.SetWriteDeadline(time.Unix(1, 0))
	})
	_, _ = io.Copy(conn.Conn, local)
	_ = conn.Conn.Close() // this direction only: data from the engine is still received
	received.Wait()
	return nil
}

// takeFrames writes the engine's data to local, until the engine disconnects.
func takeFrames(conn *wire.Conn, local *net.TCPConn) {
	for {
		kind, payload, err := conn.Next()
		if err != nil {
			return
		}
		switch kind {
		case wire.KindStdin:
			_, _ = io.Copy(local, payload) // a peer that no longer reads may still write
		case wire.KindStdinEnd:
			_ = local.CloseWrite()
		}
		if _, err := io.Copy(io.Discard, payload); err != nil {
			return
		}
	}
}

// dialLocal connects to port on the first of the sandbox's addresses with a listener.
func dialLocal(ctx context.Context, port int) (*net.TCPConn, error) {
	hosts := []string{"127.0.0.1", "::1"}
	addrs, _ := net.InterfaceAddrs()
	for _, a := range addrs {
		if ip, ok := a.(*net.IPNet); ok && !ip.IP.IsLoopback() {
			hosts = append(hosts, ip.IP.String())
		}
	}
	var errs []error
	d := net.Dialer{Timeout: localTime}
	for _, host := range hosts {
		c, err := d.DialContext(ctx, "tcp", net.JoinHostPort(host, strconv.Itoa(port)))
		if err == nil {
			return c.(*net.TCPConn), nil
		}
		errs = append(errs, err)
	}
	return nil, errors.Join(errs...)
}

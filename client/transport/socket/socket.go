// Package socket creates and finds Unix sockets in directories with paths longer than the 107 bytes of a socket
// address. It names them through an open descriptor of the directory.
package socket

import (
	"context"
	"net"
	"os"
	"path/filepath"
	"syscall"

	"github.com/RelevanceAI/harvest/client/errors"
)

// Listen creates a socket in dir that only the owner can connect to. It replaces a socket that an earlier
// process left behind. The caller must ensure that no other process uses it.
func Listen(dir, name string) (net.Listener, error) {
	d, err := open(dir)
	if err != nil {
		return nil, errors.Wrapf(err, "open %s", dir)
	}
	defer d.Close()
	if err := os.Remove(filepath.Join(dir, name)); err != nil && !errors.IsNotExist(err) {
		return nil, errors.Wrapf(err, "remove the old socket in %s", dir)
	}
	l, err := net.ListenUnix("unix", &net.UnixAddr{Net: "unix", Name: within(dir, d, name)})
	if err != nil {
		return nil, errors.Wrapf(err, "listen in %s", dir)
	}
	l.SetUnlinkOnClose(false) // by then, the descriptor in its name is closed
	path := filepath.Join(dir, name)
	if err := os.Chmod(path, 0o600); err != nil {
		l.Close()
		return nil, errors.Wrapf(err, "protect the socket")
	}
	return &listener{UnixListener: l, path: path}, nil
}

type listener struct {
	*net.UnixListener
	path string
}

// Close also removes the socket.
func (l *listener) Close() error {
	err := l.UnixListener.Close()
	if err == nil {
		err = os.Remove(l.path)
	}
	return err
}

// Dial connects to the socket of that name in dir. Unavailable if no process listens there, Denied if it
// belongs to another user.
func Dial(ctx context.Context, dir, name string) (net.Conn, error) {
	d, err := open(dir)
	if err != nil {
		return nil, explain(err)
	}
	defer d.Close()
	conn, err := new(net.Dialer).DialContext(ctx, "unix", within(dir, d, name))
	if err != nil {
		return nil, explain(err)
	}
	return conn, nil
}

func explain(err error) error {
	switch {
	case errors.Is(err, os.ErrPermission):
		return errors.Explainf(err, errors.Denied, "the data directory belongs to somebody else")
	case errors.IsNotExist(err), errors.Is(err, syscall.ECONNREFUSED):
		return errors.Explainf(err, errors.Unavailable, "no server is running")
	}
	return err
}

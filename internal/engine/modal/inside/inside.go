// Package inside is the part of Harvest that runs in each sandbox at Modal. As the sandbox's first process, it
// starts commands, keeps their output, reopens them and copies files, none of which Modal's SDK offers. As a
// client of that process, which the engine starts for each link, it carries bytes between the two.
package inside

import (
	"context"
	"fmt"
	"io"
	"net"
	"os"
	"os/signal"
	"path/filepath"
	"syscall"
	"time"

	"github.com/hashicorp/yamux"
	"golang.org/x/sys/unix"

	"github.com/RelevanceAI/harvest/client/errors"
	"github.com/RelevanceAI/harvest/internal/base/processes"
)

// Name is the file name of the program in a sandbox. A program of that name runs as this package's.
const Name = "harvest-inside"

// Values of the first argument.
const (
	Serve  = "serve"  // run as the sandbox's first process
	Client = "client" // carry bytes between standard input and output and that process
)

// home is the directory of the first process's files. Only root can enter it.
const home = "/run/harvest-inside"

// socketName is the name of the socket in home.
const socketName = "socket"

// patience is how long a client waits for the first process to listen.
const patience = 60 * time.Second

// Main takes the process over if it was started as this package's program, and then never returns. A program
// that embeds this package must call it at the start of main.
func Main(ctx context.Context) {
	if len(os.Args) != 2 || filepath.Base(os.Args[0]) != Name {
		return
	}
	var err error
	switch os.Args[1] {
	case Serve:
		err = serve(ctx, home)
	case Client:
		err = carry(ctx, home, os.Stdin, os.Stdout)
	default:
		return
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	os.Exit(0)
}

// Mux returns the multiplexing configuration for both ends of a link.
func Mux() *yamux.Config {
	cfg := yamux.DefaultConfig()
	cfg.LogOutput = io.Discard
	cfg.MaxStreamWindowSize = 1 << 20
	cfg.StreamCloseTimeout = 10 * time.Minute // the other end may still send during this time
	cfg.StreamOpenTimeout = 60 * time.Second
	cfg.ConnectionWriteTimeout = 2 * time.Minute // tolerates a stalled network
	cfg.KeepAliveInterval = 30 * time.Second
	return cfg
}

// serve runs as the first process of a sandbox, until SIGTERM or SIGINT.
func serve(ctx context.Context, dir string) error {
	ctx, stop := signal.NotifyContext(ctx, syscall.SIGTERM, syscall.SIGINT)
	defer stop()
	commands := filepath.Join(dir, "commands")
	if err := os.MkdirAll(commands, 0o700); err != nil {
		return errors.Wrapf(err, "make the directory of commands")
	}
	if err := os.Chmod(dir, 0o700); err != nil {
		return errors.Wrapf(err, "close the directory of commands")
	}
	path := filepath.Join(dir, socketName)
	if err := os.Remove(path); err != nil && !errors.IsNotExist(err) { // present if the image is a snapshot
		return errors.Wrapf(err, "remove an old socket")
	}
	l, err := new(net.ListenConfig).Listen(ctx, "unix", path)
	if err != nil {
		return errors.Wrapf(err, "listen for clients")
	}
	s := newServer(commands)
	if os.Getpid() == 1 {
		go processes.Reap(ctx)
	}
	defer context.AfterFunc(ctx, func() { _ = l.Close() })()
	for {
		conn, err := l.Accept()
		if ctx.Err() != nil {
			return nil
		}
		if err != nil {
			return errors.Wrapf(err, "accept a client")
		}
		go s.link(ctx, conn)
	}
}

// carry connects to the first process, and copies bytes until either side ends.
func carry(ctx context.Context, dir string, in io.Reader, out io.Writer) error {
	conn, err := dial(ctx, filepath.Join(dir, socketName))
	if err != nil {
		return err
	}
	done := make(chan error, 2)
	go func() {
		_, err := io.Copy(conn, in)
		done <- err
	}()
	go func() {
		_, err := io.Copy(out, conn)
		done <- err
	}()
	err = <-done
	return errors.Join(errors.Wrapf(err, "carry bytes"), conn.Close())
}

// dial connects to the first process, which may still be starting.
func dial(ctx context.Context, path string) (net.Conn, error) {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	for {
		conn, err := new(net.Dialer).DialContext(ctx, "unix", path)
		if err == nil {
			return conn, nil
		}
		if !errors.IsNotExist(err) && !errors.Is(err, unix.ECONNREFUSED) {
			return nil, errors.Wrapf(err, "connect to the sandbox's first process")
		}
		select {
		case <-ctx.Done():
			return nil, errors.Wrapf(err, "connect to the sandbox's first process")
		case <-time.After(5 * time.Millisecond):
		}
	}
}

// Package inside is what of Harvest runs in each sandbox at Modal: as the sandbox's first process it starts the commands, keeps their
// output, finds them again and copies files, none of which Modal's SDK offers; and as a client of that process, which the engine starts
// for each link, it carries bytes between the two.
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

	"github.com/RelevanceAI/harvest/errors"
)

// Name is the name of the program's file in a sandbox, by which it knows that it is there.
const Name = "harvest-inside"

// The first argument.
const (
	Serve  = "serve"  // the sandbox's first process
	Client = "client" // carries bytes between standard input and output and that process
)

// home is where the first process keeps its files. Only root enters it.
const home = "/run/harvest-inside"

// socketName is the socket's, below home.
const socketName = "socket"

// patience is how long a client waits for the first process to listen.
const patience = 60 * time.Second

// Main hands the process over if it was started as this package's program. It then never returns. A program that brings this package along
// calls it first of all in main.
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

// Mux is how both ends of a link put many connections on one stream of bytes.
func Mux() *yamux.Config {
	cfg := yamux.DefaultConfig()
	cfg.LogOutput = io.Discard
	cfg.MaxStreamWindowSize = 1 << 20
	cfg.StreamCloseTimeout = 10 * time.Minute // in which the other end may still send
	cfg.StreamOpenTimeout = 60 * time.Second
	cfg.ConnectionWriteTimeout = 2 * time.Minute // of a network that stands still
	cfg.KeepAliveInterval = 30 * time.Second
	return cfg
}

// serve is the first process of a sandbox. It ends when it is told to.
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
	if err := os.Remove(path); err != nil && !errors.IsNotExist(err) { // of the sandbox whose snapshot this one's image is
		return errors.Wrapf(err, "remove an old socket")
	}
	l, err := new(net.ListenConfig).Listen(ctx, "unix", path)
	if err != nil {
		return errors.Wrapf(err, "listen for clients")
	}
	s := newServer(commands)
	if os.Getpid() == 1 {
		go s.reap(ctx)
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

// carry connects to the first process, and passes bytes on until either side has no more.
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

// dial connects to the first process, which may only just be starting.
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

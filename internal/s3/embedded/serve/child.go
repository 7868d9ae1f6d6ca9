package serve

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"os"
	"os/signal"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/RelevanceAI/harvest/client/errors"
	"github.com/RelevanceAI/harvest/internal/s3/embedded"
)

// up is the directory of the Server, relative to its buckets, the working directory of the process.
const up = "../"

const (
	tick = 10 * time.Millisecond // interval of polling
)

// Main serves and never returns if the process was started for that. A program that starts a Server calls Main
// first in main.
func Main(ctx context.Context) {
	if len(os.Args) != 2 || os.Args[0] != embedded.Name {
		return
	}
	// Ignore the signals of the server's terminal: this process ends with the server.
	signal.Ignore(syscall.SIGHUP, syscall.SIGINT, syscall.SIGQUIT, syscall.SIGPIPE)
	starter, err := net.FileConn(os.NewFile(3, "starter"))
	if err == nil {
		err = serveFor(ctx, starter)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	os.Exit(0)
}

// serveFor serves the working directory until the starter is gone.
func serveFor(ctx context.Context, starter net.Conn) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	var keys embedded.Keys
	in := json.NewDecoder(starter)
	if err := in.Decode(&keys); err != nil {
		return errors.Wrapf(err, "read the server's output")
	}
	go func() {
		_, _ = io.Copy(io.Discard, starter)
		cancel()
	}()
	tell := func(err error) {
		var s embedded.Started
		if err != nil {
			s = embedded.Started{Kind: errors.KindOf(err), Message: errors.Message(err), Remedy: errors.RemedyOf(err)}
		}
		_ = json.NewEncoder(starter).Encode(s) // if that fails, the starter is gone, which ends this process
	}
	unlock, err := lock(ctx)
	if err != nil {
		tell(err)
		return err
	}
	defer unlock()
	ended := make(chan error, 1)
	go func() {
		ended <- Serve(ctx, Config{Dir: ".", Address: up + embedded.Socket, AccessKey: keys.AccessKeyID,
			SecretKey: keys.SecretAccessKey})
	}()
	if err := answers(ctx, ended); err != nil {
		tell(err)
		return err
	}
	tell(nil)
	select {
	case err := <-ended:
		return err
	case <-ctx.Done():
	}
	select {
	case err := <-ended:
		return err
	case <-time.After(embedded.LastEnd):
		return nil
	}
}

// lock waits until an earlier process, which may still be ending, releases the directory.
func lock(ctx context.Context) (unlock func(), err error) {
	f, err := os.OpenFile(up+embedded.Lock, os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		return nil, errors.Wrapf(err, "open the lock of the embedded S3")
	}
	wait := time.NewTicker(tick)
	defer wait.Stop()
	for {
		err := unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB)
		if err == nil {
			return func() { f.Close() }, nil
		}
		select {
		case <-wait.C:
		case <-ctx.Done():
			f.Close()
			return nil, errors.Wrapf(err, "lock the directory of the embedded S3")
		}
	}
}

// answers waits until the server accepts connections, or has ended.
func answers(ctx context.Context, ended chan error) error {
	wait := time.NewTicker(tick)
	defer wait.Stop()
	for {
		if c, err := new(net.Dialer).DialContext(ctx, "unix", up+embedded.Socket); err == nil {
			return c.Close()
		}
		select {
		case err := <-ended:
			if err == nil {
				err = errors.Errorf("the embedded S3 ended at once")
			}
			return err
		case <-wait.C:
		}
	}
}

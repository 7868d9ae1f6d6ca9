package mount

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/RelevanceAI/harvest/client/errors"
	"github.com/RelevanceAI/harvest/client/transport/socket"
	"github.com/RelevanceAI/harvest/internal/s3"
	"github.com/RelevanceAI/harvest/internal/s3/object"
)

// Name is argv[0] of the process that serves a mount.
const Name = "harvest-s3mount"

// Files in the directory of a mount.
const (
	Files      = "files" // the mount point
	spoolName  = "spool"
	socketName = "s3mount.sock"
	logName    = "s3mount.log"
	aboutName  = "about.json"
)

// settings are passed to a new process over a pipe, so that no other process sees the credentials.
type settings struct {
	Location s3.Location
	ReadOnly bool
	Limit    int64 // bytes written but not yet stored
	UID      int   // owner of the mount; 0 for root, which may keep file owners
	// FlushOnly stores the files that an earlier process left, and mounts nothing.
	FlushOnly bool
}

// The messages of the protocol, one JSON value a line. A process first answers its starter, then
// the clients of its socket.
type (
	// started reports that the file system is mounted, or the error.
	started struct {
		Kind    errors.Kind `json:"kind,omitempty"`
		Message string      `json:"message,omitempty"`
		Remedy  string      `json:"remedy,omitempty"`
	}
	request struct {
		Op      string  `json:"op"`
		Seconds float64 `json:"seconds,omitempty"`
		First   uint32  `json:"first,omitempty"` // of opOwner
	}
	// told is a file that could not be stored, reported by opWatch.
	told struct {
		Path    string `json:"path"`
		Message string `json:"message"`
	}
	// finished is the answer to opFinish.
	finished struct {
		Unsent []Unsent `json:"unsent"`
	}
)

// The operations of a request.
const (
	opWatch  = "watch"  // report files that could not be stored, until the process ends
	opQuiet  = "quiet"  // make requests that wait for S3 fail
	opOwner  = "owner"  // show files of user 0 as those of the user First, and so on
	opFinish = "finish" // store unstored files for at most Seconds, unmount and exit
)

// Main serves a mount if Manager started this process for that, and then never returns. A program
// that uses a Manager must call it first in main.
func Main(ctx context.Context) {
	if len(os.Args) != 2 || os.Args[0] != Name {
		return
	}
	// Signals from the server's terminal must not end the mounts.
	signal.Ignore(syscall.SIGHUP, syscall.SIGINT, syscall.SIGQUIT, syscall.SIGPIPE)
	pipe, err := net.FileConn(os.NewFile(3, "starter"))
	if err != nil {
		os.Exit(1)
	}
	if err := serve(ctx, os.Args[1], pipe); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	os.Exit(0)
}

// serve serves the mount in dir with the settings from starter, until it is finished.
func serve(ctx context.Context, dir string, starter net.Conn) error {
	var s settings
	err := json.NewDecoder(starter).Decode(&s)
	var c *child
	if err == nil {
		c, err = open(ctx, dir, s)
	}
	if s.FlushOnly && err == nil {
		left := c.m.flush(ctx)
		return json.NewEncoder(starter).Encode(finished{left})
	}
	said := json.NewEncoder(starter).Encode(answerOf(err))
	starter.Close()
	if err = errors.Join(err, said); err != nil {
		if c != nil {
			c.unmount()
		}
		return err
	}
	return c.run()
}

func answerOf(err error) started {
	if err == nil {
		return started{}
	}
	return started{errors.KindOf(err), errors.Message(err), errors.RemedyOf(err)}
}

// child is the state of the process.
type child struct {
	m        *live
	dir      string
	listener net.Listener
	unmount  func()
	tends    chan struct{} // closed when tend returns
	done     chan struct{} // closed when it is finished
	end      func()        // closes it, once

	mu       sync.Mutex
	tellings []told        // guarded by mu; everything reported so far
	more     chan struct{} // guarded by mu; closed when tellings grows
}

// open mounts the file system, or adopts the files to flush.
func open(ctx context.Context, dir string, s settings) (*child, error) {
	b, err := object.Open(ctx, s.Location)
	if err != nil {
		return nil, err
	}
	m := newLive(ctx, b, filepath.Join(dir, spoolName), s)
	c := &child{m: m, dir: dir, unmount: func() {}, tends: make(chan struct{}), done: make(chan struct{}),
		more: make(chan struct{})}
	m.failed, c.end = c.tell, sync.OnceFunc(func() { close(c.done) })
	if err := m.adopt(); err != nil || s.FlushOnly {
		return c, err
	}
	if err := check(ctx, b, s.Location.Patience); err != nil {
		return nil, err
	}
	if c.listener, err = socket.Listen(dir, socketName); err != nil {
		return nil, err
	}
	if _, err := m.mount(filepath.Join(dir, Files)); err != nil {
		return nil, errors.Join(explainMount(err), c.listener.Close())
	}
	c.unmount = func() { unmount(context.WithoutCancel(ctx), filepath.Join(dir, Files)) }
	go c.tend()
	return c, nil
}

// check asks S3 whether the place exists and can be read.
func check(ctx context.Context, b *object.Bucket, patience time.Duration) error {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	err := b.Check(ctx)
	if err != nil && ctx.Err() != nil {
		return errors.Remedy(errors.Explainf(err, errors.Unavailable, "S3 does not answer"),
			"check the endpoint and the network, and try again")
	}
	return err
}

// unmount detaches a mount at once, even while it is in use.
func unmount(ctx context.Context, dir string) {
	if unix.Unmount(dir, unix.MNT_DETACH|unix.UMOUNT_NOFOLLOW) == nil {
		return
	}
	if path, err := fusermount(); err == nil {
		_ = exec.CommandContext(ctx, path, "-u", "-z", "--", dir).Run()
	}
}

// tend maintains the spool once a second.
func (c *child) tend() {
	defer close(c.tends)
	tick := time.NewTicker(time.Second)
	defer tick.Stop()
	for {
		select {
		case <-c.m.ctx.Done():
			return
		case now := <-tick.C:
			c.m.tend(now)
		}
	}
}

// tell reports a file that could not be stored to the watchers.
func (c *child) tell(path string, err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if len(c.tellings) == maxTellings {
		return
	}
	c.tellings = append(c.tellings, told{path, errors.Message(err)})
	close(c.more)
	c.more = make(chan struct{})
}

// maxTellings is the number of failed files that a mount reports at most.
const maxTellings = 1000

// run answers requests until the mount is finished.
func (c *child) run() error {
	go func() {
		for {
			conn, err := c.listener.Accept()
			if err != nil {
				return
			}
			go c.answer(conn)
		}
	}()
	<-c.done
	return c.listener.Close()
}

func (c *child) answer(conn net.Conn) {
	defer conn.Close()
	var r request
	if json.NewDecoder(io.LimitReader(conn, 1<<16)).Decode(&r) != nil {
		return
	}
	out := json.NewEncoder(conn)
	switch r.Op {
	case opWatch:
		c.watched(conn, out)
	case opQuiet:
		c.m.quiet(errQuiet)
		_ = out.Encode(struct{}{})
	case opOwner:
		c.m.setOwner(r.First)
		_ = out.Encode(struct{}{})
	case opFinish:
		left := c.finish(time.Duration(r.Seconds * float64(time.Second)))
		_ = out.Encode(finished{left})
		conn.Close()
		c.end()
	}
}

// watched reports files that could not be stored, until the client disconnects.
func (c *child) watched(conn net.Conn, out *json.Encoder) {
	gone := make(chan struct{})
	go func() {
		_, _ = bufio.NewReader(conn).ReadByte()
		close(gone)
	}()
	for sent := 0; ; {
		c.mu.Lock()
		news, more := c.tellings[sent:], c.more
		c.mu.Unlock()
		for _, t := range news {
			if out.Encode(t) != nil {
				return
			}
		}
		sent += len(news)
		select {
		case <-gone:
			return
		case <-more:
		}
	}
}

// finish unmounts, and then stores the unstored files.
func (c *child) finish(limit time.Duration) []Unsent {
	c.m.quiet(errQuiet)
	c.unmount()
	<-c.tends
	ctx, cancel := context.WithTimeout(context.WithoutCancel(c.m.ctx), limit)
	defer cancel()
	return c.m.flush(ctx)
}

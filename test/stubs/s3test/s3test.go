// Package s3test runs the S3 server of tests: a third-party gateway, which checks signatures and checksums. It is a
// program of its own (test/stubs/s3server), so that test binaries do not contain it.
package s3test

import (
	"context"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/RelevanceAI/harvest/client/errors"
	"github.com/RelevanceAI/harvest/internal/base/testenv"
)

// Credentials of the server.
const (
	AccessKey = "AKIATESTTESTTESTTEST"
	SecretKey = "a-secret-of-the-tests"
)

// M is a testing.M whose Run, which TestMain calls, stops the server after the tests.
type M struct{ *testing.M }

// Run runs the tests and returns the exit status.
func (m M) Run() int {
	defer shared.stop()
	return m.M.Run()
}

// server is shared by all tests of a binary.
type server struct {
	once sync.Once
	err  error
	dir  string
	url  string
	cmd  *exec.Cmd
}

var (
	shared  server
	buckets atomic.Int64
)

// Bucket makes an empty bucket with a unique name, and returns its name and the server's URL.
func Bucket(t testing.TB) (url, name string) {
	t.Helper()
	name = "bucket" + strconv.FormatInt(buckets.Add(1), 10)
	return Named(t, name), name
}

// Named makes an empty bucket with a name, and returns the server's URL.
func Named(t testing.TB, name string) (url string) {
	t.Helper()
	shared.once.Do(func() { shared.err = shared.start(context.WithoutCancel(t.Context()), testenv.S3Server(t)) })
	if shared.err != nil {
		t.Fatal(shared.err)
	}
	if err := os.Mkdir(filepath.Join(shared.dir, name), 0o755); err != nil {
		t.Fatal(err)
	}
	return shared.url
}

// Dir is the server's directory of a bucket. Objects are files in it, named by their keys.
func Dir(name string) string { return filepath.Join(shared.dir, name) }

func (s *server) start(ctx context.Context, program string) error {
	dir, err := os.MkdirTemp("", "s3test-")
	if err != nil {
		return err
	}
	s.dir = dir
	// The child binds the port later. No other process takes it meanwhile, because only this process uses the
	// address.
	pid := os.Getpid()
	l, err := net.Listen("tcp", fmt.Sprintf("127.%d.%d.%d:0", 1+pid>>16&0x7f, pid>>8&0xff, pid&0xff))
	if err != nil {
		return err
	}
	address := l.Addr().String()
	l.Close()
	s.url = "http://" + address
	s.cmd = exec.CommandContext(ctx, program, dir, address, AccessKey, SecretKey)
	s.cmd.Stderr = os.Stderr
	s.cmd.Env = []string{} // a test's variables name its own directories, and the server outlives the test
	s.cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	if err := s.cmd.Start(); err != nil {
		return err
	}
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	for range 3000 { // a minute
		if c, err := new(net.Dialer).DialContext(ctx, "tcp", address); err == nil {
			return c.Close()
		}
		<-tick.C
	}
	return errors.Errorf("the S3 of the tests does not answer at %s", s.url)
}

func (s *server) stop() {
	if s.cmd != nil && s.cmd.Process != nil {
		_ = s.cmd.Process.Kill()
		_ = s.cmd.Wait()
	}
	if s.dir != "" {
		_ = os.RemoveAll(s.dir)
	}
}

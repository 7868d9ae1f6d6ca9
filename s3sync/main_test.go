package s3sync

import (
	"context"
	"fmt"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/RelevanceAI/harvest/internal/s3server"
)

// The S3 of these tests is a gateway in a child of the test's own binary: code of others, which checks signatures and checksums.
const (
	testAccess = "AKIATESTTESTTESTTEST"
	testSecret = "a-secret-of-the-tests"
)

func TestMain(m *testing.M) {
	if dir := os.Getenv("S3SYNC_TEST_SERVE"); dir != "" {
		ctx, cancel := context.WithCancel(context.Background())
		go func() { // ends with its parent, which holds the other end of standard input
			var b [1]byte
			_, _ = os.Stdin.Read(b[:])
			cancel()
		}()
		err := s3server.Serve(ctx, s3server.Config{Dir: dir, Address: os.Getenv("S3SYNC_TEST_ADDRESS"), AccessKey: testAccess, SecretKey: testSecret,
			CertFile: os.Getenv("S3SYNC_TEST_CERT"), KeyFile: os.Getenv("S3SYNC_TEST_KEY")})
		if err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		os.Exit(0)
	}
	if spec := os.Getenv("S3SYNC_TEST_CHILD"); spec != "" {
		os.Exit(syncOnce(spec))
	}
	code := m.Run()
	shared.stop()
	os.Exit(code)
}

// server is a running S3.
type server struct {
	once sync.Once
	err  error
	dir  string
	url  string
	cmd  *exec.Cmd
	in   *os.File
}

var shared server

// start starts the server once for all tests.
func (s *server) start() error {
	s.once.Do(func() { s.err = s.run() })
	return s.err
}

func (s *server) run() error {
	dir, err := os.MkdirTemp("", "s3sync-server-")
	if err != nil {
		return err
	}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return err
	}
	address := l.Addr().String()
	l.Close()
	r, w, err := os.Pipe()
	if err != nil {
		return err
	}
	defer r.Close()
	s.dir, s.url, s.in = dir, "http://"+address, w
	s.cmd = exec.Command(os.Args[0], "-test.run=^$")
	s.cmd.Env = append(os.Environ(), "S3SYNC_TEST_SERVE="+dir, "S3SYNC_TEST_ADDRESS="+address)
	s.cmd.Stdin, s.cmd.Stderr = r, os.Stderr
	s.cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	if err := s.cmd.Start(); err != nil {
		return err
	}
	for range 600 {
		if res, err := http.Get(s.url); err == nil {
			res.Body.Close()
			return nil
		}
		time.Sleep(100 * time.Millisecond)
	}
	return fmt.Errorf("the S3 server does not answer at %s", s.url)
}

func (s *server) stop() {
	if s.cmd == nil {
		return
	}
	s.in.Close()
	_ = s.cmd.Wait()
	_ = os.RemoveAll(s.dir)
}

// location is a new, empty bucket.
func location(t *testing.T) Location {
	t.Helper()
	if err := shared.start(); err != nil {
		t.Fatal(err)
	}
	name := "t" + strings.ToLower(strings.Map(func(r rune) rune {
		if r >= 'a' && r <= 'z' || r >= 'A' && r <= 'Z' || r >= '0' && r <= '9' {
			return r
		}
		return -1
	}, filepath.Base(t.TempDir())+t.Name()))
	if len(name) > 40 {
		name = name[:40]
	}
	name += fmt.Sprint(time.Now().UnixNano() % 1e9)
	if err := os.Mkdir(filepath.Join(shared.dir, name), 0o755); err != nil {
		t.Fatal(err)
	}
	return Location{Bucket: name, Prefix: "work", Endpoint: shared.url, PathStyle: true, Region: "us-east-1", Patience: 20 * time.Second,
		Credentials: Credentials{AccessKeyID: testAccess, SecretAccessKey: testSecret}}
}

func openBucket(t *testing.T, loc Location) *Bucket {
	t.Helper()
	b, err := Open(t.Context(), loc)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(b.Close)
	return b
}

func openTree(t *testing.T, dir string) *Tree {
	t.Helper()
	tree, err := OpenTree(dir)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { tree.Close() })
	return tree
}

package host

import (
	"io"
	"net"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"github.com/RelevanceAI/harvest/client/errors"
	"github.com/RelevanceAI/harvest/internal/base/testenv"
	"github.com/RelevanceAI/harvest/test/stubs/s3test"
)

// S3 is a bucket of the S3 server of the tests, behind a proxy that can be stopped.
type S3 struct {
	t           *testing.T
	Dir, Bucket string
	Address     string // of the proxy
	behind      string // the server's address
	Mu          sync.Mutex
	open        []io.Closer // guarded by Mu: the listener and its connections; nil while stopped
	Silent      chan string // guarded by Mu: if not nil, connections get no answer, and their addresses are sent here
}

// NewS3 makes an empty bucket. The TestMain of the package must run s3test.M.
func NewS3(t *testing.T) *S3 {
	t.Helper()
	url, bucket := s3test.Bucket(t)
	s := &S3{t: t, Dir: s3test.Dir(bucket), Bucket: bucket, Address: "127.0.0.1:0",
		behind: strings.TrimPrefix(url, "http://")}
	s.Start()
	t.Cleanup(s.Stop)
	return s
}

// Start accepts connections, at the same address as before.
func (s *S3) Start() {
	s.t.Helper()
	l, err := net.Listen("tcp", s.Address)
	if err != nil {
		s.t.Fatal(err)
	}
	s.Address = l.Addr().String()
	s.keep(l)
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			s.Mu.Lock()
			silent := s.Silent
			s.Mu.Unlock()
			if silent != nil {
				s.keep(c)
				silent <- c.RemoteAddr().String()
				continue
			}
			to, err := net.Dial("tcp", s.behind)
			if err != nil {
				c.Close()
				continue
			}
			s.keep(c, to)
			pass := func(to, from net.Conn) {
				_, _ = io.Copy(to, from)
				to.Close()
				from.Close()
			}
			go pass(to, c)
			go pass(c, to)
		}
	}()
}

func (s *S3) keep(all ...io.Closer) {
	s.Mu.Lock()
	defer s.Mu.Unlock()
	s.open = append(s.open, all...)
}

// Stop closes the listener and all connections.
func (s *S3) Stop() {
	s.Mu.Lock()
	defer s.Mu.Unlock()
	for _, c := range s.open {
		c.Close()
	}
	s.open = nil
}

// Wait waits until an object has the content.
func (s *S3) Wait(key, content string) {
	s.t.Helper()
	testenv.Try(s.t, func() error {
		got, _ := os.ReadFile(filepath.Join(s.Dir, key))
		if string(got) != content {
			return errors.Errorf("%s has %q, not %q", key, got, content)
		}
		return nil
	})
}

// Put writes an object.
func (s *S3) Put(path, content string) {
	s.t.Helper()
	path = filepath.Join(s.Dir, path)
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		s.t.Fatal(err)
	}
	if err := os.WriteFile(path, []byte(content), 0o644); err != nil {
		s.t.Fatal(err)
	}
}

// Get returns the content of an object, or "" if there is no such object.
func (s *S3) Get(path string) string {
	content, _ := os.ReadFile(filepath.Join(s.Dir, path))
	return string(content)
}

// Silence closes all connections. New ones are accepted by the kernel, and get no answer.
func (s *S3) Silence() {
	s.Stop()
	l, err := net.Listen("tcp", s.Address)
	if err != nil {
		s.t.Fatal(err)
	}
	s.keep(l)
}

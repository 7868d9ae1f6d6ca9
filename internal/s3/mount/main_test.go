package mount

import (
	"context"
	"net"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/RelevanceAI/harvest/client/errors"
	"github.com/RelevanceAI/harvest/internal/base/places"
	"github.com/RelevanceAI/harvest/internal/base/testenv"
	"github.com/RelevanceAI/harvest/internal/s3"
	"github.com/RelevanceAI/harvest/test/stubs/s3test"
)

func TestMain(m *testing.M) {
	Main(context.Background())
	os.Exit(s3test.M{M: m}.Run())
}

// proxy is between a mount and the S3 of the tests. It can be down, and it can accept everything and answer nothing.
type proxy struct {
	t       *testing.T
	address string
	behind  string

	mu    sync.Mutex
	l     net.Listener
	conns []net.Conn
	hang  chan struct{} // not nil while nothing is answered
}

func newProxy(t *testing.T, url string) *proxy {
	t.Helper()
	p := &proxy{t: t, address: "127.0.0.1:0", behind: strings.TrimPrefix(url, "http://")}
	p.start()
	t.Cleanup(func() { p.answer(); p.stop() })
	return p
}

func (p *proxy) start() {
	l, err := net.Listen("tcp", p.address)
	if err != nil {
		p.t.Fatal(err)
	}
	p.mu.Lock()
	p.l, p.address = l, l.Addr().String()
	p.mu.Unlock()
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			to, err := net.Dial("tcp", p.behind)
			if err != nil {
				c.Close()
				continue
			}
			p.mu.Lock()
			p.conns = append(p.conns, c, to)
			p.mu.Unlock()
			go p.pass(to, c)
			go p.pass(c, to)
		}
	}()
}

func (p *proxy) pass(to, from net.Conn) {
	defer to.Close()
	defer from.Close()
	buf := make([]byte, 64<<10)
	for {
		n, err := from.Read(buf)
		p.mu.Lock()
		hang := p.hang
		p.mu.Unlock()
		if hang != nil {
			<-hang
		}
		if n > 0 {
			if _, err := to.Write(buf[:n]); err != nil {
				return
			}
		}
		if err != nil {
			return
		}
	}
}

// stop makes S3 unavailable.
func (p *proxy) stop() {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.l != nil {
		p.l.Close()
		p.l = nil
	}
	for _, c := range p.conns {
		c.Close()
	}
	p.conns = nil
}

// silence stops all answers until answer.
func (p *proxy) silence() {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.hang == nil {
		p.hang = make(chan struct{})
	}
}

func (p *proxy) answer() {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.hang != nil {
		close(p.hang)
		p.hang = nil
	}
}

// place is a bucket of the S3 of the tests, and a Manager that mounts it.
type place struct {
	*Manager
	t      *testing.T
	dir    string // of the Manager
	bucket string
	proxy  *proxy
	loc    s3.Location
	told   chan Told
}

func newPlace(t *testing.T) *place {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("run it as root: it mounts")
	}
	url, bucket := s3test.Bucket(t)
	p := &place{t: t, dir: filepath.Join(t.TempDir(), "mounts"), bucket: bucket, proxy: newProxy(t, url),
		told: make(chan Told, 1000)}
	testenv.NoLeaks(t, p.dir)
	p.loc = s3.Location{Bucket: bucket, Prefix: "work", Endpoint: "http://" + p.proxy.address, PathStyle: true,
		Region:      "us-east-1",
		Credentials: s3.Credentials{AccessKeyID: s3test.AccessKey, SecretAccessKey: s3test.SecretKey}}
	p.open()
	return p
}

// open opens the Manager, as a server does.
func (p *place) open() {
	p.t.Helper()
	m, err := Open(p.t.Context(), Options{Dir: p.dir, Tell: func(t Told) { p.told <- t },
		Locate: func(context.Context, About) (s3.Location, error) { return p.loc, nil }})
	if err != nil {
		p.t.Fatal(err)
	}
	p.Manager = m
	p.t.Cleanup(m.Close)
}

func about(sandbox string) About {
	return About{Sandbox: sandbox, Account: "personal", Place: places.Place{Bucket: "b"}, Limit: 1 << 30}
}

// mounted mounts the place, until the test ends.
func (p *place) mounted(a About) string {
	p.t.Helper()
	dir, err := p.Mount(p.t.Context(), a)
	if err != nil {
		p.t.Fatal(err)
	}
	p.t.Cleanup(func() {
		if err := p.Finish(context.Background(), a.Sandbox); err != nil && !p.t.Failed() {
			p.t.Errorf("finish: %v", err)
		}
	})
	return dir
}

// object is the content of an object on the server, or "" if it does not exist.
func (p *place) object(path string) string {
	b, err := os.ReadFile(filepath.Join(s3test.Dir(p.bucket), "work", path))
	if err != nil && !errors.IsNotExist(err) {
		p.t.Error(err)
	}
	return string(b)
}

func (p *place) put(path, content string) {
	p.t.Helper()
	file := filepath.Join(s3test.Dir(p.bucket), "work", path)
	if err := os.MkdirAll(filepath.Dir(file), 0o755); err != nil {
		p.t.Fatal(err)
	}
	if err := os.WriteFile(file, []byte(content), 0o644); err != nil {
		p.t.Fatal(err)
	}
}

// next waits for the next report of a kind.
func (p *place) next(what What) Told {
	p.t.Helper()
	for {
		select {
		case got := <-p.told:
			if got.What == what {
				return got
			}
		case <-time.After(2 * time.Minute):
			p.t.Fatalf("%s is not told", what)
		}
	}
}

func write(t *testing.T, path, content string) {
	t.Helper()
	if err := os.WriteFile(path, []byte(content), 0o644); err != nil {
		t.Fatal(err)
	}
}

func read(t *testing.T, path string) string {
	t.Helper()
	b, err := os.ReadFile(path)
	if err != nil {
		t.Error(err)
	}
	return string(b)
}

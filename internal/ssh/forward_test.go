package ssh

import (
	"bufio"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"testing"

	"github.com/pkg/sftp"
	gossh "golang.org/x/crypto/ssh"
	"golang.org/x/crypto/ssh/agent"
)

// upper listens, and answers each line with "got " and the line.
func upper(t *testing.T, network, address string) net.Listener {
	t.Helper()
	l, err := net.Listen(network, address)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = l.Close() })
	go echo(l)
	return l
}

func echo(l net.Listener) {
	for {
		conn, err := l.Accept()
		if err != nil {
			return
		}
		go func() {
			defer conn.Close()
			lines := bufio.NewScanner(conn)
			for lines.Scan() {
				fmt.Fprintf(conn, "got %s\n", lines.Text())
			}
		}()
	}
}

// said sends a line and returns the answer.
func said(t *testing.T, conn net.Conn, err error) string {
	t.Helper()
	if err != nil {
		return err.Error()
	}
	defer conn.Close()
	fmt.Fprintln(conn, "hello")
	return line(t, conn)
}

// TestRelay forwards connections in both directions through the program in the sandbox.
func TestRelay(t *testing.T) {
	w := newWorld(t, true)
	c := w.dial("box")
	path := filepath.Join(t.TempDir(), "socket")
	upper(t, "unix", path)
	conn, err := c.Dial("unix", path)
	if got := said(t, conn, err); got != "got hello" {
		t.Errorf("a socket: %q", got)
	}
	if _, err := c.Dial("unix", filepath.Join(t.TempDir(), "missing")); err == nil {
		t.Error("a missing socket accepts")
	}
	if _, err := c.Dial("tcp", "example.invalid:80"); err == nil {
		t.Error("an unknown host accepts")
	}
	if _, err := c.Dial("tcp", "localhost:0"); err == nil {
		t.Error("port 0 accepts")
	}

	l, err := c.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	go echo(l)
	conn, err = net.Dial("tcp", l.Addr().String())
	if got := said(t, conn, err); got != "got hello" {
		t.Errorf("a port in the sandbox: %q", got)
	}
	if err := l.Close(); err != nil {
		t.Error(err)
	}
	if _, err := c.Listen("tcp", l.Addr().String()); err != nil {
		t.Errorf("the closed port again: %v", err)
	}
	back := filepath.Join(t.TempDir(), "back")
	u, err := c.ListenUnix(back)
	if err != nil {
		t.Fatal(err)
	}
	go echo(u)
	conn, err = net.Dial("unix", back)
	if got := said(t, conn, err); got != "got hello" {
		t.Errorf("a socket in the sandbox: %q", got)
	}
	if err := u.Close(); err != nil {
		t.Error(err)
	}
	if _, err := c.ListenUnix(filepath.Join(t.TempDir(), "no", "directory")); err == nil {
		t.Error("a socket in a missing directory")
	}
}

// TestRelayEnds starts another relay after one has ended.
func TestRelayEnds(t *testing.T) {
	w := newWorld(t, true)
	near, far := net.Pipe()
	defer near.Close()
	path := filepath.Join(t.TempDir(), "socket")
	upper(t, "unix", path)
	c := &conn{server: w.server, ctx: t.Context(), name: "box", listeners: map[string]*listener{}}
	c.who.Account = "a"
	_ = far.Close()
	first, err := c.relayOf(w.id)
	if err != nil {
		t.Fatal(err)
	}
	if again, err := c.relayOf(w.id); err != nil || again != first {
		t.Errorf("the second request gets another relay, %v", err)
	}
	_ = first.session.Close()
	<-first.ended
	second, err := c.relayOf(w.id)
	if err != nil || second == first {
		t.Fatalf("there is no new relay, %v", err)
	}
	c.closeRelay()
	<-second.ended
	if _, err := c.relayOf("sb_none"); err == nil {
		t.Error("there is a relay in a missing sandbox")
	}
}

// TestFiles reads and writes with the protocol of sftp.
func TestFiles(t *testing.T) {
	w := newWorld(t, true)
	files, err := sftp.NewClient(w.dial("box"))
	if err != nil {
		t.Fatal(err)
	}
	defer files.Close()
	path := filepath.Join(t.TempDir(), "file")
	f, err := files.Create(path)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := io.WriteString(f, "content"); err != nil {
		t.Error(err)
	}
	if err := f.Close(); err != nil {
		t.Error(err)
	}
	if got, err := os.ReadFile(path); err != nil || string(got) != "content" {
		t.Errorf("it has %q, %v", got, err)
	}
	// A relative link stays relative.
	link := filepath.Join(filepath.Dir(path), "link")
	if err := files.Symlink("file", link); err != nil {
		t.Error(err)
	}
	if got, err := os.Readlink(link); err != nil || got != "file" {
		t.Errorf("the link leads to %q, %v", got, err)
	}
}

// TestAgentOfClient asks the client's agent through the socket that a session has.
func TestAgentOfClient(t *testing.T) {
	w := newWorld(t, true)
	c := w.dial("box")
	keys := agent.NewKeyring()
	if err := agent.ForwardToAgent(c, keys); err != nil {
		t.Fatal(err)
	}
	s := w.session(c)
	if err := agent.RequestAgentForwarding(s); err != nil {
		t.Fatal(err)
	}
	if err := s.Start("a command, which is played"); err != nil {
		t.Fatal(err)
	}
	_ = s.Wait() // the played command fails
	w.mu.Lock()
	defer w.mu.Unlock()
	if len(w.begun) != 2 || w.begun[1].What != "agent" {
		t.Errorf("the audit has %+v", w.begun)
	}
}

// FuzzRequests decodes what clients send with channels and requests.
func FuzzRequests(f *testing.F) {
	f.Add(gossh.Marshal(struct {
		Host       string
		Port       uint32
		Origin     string
		OriginPort uint32
	}{"localhost", 80, "127.0.0.1", 1}))
	f.Add(gossh.Marshal(struct {
		Host string
		Port uint32
	}{"", 0}))
	f.Add(gossh.Marshal(struct{ Path string }{"/run/socket"}))
	f.Fuzz(func(t *testing.T, payload []byte) {
		if to, err := tcpTarget(payload); err == nil {
			if _, _, err := net.SplitHostPort(to.address); err != nil || to.port < 0 || to.port > 65535 {
				t.Errorf("%+v", to)
			}
		}
		if to, err := unixTarget(payload); err == nil && to.address == "" {
			t.Errorf("%+v", to)
		}
		for _, decode := range []func([]byte) (place, error){tcpListen, unixListen} {
			if p, err := decode(payload); err == nil {
				p.open(p.head.Address, "127.0.0.1:1")
				p.reply(p.head.Address)
			}
		}
	})
}

package ssh

import (
	"bytes"
	"context"
	"crypto/ed25519"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"

	gossh "golang.org/x/crypto/ssh"

	"github.com/RelevanceAI/harvest/client/errors"
	"github.com/RelevanceAI/harvest/internal/base/account"
	"github.com/RelevanceAI/harvest/internal/base/testenv"
	"github.com/RelevanceAI/harvest/internal/engine"
	"github.com/RelevanceAI/harvest/internal/fleet"
	"github.com/RelevanceAI/harvest/internal/fleet/spec"
	"github.com/RelevanceAI/harvest/internal/ssh/inside"
	"github.com/RelevanceAI/harvest/test/stubs/sandboxtest"
)

// scopes of a client that may do everything.
var scopes = []account.Scope{account.Read, account.Write, account.Exec}

func TestMain(m *testing.M) { sandboxtest.Main(m) }

// world is a server whose sandbox "box" is on the fake engine.
type world struct {
	t      *testing.T
	server *Server
	addr   string
	key    gossh.Signer // which the server knows
	id     string       // of the sandbox
	cancel context.CancelFunc
	leave  context.CancelFunc // ends the client's key

	mu    sync.Mutex
	begun []Begun // guarded by mu
}

func signer(t *testing.T) gossh.Signer {
	t.Helper()
	_, key, err := ed25519.GenerateKey(nil)
	if err != nil {
		t.Fatal(err)
	}
	s, err := gossh.NewSignerFromKey(key)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// newWorld returns a server that listens. With play, Harvest's own programs run in this process, and others do not run.
func newWorld(t *testing.T, play bool) *world {
	t.Helper()
	e := sandboxtest.New(t)
	if play {
		e.Play = func(p *sandboxtest.Process, cmd engine.Command) {
			go func() {
				code := inside.Main(t.Context(), cmd.Args[1:], cmd.Stdin, cmd.Stdout, io.Discard)
				p.End(engine.Exit{Code: code})
			}()
		}
	}
	w := &world{t: t, key: signer(t)}
	f := sandboxtest.Open(t, e, fleet.Options{})
	sb, err := f.Create(t.Context(), "a", spec.Request{Name: "box"})
	if err != nil {
		t.Fatal(err)
	}
	w.id = sb.ID
	t.Cleanup(func() {
		if err := f.Destroy(context.WithoutCancel(t.Context()), "a", sb.ID); err != nil {
			t.Error(err)
		}
	})
	who := account.Principal{Account: "a", Scopes: scopes}
	ended, leave := context.WithCancel(t.Context())
	w.leave = leave
	w.server = New(Options{
		Fleet: f, Host: signer(t),
		Login: func(_ context.Context, key []byte) (account.Principal, error) {
			if !bytes.Equal(key, w.key.PublicKey().Marshal()) {
				return account.Principal{}, errors.Newf(errors.Unauthenticated, "the public key is not known")
			}
			return who, nil
		},
		Follow: func(ctx context.Context, _ account.Principal) (context.Context, context.CancelFunc) {
			ctx, cancel := context.WithCancel(ctx)
			context.AfterFunc(ended, cancel)
			return ctx, cancel
		},
		Find: func(ctx context.Context, who account.Principal, name string) (string, error) {
			sb, err := f.Get(ctx, who.Account, name)
			return sb.ID, err
		},
		Audit: func(_ context.Context, b Begun) {
			w.mu.Lock()
			defer w.mu.Unlock()
			w.begun = append(w.begun, b)
		},
	})
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	w.addr = l.Addr().String()
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- w.server.Serve(ctx, l) }()
	w.cancel = cancel
	t.Cleanup(func() {
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
	return w
}

// dial connects with the key of the world, as the user name.
func (w *world) dial(name string) *gossh.Client {
	w.t.Helper()
	c, err := gossh.Dial("tcp", w.addr, w.config(name, w.key))
	if err != nil {
		w.t.Fatal(err)
	}
	w.t.Cleanup(func() { _ = c.Close() })
	return c
}

func (w *world) config(name string, key gossh.Signer) *gossh.ClientConfig {
	return &gossh.ClientConfig{User: name, Auth: []gossh.AuthMethod{gossh.PublicKeys(key)},
		HostKeyCallback: gossh.FixedHostKey(w.server.opts.Host.PublicKey())}
}

func (w *world) session(c *gossh.Client) *gossh.Session {
	w.t.Helper()
	s, err := c.NewSession()
	if err != nil {
		w.t.Fatal(err)
	}
	w.t.Cleanup(func() { _ = s.Close() })
	return s
}

// line reads up to the end of a line.
func line(t *testing.T, r io.Reader) string {
	t.Helper()
	var text []byte
	for b := make([]byte, 1); ; {
		if _, err := r.Read(b); err != nil || b[0] == '\n' {
			return strings.TrimSuffix(string(text), "\r")
		}
		text = append(text, b[0])
	}
}

// TestSignals sends signals to a command, and gets those that end one.
func TestSignals(t *testing.T) {
	w := newWorld(t, false)
	c := w.dial("box")
	s := w.session(c)
	out, err := s.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := s.Start("trap 'echo caught; exit 3' USR1; echo ready; while :; do sleep 0.05; done"); err != nil {
		t.Fatal(err)
	}
	if got := line(t, out); got != "ready" {
		t.Fatalf("it prints %q", got)
	}
	if err := s.Signal(gossh.SIGUSR1); err != nil {
		t.Fatal(err)
	}
	if got := line(t, out); got != "caught" {
		t.Errorf("after the signal it prints %q", got)
	}
	var exit *gossh.ExitError
	if err := s.Wait(); !errors.As(err, &exit) || exit.ExitStatus() != 3 {
		t.Errorf("it ends with %v", err)
	}
	if err := w.session(c).Run("kill -KILL $$"); !errors.As(err, &exit) || exit.Signal() != "KILL" {
		t.Errorf("a killed command ends with %v", err)
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	if len(w.begun) != 2 || w.begun[1].Sandbox != w.id || w.begun[1].What != "exec" ||
		w.begun[1].Detail != "kill -KILL $$" || w.begun[1].Who.Account != "a" || w.begun[1].From != "127.0.0.1" {
		t.Errorf("the audit has %+v", w.begun)
	}
}

// TestWindow changes the size of a terminal.
func TestWindow(t *testing.T) {
	w := newWorld(t, false)
	s := w.session(w.dial("box"))
	out, err := s.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := s.RequestPty("vt220", 10, 20, gossh.TerminalModes{gossh.ECHO: 0}); err != nil {
		t.Fatal(err)
	}
	err = s.Start("printenv TERM; stty size; until [ \"$(stty size)\" = '33 44' ]; do sleep 0.05; done; echo resized")
	if err != nil {
		t.Fatal(err)
	}
	if term, size := line(t, out), line(t, out); term != "vt220" || size != "10 20" {
		t.Errorf("TERM is %q, and the size %q", term, size)
	}
	if err := s.WindowChange(33, 44); err != nil {
		t.Fatal(err)
	}
	if got := line(t, out); got != "resized" {
		t.Errorf("then it prints %q", got)
	}
	if err := s.Wait(); err != nil {
		t.Error(err)
	}
}

// TestHangUp ends a command whose client has gone, and lets run what ignores that.
func TestHangUp(t *testing.T) {
	w := newWorld(t, false)
	c := w.dial("box")
	polite, stubborn := filepath.Join(t.TempDir(), "polite"), filepath.Join(t.TempDir(), "stubborn")
	s := w.session(c)
	out, err := s.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := s.Start("trap 'touch " + polite + "; exit' HUP; echo ready; while :; do sleep 0.05; done"); err != nil {
		t.Fatal(err)
	}
	line(t, out)
	other := w.session(c)
	if out, err = other.StdoutPipe(); err != nil {
		t.Fatal(err)
	}
	wait := "until [ -e " + polite + " ]; do sleep 0.05; done; "
	if err := other.Start("trap '' HUP; echo ready; " + wait + "touch " + stubborn); err != nil {
		t.Fatal(err)
	}
	line(t, out)
	_ = c.Close()
	testenv.Eventually(t, "both have ended in their ways", func() bool {
		_, err := os.Stat(stubborn)
		return err == nil
	})
}

// TestRefusals sends what the server does not know, or does not allow.
func TestRefusals(t *testing.T) {
	w := newWorld(t, false)
	c := w.dial("box")
	_, _, err := c.OpenChannel("x11", nil)
	var refused *gossh.OpenChannelError
	if !errors.As(err, &refused) || refused.Reason != gossh.UnknownChannelType {
		t.Errorf("a channel of an unknown type: %v", err)
	}
	for kind, payload := range map[string][]byte{
		"direct-tcpip": nil, "direct-streamlocal@openssh.com": []byte("x"),
	} {
		_, _, err := c.OpenChannel(kind, payload)
		if !errors.As(err, &refused) || !strings.Contains(refused.Message, "damaged") {
			t.Errorf("%s with a damaged payload: %v", kind, err)
		}
	}
	for _, kind := range []string{"tcpip-forward", "streamlocal-forward@openssh.com", "cancel-tcpip-forward",
		"cancel-streamlocal-forward@openssh.com", "keepalive@openssh.com", "unknown"} {
		if ok, _, err := c.SendRequest(kind, true, []byte("x")); ok || err != nil {
			t.Errorf("%s: %t, %v", kind, ok, err)
		}
	}
	s := w.session(c)
	for _, r := range []struct {
		kind    string
		payload []byte
	}{{"pty-req", nil}, {"env", nil}, {"exec", nil}, {"x11-req", nil}, {"signal", nil}, {"window-change", nil},
		{"env", gossh.Marshal(envRequest{"not a name=", "x"})}, {"subsystem", gossh.Marshal(textRequest{"netconf"})}} {
		if ok, err := s.SendRequest(r.kind, true, r.payload); ok || err != nil {
			t.Errorf("%s: %t, %v", r.kind, ok, err)
		}
	}
	if err := s.Start("exec sleep 1000"); err != nil {
		t.Fatal(err)
	}
	if ok, err := s.SendRequest("exec", true, gossh.Marshal(textRequest{"true"})); ok || err != nil {
		t.Errorf("a second command in a session: %t, %v", ok, err)
	}
	for range mostChannels - 1 {
		testenv.Try(t, func() error { // places of refused channels are free a moment later
			s, err := c.NewSession()
			if err == nil {
				t.Cleanup(func() { _ = s.Close() })
			}
			return err
		})
	}
	if _, err := c.NewSession(); !errors.As(err, &refused) || refused.Reason != gossh.ResourceShortage {
		t.Errorf("one channel too many: %v", err)
	}
}

// TestLogin connects with an unknown key and without any, as an unknown user, and with a key that ends.
func TestLogin(t *testing.T) {
	w := newWorld(t, false)
	if _, err := gossh.Dial("tcp", w.addr, w.config("box", signer(t))); err == nil {
		t.Error("an unknown key is accepted")
	}
	none := w.config("box", w.key)
	none.Auth = nil
	if _, err := gossh.Dial("tcp", w.addr, none); err == nil {
		t.Error("a client without a key is accepted")
	}
	var exit *gossh.ExitError
	s := w.session(w.dial("nothing"))
	var problem bytes.Buffer
	s.Stderr = &problem
	if err := s.Run("true"); !errors.As(err, &exit) || exit.ExitStatus() != failed ||
		!strings.HasPrefix(problem.String(), "harvest: ") {
		t.Errorf("an unknown sandbox: %v, %q", err, problem.String())
	}
	c := w.dial("box")
	w.leave()
	if err := c.Wait(); err == nil {
		t.Error("the connection has ended without a reason")
	}
}

// TestKnown serves a connection of a client that has proved itself elsewhere.
func TestKnown(t *testing.T) {
	w := newWorld(t, false)
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	near, err := net.Dial("tcp", l.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	far, err := l.Accept()
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	served := make(chan struct{})
	go func() {
		defer close(served)
		w.server.ServeKnown(ctx, far, account.Principal{Account: "a", Scopes: scopes}, "box", "")
	}()
	config := w.config("anybody", w.key)
	config.Auth = nil
	conn, channels, requests, err := gossh.NewClientConn(near, "", config)
	if err != nil {
		t.Fatal(err)
	}
	c := gossh.NewClient(conn, channels, requests)
	if out, err := w.session(c).Output("echo $0"); err != nil || len(out) == 0 {
		t.Errorf("a command printed %q, %v", out, err)
	}
	cancel()
	<-served
	_ = c.Close()
}

// TestOtherAccount checks that the sandboxes of another account are unknown.
func TestOtherAccount(t *testing.T) {
	w := newWorld(t, false)
	w.server.opts.Login = func(context.Context, []byte) (account.Principal, error) {
		return account.Principal{Account: "b", Scopes: scopes}, nil
	}
	for _, name := range []string{"box", w.id} {
		c := w.dial(name)
		if out, err := w.session(c).CombinedOutput("true"); err == nil || !strings.Contains(string(out), "not found") {
			t.Errorf("%s: %q, %v", name, out, err)
		}
		if _, err := c.Dial("tcp", "localhost:80"); err == nil {
			t.Errorf("a port of %s is connected", name)
		}
	}
}

// TestReadOnly checks that a client that may not run commands cannot do anything.
func TestReadOnly(t *testing.T) {
	w := newWorld(t, true)
	w.server.opts.Login = func(context.Context, []byte) (account.Principal, error) {
		return account.Principal{Account: "a", Scopes: []account.Scope{account.Read}}, nil
	}
	c := w.dial("box")
	if err := w.session(c).Run("true"); err == nil {
		t.Error("a command runs")
	}
	if conn, err := c.Dial("tcp", "localhost:22"); err == nil {
		_ = conn.Close()
		t.Error("a connection is forwarded")
	}
	if l, err := c.Listen("tcp", "127.0.0.1:0"); err == nil {
		_ = l.Close()
		t.Error("a port is opened")
	}
}

// TestStrangers limits the connections of clients that do not prove who they are.
func TestStrangers(t *testing.T) {
	w := newWorld(t, false)
	var all []net.Conn
	for range mostOfOne {
		conn, err := net.Dial("tcp", w.addr)
		if err != nil {
			t.Fatal(err)
		}
		line(t, conn) // the server's version
		all = append(all, conn)
	}
	one, err := net.Dial("tcp", w.addr)
	if err != nil {
		t.Fatal(err)
	}
	if text, _ := io.ReadAll(one); len(text) > 0 {
		t.Errorf("one stranger too many gets %q", text)
	}
	_ = one.Close()
	for _, conn := range all {
		_ = conn.Close()
	}
	testenv.Eventually(t, "the places are free", func() bool {
		w.server.mu.Lock()
		defer w.server.mu.Unlock()
		return len(w.server.waiting) == 0
	})
	w.dial("box")
	for i := range mostHandshakes {
		if _, ok := w.server.admit(fmt.Sprint(i)); !ok {
			t.Fatalf("only %d strangers are admitted", i)
		}
	}
	if _, ok := w.server.admit("another"); ok {
		t.Error("one stranger too many is admitted")
	}
}

// failing is a listener whose first attempts to accept fail.
type failing struct {
	net.Listener
	left int
}

func (f *failing) Accept() (net.Conn, error) {
	if f.left > 0 {
		f.left--
		return nil, syscall.EMFILE
	}
	return f.Listener.Accept()
}

// TestAcceptFails checks that the server continues after it could not accept connections.
func TestAcceptFails(t *testing.T) {
	w := newWorld(t, false)
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- w.server.Serve(ctx, &failing{l, 3}) }()
	w.addr = l.Addr().String()
	if out, err := w.session(w.dial("box")).Output("echo in"); err != nil || string(out) != "in\n" {
		t.Errorf("%q, %v", out, err)
	}
	cancel()
	if err := <-done; err != nil {
		t.Error(err)
	}
}

// TestHostKey makes a key once, and does not replace a damaged one.
func TestHostKey(t *testing.T) {
	path := filepath.Join(t.TempDir(), "key")
	first, err := HostKey(path)
	if err != nil {
		t.Fatal(err)
	}
	if info, err := os.Stat(path); err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("the file: %v, %v", info, err)
	}
	second, err := HostKey(path)
	if err != nil || !bytes.Equal(first.PublicKey().Marshal(), second.PublicKey().Marshal()) {
		t.Errorf("the second time it is another key, %v", err)
	}
	if got := New(Options{Host: first}).HostKey(); !strings.HasPrefix(got, "ssh-ed25519 ") {
		t.Errorf("its line is %q", got)
	}
	if err := os.WriteFile(path, []byte("damaged"), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := HostKey(path); !errors.Is(err, errors.Invalid) || errors.RemedyOf(err) == "" {
		t.Errorf("a damaged key: %v", err)
	}
	if _, err := HostKey(t.TempDir()); err == nil {
		t.Error("a directory is a key")
	}
}

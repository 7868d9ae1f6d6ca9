package mutual

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"io"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/RelevanceAI/harvest/client/errors"
	"github.com/RelevanceAI/harvest/internal/base/testenv"
	"github.com/RelevanceAI/harvest/internal/engine"
	"github.com/RelevanceAI/harvest/internal/engine/gvisor/wire"
)

func open(t *testing.T, dir string) *Authority {
	t.Helper()
	a, err := Open(dir)
	if err != nil {
		t.Fatal(err)
	}
	return a
}

func credentials(t *testing.T, a *Authority, id string) Credentials {
	t.Helper()
	c, err := a.Keeper(id)
	if err != nil {
		t.Fatal(err)
	}
	return c
}

// keep is a keeper over TCP that starts one command, which prints its input. It returns the keeper's address.
func keep(t *testing.T, c Credentials) *Listener {
	t.Helper()
	inner, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	l, err := Listen(inner, c)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = l.Close() })
	go func() {
		for {
			conn, err := l.Accept()
			if err != nil {
				return
			}
			go answer(wire.NewConn(conn))
		}
	}()
	return l
}

func answer(conn *wire.Conn) {
	defer conn.Close()
	kind, b, err := conn.Receive()
	var req wire.Request
	if err != nil || kind != wire.KindRequest || json.Unmarshal(b, &req) != nil || req.Op != wire.Start {
		return
	}
	_ = conn.SendJSON(wire.KindReply, wire.Reply{ID: "p1"})
	for {
		switch kind, b, err := conn.Receive(); {
		case err != nil:
			return
		case kind == wire.KindStdin:
			_ = conn.Send(wire.KindStdout, b)
		default:
			_ = conn.SendJSON(wire.KindExit, engine.Exit{Code: 7})
			return
		}
	}
}

// connect connects to a keeper as the server of a does, and starts a command there, whose output it returns. A keeper
// refuses a client after the client's handshake: the command shows whether it has.
func connect(ctx context.Context, a *Authority, l net.Listener, id, input string) (string, error) {
	client := wire.Client{ID: id, Connect: func(ctx context.Context) (*wire.Conn, error) {
		conn, err := new(net.Dialer).DialContext(ctx, "tcp", l.Addr().String())
		if err != nil {
			return nil, err
		}
		return a.Connect(ctx, conn, id)
	}}
	var out strings.Builder
	p, err := client.Start(ctx, engine.Command{Args: []string{"cat"}, Stdin: strings.NewReader(input), Stdout: &out})
	if err != nil {
		return "", err
	}
	exit, err := p.Wait(ctx)
	if err == nil && exit.Code != 7 {
		err = errors.Errorf("the command ended with %d", exit.Code)
	}
	return out.String(), err
}

func TestCommandOverTCP(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	l := keep(t, credentials(t, open(t, dir), "box"))
	input := strings.Repeat("0123456789", 100_000)
	// Another server of the same data directory, as after a restart.
	if out, err := connect(t.Context(), open(t, dir), l, "box", input); err != nil || out != input {
		t.Errorf("the command printed %d bytes, %v", len(out), err)
	}
}

func TestWrongIdentitiesAreRefused(t *testing.T) {
	t.Parallel()
	ours, theirs := open(t, t.TempDir()), open(t, t.TempDir())
	late := *ours
	late.now = func() time.Time { return time.Now().Add(keeperLife + time.Minute) }
	keeper := keep(t, credentials(t, ours, "box"))
	for _, test := range []struct {
		name string
		a    *Authority
		l    net.Listener
		id   string
		kind errors.Kind
	}{
		{"server of another installation", theirs, keeper, "box", errors.Denied},
		{"keeper of another installation", ours, keep(t, credentials(t, theirs, "box")), "box", errors.Denied},
		{"other sandbox", ours, keeper, "other", errors.Denied},
		{"part of the ID", ours, keeper, "bo", errors.Denied},
		{"keeper's certificate has expired", &late, keeper, "box", errors.Denied},
	} {
		out, err := connect(t.Context(), test.a, test.l, test.id, "x")
		if !errors.Is(err, test.kind) || out != "" {
			t.Errorf("%s: printed %q, %v", test.name, out, err)
		}
	}
	if _, err := connect(t.Context(), ours, keeper, "box", "x"); err != nil {
		t.Errorf("afterwards, the right server: %v", err)
	}
}

// TestKeeperRefusesClients uses clients that trust every keeper, unlike Connect, and so reach the keeper's own checks.
func TestKeeperRefusesClients(t *testing.T) {
	t.Parallel()
	ours, theirs := open(t, t.TempDir()), open(t, t.TempDir())
	early := *ours
	early.now = func() time.Time { return time.Now().Add(-clientLife - margin - time.Minute) }
	keeper := keep(t, credentials(t, ours, "box"))
	for _, test := range []struct {
		name  string
		a     *Authority
		id    string
		usage x509.ExtKeyUsage
		good  bool
	}{
		{"right client", ours, "box", x509.ExtKeyUsageClientAuth, true},
		{"no certificate", nil, "", 0, false},
		{"other authority", theirs, "box", x509.ExtKeyUsageClientAuth, false},
		{"other sandbox", ours, "other", x509.ExtKeyUsageClientAuth, false},
		{"expired", &early, "box", x509.ExtKeyUsageClientAuth, false},
		{"keeper's own certificate", ours, "box", x509.ExtKeyUsageServerAuth, false},
	} {
		config := &tls.Config{InsecureSkipVerify: true}
		if test.a != nil {
			cert, key, err := test.a.leaf(test.id, test.usage, clientLife)
			if err != nil {
				t.Fatal(err)
			}
			config.Certificates = []tls.Certificate{{Certificate: [][]byte{cert.Raw}, PrivateKey: key}}
		}
		if got := started(t, keeper.Addr().String(), config); got != test.good {
			t.Errorf("%s: a command was started: %t", test.name, got)
		}
	}
	if started(t, keeper.Addr().String(), nil) {
		t.Error("a command was started without TLS")
	}
}

// started reports whether a client with the configuration, or without TLS, can start a command.
func started(t *testing.T, address string, config *tls.Config) bool {
	t.Helper()
	conn, err := net.Dial("tcp", address)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	if config != nil {
		conn = tls.Client(conn, config)
	}
	c := wire.NewConn(conn)
	if c.SendJSON(wire.KindRequest, wire.Request{Op: wire.Start, Start: &wire.StartArgs{}}) != nil {
		return false
	}
	_, err = c.ReceiveReply(nil)
	return err == nil
}

func TestClaimBindsIdentity(t *testing.T) {
	t.Parallel()
	a := open(t, t.TempDir())
	l := keep(t, credentials(t, a, "warm-1"))
	if _, err := connect(t.Context(), a, l, "warm-1", "x"); err != nil {
		t.Fatal(err)
	}
	if err := l.Identify(credentials(t, a, "box")); err != nil {
		t.Fatal(err)
	}
	if _, err := connect(t.Context(), a, l, "box", "x"); err != nil {
		t.Errorf("the sandbox after its claim: %v", err)
	}
	if _, err := connect(t.Context(), a, l, "warm-1", "x"); !errors.Is(err, errors.Denied) {
		t.Errorf("the pod's first name after the claim: %v", err)
	}
}

func TestBadCredentials(t *testing.T) {
	t.Parallel()
	a := open(t, t.TempDir())
	good, other := credentials(t, a, "box"), credentials(t, a, "other")
	l := keep(t, good)
	for name, c := range map[string]Credentials{
		"empty":         {},
		"no authority":  {ID: "box", Certificate: good.Certificate, Key: good.Key},
		"other key":     {ID: "box", Certificate: good.Certificate, Key: other.Key, Authority: good.Authority},
		"other sandbox": {ID: "box", Certificate: other.Certificate, Key: other.Key, Authority: good.Authority},
	} {
		if err := l.Identify(c); err == nil {
			t.Errorf("%s: accepted", name)
		}
	}
	if _, err := connect(t.Context(), a, l, "box", "x"); err != nil {
		t.Errorf("refused credentials replaced the good ones: %v", err)
	}
	if _, err := a.Keeper(""); err == nil {
		t.Error("credentials for no sandbox")
	}
}

func TestSilentClientsBlockNobody(t *testing.T) {
	t.Parallel()
	a := open(t, t.TempDir())
	l := keep(t, credentials(t, a, "box"))
	for range maxHandshakes / 2 {
		conn, err := net.Dial("tcp", l.Addr().String())
		if err != nil {
			t.Fatal(err)
		}
		defer conn.Close()
	}
	if _, err := connect(t.Context(), a, l, "box", "x"); err != nil {
		t.Error(err)
	}
	silent, err := net.Dial("tcp", l.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	defer silent.Close()
	if _, err := connect(t.Context(), a, l, "box", "x"); err != nil { // by now, silent is in its handshake
		t.Error(err)
	}
	if err := l.Close(); err != nil {
		t.Fatal(err)
	}
	if _, err := io.ReadAll(silent); err != nil && !strings.Contains(err.Error(), "reset") {
		t.Errorf("a silent client after the end: %v", err)
	}
}

func TestConnectEndsWithItsContext(t *testing.T) {
	t.Parallel()
	a := open(t, t.TempDir())
	near, far := net.Pipe()
	defer far.Close()
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := a.Connect(ctx, near, "box"); !errors.Is(err, context.Canceled) {
		t.Errorf("Connect returned %v", err)
	}
	if _, err := near.Write([]byte("x")); err == nil {
		t.Error("the connection is still open")
	}
}

func TestAuthorityFile(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	a := open(t, dir)
	path := filepath.Join(dir, AuthorityFile)
	info, err := os.Stat(path)
	if err != nil || info.Mode().Perm() != 0o600 {
		t.Fatalf("the file is %v, %v", info, err)
	}
	if again := open(t, dir); !again.cert.Equal(a.cert) {
		t.Error("a second server has another authority")
	}
	if err := os.Chmod(path, 0o640); err != nil {
		t.Fatal(err)
	}
	if _, err := Open(dir); !errors.Is(err, errors.Denied) {
		t.Errorf("a file that others can read: %v", err)
	}
	c := credentials(t, a, "box")
	for name, text := range map[string][]byte{"empty": nil, "no key": c.Certificate,
		"no authority": append(c.Key, c.Certificate...)} {
		if err := os.Remove(path); err != nil {
			t.Fatal(err)
		}
		testenv.WriteFile(t, path, text)
		if err := os.Chmod(path, 0o600); err != nil {
			t.Fatal(err)
		}
		if _, err := Open(dir); err == nil {
			t.Errorf("%s: accepted", name)
		}
		if after, err := os.ReadFile(path); err != nil || string(after) != string(text) {
			t.Errorf("%s: the file was replaced: %v", name, err)
		}
	}
}

package inside

import (
	"archive/tar"
	"bytes"
	"context"
	"encoding/json"
	"io"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/hashicorp/yamux"

	"github.com/RelevanceAI/harvest/client/errors"
	"github.com/RelevanceAI/harvest/internal/base/tarfs"
	"github.com/RelevanceAI/harvest/internal/engine"
	"github.com/RelevanceAI/harvest/internal/engine/gvisor/wire"
)

// both is one end of two pipes.
type both struct {
	*io.PipeReader
	*io.PipeWriter
}

func (b both) Close() error { return errors.Join(b.PipeReader.Close(), b.PipeWriter.Close()) }

// first starts a first process, and returns a client that reaches it as an engine does: over a stream of bytes through
// a client process.
func first(t *testing.T) *wire.Client {
	t.Helper()
	dir := filepath.Join(t.TempDir(), "inside")
	ctx, stop := context.WithCancel(t.Context())
	served, carried := make(chan error, 1), make(chan error, 1)
	go func() { served <- serve(ctx, dir) }()
	in, toIn := io.Pipe()
	fromOut, out := io.Pipe()
	go func() { carried <- carry(ctx, dir, in, out) }()
	session, err := yamux.Client(both{fromOut, toIn}, Mux())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := session.Close(); err != nil {
			t.Error(err)
		}
		_ = in.Close()
		_ = fromOut.Close()
		stop()
		if err := <-served; err != nil {
			t.Errorf("the first process: %v", err)
		}
		<-carried
	})
	return &wire.Client{ID: "box", Connect: func(context.Context) (*wire.Conn, error) {
		stream, err := session.Open()
		if err != nil {
			return nil, err
		}
		return wire.NewConn(stream), nil
	}}
}

// claimed is first, with the sandbox claimed.
func claimed(t *testing.T) *wire.Client {
	t.Helper()
	c := first(t)
	reply, err := c.Call(t.Context(), wire.Request{Op: wire.Claim,
		Claim: &wire.ClaimArgs{ID: "box", Env: map[string]string{"OF": "the sandbox"}, Dir: "/", OutputBytes: 1 << 20}})
	if err != nil || reply.Found == nil || reply.Found.Env["PATH"] == "" || reply.Found.Dir == "" {
		t.Fatalf("%+v, %v", reply, err)
	}
	return c
}

// mission: A4
func TestCommands(t *testing.T) {
	t.Parallel()
	c := claimed(t)
	var out, stderr bytes.Buffer
	p, err := c.Start(t.Context(), engine.Command{Args: []string{"sh", "-c",
		`read line; echo "$line $OF $MORE"; echo wrong >&2; pwd; exit 3`},
		Env: map[string]string{"MORE": "and more"}, Dir: "/tmp",
		Stdin: strings.NewReader("typed\nleft over"), Stdout: &out, Stderr: &stderr})
	if err != nil {
		t.Fatal(err)
	}
	if exit, err := p.Wait(t.Context()); err != nil || exit.Code != 3 ||
		out.String() != "typed the sandbox and more\n/tmp\n" || stderr.String() != "wrong\n" {
		t.Errorf("%+v, %v, %q, %q", exit, err, out.String(), stderr.String())
	}

	typed, keyboard := io.Pipe()
	defer keyboard.Close()
	ctx, leave := context.WithCancel(t.Context())
	p, err = c.Start(ctx, engine.Command{Args: []string{"sh", "-c",
		"head -c 3000000 /dev/zero; echo; echo begun; read line; echo $line"}, Stdin: typed, Stdout: io.Discard})
	if err != nil {
		t.Fatal(err)
	}
	leave()
	if _, err := p.Wait(ctx); err == nil {
		t.Error("nobody waits any more")
	}
	infos, err := c.Processes(t.Context())
	if err != nil || !slices.ContainsFunc(infos, func(i engine.ProcessInfo) bool { return i.ID == p.ID() }) {
		t.Errorf("%+v, %v", infos, err)
	}
	var again last
	dropped := int64(0)
	p, err = c.OpenProcess(t.Context(), p.ID(), engine.Stdio{Stdin: strings.NewReader("heard\n"), Stdout: &again,
		Truncated: func(n int64) { dropped += n }})
	if err != nil {
		t.Fatal(err)
	}
	if exit, err := p.Wait(t.Context()); err != nil || exit.Code != 0 ||
		!strings.HasSuffix(string(again), "begun\nheard\n") {
		t.Errorf("%+v, %v, %q", exit, err, again)
	}

	p, err = c.Start(t.Context(), engine.Command{Args: []string{"sleep", "600"}})
	if err != nil {
		t.Fatal(err)
	}
	if err := p.Signal(t.Context(), "TERM"); err != nil {
		t.Error(err)
	}
	if exit, err := p.Wait(t.Context()); err != nil || exit.Signal == "" && exit.Code != 143 {
		t.Errorf("%+v, %v", exit, err)
	}
	p, err = c.Start(t.Context(), engine.Command{Args: []string{"sh", "-c", "stty size; sleep 600 & wait"},
		Terminal: &engine.Size{Rows: 7, Cols: 9}, Stdout: &again})
	if err != nil {
		t.Fatal(err)
	}
	if err := p.Resize(t.Context(), engine.Size{Rows: 8, Cols: 10}); err != nil {
		t.Error(err)
	}
	if err := p.Kill(t.Context()); err != nil {
		t.Error(err)
	}
	if exit, err := p.Wait(t.Context()); err != nil || exit.Code == 0 {
		t.Errorf("%+v, %v", exit, err)
	}
}

// last keeps the end of the written text.
type last []byte

func (l *last) Write(p []byte) (int, error) {
	*l = append(*l, p...)
	*l = (*l)[max(0, len(*l)-100):]
	return len(p), nil
}

// mission: A4
func TestFiles(t *testing.T) {
	t.Parallel()
	c := claimed(t)
	dir := t.TempDir()
	var archive bytes.Buffer
	w := tar.NewWriter(&archive)
	if err := errors.Join(w.WriteHeader(&tar.Header{Name: "a/b.txt", Mode: 0o640, Size: 5}),
		second(w.Write([]byte("hello"))), w.Close()); err != nil {
		t.Fatal(err)
	}
	if err := c.CopyIn(t.Context(), dir, &archive); err != nil {
		t.Fatal(err)
	}
	if data, err := os.ReadFile(filepath.Join(dir, "a/b.txt")); string(data) != "hello" {
		t.Errorf("%q, %v", data, err)
	}
	if err := c.CopyIn(t.Context(), dir, strings.NewReader(strings.Repeat("no archive", 200))); err == nil {
		t.Error("what is no archive was unpacked")
	}
	packed, err := c.CopyOut(t.Context(), filepath.Join(dir, "a"))
	if err != nil {
		t.Fatal(err)
	}
	names := []string{}
	for r := tar.NewReader(packed); ; {
		h, err := r.Next()
		if err == io.EOF {
			break
		}
		if err != nil {
			t.Fatal(err)
		}
		names = append(names, h.Name)
	}
	if packed.Close(); !slices.ContainsFunc(names, func(n string) bool { return strings.HasSuffix(n, "b.txt") }) {
		t.Errorf("%q", names)
	}
	var list bytes.Buffer
	if err := c.Files(t.Context(), tarfs.Request{Op: tarfs.OpStat, Path: filepath.Join(dir, "a/b.txt")},
		&list); err != nil || !strings.Contains(list.String(), `"size_bytes":5`) {
		t.Errorf("%s, %v", list.String(), err)
	}
	if err := c.Files(t.Context(), tarfs.Request{Op: tarfs.OpStat, Path: filepath.Join(dir, "none")},
		&list); errors.KindOf(err) != errors.NotFound {
		t.Errorf("a file that is not there: %v", err)
	}
}

func second[A any](_ A, err error) error { return err }

// TestRefusals checks that invalid requests are refused, and that the first process continues.
func TestRefusals(t *testing.T) {
	t.Parallel()
	c := first(t)
	refused := func(want errors.Kind, req wire.Request) {
		t.Helper()
		if _, err := c.Call(t.Context(), req); errors.KindOf(err) != want {
			t.Errorf("%+v: %v, want %s", req, err, want)
		}
	}
	if reply, err := c.Call(t.Context(), wire.Request{Op: wire.Info}); err != nil || reply.State == nil {
		t.Errorf("%+v, %v", reply, err)
	}
	refused(errors.Conflict, wire.Request{Op: wire.Processes})
	refused(errors.Invalid, wire.Request{Op: wire.Claim,
		Claim: &wire.ClaimArgs{ID: "box", User: "nobody-of-that-name"}})
	claim := wire.Request{Op: wire.Claim, Claim: &wire.ClaimArgs{ID: "box"}}
	for range 2 {
		if _, err := c.Call(t.Context(), claim); err != nil {
			t.Fatal(err)
		}
	}
	refused(errors.Conflict, wire.Request{Op: wire.Claim, Claim: &wire.ClaimArgs{ID: "another"}})
	refused(errors.Unsupported, wire.Request{Op: "dance"})
	refused(errors.NotFound, wire.Request{Op: wire.Control, Control: &wire.ControlArgs{ID: "none", Kill: true}})
	refused(errors.NotFound, wire.Request{Op: wire.Attach, Attach: &wire.AttachArgs{ID: "none"}})
	refused(errors.Invalid, wire.Request{Op: wire.Start, Start: &wire.StartArgs{Tool: true}})
	if _, err := c.Start(t.Context(), engine.Command{Args: []string{"/no/such/program"}}); err == nil {
		t.Error("a program that is not there was started")
	}
	conn, err := c.Connect(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	if err := conn.Send(wire.KindRequest, []byte("no JSON")); err != nil {
		t.Fatal(err)
	}
	kind, payload, err := conn.Receive()
	var f wire.Failure
	if err != nil || kind != wire.KindFailure || json.Unmarshal(payload, &f) != nil {
		t.Errorf("%q, %s, %v", kind, payload, err)
	}
	other, err := c.Connect(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer other.Close()
	if err := other.SendJSON(wire.KindReply, 1); err != nil { // no request: it is hung up
		t.Fatal(err)
	}
	if _, _, err := other.Receive(); err == nil {
		t.Error("what is no request was answered")
	}
	if _, err := c.Call(t.Context(), claim); err != nil {
		t.Errorf("afterwards: %v", err)
	}
}

// Bytes go both ways through a port, and each direction ends by itself.
//
// mission: A6
func TestPort(t *testing.T) {
	t.Parallel()
	c := first(t)
	l, err := net.Listen("tcp", "[::1]:0")
	if err != nil {
		t.Skip("this machine has no IPv6: run it on one that has")
	}
	defer l.Close()
	go func() { // sends hello, and then echoes its input
		conn, err := l.Accept()
		if err != nil {
			return
		}
		_, _ = io.WriteString(conn, "hello ")
		said, _ := io.ReadAll(conn)
		_, _ = conn.Write(said)
		_ = conn.Close()
	}()
	port := l.Addr().(*net.TCPAddr).Port
	open := func(port int) (*wire.Conn, error) {
		conn, err := c.Connect(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		if err := conn.SendJSON(wire.KindRequest,
			wire.Request{Op: wire.Connect, Dial: &wire.DialArgs{Port: port}}); err != nil {
			t.Fatal(err)
		}
		_, err = conn.ReceiveReply(nil)
		return conn, err
	}
	conn, err := open(port)
	if err != nil {
		t.Fatal(err)
	}
	text := strings.Repeat("0123456789", 50_000)
	if err := errors.Join(conn.Send(wire.KindStdin, []byte(text)),
		conn.Send(wire.KindTruncated, []byte("of no meaning here")), conn.Send(wire.KindStdinEnd, nil)); err != nil {
		t.Fatal(err)
	}
	if got, err := io.ReadAll(conn.Stream()); err != nil || string(got) != "hello "+text {
		t.Errorf("%d bytes, %v", len(got), err)
	}
	if err := conn.Close(); err != nil {
		t.Error(err)
	}

	written := make(chan error, 1)
	go func() { // sends more than its peer reads
		conn, err := l.Accept()
		for err == nil {
			_, err = conn.Write(make([]byte, 1<<20))
		}
		written <- err
	}()
	if conn, err = open(port); err != nil {
		t.Fatal(err)
	}
	if err := conn.Close(); err != nil { // the engine is gone
		t.Fatal(err)
	}
	if err := <-written; err == nil {
		t.Error("whoever listens goes on")
	}
	if err := l.Close(); err != nil {
		t.Fatal(err)
	}
	for port, want := range map[int]errors.Kind{port: errors.Unavailable, 0: errors.Invalid, 65536: errors.Invalid} {
		conn, err := open(port)
		if errors.KindOf(err) != want {
			t.Errorf("port %d: %v, want %s", port, err, want)
		}
		_ = conn.Close()
	}
}

func TestNobodyThere(t *testing.T) {
	t.Parallel()
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Millisecond)
	defer cancel()
	if err := carry(ctx, t.TempDir(), strings.NewReader(""), io.Discard); err == nil {
		t.Error("a client connected to nobody")
	}
	if err := serve(t.Context(), "/dev/null/x"); err == nil {
		t.Error("a first process without a directory")
	}
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, socketName), nil,
		0o600); err != nil { // of an earlier sandbox, whose files these are
		t.Fatal(err)
	}
	ctx, stop := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- serve(ctx, dir) }()
	for { // a client of another protocol
		conn, err := net.Dial("unix", filepath.Join(dir, socketName))
		if err != nil {
			continue
		}
		_, _ = conn.Write([]byte("GET / HTTP/1.1\r\n\r\n"))
		_ = conn.Close()
		break
	}
	stop()
	if err := <-done; err != nil {
		t.Error(err)
	}
}

package client_test

import (
	"bytes"
	"context"
	"io"
	"net"
	"strconv"
	"testing"

	"github.com/RelevanceAI/harvest/client"
	"github.com/RelevanceAI/harvest/client/api"
	"github.com/RelevanceAI/harvest/client/errors"
)

// lines expects the output of "seq 1 n".
type lines struct {
	n     int64
	rest  []byte // of the line that is expected
	wrong string
}

func (l *lines) Write(p []byte) (int, error) {
	for data := p; len(data) > 0 && l.wrong == ""; {
		if len(l.rest) == 0 {
			l.n++
			l.rest = append(strconv.AppendInt(l.rest[:0], l.n, 10), '\n')
		}
		n := min(len(data), len(l.rest))
		if !bytes.Equal(data[:n], l.rest[:n]) {
			l.wrong = "in line " + strconv.FormatInt(l.n,
				10) + " comes " + strconv.Quote(string(data[:min(len(data), 40)]))
		}
		data, l.rest = data[n:], l.rest[n:]
	}
	return len(p), nil
}

// TestAttachThroughBrokenConnections checks that an attached client gets all of a command's output, once, and its exit,
// although connections break at any point and the command writes far more than is stored of its output.
// mission: A4, E10
func TestAttachThroughBrokenConnections(t *testing.T) {
	t.Parallel()
	b := startBlocks(t, func(l net.Listener) net.Listener {
		return &cutting{Listener: l, step: 1_299_709,
			span: 6_000_000}
	})
	const last = 5_000_000 // 39 MB; 16 MiB are kept
	if _, err := b.CreateSandbox(t.Context(), api.SandboxRequest{Name: "box"}, nil); err != nil {
		t.Fatal(err)
	}
	started, err := b.ExecDetached(t.Context(), "box",
		shell("seq 1 1000 >&2; until [ -e go ]; do sleep 0.1; done; seq 1 "+strconv.Itoa(last)+"; exit 7"))
	if err != nil {
		t.Fatal(err)
	}
	var stdout, stderr lines
	broken := 0
	p, err := b.Attach(t.Context(), "box", started.ProcessID, client.Streams{
		Stdout: &stdout, Stderr: &stderr, Broken: func(error) { broken++ },
		Truncated: func(n int64) { t.Errorf("%d bytes are lost after line %d", n, stdout.n) },
	})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := b.ExecDetached(t.Context(), "box", shell("touch go")); err != nil {
		t.Fatal(err)
	}
	res, err := p.Wait(t.Context())
	if err != nil || res.ReturnCode != 7 || stdout.wrong+stderr.wrong != "" || stdout.n != last ||
		len(stdout.rest) != 0 || stderr.n != 1000 {
		t.Errorf("%+v, %v, after %d and %d lines; %s %s", res, err, stdout.n, stderr.n, stdout.wrong, stderr.wrong)
	}
	if broken < 5 {
		t.Errorf("the connection broke off %d times only", broken)
	}
	if err := b.DestroySandbox(t.Context(), "box"); err != nil {
		t.Error(err)
	}
}

// severed is a listener whose connections a test breaks off.
type severed struct {
	net.Listener
	conns chan net.Conn
}

func (s *severed) Accept() (net.Conn, error) {
	conn, err := s.Listener.Accept()
	if err == nil {
		s.conns <- conn
	}
	return conn, err
}

// TestAttachGoesOn checks that input sent while the connection is broken reaches the command over the next one, and
// that an offset outside the output is refused.
func TestAttachGoesOn(t *testing.T) {
	t.Parallel()
	var all severed
	b := startBlocks(t, func(l net.Listener) net.Listener {
		all = severed{l, make(chan net.Conn, 100)}
		return &all
	})
	if _, err := b.CreateSandbox(t.Context(), api.SandboxRequest{Name: "box"}, nil); err != nil {
		t.Fatal(err)
	}
	started, err := b.ExecDetached(t.Context(), "box",
		shell("echo one; trap 'echo two; exit 3' USR1; while :; do sleep 0.01; done"))
	if err != nil {
		t.Fatal(err)
	}
	out, broke := newWaiter("one\n"), make(chan error, 10)
	p, err := b.Attach(t.Context(), "box", started.ProcessID,
		client.Streams{Stdout: out, Broken: func(err error) { broke <- err }})
	if err != nil {
		t.Fatal(err)
	}
	out.wait(t)
	for len(all.conns) > 0 {
		(<-all.conns).Close()
	}
	if err := <-broke; !errors.Is(err, errors.Unavailable) {
		t.Errorf("it broke with %v", err)
	}
	if err := p.Signal("USR1"); err != nil {
		t.Error(err)
	}
	if res, err := p.Wait(t.Context()); err != nil || res.ReturnCode != 3 || string(out.got) != "one\ntwo\n" {
		t.Errorf("%+v, %v, %q", res, err, out.got)
	}
	if err := p.Signal("USR1"); !errors.Is(err, errors.Unavailable) && !errors.Is(err, errors.Canceled) {
		t.Errorf("a signal after the end: %v", err)
	}
	// A sandbox that ends meanwhile, and a client that gives up.
	started, err = b.ExecDetached(t.Context(), "box", shell("sleep 1000"))
	if err != nil {
		t.Fatal(err)
	}
	ctx, leave := context.WithCancel(t.Context())
	p, err = b.Attach(ctx, "box", started.ProcessID,
		client.Streams{Stdout: io.Discard, Broken: func(error) { leave() }})
	if err != nil {
		t.Fatal(err)
	}
	for len(all.conns) > 0 {
		(<-all.conns).Close()
	}
	if _, err := p.Wait(t.Context()); !errors.Is(err, errors.Canceled) {
		t.Errorf("who gives up: %v, want Canceled", err)
	}
	if p, err = b.Attach(t.Context(), "box", started.ProcessID,
		client.Streams{Broken: func(error) { _ = b.DestroySandbox(t.Context(), "box") }}); err != nil {
		t.Fatal(err)
	}
	for len(all.conns) > 0 {
		(<-all.conns).Close()
	}
	if _, err := p.Wait(t.Context()); err == nil || errors.Is(err, errors.Unavailable) {
		t.Errorf("the sandbox is gone: %v", err)
	}
}

package enginetest

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"strings"
	"sync"
	"testing"

	"github.com/RelevanceAI/harvest/client/errors"
	"github.com/RelevanceAI/harvest/internal/engine"
	"github.com/RelevanceAI/harvest/internal/engine/enginetest/probe"
)

// mission: A6

var dialChecks = []check{
	{"dial/addresses", "a port is reached on whatever address somebody listens, loopback included, without any network",
		networks, checkDial},
	{"dial/nobody", "a port without a listener is Unavailable, and one of an ended sandbox is Conflict", networks,
		checkDialNobody},
	{"dial/half", "each direction of a connection ends by itself, and a megabyte goes through unchanged", networks,
		checkHalfClose},
	{"dial/100 at once", "100 connections at once work", networks, checkManyDials},
	{"dial/killed", "a port is reached also after everything inside was killed that can be", networks, checkDialKilled},
}

// greeter returns a command that listens inside, greets each client, and at the end of the client's data sends
// all of it back.
func greeter(addr string, port int) engine.Command {
	cmd := python(`
import socket, sys, threading
family = socket.AF_INET6 if ":" in sys.argv[1] else socket.AF_INET
server = socket.create_server((sys.argv[1], int(sys.argv[2])), family=family, backlog=200)
print("listening", flush=True)
def serve(conn):
    with conn:
        conn.sendall(b"hello\n")
        said = b""
        while data := conn.recv(1 << 16):
            said += data
        conn.sendall(said)
while True:
    threading.Thread(target=serve, args=(server.accept()[0],), daemon=True).start()
`)
	cmd.Args = append(cmd.Args, addr, fmt.Sprint(port))
	return cmd
}

// say connects to a port inside, sends text and returns the answer.
func say(t *testing.T, sb engine.Sandbox, port int, text []byte) []byte {
	t.Helper()
	c, err := sb.(engine.Dialer).Dial(probe.Patient(t), port)
	if err != nil {
		t.Errorf("Dial %d: %v", port, err)
		return nil
	}
	defer c.Close()
	go func() {
		_, _ = c.Write(text)
		_ = c.(interface{ CloseWrite() error }).CloseWrite()
	}()
	got, err := io.ReadAll(c)
	if err != nil {
		t.Errorf("read from port %d: %v", port, err)
	}
	return got
}

func checkDial(t *testing.T, s *suite) {
	for _, n := range []engine.Network{{Mode: engine.NetworkNone}, {Mode: engine.NetworkDefault}} {
		sb := s.create(t, engine.Spec{Network: n})
		addrs := []string{"127.0.0.1", "::1", "0.0.0.0", "::"}
		if n.Mode != engine.NetworkNone {
			addrs = append(addrs, strings.Fields(probe.Output(t, sb, probe.Sh("hostname -I")))...)
		}
		for i, addr := range addrs {
			port := 7100 + i
			probe.Start(t, sb, greeter(addr, port)).Stdout.Until(t, "listening")
			if got := say(t, sb, port, []byte("text")); string(got) != "hello\ntext" {
				t.Errorf("mode %s, on %s: %q", n.Mode, addr, got)
			}
		}
	}
}

func checkDialNobody(t *testing.T, s *suite) {
	sb := s.create(t, engine.Spec{})
	_, err := sb.(engine.Dialer).Dial(probe.Patient(t), 7200)
	probe.WantKind(t, "a port without a listener", err, errors.Unavailable)
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := sb.(engine.Dialer).Dial(ctx, 7200); err == nil {
		t.Error("Dial after the end of ctx worked")
	}
	if err := sb.Destroy(probe.Patient(t)); err != nil {
		t.Fatal(err)
	}
	_, err = sb.(engine.Dialer).Dial(probe.Patient(t), 7200)
	probe.WantKind(t, "a sandbox that has ended", err, errors.Conflict)
	probe.WantKind(t, "its network", sb.(engine.Networker).SetNetwork(probe.Patient(t),
		engine.Network{Mode: engine.NetworkNone}),
		errors.Conflict)
	_, err = sb.(engine.Networker).Denials(probe.Patient(t), 0)
	probe.WantKind(t, "its denials", err, errors.Conflict)
}

func checkHalfClose(t *testing.T, s *suite) {
	probe.Start(t, s.shared, greeter("127.0.0.1", 7300)).Stdout.Until(t, "listening")
	text := bytes.Repeat([]byte("0123456789abcdef"), 1<<16)
	if got := say(t, s.shared, 7300, text); !bytes.Equal(got, append([]byte("hello\n"), text...)) {
		t.Errorf("%d bytes came back of %d", len(got), len(text))
	}
}

func checkManyDials(t *testing.T, s *suite) {
	probe.Start(t, s.shared, greeter("127.0.0.1", 7400)).Stdout.Until(t, "listening")
	var wg sync.WaitGroup
	for i := range 100 {
		wg.Go(func() {
			text := fmt.Sprintf("connection %d", i)
			if got := say(t, s.shared, 7400, []byte(text)); string(got) != "hello\n"+text {
				t.Errorf("%s: %.100q", text, got)
			}
		})
	}
	wg.Wait()
}

func checkDialKilled(t *testing.T, s *suite) {
	sb := s.create(t, engine.Spec{})
	for range 2 {
		probe.Start(t, sb, greeter("127.0.0.1", 7500)).Stdout.Until(t, "listening")
		if got := say(t, sb, 7500, []byte("text")); string(got) != "hello\ntext" {
			t.Errorf("%q", got)
		}
		cmd := probe.Start(t, sb, probe.Sh("kill -9 -1"))
		if _, err := cmd.Wait(probe.Patient(t)); err != nil {
			t.Fatal(err)
		}
	}
}

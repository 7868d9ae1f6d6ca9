package enginetest

import (
	"bufio"
	"bytes"
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/RelevanceAI/harvest/client/errors"
	"github.com/RelevanceAI/harvest/internal/engine"
	"github.com/RelevanceAI/harvest/internal/engine/enginetest/probe"
)

var intercepts = needs(func(c engine.Capabilities) bool { return c.Intercept }, "the engine announces no interception")

var interceptChecks = []check{
	{"intercept/http", "connections that name an intercepted server are handed over, with all their data",
		both(networks, intercepts), checkIntercept},
	{"intercept/change", "a policy that changes, changes what is intercepted", both(networks, intercepts),
		checkInterceptChange},
	{"intercept/restart", "connections are handed to the next server", both(both(networks, intercepts), reopen),
		checkInterceptRestart},
	{"intercept/late", "a connection waits for a caller, and a caller for the end of the sandbox",
		both(networks, intercepts), checkInterceptLate},
}

// webServer accepts connections on an address of this machine, answers each request line with "server", and returns its
// address.
func webServer(t *testing.T) string {
	t.Helper()
	l, err := net.Listen("tcp", net.JoinHostPort(hostAddress(t), "0"))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = l.Close() })
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			go func() {
				defer c.Close()
				if _, err := bufio.NewReader(c).ReadString('\n'); err == nil {
					_, _ = io.WriteString(c, "HTTP/1.1 200 OK\r\nContent-Length: 6\r\n\r\nserver")
				}
			}()
		}
	}()
	return l.Addr().String()
}

// takeOver answers intercepted connections with "broker " and the body of each request, until the test ends.
func takeOver(t *testing.T, sb engine.Sandbox) {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan struct{})
	go func() {
		defer close(done)
		for {
			c, err := sb.(engine.Interceptor).Intercepted(ctx)
			if err != nil {
				return
			}
			go func() {
				defer c.Close()
				r, err := http.ReadRequest(bufio.NewReader(c))
				if err != nil {
					return
				}
				body, _ := io.ReadAll(r.Body)
				_, _ = fmt.Fprintf(c, "HTTP/1.1 200 OK\r\nConnection: close\r\n\r\nbroker %s %s %t %s", c.Name, c.Addr,
					c.TLS, body)
			}()
		}
	}()
	t.Cleanup(func() {
		cancel()
		<-done
	})
}

// post has the sandbox send a body of a size to a server, and returns the answer.
func post(t *testing.T, sb engine.Sandbox, to string, size int) string {
	t.Helper()
	cmd := python(`
import sys, http.client
c = http.client.HTTPConnection(sys.argv[1], timeout=60)
try:
    c.request("POST", "/", body=b"x" * int(sys.argv[2]))
    sys.stdout.write(c.getresponse().read().decode())
except OSError as e:
    print("failed")
`)
	cmd.Args = append(cmd.Args, to, fmt.Sprint(size))
	return probe.Output(t, sb, cmd)
}

// brokered returns the answer of takeOver to post.
func brokered(t *testing.T, to string, size int) string {
	t.Helper()
	host, _, err := net.SplitHostPort(to)
	if err != nil {
		t.Fatal(err)
	}
	return fmt.Sprintf("broker %s %s false %s", host, to, strings.Repeat("x", size))
}

// intercepted is a network that allows the host of a server, and intercepts servers.
func intercepted(t *testing.T, servers ...string) engine.Network {
	t.Helper()
	n := allowed(hostAddress(t))
	n.Intercept = servers
	return n
}

func checkIntercept(t *testing.T, s *suite) {
	one, two := webServer(t), webServer(t)
	sb := s.create(t, engine.Spec{Network: intercepted(t, one)})
	takeOver(t, sb)
	const large = 8 << 20
	for _, size := range []int{0, 1, large} {
		got, want := post(t, sb, one, size), brokered(t, one, size)
		if got != want {
			t.Errorf("%d bytes to %s: got %.80q (%d bytes), want %.80q", size, one, got, len(got), want)
		}
	}
	if got := post(t, sb, two, 1); got != "server" {
		t.Errorf("another server: got %q", got)
	}
}

func checkInterceptChange(t *testing.T, s *suite) {
	one, two := webServer(t), webServer(t)
	sb := s.create(t, engine.Spec{Network: intercepted(t, one)})
	takeOver(t, sb)
	setNetwork(t, sb, intercepted(t, two))
	if got := post(t, sb, one, 1); got != "server" {
		t.Errorf("a server that is no longer intercepted: got %q", got)
	}
	if got, want := post(t, sb, two, 1), brokered(t, two, 1); got != want {
		t.Errorf("a server that is intercepted now: got %q, want %q", got, want)
	}
	denied := intercepted(t, two)
	denied.Allow = []string{"192.0.2.1"}
	setNetwork(t, sb, denied)
	if got := post(t, sb, two, 1); got != "failed\n" {
		t.Errorf("an intercepted server that the policy does not allow: got %q", got)
	}
	bad := intercepted(t, "a b")
	probe.WantKind(t, "an invalid server", sb.(engine.Networker).SetNetwork(probe.Patient(t), bad), errors.Invalid)
}

func checkInterceptRestart(t *testing.T, s *suite) {
	s = s.separate(t)
	one := webServer(t)
	sb := s.create(t, engine.Spec{Network: intercepted(t, one)})
	s.restart(t)
	sb, _ = s.reopened(t, sb.Handle())
	takeOver(t, sb)
	if got, want := post(t, sb, one, 1), brokered(t, one, 1); got != want {
		t.Errorf("got %q, want %q", got, want)
	}
}

func checkInterceptLate(t *testing.T, s *suite) {
	one := webServer(t)
	sb := s.create(t, engine.Spec{Network: intercepted(t, one)})
	in := sb.(engine.Interceptor)
	for range 3 { // callers that give up take no connection with them
		ctx, cancel := context.WithCancel(t.Context())
		time.AfterFunc(10*time.Millisecond, cancel)
		if _, err := in.Intercepted(ctx); !errors.Is(err, errors.Canceled) {
			t.Errorf("a call that was canceled: %v", err)
		}
	}
	client := probe.Start(t, sb, python(fmt.Sprintf(`
import socket
s = socket.create_connection(%q.rsplit(":", 1), timeout=60)
s.sendall(b"GET / HTTP/1.1\r\nHost: %s\r\n\r\n")
print("sent", flush=True)
print(s.recv(100).decode(), flush=True)
`, one, one)))
	client.Stdout.Until(t, "sent")
	c, err := in.Intercepted(probe.Patient(t))
	if err != nil {
		t.Fatal(err)
	}
	line, err := bufio.NewReader(c).ReadBytes('\n')
	if err != nil || !bytes.HasPrefix(line, []byte("GET / ")) {
		t.Errorf("got %q, %v", line, err)
	}
	if _, err := io.WriteString(c, "answer"); err != nil {
		t.Error(err)
	}
	_ = c.Close()
	client.Expect(t, engine.Exit{}, "sent\nanswer\n")
	waiting := make(chan error, 1)
	go func() {
		_, err := in.Intercepted(probe.Patient(t))
		waiting <- err
	}()
	if err := sb.Destroy(probe.Patient(t)); err != nil {
		t.Fatal(err)
	}
	probe.WantKind(t, "Intercepted of a sandbox that has ended", <-waiting, errors.Conflict)
}

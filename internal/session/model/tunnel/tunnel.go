// Package tunnel carries requests for a model out of a sandbox. A small program in the sandbox
// listens on its loopback interface: one port is for the agent, the other for the server. The
// server connects into the sandbox (engine.Dialer) and answers HTTP/2 requests on that connection.
// Thus the sandbox needs no network, and can reach nothing new. While no server is connected,
// requests wait.
package tunnel

import (
	"context"
	"flag"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httputil"
	"strconv"
	"sync"
	"time"

	"github.com/RelevanceAI/harvest/client/errors"
)

// Program is the name of the program in the sandbox.
const Program = "harvest-model"

// The ports of the program in the sandbox.
const (
	AgentPort  = 47100 // for the agent
	ServerPort = 47101 // for the server
)

// URL returns the base URL for the agent.
func URL() string { return "http://127.0.0.1:" + strconv.Itoa(AgentPort) }

const (
	patience   = 2 * time.Minute  // maximum wait of a request for a server
	headerTime = 10 * time.Second // time limit for the header of a request
)

// Main runs the program until ctx ends, and returns the exit code. args are the arguments after its
// name.
func Main(ctx context.Context, args []string, _ io.Reader, stdout, stderr io.Writer) int {
	flags := flag.NewFlagSet(Program, flag.ContinueOnError)
	flags.SetOutput(stderr)
	agents := flags.Int("agents", AgentPort, "port for agents")
	servers := flags.Int("servers", ServerPort, "port for the server")
	if err := flags.Parse(args); err != nil {
		return 2
	}
	if err := run(ctx, *agents, *servers, stdout); err != nil {
		fmt.Fprintln(stderr, err)
		return 1
	}
	return 0
}

func run(ctx context.Context, agents, servers int, stdout io.Writer) error {
	var config net.ListenConfig
	fromAgents, err := config.Listen(ctx, "tcp", net.JoinHostPort("127.0.0.1", strconv.Itoa(agents)))
	if err != nil {
		return errors.Wrapf(err, "listen")
	}
	defer fromAgents.Close()
	fromServers, err := config.Listen(ctx, "tcp", net.JoinHostPort("127.0.0.1", strconv.Itoa(servers)))
	if err != nil {
		return errors.Wrapf(err, "listen")
	}
	defer fromServers.Close()
	fmt.Fprintln(stdout, fromAgents.Addr(), fromServers.Addr())
	l := &link{changed: make(chan struct{})}
	defer l.set(nil)
	go l.accept(ctx, fromServers)
	proxy := &httputil.ReverseProxy{
		Rewrite: func(p *httputil.ProxyRequest) {
			p.Out.URL.Scheme, p.Out.URL.Host = "http", "harvest"
		},
		Transport:     l,
		FlushInterval: -1,
		ErrorHandler: func(w http.ResponseWriter, _ *http.Request, _ error) {
			// The connection broke during the request: agents retry on this status.
			http.Error(w,
				`{"type":"error","error":{"type":"api_error","message":"Harvest: the server cannot be reached"}}`,
				http.StatusServiceUnavailable)
		},
	}
	s := &http.Server{ReadHeaderTimeout: headerTime, Handler: http.HandlerFunc(func(w http.ResponseWriter,
		r *http.Request) {
		if r.Header.Get("Upgrade") != "" { // the connection to the server cannot carry it
			http.Error(w, `{"error":{"type":"invalid_request_error","message":"Harvest: no WebSockets"}}`,
				http.StatusUpgradeRequired)
			return
		}
		// Otherwise, net/http closes the body of a request once the answer begins, and an early answer is cut.
		_ = http.NewResponseController(w).EnableFullDuplex()
		proxy.ServeHTTP(w, r)
	})}
	defer context.AfterFunc(ctx, func() { _ = s.Close() })()
	if err := s.Serve(fromAgents); err != nil && ctx.Err() == nil {
		return errors.Wrapf(err, "serve")
	}
	return nil
}

// link is the newest connection of a server. It is an http.RoundTripper.
type link struct {
	mu      sync.Mutex
	conn    *http.ClientConn // guarded by mu; nil while no server is connected
	changed chan struct{}    // guarded by mu; closed when conn changes
}

// set replaces the connection.
func (l *link) set(c *http.ClientConn) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.conn != nil {
		_ = l.conn.Close()
	}
	l.conn = c
	close(l.changed)
	l.changed = make(chan struct{})
}

// accept accepts connections of servers until the listener is closed. A new connection replaces the
// previous one.
func (l *link) accept(ctx context.Context, listener net.Listener) {
	for {
		conn, err := listener.Accept()
		if err != nil {
			return
		}
		t := &http.Transport{Protocols: new(http.Protocols), DisableCompression: true,
			DialContext: func(context.Context, string, string) (net.Conn, error) { return conn, nil }}
		t.Protocols.SetUnencryptedHTTP2(true)
		c, err := t.NewClientConn(ctx, "http", "harvest:80")
		if err != nil {
			_ = conn.Close()
			continue
		}
		l.set(c)
	}
}

// RoundTrip implements http.RoundTripper. It waits for a server.
func (l *link) RoundTrip(r *http.Request) (*http.Response, error) {
	timer := time.NewTimer(patience)
	defer timer.Stop()
	for {
		l.mu.Lock()
		c, changed := l.conn, l.changed
		l.mu.Unlock()
		if c != nil && c.Err() == nil {
			return c.RoundTrip(r)
		}
		select {
		case <-changed:
		case <-time.After(time.Second / 4): // c may have failed only now
		case <-timer.C:
			return nil, errors.Errorf("no server came for %s", patience)
		case <-r.Context().Done():
			return nil, r.Context().Err()
		}
	}
}

// Serve answers the requests on conn, a connection to ServerPort, until conn or ctx ends. It closes
// conn. Requests in progress at the end of ctx are aborted.
func Serve(ctx context.Context, conn net.Conn, handler http.Handler) error {
	one := &single{Conn: conn, closed: make(chan struct{})}
	s := &http.Server{Handler: handler, Protocols: new(http.Protocols), ReadHeaderTimeout: headerTime,
		BaseContext: func(net.Listener) context.Context { return ctx }}
	s.Protocols.SetUnencryptedHTTP2(true)
	defer context.AfterFunc(ctx, func() { _ = s.Close() })()
	err := s.Serve(&listener{one: one})
	_ = s.Close()
	if ctx.Err() != nil || errors.Is(err, io.EOF) {
		return nil
	}
	return errors.Wrapf(err, "serve a sandbox")
}

// listener returns one connection, and ends when that is closed.
type listener struct {
	mu   sync.Mutex
	used bool // guarded by mu
	one  *single
}

// Accept implements net.Listener.
func (l *listener) Accept() (net.Conn, error) {
	l.mu.Lock()
	first := !l.used
	l.used = true
	l.mu.Unlock()
	if first {
		return l.one, nil
	}
	<-l.one.closed
	return nil, io.EOF
}

// Close implements net.Listener.
func (l *listener) Close() error { return l.one.Close() }

// Addr implements net.Listener.
func (l *listener) Addr() net.Addr { return l.one.LocalAddr() }

// single signals when it is closed.
type single struct {
	net.Conn
	once   sync.Once
	closed chan struct{}
}

// Close implements net.Conn.
func (c *single) Close() error {
	err := c.Conn.Close()
	c.once.Do(func() { close(c.closed) })
	return err
}

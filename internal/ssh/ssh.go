// Package ssh serves the sandboxes of a server over SSH: shells, commands, files and forwarded connections. The name of
// the user is that of a sandbox. No shell of the server's machine can be reached.
//
// The protocol is that of RFC 4250 to 4254, with the extensions of OpenSSH for Unix sockets and keep-alive
// (https://github.com/openssh/openssh-portable/blob/master/PROTOCOL).
package ssh

import (
	"cmp"
	"context"
	"net"
	"sync"
	"time"

	gossh "golang.org/x/crypto/ssh"

	"github.com/RelevanceAI/harvest/client/errors"
	"github.com/RelevanceAI/harvest/internal/base/account"
	"github.com/RelevanceAI/harvest/internal/base/logf"
	"github.com/RelevanceAI/harvest/internal/fleet"
)

const (
	// handshakeTime limits the time until a client has proved who it is.
	handshakeTime = 30 * time.Second
	// mostChannels limits the open channels of a connection.
	mostChannels = 128
	// mostHandshakes limits the connections of clients that have not proved who they are, and mostOfOne those from one
	// address.
	mostHandshakes = 64
	mostOfOne      = 8
	// mostDetail limits the recorded part of a command, in bytes.
	mostDetail = 4 << 10
	// acceptPause is the longest pause after connections could not be accepted.
	acceptPause = time.Second
)

// Options of a Server. All fields are required, except where noted.
type Options struct {
	Fleet *fleet.Fleet
	Host  gossh.Signer // key of the server
	// Login returns the principal of a public key, in the wire format of RFC 4253, section 6.6. Unauthenticated: it is
	// unknown.
	Login func(ctx context.Context, key []byte) (account.Principal, error)
	// Used records that a principal has proved its key. It may be nil.
	Used func(ctx context.Context, who account.Principal)
	// Follow returns a context that ends with the key of a principal.
	Follow func(ctx context.Context, who account.Principal) (context.Context, context.CancelFunc)
	// Find returns the ID of the sandbox for the name of a user.
	Find func(ctx context.Context, who account.Principal, name string) (string, error)
	// Audit records that a user has begun something in a sandbox. It may be nil.
	Audit func(ctx context.Context, begun Begun)
}

// Begun is what a user has begun.
type Begun struct {
	Who     account.Principal
	From    string // address of the client, without a port; "" for this machine's Unix socket
	Sandbox string // ID
	What    string // such as "shell", "exec", "sftp" or "forward"
	Detail  string // the command, or the address; at most mostDetail bytes of it
}

// Server serves connections. All methods may be called concurrently.
type Server struct {
	opts Options

	mu      sync.Mutex
	waiting map[string]int // guarded by mu: connections of unknown clients, by address
}

// New returns a server.
func New(opts Options) *Server {
	return &Server{opts: opts, waiting: map[string]int{}}
}

// admit reports whether an unknown client may connect. The caller calls leave when the client is known, or has gone.
func (s *Server) admit(address string) (leave func(), ok bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	all := 0
	for _, n := range s.waiting {
		all += n
	}
	if all >= mostHandshakes || s.waiting[address] >= mostOfOne {
		return nil, false
	}
	s.waiting[address]++
	return sync.OnceFunc(func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		if s.waiting[address]--; s.waiting[address] == 0 {
			delete(s.waiting, address)
		}
	}), true
}

// Serve serves the connections of a listener until ctx ends or the listener fails. Then it closes all connections, and
// waits for them.
func (s *Server) Serve(ctx context.Context, l net.Listener) error {
	ctx, cancel := context.WithCancel(ctx)
	var all sync.WaitGroup
	defer all.Wait()
	defer cancel()
	defer context.AfterFunc(ctx, func() { _ = l.Close() })()
	pause := time.Duration(0)
	for {
		conn, err := l.Accept()
		if ctx.Err() != nil {
			return nil
		}
		if errors.Is(err, net.ErrClosed) {
			return errors.Wrapf(err, "accept connections of SSH")
		}
		if err != nil { // too many open files, for example: the others go on
			pause = min(max(2*pause, 5*time.Millisecond), acceptPause)
			logf.Warnf(ctx, "accept connections of SSH: %v; again in %s", err, pause)
			select {
			case <-time.After(pause):
			case <-ctx.Done():
			}
			continue
		}
		pause = 0
		from := addressOf(conn)
		leave, ok := s.admit(from)
		if !ok { // RFC 4253, 4.2: the client sees that the connection is closed
			_ = conn.Close()
			continue
		}
		all.Go(func() {
			defer leave()
			s.serve(ctx, conn, client{from: from, known: leave})
		})
	}
}

// addressOf returns the address of a client without its port.
func addressOf(conn net.Conn) string {
	host, _, err := net.SplitHostPort(conn.RemoteAddr().String())
	if err != nil {
		return conn.RemoteAddr().String()
	}
	return host
}

// client describes a client before its handshake.
type client struct {
	who     *account.Principal // nil: it has to prove itself with a key
	sandbox string             // "" if the name of the user is that of the sandbox
	from    string             // address
	known   func()             // called when it has proved itself, or has failed to
}

// ServeKnown serves a connection to a sandbox of a client that is known, such as from the HTTP request that the
// connection came with, until it or ctx ends. Then it closes the connection. from is the client's address.
func (s *Server) ServeKnown(ctx context.Context, stream net.Conn, who account.Principal, sandbox, from string) {
	s.serve(ctx, stream, client{who: &who, sandbox: sandbox, from: from, known: func() {}})
}

// serve serves one connection.
func (s *Server) serve(ctx context.Context, stream net.Conn, from client) {
	defer stream.Close()
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	defer context.AfterFunc(ctx, func() { _ = stream.Close() })()
	timer := time.AfterFunc(handshakeTime, func() { _ = stream.Close() })
	client, channels, requests, err := gossh.NewServerConn(stream, s.config(ctx, from.who))
	timer.Stop()
	from.known()
	if err != nil {
		logf.Debugf(ctx, "an SSH client at %s has not signed in: %v", from.from, err)
		return
	}
	defer client.Close()
	who := from.who
	if who == nil {
		proven, ok := client.Permissions.ExtraData[principalKey{}].(account.Principal)
		if !ok {
			logf.Errorf(ctx, "an SSH client has signed in without a key")
			return
		}
		if who = &proven; s.opts.Used != nil {
			s.opts.Used(ctx, proven)
		}
	}
	followed, leave := s.opts.Follow(ctx, *who)
	defer leave()
	defer context.AfterFunc(followed, func() { _ = client.Close() })()
	c := &conn{server: s, ctx: logf.With(followed, "account", who.Account), who: *who, client: client,
		name: cmp.Or(from.sandbox, client.User()), from: from.from, listeners: map[string]*listener{}}
	c.serve(channels, requests)
}

// principalKey is the key of the principal in the permissions of a proven key.
type principalKey struct{}

// config returns the configuration for one connection.
func (s *Server) config(ctx context.Context, who *account.Principal) *gossh.ServerConfig {
	config := &gossh.ServerConfig{ServerVersion: "SSH-2.0-Harvest", MaxAuthTries: 20}
	config.AddHostKey(s.opts.Host)
	if who != nil {
		config.NoClientAuth = true
		return config
	}
	// The library calls it for each key that a client offers. The permissions of the key that it proves are those of
	// the connection.
	config.PublicKeyCallback = func(_ gossh.ConnMetadata, key gossh.PublicKey) (*gossh.Permissions, error) {
		found, err := s.opts.Login(ctx, key.Marshal())
		if err != nil {
			return nil, err
		}
		return &gossh.Permissions{ExtraData: map[any]any{principalKey{}: found}}, nil
	}
	return config
}

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
	// mostHandshakes limits the connections of clients that have not proved who they are.
	mostHandshakes = 64
)

// Options of a Server. All fields are required, except where noted.
type Options struct {
	Fleet *fleet.Fleet
	Host  gossh.Signer // key of the server
	// Login returns the principal of a public key, in the wire format of RFC 4253, section 6.6. Unauthenticated: it is
	// unknown.
	Login func(ctx context.Context, key []byte) (account.Principal, error)
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
	From    net.Addr
	Sandbox string // ID
	What    string // such as "shell", "exec", "sftp" or "forward"
	Detail  string // the command, or the address
}

// Server serves connections. All methods may be called concurrently.
type Server struct {
	opts    Options
	waiting chan struct{} // has a place for each connection of an unknown client
}

// New returns a server.
func New(opts Options) *Server {
	return &Server{opts: opts, waiting: make(chan struct{}, mostHandshakes)}
}

// Serve serves the connections of a listener until ctx ends or the listener fails. Then it closes all connections, and
// waits for them.
func (s *Server) Serve(ctx context.Context, l net.Listener) error {
	ctx, cancel := context.WithCancel(ctx)
	var all sync.WaitGroup
	defer all.Wait()
	defer cancel()
	defer context.AfterFunc(ctx, func() { _ = l.Close() })()
	for {
		conn, err := l.Accept()
		if ctx.Err() != nil {
			return nil
		}
		if err != nil {
			return errors.Wrapf(err, "accept connections of SSH")
		}
		select {
		case s.waiting <- struct{}{}:
		default: // RFC 4253, 4.2: the client sees that the connection is closed
			_ = conn.Close()
			continue
		}
		all.Go(func() { s.serve(ctx, conn, nil, "") })
	}
}

// ServeKnown serves a connection to a sandbox of a client that is known, such as from the HTTP request that the
// connection came with, until it or ctx ends. Then it closes the connection.
func (s *Server) ServeKnown(ctx context.Context, stream net.Conn, who account.Principal, sandbox string) {
	s.serve(ctx, stream, &who, sandbox)
}

// serve serves one connection. who is nil if the client has to prove itself with a key. sandbox is "" if the name of
// the user is that of the sandbox.
func (s *Server) serve(ctx context.Context, stream net.Conn, who *account.Principal, sandbox string) {
	defer stream.Close()
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	defer context.AfterFunc(ctx, func() { _ = stream.Close() })()
	known := sync.OnceFunc(func() {
		if who == nil {
			<-s.waiting
		}
	})
	defer known()
	timer := time.AfterFunc(handshakeTime, func() { _ = stream.Close() })
	client, channels, requests, err := gossh.NewServerConn(stream, s.config(ctx, who))
	timer.Stop()
	known()
	if err != nil {
		logf.Debugf(ctx, "an SSH client at %v has not signed in: %v", stream.RemoteAddr(), err)
		return
	}
	defer client.Close()
	if who == nil {
		proven, ok := client.Permissions.ExtraData[principalKey{}].(account.Principal)
		if !ok {
			logf.Errorf(ctx, "an SSH client has signed in without a key")
			return
		}
		who = &proven
	}
	followed, leave := s.opts.Follow(ctx, *who)
	defer leave()
	defer context.AfterFunc(followed, func() { _ = client.Close() })()
	c := &conn{server: s, ctx: logf.With(followed, "account", who.Account), who: *who, client: client,
		name: cmp.Or(sandbox, client.User()), listeners: map[string]*listener{}}
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

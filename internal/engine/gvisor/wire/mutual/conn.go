package mutual

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"net"
	"sync"
	"time"

	"github.com/RelevanceAI/harvest/client/errors"
	"github.com/RelevanceAI/harvest/internal/engine/gvisor/wire"
)

// handshakeTime is how long the other end may take to prove its identity.
const handshakeTime = 10 * time.Second

// maxHandshakes is how many connections may be in their handshake at a time. More of them wait.
const maxHandshakes = 64

// Connect makes a connection to the keeper of the sandbox id of conn, which it closes if it returns an error. Denied
// if the other end is not that keeper. Its result is for wire.Client.Connect.
func (a *Authority) Connect(ctx context.Context, conn net.Conn, id string) (*wire.Conn, error) {
	cert, key, err := a.leaf(id, x509.ExtKeyUsageClientAuth, clientLife)
	if err != nil {
		return nil, errors.Join(err, conn.Close())
	}
	secured := tls.Client(conn, &tls.Config{MinVersion: tls.VersionTLS13,
		Certificates: []tls.Certificate{{Certificate: [][]byte{cert.Raw}, PrivateKey: key}},
		// VerifyConnection verifies more than the names of hosts, which the keepers' certificates do not have.
		InsecureSkipVerify: true,
		VerifyConnection: func(state tls.ConnectionState) error {
			return verify(state, a.cert, id, x509.ExtKeyUsageServerAuth, a.now())
		}})
	ctx, cancel := context.WithTimeout(ctx, handshakeTime)
	defer cancel()
	if err := secured.HandshakeContext(ctx); err != nil {
		_ = conn.Close() // the handshake's error is the cause
		if errors.Is(err, errors.Denied) {
			return nil, err
		}
		return nil, errors.Explainf(err, errors.Unavailable, "the keeper of the sandbox %q does not answer", id)
	}
	return wire.NewConn(secured), nil
}

// Listener accepts the connections of one installation's server to the keeper of one sandbox. It implements
// net.Listener. Accept returns connections whose other end has proved its identity.
type Listener struct {
	net.Listener
	now      func() time.Time
	accepted chan net.Conn
	done     chan struct{} // closed when the inner listener fails
	err      error         // valid once done is closed

	mu        sync.Mutex
	config    *tls.Config           // guarded by mu
	handshake map[net.Conn]struct{} // connections in their handshake; guarded by mu
	closed    bool                  // guarded by mu
}

// Listen returns a Listener for the connections of inner.
func Listen(inner net.Listener, c Credentials) (*Listener, error) {
	return listen(inner, c, time.Now)
}

func listen(inner net.Listener, c Credentials, now func() time.Time) (*Listener, error) {
	l := &Listener{Listener: inner, now: now, accepted: make(chan net.Conn), done: make(chan struct{}),
		handshake: map[net.Conn]struct{}{}}
	if err := l.Identify(c); err != nil {
		return nil, err
	}
	go l.serve()
	return l, nil
}

// Identify replaces the credentials, for new connections: when a claim gives a warm sandbox its ID, or before the
// credentials expire.
func (l *Listener) Identify(c Credentials) error {
	pair, err := tls.X509KeyPair(c.Certificate, c.Key)
	if err != nil {
		return errors.Wrapf(err, "parse the credentials of a keeper")
	}
	block, _ := pem.Decode(c.Authority)
	if block == nil {
		return errors.Errorf("the credentials of a keeper have no authority")
	}
	authority, err := x509.ParseCertificate(block.Bytes)
	if err != nil {
		return errors.Wrapf(err, "parse the authority of a keeper")
	}
	if c.ID == "" || len(pair.Leaf.URIs) != 1 || pair.Leaf.URIs[0].String() != name(c.ID).String() {
		return errors.Errorf("the credentials of a keeper are not those of the sandbox %q", c.ID)
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.config = &tls.Config{MinVersion: tls.VersionTLS13, Certificates: []tls.Certificate{pair},
		ClientAuth: tls.RequireAnyClientCert, // VerifyConnection verifies it
		VerifyConnection: func(state tls.ConnectionState) error {
			return verify(state, authority, c.ID, x509.ExtKeyUsageClientAuth, l.now())
		},
		SessionTicketsDisabled: true} // each connection proves its identity
	return nil
}

// serve accepts connections until the inner listener fails.
func (l *Listener) serve() {
	slots := make(chan struct{}, maxHandshakes)
	for {
		slots <- struct{}{}
		conn, err := l.Listener.Accept()
		if err != nil {
			l.err = err
			close(l.done)
			return
		}
		go func() {
			secured := l.secure(conn)
			<-slots
			if secured == nil {
				return
			}
			select {
			case l.accepted <- secured:
			case <-l.done:
				_ = secured.Close()
			}
		}()
	}
}

// secure returns conn after the other end has proved its identity, or closes it and returns nil.
func (l *Listener) secure(conn net.Conn) net.Conn {
	l.mu.Lock()
	config := l.config
	if l.closed {
		l.mu.Unlock()
		_ = conn.Close()
		return nil
	}
	l.handshake[conn] = struct{}{}
	l.mu.Unlock()
	secured := tls.Server(conn, config)
	err := conn.SetDeadline(time.Now().Add(handshakeTime))
	if err == nil {
		err = secured.Handshake()
	}
	if err == nil {
		err = conn.SetDeadline(time.Time{})
	}
	l.mu.Lock()
	delete(l.handshake, conn)
	l.mu.Unlock()
	if err != nil {
		_ = conn.Close() // the other end gets an alert; a keeper has no log for strangers
		return nil
	}
	return secured
}

// Accept implements net.Listener.
func (l *Listener) Accept() (net.Conn, error) {
	select {
	case conn := <-l.accepted:
		return conn, nil
	case <-l.done:
		return nil, l.err
	}
}

// Close implements net.Listener. It also closes the connections that are in their handshake.
func (l *Listener) Close() error {
	err := l.Listener.Close()
	l.mu.Lock()
	defer l.mu.Unlock()
	l.closed = true
	for conn := range l.handshake {
		_ = conn.Close()
	}
	return err
}

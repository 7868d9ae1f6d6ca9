// Package lending connects sandboxes with the broker of credentials: it finds the bound secrets of a sandbox, makes the
// sandbox trust the broker, and takes its intercepted connections.
package lending

import (
	"context"
	"crypto/x509"
	"maps"
	"net"
	"slices"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"github.com/RelevanceAI/harvest/client/errors"
	"github.com/RelevanceAI/harvest/internal/base/logf"
	"github.com/RelevanceAI/harvest/internal/base/secret"
	"github.com/RelevanceAI/harvest/internal/engine"
	"github.com/RelevanceAI/harvest/internal/fleet/broker"
	"github.com/RelevanceAI/harvest/internal/fleet/record"
)

// Server lends the bound secrets of a Vault. Its methods may be called concurrently.
type Server struct {
	secrets *secret.Vault
	broker  *broker.Broker
	ctx     context.Context
	tasks   *sync.WaitGroup
}

// New returns a server that works until the end of ctx, and counts its goroutines in tasks. secrets may be nil: then
// nothing is lent. roots are the authorities of hosts; nil means those of this machine.
func New(ctx context.Context, secrets *secret.Vault, tasks *sync.WaitGroup, roots *x509.CertPool) *Server {
	s := &Server{secrets: secrets, broker: broker.New(ctx, broker.Options{Roots: roots}), ctx: ctx, tasks: tasks}
	tasks.Go(func() {
		<-ctx.Done()
		_ = s.broker.Close()
	})
	return s
}

// Sandbox is a sandbox that may borrow. Its functions may be called concurrently.
type Sandbox struct {
	ID      string
	Account string           // owner of the secrets
	Lent    func() []string  // names of the secrets of which it has placeholders
	Hosts   func() []string  // servers of the credentials that were given, also by an earlier server
	PerTurn func() bool      // credentials may be used only while LendNow says so
	Report  func(record.Use) // takes note of a use
	End     func(record.Use) // ends the sandbox, because of a use that a binding forbids
}

// Borrower is a sandbox with what it borrows. Its methods may be called concurrently.
type Borrower struct {
	server  *Server
	sandbox Sandbox

	given chan struct{} // closed by the first Give
	uses  *uses
	now   atomic.Bool // the sandbox may use its credentials, if they are lent per turn

	mu       sync.Mutex
	followed engine.Interceptor  // guarded by mu; that was followed last
	gifts    []broker.Credential // guarded by mu
}

// Of returns the borrower of a sandbox.
func (s *Server) Of(sandbox Sandbox) *Borrower {
	return &Borrower{server: s, sandbox: sandbox, given: make(chan struct{}),
		uses: newUses(s.ctx, sandbox.Report)}
}

// Give gives the sandbox credentials that are no secrets of its account, in place of those before.
func (b *Borrower) Give(all []broker.Credential) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.gifts == nil {
		close(b.given)
		b.gifts = []broker.Credential{}
	}
	b.gifts = append(b.gifts[:0:0], all...)
}

// givingTime is how long requests wait for the credentials that an earlier server had been given.
const givingTime = 30 * time.Second

// gift returns the credentials that were given.
func (b *Borrower) gift(ctx context.Context) ([]broker.Credential, error) {
	if len(b.sandbox.Hosts()) == 0 {
		return nil, nil
	}
	timer := time.NewTimer(givingTime)
	defer timer.Stop()
	select {
	case <-b.given:
	case <-ctx.Done():
		return nil, errors.Wrapf(ctx.Err(), "wait for credentials")
	case <-timer.C:
		return nil, errors.Newf(errors.Unavailable, "the credentials of the sandbox are not known yet")
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.gifts, nil
}

// lent returns the credentials of the account's secrets of which the sandbox has placeholders.
func (b *Borrower) lent(ctx context.Context) ([]broker.Credential, error) {
	names := b.sandbox.Lent()
	if b.server.secrets == nil || len(names) == 0 {
		return nil, nil
	}
	return b.server.secrets.Credentials(ctx, b.sandbox.Account, names...)
}

// credentials returns all credentials of the sandbox.
func (b *Borrower) credentials(ctx context.Context) ([]broker.Credential, error) {
	given, err := b.gift(ctx)
	if err != nil {
		return nil, err
	}
	lent, err := b.lent(ctx)
	all := slices.Concat(given, lent)
	if b.sandbox.PerTurn() && !b.now.Load() {
		for i := range all {
			all[i].Withheld = "is lent only while the agent answers a prompt"
		}
	}
	return all, err
}

// LendNow lets the sandbox use its credentials, or ends that, if they are lent per turn.
func (b *Borrower) LendNow(now bool) { b.now.Store(now) }

// Hosts returns the servers to intercept, as engine.Network names them: none if no secret of the sandbox is bound. A
// server with TLS is intercepted without it, too, so that placeholders in plain requests are refused.
func (b *Borrower) Hosts(ctx context.Context) ([]string, error) {
	found, err := b.lent(ctx)
	if err != nil {
		return nil, err
	}
	all := append(Hosts(found), b.sandbox.Hosts()...)
	slices.Sort(all)
	return slices.Compact(all), nil
}

// Hosts returns the servers of credentials, as engine.Network names them.
func Hosts(of []broker.Credential) []string {
	hosts := map[string]bool{}
	for _, c := range of {
		for _, p := range c.Binding.Places {
			hosts[net.JoinHostPort(p.Host.Name, strconv.Itoa(p.Host.Port))] = true
			if !p.Host.Plain {
				hosts[net.JoinHostPort(p.Host.Name, "80")] = true
			}
		}
	}
	return slices.Sorted(maps.Keys(hosts))
}

// waiting is how many connections of a sandbox can be taken at once.
const waiting = 4

// Follow takes the intercepted connections of a sandbox until it ends or is lost. It does nothing if it already follows
// box, or if the sandbox has borrowed nothing.
func (b *Borrower) Follow(box engine.Sandbox) {
	in, ok := box.(engine.Interceptor)
	borrows := len(b.sandbox.Lent()) + len(b.sandbox.Hosts())
	b.mu.Lock()
	defer b.mu.Unlock()
	if !ok || b.followed == in || borrows == 0 {
		return
	}
	b.followed = in
	for range waiting {
		b.server.tasks.Go(func() { b.take(in) })
	}
}

func (b *Borrower) take(in engine.Interceptor) {
	ctx := b.server.ctx
	for {
		c, err := in.Intercepted(ctx)
		if err != nil {
			return // the sandbox has ended, or is lost
		}
		signs, err := b.server.secrets.Authority(ctx, b.sandbox.Account)
		if err != nil {
			logf.Errorf(ctx, "the authority for credentials of sandbox %s: %v", b.sandbox.ID, err)
			_ = c.Close()
			continue
		}
		b.server.broker.Serve(broker.Sandbox{ID: b.sandbox.ID, Authority: signs, Credentials: b.credentials,
			Report: b.uses.add, End: b.sandbox.End}, c)
	}
}

// Notify calls f after each change of a secret, with its account and name.
func (s *Server) Notify(f func(account, name string)) {
	if s.secrets != nil {
		s.secrets.Notify(func(account, name string) { s.tasks.Go(func() { f(account, name) }) })
	}
}

// Check returns Unsupported if an engine cannot keep the values of bound secrets outside of sandboxes.
func Check(bound []string, e engine.Engine) error {
	if e.Capabilities().Intercept {
		return nil
	}
	return errors.Remedy(errors.Newf(errors.Unsupported,
		"the secret %q is bound to hosts, but the engine %s cannot keep its values outside of the sandbox", bound[0],
		e.Name()), "let the sandbox have the values with --reveal, or use another engine")
}

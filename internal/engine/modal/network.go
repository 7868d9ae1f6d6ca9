package modal

import (
	"context"
	"net"

	sdk "github.com/modal-labs/modal-client/go"

	"github.com/RelevanceAI/harvest/client/errors"
	"github.com/RelevanceAI/harvest/internal/engine"
	"github.com/RelevanceAI/harvest/internal/engine/gvisor/wire"
	"github.com/RelevanceAI/harvest/internal/engine/modal/pipe"
	"github.com/RelevanceAI/harvest/internal/engine/modal/policy"
)

// tagNetwork is the tag with the active policy, in the form of policy.String. Modal does not report the policy.
const tagNetwork = "harvest-network"

// changing is the value of the tag while the policy is being changed.
const changing = "changing"

// Modal's wildcards for addresses and names.
const (
	everyAddress = "0.0.0.0/0"
	everyName    = "*"
)

// network sets the network policy of a new sandbox.
func network(params *sdk.SandboxCreateParams, n engine.Network) error {
	p, err := policy.Of(n)
	if err != nil {
		return err
	}
	params.Tags[tagNetwork] = p.String()
	switch {
	case p.None():
		params.BlockNetwork = true
	case !p.Open:
		params.OutboundCIDRAllowlist, params.OutboundDomainAllowlist = &sdk.Allowlist{Entries: p.CIDRs},
			&sdk.Allowlist{Entries: p.Domains}
	}
	return nil
}

// SetNetwork implements engine.Networker. It does not send a policy that is already active: Modal's API for
// running sandboxes can express less than the one for new sandboxes. For a running sandbox, "none" is an empty
// list.
func (s *Sandbox) SetNetwork(ctx context.Context, n engine.Network) error {
	p, err := policy.Of(n)
	if err != nil {
		return err
	}
	if s.e.endOf(s.h.Ref) != nil {
		return s.over()
	}
	if err := s.setPolicy(ctx, p); err != nil {
		if ctx.Err() == nil && s.hasEnded(ctx) {
			return s.over()
		}
		return errors.Stage(err, "network")
	}
	return nil
}

func (s *Sandbox) setPolicy(ctx context.Context, p policy.Policy) error {
	tags, err := ask(ctx, s.e, "look at a sandbox", func(ctx context.Context) (map[string]string,
		error) {
		return s.box.GetTags(ctx, nil)
	})
	if err != nil {
		return err
	}
	if tags[tagNetwork] == p.String() {
		if s.hasEnded(ctx) {
			return s.over()
		}
		return nil
	}
	note := func(text string) error {
		tags[tagNetwork] = text
		_, err := ask(ctx, s.e, "note a sandbox's network", func(ctx context.Context) (struct{}, error) {
			return struct{}{}, s.box.SetTags(ctx, tags, nil)
		})
		return err
	}
	if err := note(changing); err != nil {
		return err
	}
	cidrs, domains := p.CIDRs, p.Domains
	if p.Open {
		cidrs, domains = []string{everyAddress}, []string{everyName}
	}
	if _, err := ask(ctx, s.e, "change a sandbox's network", func(ctx context.Context) (struct{}, error) {
		return struct{}{}, s.box.UpdateNetworkPolicy(ctx, &sdk.SandboxUpdateNetworkPolicyParams{
			OutboundCIDRAllowlist:   &sdk.Allowlist{Entries: cidrs},
			OutboundDomainAllowlist: &sdk.Allowlist{Entries: domains},
		})
	}); err != nil {
		return err
	}
	return note(p.String())
}

// Denials implements engine.Networker. Modal does not report denials, so it waits for the end of the sandbox.
func (s *Sandbox) Denials(ctx context.Context, _ uint64) ([]engine.Denial, error) {
	if s.e.endOf(s.h.Ref) == nil {
		if _, err := s.Wait(ctx); err != nil {
			return nil, err
		}
	}
	return nil, s.over()
}

// Dial implements engine.Dialer.
func (s *Sandbox) Dial(ctx context.Context, port int) (net.Conn, error) {
	conn, err := s.connect(ctx)
	if err != nil {
		return nil, err
	}
	stop := context.AfterFunc(ctx, func() { _ = conn.Close() })
	if err = conn.SendJSON(wire.KindRequest,
		wire.Request{Op: wire.Connect, Dial: &wire.DialArgs{Port: port}}); err == nil {
		_, err = conn.ReceiveReply(nil)
	}
	if !stop() {
		err = errors.Wrapf(ctx.Err(), "connect to port %d of sandbox %s", port, s.h.ID)
	}
	if err != nil {
		_ = conn.Close()
		return nil, err
	}
	return pipe.Port(conn), nil
}

var (
	_ engine.Networker = (*Sandbox)(nil)
	_ engine.Dialer    = (*Sandbox)(nil)
)

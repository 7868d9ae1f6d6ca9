package modal

import (
	"context"
	"net/netip"
	"slices"
	"strconv"

	pb "github.com/modal-labs/modal-client/go/proto/modal_proto"

	"github.com/RelevanceAI/harvest/client/errors"
	"github.com/RelevanceAI/harvest/internal/base/logf"
	"github.com/RelevanceAI/harvest/internal/fleet"
	"github.com/RelevanceAI/harvest/internal/fleet/record"
)

// A sandbox and its sidecars share a private network, in which they find each other by name. A sandbox whose network
// is blocked is not in it; one whose lists of allowed targets are empty is.

// privateAddr returns an address of a private network. They are the same in all of them, since they are not connected.
// The main container has the first one.
func privateAddr(number int) netip.Addr { return netip.AddrFrom4([4]byte{10, 104, 97, byte(number)}) }

const (
	mainNumber = 1
	lastNumber = 254
)

// freeNumber returns the lowest number that no sidecar has.
func freeNumber(sidecars []record.Sandbox) (int, error) {
	for n := mainNumber + 1; n <= lastNumber; n++ {
		if !slices.ContainsFunc(sidecars, func(sb record.Sandbox) bool { return numberOf(sb) == n }) {
			return n, nil
		}
	}
	return 0, errors.Remedy(errors.Newf(errors.Exhausted, "the sandbox has %d sidecars", lastNumber-mainNumber),
		"terminate one of them first")
}

// numberOf returns the number of a sidecar in its private network, 0 for one of an earlier version.
func numberOf(sb record.Sandbox) int {
	n, _ := strconv.Atoi(sb.Tags[tagNumber])
	return n
}

// joinSidecars puts b and its sidecars in their private network, if the engine has such networks.
func (s *Server) joinSidecars(ctx context.Context, b *box) error {
	if !s.opts.Fleet.Capabilities().Private {
		return nil
	}
	s.joining.Lock() // the last one to join sees all others
	defer s.joining.Unlock()
	sidecars, err := b.sidecars(ctx, false)
	if err != nil {
		return err
	}
	var group []fleet.Member
	for _, sb := range sidecars {
		if n := numberOf(sb); n > mainNumber {
			group = append(group, fleet.Member{ID: sb.ID, Addr: privateAddr(n), Names: []string{sb.Tags[tagName]}})
		}
	}
	main := []fleet.Member{{ID: b.id, Addr: privateAddr(mainNumber), Names: []string{mainSandbox}}}
	b.mu.Lock()
	blocked := b.blocked
	b.mu.Unlock()
	if !blocked {
		return s.opts.Fleet.Join(ctx, b.account, append(group, main...))
	}
	return errors.Join(s.opts.Fleet.Join(ctx, b.account, main), s.opts.Fleet.Join(ctx, b.account, group))
}

// partSidecar removes an ended sidecar from the private network.
func (s *Server) partSidecar(ctx context.Context, sb record.Sandbox) {
	if sb.Tags[tagSidecar] == "" {
		return
	}
	b, err := s.boxes.get(ctx, sb.Account, sb.Tags[tagSidecar])
	if err == nil {
		err = s.joinSidecars(ctx, b)
	}
	if err != nil && errors.KindOf(err) != errors.NotFound {
		logf.Warnf(ctx, "remove %s from its private network: %v", sb.ID, err)
	}
}

// setBlocked records whether a client has blocked the network, and puts that into effect in the private network.
func (b *box) setBlocked(ctx context.Context, access *pb.NetworkAccess) error {
	blocked := access.GetNetworkAccessType() == pb.NetworkAccess_BLOCKED
	b.mu.Lock()
	same := b.blocked == blocked
	b.blocked = blocked
	b.mu.Unlock()
	if same {
		return nil
	}
	b.write(ctx, note{Blocked: &blocked})
	return b.s.joinSidecars(ctx, b)
}

// blockedBy reports whether a definition blocks the network.
func blockedBy(def *pb.Sandbox) bool {
	kind := def.GetNetworkAccess().GetNetworkAccessType()
	return kind == pb.NetworkAccess_BLOCKED || def.GetBlockNetwork() && kind != pb.NetworkAccess_ALLOWLIST
}

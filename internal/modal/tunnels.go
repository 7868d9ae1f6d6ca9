package modal

import (
	"context"
	"net"

	pb "github.com/modal-labs/modal-client/go/proto/modal_proto"

	"github.com/RelevanceAI/harvest/internal/base/logf"
	"github.com/RelevanceAI/harvest/internal/modal/tunnels"
)

// openTunnels opens the ports of b's definition, at their earlier addresses if they had any.
func (s *Server) openTunnels(ctx context.Context, b *box) (err error) {
	var holes []tunnels.Hole
	for _, spec := range b.def.GetOpenPorts().GetPorts() {
		holes = append(holes, tunnels.Hole{Port: spec.GetPort(), Plain: spec.GetUnencrypted(),
			H2: spec.GetTunnelType() == pb.TunnelType_TUNNEL_TYPE_H2})
	}
	b.ports, err = s.tunnels.Open(ctx, tunnels.Sandbox{ID: b.id, Allowed: b.def.GetInboundCidrAllowlist(),
		Go: s.tasks.Go, Dial: func(ctx context.Context, port uint32) (net.Conn, error) {
			return s.opts.Fleet.Dial(ctx, b.account, b.id, int(port))
		}}, holes, b.ports)
	return err
}

// reopenTunnels opens the tunnels of a sandbox that an earlier server created.
func (s *Server) reopenTunnels(ctx context.Context, b *box) {
	if err := s.openTunnels(ctx, b); err != nil {
		logf.Errorf(ctx, "open the tunnels of %s: %v", b.id, err)
	}
}

// tunnelsOf describes b's tunnels to clients.
func tunnelsOf(b *box) []*pb.TunnelData {
	b.mu.Lock()
	defer b.mu.Unlock()
	var list []*pb.TunnelData
	for _, h := range b.ports {
		data := pb.TunnelData_builder{ContainerPort: h.Port}
		data.Host, data.Port = tunnels.Split(h.Address)
		if h.Plain {
			host, port := tunnels.Split(h.Raw)
			data.UnencryptedHost, data.UnencryptedPort = &host, &port
		}
		list = append(list, data.Build())
	}
	return list
}

// SandboxGetTunnelsV2 implements ModalClient.
func (c *control) SandboxGetTunnelsV2(ctx context.Context,
	req *pb.SandboxGetTunnelsRequest) (*pb.SandboxGetTunnelsResponse, error) {
	b, err := c.s.box(ctx, req.GetSandboxId())
	if err != nil {
		return nil, err
	}
	return pb.SandboxGetTunnelsResponse_builder{Result: succeeded(), Tunnels: tunnelsOf(b)}.Build(), nil
}

// SandboxGetTunnels implements ModalClient.
func (c *control) SandboxGetTunnels(ctx context.Context,
	req *pb.SandboxGetTunnelsRequest) (*pb.SandboxGetTunnelsResponse, error) {
	return c.SandboxGetTunnelsV2(ctx, req)
}

package modal

import (
	"context"
	"time"

	pb "github.com/modal-labs/modal-client/go/proto/modal_proto"
	"google.golang.org/grpc/codes"

	"github.com/RelevanceAI/harvest/client/errors"
)

// The interval of readiness probes, and the time limit of one probe command.
const (
	probeEvery = 100 * time.Millisecond
	probeLimit = 30 * time.Second
)

// SandboxWaitUntilReady implements TaskCommandRouter.
func (r *router) SandboxWaitUntilReady(ctx context.Context,
	req *pb.SandboxWaitUntilReadyTcrRequest) (*pb.SandboxWaitUntilReadyTcrResponse, error) {
	b, err := r.box(ctx, req.GetTaskId())
	if err != nil {
		return nil, err
	}
	at, err := b.untilReady(ctx, wait(req.GetTimeout()))
	if err != nil {
		return nil, err
	}
	return pb.SandboxWaitUntilReadyTcrResponse_builder{ReadyAt: seconds(at)}.Build(), nil
}

// SandboxWaitUntilReady implements ModalClient.
func (c *control) SandboxWaitUntilReady(ctx context.Context,
	req *pb.SandboxWaitUntilReadyRequest) (*pb.SandboxWaitUntilReadyResponse, error) {
	b, err := c.s.box(ctx, req.GetSandboxId())
	if err != nil {
		return nil, err
	}
	at, err := b.untilReady(ctx, wait(req.GetTimeout()))
	if err != nil {
		return nil, err
	}
	return pb.SandboxWaitUntilReadyResponse_builder{ReadyAt: seconds(at)}.Build(), nil
}

// untilReady repeats the sandbox's probe until it succeeds. Kinds: Timeout, Conflict (the sandbox has ended), Invalid
// (the sandbox has no probe).
func (b *box) untilReady(ctx context.Context, limit time.Duration) (time.Time, error) {
	if p := b.def.GetReadinessProbe(); p.GetTcpPort() == 0 && !p.HasExecCommand() {
		err := errors.Newf(errors.Invalid, "the sandbox has no readiness probe, so there is nothing to wait for")
		return time.Time{}, errors.Remedy(err, "create it with readiness_probe")
	}
	if limit > 0 {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, limit)
		defer cancel()
	}
	every := time.Duration(b.def.GetReadinessProbe().GetIntervalMs()) * time.Millisecond
	tick := time.NewTicker(max(every, probeEvery))
	defer tick.Stop()
	for {
		b.mu.Lock()
		at := b.ready
		b.mu.Unlock()
		if !at.IsZero() {
			return at, nil
		}
		select {
		case <-b.ended:
			return time.Time{}, errors.Newf(errors.Conflict, "the sandbox has ended before it was ready")
		default:
		}
		if b.probe(ctx) {
			now := time.Now()
			b.mu.Lock()
			b.ready = now
			b.mu.Unlock()
			b.write(ctx, note{Ready: now.UnixMilli()})
			return now, nil
		}
		select {
		case <-tick.C:
		case <-b.ended:
		case <-ctx.Done():
			return time.Time{}, withCode(errors.Newf(errors.Timeout, "the sandbox was not ready in time"),
				codes.DeadlineExceeded)
		}
	}
}

// probe runs the probe once.
func (b *box) probe(ctx context.Context) bool {
	p := b.def.GetReadinessProbe()
	switch {
	case p.GetTcpPort() > 0:
		c, err := b.s.opts.Fleet.Dial(ctx, b.account, b.id, int(p.GetTcpPort()))
		if err != nil {
			return false
		}
		_ = c.Close() // only the connect matters
		return true
	case p.HasExecCommand():
		c, err := b.start(ctx, b.id, order{args: p.GetExecCommand().GetArgv(), limit: probeLimit, detached: true})
		if err != nil {
			return false
		}
		c.in.leave()
		return c.await(ctx) == nil && c.fault == nil && c.result.ReturnCode == 0 && !c.result.TimedOut
	}
	return false
}

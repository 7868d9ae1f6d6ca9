package pod

import (
	"context"

	"github.com/RelevanceAI/harvest/client/errors"
	"github.com/RelevanceAI/harvest/internal/engine"
	"github.com/RelevanceAI/harvest/internal/engine/gvisor/wire"
	"github.com/RelevanceAI/harvest/internal/engine/gvisor/wire/mutual"
)

// Claim makes the warm sandbox of a pod the one of the spec. conn is a connection to the agent, which Claim closes. From
// then on, the agent has the credentials c, which must be those of the sandbox.
func Claim(ctx context.Context, conn *wire.Conn, spec engine.Spec, c mutual.Credentials) error {
	return call(ctx, conn, request{Op: opClaim, Spec: &spec, Credentials: &c}, func(s wire.Stage) {
		if spec.Stage != nil {
			spec.Stage(s.Name, s.Took)
		}
	})
}

// Identify replaces the agent's credentials before they expire. It closes conn.
func Identify(ctx context.Context, conn *wire.Conn, c mutual.Credentials) error {
	return call(ctx, conn, request{Op: opIdentify, Credentials: &c}, nil)
}

func call(ctx context.Context, conn *wire.Conn, req request, stage func(wire.Stage)) error {
	defer conn.Close()
	defer context.AfterFunc(ctx, func() { _ = conn.Close() })()
	err := conn.SendJSON(wire.KindRequest, req)
	if err == nil {
		_, err = conn.ReceiveReply(stage)
	}
	if err != nil && ctx.Err() != nil {
		return errors.Wrapf(context.Cause(ctx), "ask the pod of a sandbox")
	}
	return err
}

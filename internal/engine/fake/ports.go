package fake

import (
	"context"
	"net"
	"strconv"

	"github.com/RelevanceAI/harvest/client/errors"
	"github.com/RelevanceAI/harvest/internal/engine"
)

// WithPorts is an Engine whose sandboxes have the ports of this machine.
type WithPorts struct{ *Engine }

// Create implements engine.Engine.
func (e WithPorts) Create(ctx context.Context, spec engine.Spec) (engine.Sandbox, error) {
	box, err := e.Engine.Create(ctx, spec)
	return dialer{box}, err
}

// dialer is a sandbox that has the ports of this machine.
type dialer struct{ engine.Sandbox }

// Dial implements engine.Dialer.
func (dialer) Dial(ctx context.Context, port int) (net.Conn, error) {
	conn, err := new(net.Dialer).DialContext(ctx, "tcp", "127.0.0.1:"+strconv.Itoa(port))
	if err != nil {
		return nil, errors.Remedy(errors.Explainf(err, errors.Unavailable, "nothing listens on port %d in the sandbox",
			port), "start it")
	}
	return conn, nil
}

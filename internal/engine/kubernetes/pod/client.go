package pod

import (
	"context"
	"encoding/json"
	"io"

	"github.com/RelevanceAI/harvest/client/errors"
	"github.com/RelevanceAI/harvest/internal/engine"
	"github.com/RelevanceAI/harvest/internal/engine/gvisor/wire"
	"github.com/RelevanceAI/harvest/internal/engine/gvisor/wire/mutual"
)

// Claim makes the warm sandbox of a pod the one of the spec. img is the spec's image, whose files Send has sent. conn
// is a connection to the agent, which Claim closes. From then on, the agent has the credentials c, which must be those
// of the sandbox.
func Claim(ctx context.Context, conn *wire.Conn, spec engine.Spec, img Image, c mutual.Credentials) error {
	return call(ctx, conn, request{Op: opClaim, Spec: &spec, Image: &img, Credentials: &c}, func(s wire.Stage) {
		if spec.Stage != nil {
			spec.Stage(s.Name, s.Took)
		}
	})
}

// Prepare does the work of an expected claim of a warm sandbox in advance (engine.Preparer). It closes conn.
func Prepare(ctx context.Context, conn *wire.Conn, img Image, warmUp []string) error {
	return call(ctx, conn, request{Op: opPrepare, Image: &img, WarmUp: warmUp}, nil)
}

// Identify replaces the agent's credentials before they expire. It closes conn.
func Identify(ctx context.Context, conn *wire.Conn, c mutual.Credentials) error {
	return call(ctx, conn, request{Op: opIdentify, Credentials: &c}, nil)
}

// Leave tells the pod that it need not linger when Kubernetes ends it. It closes conn.
func Leave(ctx context.Context, conn *wire.Conn) error {
	return call(ctx, conn, request{Op: opLeave}, nil)
}

// Describe returns what the pod's sandbox was made of. It closes conn.
func Describe(ctx context.Context, conn *wire.Conn) (Claimed, error) {
	defer conn.Close()
	defer context.AfterFunc(ctx, func() { _ = conn.Close() })()
	var claimed Claimed
	err := conn.SendJSON(wire.KindRequest, request{Op: opDescribe})
	if err == nil {
		err = receive(conn, &claimed)
	}
	if err != nil && ctx.Err() != nil {
		err = errors.Wrapf(context.Cause(ctx), "ask the pod of a sandbox")
	}
	return claimed, err
}

// receive reads a Reply with a payload of this package into v. It returns a Failure as its error.
func receive(conn *wire.Conn, v any) error {
	kind, payload, err := conn.Receive()
	switch {
	case err != nil:
		return errors.Explainf(err, errors.Unavailable, "the connection to the pod of a sandbox broke")
	case kind == wire.KindFailure:
		var f wire.Failure
		if err := json.Unmarshal(payload, &f); err != nil {
			return errors.Wrapf(err, "read the answer of a pod")
		}
		return f.Err()
	}
	return errors.Wrapf(json.Unmarshal(payload, v), "read the answer of a pod")
}

// Send sends a file of an image, whose SHA-256 digest has the hexadecimal digits digest, unless the pod has it. It
// reports whether the pod had it. It closes conn.
func Send(ctx context.Context, conn *wire.Conn, digest string, content io.Reader) (had bool, err error) {
	defer conn.Close()
	defer context.AfterFunc(ctx, func() { _ = conn.Close() })()
	had, err = send(conn, digest, content)
	if err != nil && ctx.Err() != nil {
		err = errors.Wrapf(context.Cause(ctx), "send a file of an image")
	}
	return had, err
}

func send(conn *wire.Conn, digest string, content io.Reader) (had bool, err error) {
	if err := conn.SendJSON(wire.KindRequest, request{Op: opFile, Digest: digest}); err != nil {
		return false, err
	}
	reply, err := conn.ReceiveReply(nil)
	if err != nil {
		return false, err
	}
	if reply.Input == nil || reply.Input.Ended {
		return true, nil
	}
	const size = 256 << 10 // of a frame
	buf := make([]byte, size)
	for err == nil {
		var n int
		n, err = io.ReadFull(content, buf)
		if n > 0 {
			if err := conn.Send(wire.KindStdin, buf[:n]); err != nil {
				return false, err
			}
		}
	}
	if err != io.EOF && err != io.ErrUnexpectedEOF {
		return false, errors.Wrapf(err, "read a file of an image")
	}
	if err := conn.Send(wire.KindStdinEnd, nil); err != nil {
		return false, err
	}
	_, err = conn.ReceiveReply(nil)
	return false, err
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

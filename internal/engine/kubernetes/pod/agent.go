// Package pod is the agent in the pod of a sandbox: the pod's first process, and the server's way to it.
//
// The agent has a warm sandbox of an engine, and serves one connection after another over mutual TLS. It answers its
// own requests, and passes all others to the sandbox's keeper, whose protocol is package wire.
package pod

import (
	"context"
	"encoding/json"
	"io"
	"net"
	"sync"
	"time"

	"github.com/RelevanceAI/harvest/client/errors"
	"github.com/RelevanceAI/harvest/internal/engine"
	"github.com/RelevanceAI/harvest/internal/engine/gvisor/wire"
	"github.com/RelevanceAI/harvest/internal/engine/gvisor/wire/mutual"
	"github.com/RelevanceAI/harvest/internal/engine/volume"
)

// The agent's own operations.
const (
	// opClaim is answered with Stage*, then a Reply: it makes the warm sandbox the one of a spec.
	opClaim wire.Operation = "pod-claim"
	// opPrepare is answered with a Reply: it does the work of an expected claim in advance.
	opPrepare wire.Operation = "pod-prepare"
	// opIdentify is answered with a Reply when new connections need the new credentials.
	opIdentify wire.Operation = "pod-identify"
	// opDescribe is answered with a Reply whose payload is a Claimed.
	opDescribe wire.Operation = "pod-describe"
	// opLeave is answered with a Reply: the pod need not linger.
	opLeave wire.Operation = "pod-leave"
	// opFile is answered with a Reply with Input. Unless Input has Ended, Stdin*, StdinEnd and another Reply follow: it
	// stores a file of an image.
	opFile wire.Operation = "pod-file"
)

// request is the first frame of a connection, if it is for the agent: a wire.Request has the same Op.
type request struct {
	Op          wire.Operation
	Spec        *engine.Spec        `json:",omitempty"` // of opClaim
	Image       *Image              `json:",omitempty"` // of opClaim and opPrepare; its files were sent before
	WarmUp      []string            `json:",omitempty"` // of opPrepare
	Credentials *mutual.Credentials `json:",omitempty"`
	Digest      string              `json:",omitempty"` // of opFile
	Volume      *Volume             `json:",omitempty"` // of opSync
}

// Agent serves the sandbox of a pod. It implements nothing of the sandbox itself.
type Agent struct {
	warm    engine.Warm
	connect func(context.Context) (net.Conn, error)
	at      *mutual.Listener
	images  *Images
	syncs   syncs
	left    chan struct{} // has a value after opLeave

	mu      sync.Mutex     // held during a claim
	id      string         // of the sandbox, "" before the claim; guarded by mu
	sandbox engine.Sandbox // nil before the claim; guarded by mu
	claimed *Claimed       // of the sandbox, nil before the claim; guarded by mu
	ended   bool           // Destroy was asked for; guarded by mu
}

// Claimed describes the sandbox of a pod, which no record of the server does: another one can continue with it.
type Claimed struct {
	Spec  engine.Spec
	Image Image
}

// Parts are what an agent works with.
type Parts struct {
	Warm   engine.Warm
	Images *Images // of the sandbox's engine
	// Volumes are those of the sandbox's engine, nil for none. Notes is a directory for records about them.
	Volumes *volume.Local
	Notes   string
	Connect func(context.Context) (net.Conn, error) // connects to the sandbox's keeper
}

// New returns an agent that serves the sandbox at a listener.
func New(p Parts, at *mutual.Listener) *Agent {
	return &Agent{warm: p.Warm, images: p.Images, connect: p.Connect, at: at, left: make(chan struct{}, 1),
		syncs: syncs{volumes: p.Volumes, notes: p.Notes}}
}

// Serve answers connections until the listener fails, whose error it returns, or ctx ends. Then it closes the listener
// and all connections.
func (a *Agent) Serve(ctx context.Context) error {
	ctx, cancel := context.WithCancel(ctx)
	var served sync.WaitGroup
	defer served.Wait()
	defer cancel()
	defer context.AfterFunc(ctx, func() { _ = a.at.Close() })()
	for {
		conn, err := a.at.Accept()
		if err != nil {
			return errors.Wrapf(err, "accept connections of the server")
		}
		served.Go(func() { a.serve(ctx, wire.NewConn(conn)) })
	}
}

// serve answers one connection.
func (a *Agent) serve(ctx context.Context, conn *wire.Conn) {
	defer conn.Close()
	defer context.AfterFunc(ctx, func() { _ = conn.Close() })()
	kind, payload, err := conn.Receive()
	if err != nil {
		return // the server has left
	}
	var req request
	if kind != wire.KindRequest {
		err = errors.Errorf("expected a request, got frame %q", kind)
	} else if err = json.Unmarshal(payload, &req); err == nil {
		err = a.answer(ctx, conn, req, payload)
	}
	if err != nil {
		_ = conn.SendJSON(wire.KindFailure, wire.FailureOf(err)) // the server may have left
	}
}

func (a *Agent) answer(ctx context.Context, conn *wire.Conn, req request, payload []byte) error {
	switch {
	case req.Op == opClaim && req.Spec != nil && req.Image != nil && req.Credentials != nil:
		return a.claim(ctx, conn, *req.Spec, *req.Image, *req.Credentials)
	case req.Op == opPrepare && req.Image != nil:
		return a.prepare(ctx, conn, *req.Image, req.WarmUp)
	case req.Op == opFile:
		return a.images.receive(conn, req.Digest)
	case req.Op == opSync && req.Volume != nil:
		return a.syncs.answer(ctx, conn, *req.Volume)
	case req.Op == opIdentify && req.Credentials != nil:
		if err := a.Identify(*req.Credentials); err != nil {
			return err
		}
		return conn.SendJSON(wire.KindReply, wire.Reply{})
	case req.Op == opDescribe:
		return a.describe(conn)
	case req.Op == opLeave:
		err := conn.SendJSON(wire.KindReply, wire.Reply{})
		select {
		case a.left <- struct{}{}:
		default: // it was said before
		}
		return err
	case req.Op == wire.Wait:
		return a.wait(ctx, conn)
	case req.Op == wire.Destroy:
		return a.destroy(ctx, conn)
	case forKeeper(req.Op):
		return a.relay(ctx, conn, payload)
	default:
		return errors.Newf(errors.Unsupported, "the sandbox's pod cannot do %q", req.Op)
	}
}

// forKeeper reports whether the keeper may get a request from the server. The others name files of the machine, or are
// those of the pod's own engine.
func forKeeper(op wire.Operation) bool {
	switch op {
	case wire.Start, wire.Attach, wire.Control, wire.Processes, wire.Info, wire.Usage, wire.Snapshot,
		wire.SetNetwork, wire.Denials, wire.Intercepted, wire.Dial:
		return true
	}
	return false
}

// relay passes the connection to the keeper. It returns an error only before the keeper has got a byte.
func (a *Agent) relay(ctx context.Context, conn *wire.Conn, payload []byte) error {
	near, err := a.connect(ctx)
	if err != nil {
		return errors.Explainf(err, errors.Conflict, "the sandbox has ended")
	}
	defer near.Close()
	defer context.AfterFunc(ctx, func() { _ = near.Close() })()
	if err := wire.NewConn(near).Send(wire.KindRequest, payload); err != nil {
		return err
	}
	carry(conn.Stream(), near)
	return nil
}

// lingerTime is how long a server may take to read the keeper's last words.
const lingerTime = 30 * time.Second

// carry copies between the server and the keeper until the keeper has ended its direction and the server has left.
// A keeper ends a connection when it has answered, and may leave input unread. The server's input is then read and
// dropped: the kernel would reset a TCP connection that is closed before, and the server would lose the answer.
func carry(server, keeper net.Conn) {
	done := make(chan struct{})
	go func() {
		defer close(done)
		_, err := io.Copy(keeper, server)
		if half, ok := keeper.(interface{ CloseWrite() error }); ok && err == nil {
			err = half.CloseWrite()
		}
		if err != nil {
			_, _ = io.Copy(io.Discard, server) // its end is all that matters
		}
	}()
	_, _ = io.Copy(server, keeper) // the server sees the end
	if half, ok := server.(interface{ CloseWrite() error }); !ok || half.CloseWrite() != nil {
		return
	}
	select {
	case <-done:
	case <-time.After(lingerTime):
	}
}

// claim makes the warm sandbox the one of the spec, and binds the agent's identity to it. A failed claim leaves no
// sandbox: the server deletes the pod.
func (a *Agent) claim(ctx context.Context, conn *wire.Conn, spec engine.Spec, img Image, c mutual.Credentials) error {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.id != "" {
		return errors.Newf(errors.Conflict, "the sandbox is taken")
	}
	if spec.ID == "" || c.ID != spec.ID {
		return errors.Errorf("the credentials for %q are not those of the sandbox %q", c.ID, spec.ID)
	}
	if spec.Image != img.ID {
		return errors.Errorf("the image %q is not the one of the sandbox, %q", img.ID, spec.Image)
	}
	if err := Supported(spec); err != nil {
		return err
	}
	if err := a.images.add(img); err != nil {
		return err
	}
	claimed := &Claimed{spec, img}
	spec.Stage = func(name string, took time.Duration) {
		_ = conn.SendJSON(wire.KindStage, wire.Stage{Name: name, Took: took}) // the reply fails, too
	}
	sandbox, err := a.warm.Claim(ctx, spec)
	if err != nil {
		return err
	}
	if err := a.at.Identify(c); err != nil {
		return errors.Join(err, sandbox.Destroy(context.WithoutCancel(ctx)))
	}
	a.id, a.sandbox, a.claimed = spec.ID, sandbox, claimed
	return conn.SendJSON(wire.KindReply, wire.Reply{})
}

// Supported returns Unsupported for a spec that names things of the server's machine.
func Supported(spec engine.Spec) error {
	both := map[string]bool{} // by volume; whether it is read-only
	for _, m := range spec.Mounts {
		if m.Volume == "" {
			return errors.Remedy(errors.Newf(errors.Unsupported,
				"directories and buckets of this machine cannot be in sandboxes in pods"), "use a volume")
		}
		if readOnly, again := both[m.Volume]; again && readOnly != m.ReadOnly {
			return errors.Remedy(errors.Newf(errors.Unsupported,
				"a sandbox in a pod has one view of a volume, either read-only or writable"),
				"mount the volume the same way at each path")
		}
		both[m.Volume] = m.ReadOnly
	}
	switch {
	case spec.Checkpoint != "":
		return errors.Newf(errors.Unsupported, "sandboxes in pods cannot start from a checkpoint yet")
	case spec.GPU != "", len(spec.Secrets) > 0:
		return errors.Newf(errors.Unsupported, "sandboxes in pods have no GPUs, and no secrets of a provider")
	}
	return nil
}

// prepare does the work of an expected claim, if the sandbox can do it in advance.
func (a *Agent) prepare(ctx context.Context, conn *wire.Conn, img Image, warmUp []string) error {
	a.mu.Lock()
	defer a.mu.Unlock()
	preparer, ok := a.warm.(engine.Preparer)
	if !ok {
		return errors.Newf(errors.Unsupported, "the sandbox of the pod cannot be prepared")
	}
	if err := a.images.add(img); err != nil {
		return err
	}
	if err := preparer.Prepare(ctx, img.ID, warmUp); err != nil {
		return err
	}
	return conn.SendJSON(wire.KindReply, wire.Reply{})
}

// Linger waits until the server has saved what it wants of a sandbox that it has not ended yet, at most for a time.
func (a *Agent) Linger(most time.Duration) {
	a.mu.Lock()
	over := a.sandbox == nil || a.ended
	a.mu.Unlock()
	if over {
		return
	}
	select {
	case <-a.left:
	case <-time.After(most):
	}
}

func (a *Agent) describe(conn *wire.Conn) error {
	a.mu.Lock()
	claimed := a.claimed
	a.mu.Unlock()
	if claimed == nil {
		return errors.Newf(errors.Conflict, "the pod has no sandbox yet")
	}
	return conn.SendJSON(wire.KindReply, claimed)
}

// destroy ends the sandbox through its engine, so that Wait says how it ended.
func (a *Agent) destroy(ctx context.Context, conn *wire.Conn) error {
	a.mu.Lock()
	sandbox := a.sandbox
	a.ended = true
	a.mu.Unlock()
	if sandbox != nil {
		if err := sandbox.Destroy(context.WithoutCancel(ctx)); err != nil {
			return err
		}
	}
	return conn.SendJSON(wire.KindReply, wire.Reply{})
}

// wait answers when the sandbox has ended. Unlike the keeper, the engine also knows how after the keeper's end.
func (a *Agent) wait(ctx context.Context, conn *wire.Conn) error {
	a.mu.Lock()
	sandbox := a.sandbox
	a.mu.Unlock()
	if sandbox == nil {
		return errors.Newf(errors.Conflict, "the pod has no sandbox yet")
	}
	end, err := sandbox.Wait(ctx)
	if err != nil {
		return err
	}
	return conn.SendJSON(wire.KindReply, wire.Reply{End: &end})
}

// Identify replaces the credentials, before they expire or after the server was away. They must be those of the
// sandbox.
func (a *Agent) Identify(c mutual.Credentials) error {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.id != "" && c.ID != a.id {
		return errors.Errorf("the credentials for %q are not those of the sandbox %q", c.ID, a.id)
	}
	return a.at.Identify(c)
}

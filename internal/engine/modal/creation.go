package modal

import (
	"context"
	"crypto/rand"
	"strings"
	"sync"
	"time"

	sdk "github.com/modal-labs/modal-client/go"
	pb "github.com/modal-labs/modal-client/go/proto/modal_proto"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"

	"github.com/RelevanceAI/harvest/client/errors"
	"github.com/RelevanceAI/harvest/internal/base/logf"
	"github.com/RelevanceAI/harvest/internal/engine/modal/call"
	"github.com/RelevanceAI/harvest/internal/engine/modal/records"
)

const (
	tagCreation = "harvest-creation" // identifies the creation that made a sandbox
	keyHeader   = "x-idempotency-key"
	// lostFor is how long endLost looks for a sandbox of a failed creation: Modal may complete a request after
	// its client has disconnected.
	lostFor   = 10 * time.Minute
	lostPause = time.Minute // longest delay between two looks
)

// creation is the creation of one sandbox, in as many attempts as it takes. The SDK gives each call a new
// idempotency key, with which two calls would create two sandboxes. The attempts of a creation share a key
// until Modal definitely refuses.
type creation struct {
	mu    sync.Mutex
	key   string // guarded by mu; "" before the first attempt
	doubt bool   // guarded by mu; Modal may have made a sandbox whose answer was lost
	queue bool   // guarded by mu; Modal has named the sandbox, which still waits for a GPU
}

type creationKey struct{}

// in returns a context that makes a create request part of this creation.
func (c *creation) in(ctx context.Context) context.Context {
	return context.WithValue(ctx, creationKey{}, c)
}

// doubtful reports whether there may be a sandbox whose answer was lost.
func (c *creation) doubtful() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.doubt
}

// explain returns a more specific error for a sandbox with a GPU.
func (c *creation) explain(err error, gpu string, patience time.Duration) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	switch kind := errors.KindOf(err); {
	case gpu == "":
	case c.queue && errors.Is(err, context.DeadlineExceeded):
		return errors.Remedy(errors.Newf(errors.Exhausted, "no GPU %.100s became free at Modal within %v", gpu,
			patience),
			"try again later, or with another kind of GPU")
	case kind == errors.Unsupported:
		return errors.Remedy(err,
			"leave the GPU out, or have the sandbox run at Modal itself (without MODAL_SERVER_URL)")
	}
	return err
}

// send makes one attempt.
func (c *creation) send(ctx context.Context, invoke func(ctx context.Context) error) error {
	md, _ := metadata.FromOutgoingContext(ctx)
	c.mu.Lock()
	before := c.doubt
	c.doubt = true
	if keys := md.Get(keyHeader); c.key == "" && len(keys) > 0 {
		c.key = keys[len(keys)-1]
	}
	if c.key != "" {
		md.Set(keyHeader, c.key)
		ctx = metadata.NewOutgoingContext(ctx, md)
	}
	c.mu.Unlock()
	err := invoke(ctx)
	c.mu.Lock()
	defer c.mu.Unlock()
	c.queue = err == nil
	if refused(err) {
		if c.doubt = before; !before {
			c.key = "" // a server may have cached its answer under the key
		}
	}
	return err
}

// refused reports whether err proves that Modal did not execute the request.
func refused(err error) bool {
	switch status.Code(err) {
	case codes.InvalidArgument, codes.NotFound, codes.AlreadyExists, codes.PermissionDenied, codes.ResourceExhausted,
		codes.FailedPrecondition, codes.OutOfRange,
		codes.Unimplemented, codes.Unauthenticated:
		return true
	}
	return false
}

// keep gives all requests of one creation the same idempotency key.
func keep(ctx context.Context, method string, req, reply any, conn *grpc.ClientConn, invoke grpc.UnaryInvoker,
	opts ...grpc.CallOption) error {
	c, _ := ctx.Value(creationKey{}).(*creation)
	switch req.(type) {
	case *pb.SandboxCreateV2Request, *pb.SandboxCreateRequest:
	default:
		c = nil
	}
	if c == nil {
		return invoke(ctx, method, req, reply, conn, opts...)
	}
	return c.send(ctx, func(ctx context.Context) error { return invoke(ctx, method, req, reply, conn, opts...) })
}

// start creates a sandbox that belongs to no account.
func (e *Engine) start(ctx context.Context, img records.Image, params *sdk.SandboxCreateParams) (*sdk.Sandbox, error) {
	return e.startIn(ctx, e.apps.own, img, params)
}

// startIn creates a sandbox. params must have tags. If the caller gives up, startIn still waits for Modal's
// answer, so that it can end a sandbox that Modal has made by then. It also ends one that Modal made without an
// answer.
func (e *Engine) startIn(ctx context.Context, app *sdk.App, img records.Image,
	params *sdk.SandboxCreateParams) (*sdk.Sandbox, error) {
	from, err := e.image(ctx, img.Modal)
	if err != nil {
		return nil, err
	}
	patient, c := context.WithoutCancel(ctx), &creation{}
	params.Tags[tagCreation] = strings.ToLower(rand.Text())
	box, err := call.Attempt(patient, ctx, e.patience.Create, "create a sandbox",
		func(ctx context.Context) (*sdk.Sandbox, error) {
			return e.client.Sandboxes.Create(c.in(ctx), app, from, params)
		})
	if err != nil && errors.KindOf(err) == errors.Conflict { // possibly with a sandbox of an earlier attempt
		if made, look := e.made(patient, app, params); made != nil && look == nil {
			box, err = made, nil
		}
	}
	err = c.explain(err, params.GPU, e.patience.Create)
	if err != nil && c.doubtful() {
		go e.endLost(app, params)
	}
	if err != nil && ctx.Err() != nil {
		err = errors.Wrapf(ctx.Err(), "create a sandbox")
	}
	if err == nil && ctx.Err() != nil {
		if end := e.terminate(patient, box); end != nil {
			logf.Errorf(ctx, "an abandoned sandbox was not ended: %v", end)
		}
		return nil, errors.Wrapf(ctx.Err(), "create a sandbox")
	}
	return box, err
}

// image looks up an image at Modal.
func (e *Engine) image(ctx context.Context, id string) (*sdk.Image, error) {
	return ask(ctx, e, "find an image",
		func(ctx context.Context) (*sdk.Image, error) { return e.client.Images.FromID(ctx, id, nil) })
}

// made returns the running sandbox of a creation, or nil.
func (e *Engine) made(ctx context.Context, app *sdk.App, params *sdk.SandboxCreateParams) (*sdk.Sandbox, error) {
	box, err := ask(ctx, e, "look for a sandbox", func(ctx context.Context) (*sdk.Sandbox, error) {
		if params.Name != "" {
			return e.client.Sandboxes.FromName(ctx, app.Name, params.Name, nil)
		}
		all, err := e.client.Sandboxes.List(ctx, &sdk.SandboxListParams{AppID: app.AppID,
			Tags: map[string]string{tagCreation: params.Tags[tagCreation]}})
		if err != nil {
			return nil, err
		}
		for box, err := range all {
			return box, err
		}
		return nil, nil
	})
	if err != nil && errors.KindOf(err) == errors.NotFound || err == nil && box == nil {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	tags, err := ask(ctx, e, "look at a sandbox", func(ctx context.Context) (map[string]string,
		error) {
		return box.GetTags(ctx, nil)
	})
	if err != nil || tags[tagServer] != e.server || tags[tagCreation] != params.Tags[tagCreation] {
		return nil, err
	}
	return box, nil
}

// endLost ends a sandbox that Modal may have made for a failed creation, as soon as it becomes visible. If the
// engine is closed before that, the next one finds the sandbox by its tags. Time during which Modal is
// unreachable does not count, since that is when answers get lost.
func (e *Engine) endLost(app *sdk.App, params *sdk.SandboxCreateParams) {
	var answered time.Time // time of the first successful look
	for pause := call.FirstPause; answered.IsZero() || time.Since(answered) < lostFor; pause = min(2*pause, lostPause) {
		box, err := e.made(e.ctx, app, params)
		if err == nil && box != nil {
			if err = e.terminate(e.ctx, box); err == nil {
				logf.Warnf(e.ctx, "ended sandbox %s at Modal, whose creation was not confirmed", box.SandboxID)
				return
			}
		}
		if err != nil {
			logf.Debugf(e.ctx, "look for the sandbox of an unconfirmed creation: %v", err)
		} else if answered.IsZero() {
			answered = time.Now()
		}
		if call.Pause(e.ctx, pause) != nil {
			return
		}
	}
}

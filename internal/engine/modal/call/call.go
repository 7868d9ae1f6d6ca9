// Package call makes calls of Modal: with deadlines, which its SDK lacks, with retries, and with errors that say what
// to do.
package call

import (
	"context"
	"strings"
	"time"

	sdk "github.com/modal-labs/modal-client/go"
	pb "github.com/modal-labs/modal-client/go/proto/modal_proto"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/RelevanceAI/harvest/client/errors"
	"github.com/RelevanceAI/harvest/internal/engine/modal/credentials"
	"github.com/RelevanceAI/harvest/internal/engine/modal/inside"
)

// Patience is how long the engine waits for Modal, since the SDK itself waits indefinitely.
type Patience struct {
	Open     time.Duration // to open the engine, for which a starting server waits
	Call     time.Duration // for the answer to one call
	Stream   time.Duration // for the next message of a stream; the SDK has Modal end streams after 55 seconds
	Poll     time.Duration // to find out whether a sandbox has ended
	Create   time.Duration // to create a sandbox
	Link     time.Duration // for a write to a command, and for an answer of the program in a sandbox
	Build    time.Duration // to build an image
	Upload   time.Duration // to upload the program that runs in each sandbox
	Snapshot time.Duration // to take a snapshot of a sandbox's files
	Reload   time.Duration // to commit and reload a sandbox's volumes
	Measure  time.Duration // to measure a volume
}

// Usual is the patience of every engine outside tests.
var Usual = Patience{
	Open: 12 * time.Second, Call: 30 * time.Second, Stream: 90 * time.Second, Poll: 10 * time.Second,
	Create: 5 * time.Minute, Link: inside.Mux().ConnectionWriteTimeout,
	Build: time.Hour, Upload: 10 * time.Minute, Snapshot: 10 * time.Minute, Reload: 2 * time.Minute,
	Measure: 10 * time.Second,
}

// Delays between retries while Modal is temporarily unable to serve a call.
const (
	FirstPause = 250 * time.Millisecond
	LastPause  = 8 * time.Second
	RetryFor   = 45 * time.Second
)

// Attempt makes a call until it succeeds, fails permanently, or wanted ends. It retries calls that fail because
// Modal is busy, at a limit or unreachable, with increasing delays.
func Attempt[T any](ctx, wanted context.Context, patience time.Duration, what string,
	call func(ctx context.Context) (T, error)) (T, error) {
	begin, pause := time.Now(), FirstPause
	for {
		limited, cancel := context.WithTimeout(ctx, patience)
		value, err := Bounded(limited, call)
		late := limited.Err() != nil
		cancel()
		switch {
		case err == nil:
			return value, nil
		case ctx.Err() != nil:
			return value, errors.Wrapf(ctx.Err(), "%s", what)
		case late:
			return value, Unanswered(errors.Wrapf(err, "%s", what), patience)
		}
		if kindOf(err) == errors.Unauthenticated {
			return value, Revoked(err, what)
		}
		err = Explain(err, what)
		if kind := errors.KindOf(err); kind != errors.Unavailable && kind != errors.Exhausted ||
			time.Since(begin)+pause > RetryFor {
			return value, err
		}
		select {
		case <-wanted.Done():
			return value, errors.Wrapf(wanted.Err(), "%s", what)
		case <-time.After(pause):
		}
		pause = min(2*pause, LastPause)
	}
}

// Bounded returns when call returns or ctx ends, because some calls of the SDK ignore their context. A result
// that arrives after that is dropped.
func Bounded[T any](ctx context.Context, call func(ctx context.Context) (T, error)) (T, error) {
	type answer struct {
		value T
		err   error
	}
	answered := make(chan answer, 1)
	go func() {
		value, err := call(ctx)
		answered <- answer{value, err}
	}()
	select {
	case a := <-answered:
		return a.value, a.err
	case <-ctx.Done():
	}
	select {
	case a := <-answered:
		return a.value, a.err
	case <-time.After(Grace):
		var none T
		return none, ctx.Err()
	}
}

// Limit gives each call of the SDK a deadline, including those that one SDK method makes repeatedly, such as in
// its waits.
func (p Patience) Limit(ctx context.Context, method string, req, reply any, conn *grpc.ClientConn,
	invoke grpc.UnaryInvoker, opts ...grpc.CallOption) error {
	most := p.Call
	switch r := req.(type) {
	case *pb.SandboxCreateV2Request, *pb.SandboxCreateRequest:
		most = p.Create
	case interface{ GetTimeout() float32 }: // Modal may take this long to answer
		most += time.Duration(float64(r.GetTimeout()) * float64(time.Second))
	}
	ctx, cancel := context.WithTimeout(ctx, most)
	defer cancel()
	return invoke(ctx, method, req, reply, conn, opts...)
}

// LimitStream ends a stream that is silent for too long.
func (p Patience) LimitStream(
	ctx context.Context, desc *grpc.StreamDesc, conn *grpc.ClientConn, method string, open grpc.Streamer,
	opts ...grpc.CallOption,
) (grpc.ClientStream, error) {
	ctx, cancel := context.WithCancel(ctx)
	s := &limitedStream{most: p.Stream, cancel: cancel}
	return s, s.within(func() (err error) {
		s.ClientStream, err = open(ctx, desc, conn, method, opts...)
		return err
	})
}

// limitedStream is a stream with a deadline for each message.
type limitedStream struct {
	grpc.ClientStream
	most   time.Duration
	cancel context.CancelFunc
}

// RecvMsg implements grpc.ClientStream.
func (s *limitedStream) RecvMsg(m any) error {
	return s.within(func() error { return s.ClientStream.RecvMsg(m) })
}

// within cancels the stream if do takes too long. Any error of do also ends the stream.
func (s *limitedStream) within(do func() error) error {
	timer := time.AfterFunc(s.most, s.cancel)
	err := do()
	if inTime := timer.Stop(); err != nil && !inTime {
		err = status.Errorf(codes.DeadlineExceeded, "nothing came for %v", s.most)
	}
	if err != nil {
		s.cancel()
	}
	return err
}

// Grace is how long a call may take to return after its context has ended.
const Grace = time.Second

// Unanswered returns the error of a call that Modal did not answer in time.
func Unanswered(err error, patience time.Duration) error {
	return errors.Remedy(errors.Explainf(err, errors.Unavailable,
		"Modal cannot be reached: it did not answer within %v", patience),
		"check the network and MODAL_SERVER_URL, and try again; see https://status.modal.com for outages")
}

// Revoked returns the error of credentials that were valid when the engine was opened. Its kind is Unavailable,
// because the client whose request fails is not at fault.
func Revoked(err error, what string) error {
	return errors.Remedy(errors.Explainf(errors.Wrapf(err, "%s", what), errors.Unavailable,
		"Modal no longer accepts Harvest's credentials"), "%s; then end the server (harvest down) and start it again",
		credentials.Remedy)
}

// Explain turns an error of the SDK into one of package errors, with the details that concern clients.
func Explain(err error, what string) error {
	if err == nil {
		return nil
	}
	err = errors.Wrapf(err, "%s", what)
	kind := kindOf(err)
	switch kind {
	case errors.Unauthenticated:
		if missing(err) {
			return errors.Remedy(errors.Explainf(err, kind, "there are no credentials for Modal"), "%s",
				credentials.Remedy)
		}
		return errors.Remedy(errors.Explainf(err, kind, "Modal does not accept the credentials"), "%s",
			credentials.Remedy)
	case errors.Denied:
		return errors.Remedy(errors.Explainf(err, kind, "the account at Modal may not do this"),
			"look at the workspace's members and limits at https://modal.com/settings")
	case errors.Unavailable:
		return errors.Remedy(errors.Explainf(err, kind, "Modal cannot be reached"),
			"check the network and MODAL_SERVER_URL, and try again; https://status.modal.com says whether Modal has "+
				"trouble")
	case errors.Exhausted:
		return errors.Remedy(errors.Explainf(err, kind, "Modal has reached a limit of the account"),
			"end unused sandboxes, or try again later")
	case errors.NotFound:
		return errors.Explainf(err, kind, "the object no longer exists at Modal")
	case errors.Conflict:
		return errors.Explainf(err, kind, "the name is already in use at Modal")
	case errors.Invalid:
		return errors.Explainf(err, kind, "Modal refused the request: %.300s", Plain(err))
	case errors.Unsupported:
		return errors.Explainf(err, kind, "the server in place of Modal does not support the request: %.300s",
			Plain(err))
	}
	return err
}

// missing reports whether err says that the SDK found no credentials. The SDK has no type for this error.
func missing(err error) bool { return strings.Contains(err.Error(), "missing credentials") }

// kindOf returns the kind of an SDK error, which is a type of the SDK or the status of a call.
func kindOf(err error) errors.Kind {
	var (
		notFound  sdk.NotFoundError
		exists    sdk.AlreadyExistsError
		conflict  sdk.ConflictError
		invalid   sdk.InvalidError
		exhausted sdk.ResourceExhaustedError
		closed    sdk.ClientClosedError
		late      sdk.TimeoutError
	)
	switch {
	case errors.As(err, &notFound):
		return errors.NotFound
	case errors.As(err, &exists), errors.As(err, &conflict):
		return errors.Conflict
	case errors.As(err, &invalid):
		return errors.Invalid
	case errors.As(err, &exhausted):
		return errors.Exhausted
	case errors.As(err, &closed), errors.As(err, &late):
		return errors.Unavailable
	}
	var coded interface{ GRPCStatus() *status.Status }
	if !errors.As(err, &coded) {
		if missing(err) {
			return errors.Unauthenticated
		}
		return errors.KindOf(err)
	}
	switch coded.GRPCStatus().Code() {
	case codes.NotFound:
		return errors.NotFound
	case codes.AlreadyExists, codes.FailedPrecondition, codes.Aborted:
		return errors.Conflict
	case codes.InvalidArgument, codes.OutOfRange:
		return errors.Invalid
	case codes.ResourceExhausted:
		return errors.Exhausted
	case codes.Unauthenticated:
		return errors.Unauthenticated
	case codes.PermissionDenied:
		return errors.Denied
	case codes.Unavailable, codes.DeadlineExceeded:
		return errors.Unavailable
	case codes.Unimplemented:
		return errors.Unsupported
	}
	return errors.Internal
}

// Plain returns the message of the server itself.
func Plain(err error) string {
	var coded interface{ GRPCStatus() *status.Status }
	var invalid sdk.InvalidError
	switch {
	case errors.As(err, &invalid):
		return invalid.Exception
	case errors.As(err, &coded):
		return coded.GRPCStatus().Message()
	}
	return err.Error()
}

// Pause waits for d, or until ctx ends, whose error it then returns.
func Pause(ctx context.Context, d time.Duration) error {
	select {
	case <-ctx.Done():
		return errors.Wrapf(ctx.Err(), "wait for Modal")
	case <-time.After(d):
		return nil
	}
}

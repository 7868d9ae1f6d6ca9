package modal

import (
	"context"
	"strings"

	pb "github.com/modal-labs/modal-client/go/proto/modal_proto"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/RelevanceAI/harvest/client/errors"
	"github.com/RelevanceAI/harvest/internal/base/logf"
	"github.com/RelevanceAI/harvest/internal/fleet/reserve"
	"github.com/RelevanceAI/harvest/internal/modal/words"
)

// codeOf is the only mapping from kinds to gRPC codes. Clients retry on UNKNOWN, INTERNAL, UNAVAILABLE,
// CANCELLED and DEADLINE_EXCEEDED, so permanent errors have other codes.
var codeOf = map[errors.Kind]codes.Code{
	errors.Invalid:         codes.InvalidArgument,
	errors.Unauthenticated: codes.Unauthenticated,
	errors.Denied:          codes.PermissionDenied,
	errors.NotFound:        codes.NotFound,
	errors.Conflict:        codes.FailedPrecondition,
	errors.Gone:            codes.FailedPrecondition,
	errors.Exhausted:       codes.ResourceExhausted,
	errors.Unsupported:     codes.Unimplemented,
	errors.Unavailable:     codes.Unavailable,
	errors.Timeout:         codes.DeadlineExceeded,
	errors.Canceled:        codes.Canceled,
	errors.Internal:        codes.Internal,
}

// exact is an error with a more exact code than its kind's.
type exact struct {
	error
	code codes.Code
}

func (e exact) Unwrap() error { return e.error }

func withCode(err error, code codes.Code) error { return exact{err, code} }

// answer converts err to the error for the client. Errors of gRPC itself pass unchanged, but Unimplemented gets
// an explanation.
func answer(ctx context.Context, method string, err error) error {
	if err == nil {
		return nil
	}
	if st, ok := status.FromError(err); ok {
		if st.Code() == codes.Unimplemented {
			return status.Error(codes.Unimplemented, lacking(method))
		}
		return err
	}
	code := codeOf[errors.KindOf(err)]
	var e exact
	if errors.As(err, &e) {
		code = e.code
	}
	if code == codes.Internal {
		logf.Errorf(ctx, "%s: %v", method, err)
	} else {
		logf.Debugf(ctx, "%s: %v", method, err)
	}
	st := status.New(code, logf.Redacted(inModalsIDs(sentences(err))))
	var full reserve.AtLimit
	if errors.As(err, &full) { // makes clients wait
		if waits, err := st.WithDetails(pb.RPCRetryPolicy_builder{RetryAfterSecs: retryAfter}.Build()); err == nil {
			st = waits
		}
	}
	return st.Err()
}

// retryAfter is how many seconds clients wait until they repeat a request for which there is no room yet.
const retryAfter = 2

// sentences returns the text of err for clients, and its remedy, in Modal's words, as a second sentence.
func sentences(err error) string {
	text, remedy := errors.Message(err), words.Remedy(errors.RemedyOf(err))
	if remedy == "" {
		return text
	}
	return text + ". " + strings.ToUpper(remedy[:1]) + remedy[1:]
}

const (
	alreadyExists = codes.AlreadyExists
	notFound      = codes.NotFound
)

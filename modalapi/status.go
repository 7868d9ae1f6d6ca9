package modalapi

import (
	"context"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/RelevanceAI/harvest/errors"
	"github.com/RelevanceAI/harvest/logf"
)

// codeOf is the one table from kinds to gRPC. Clients try again on UNKNOWN, INTERNAL, UNAVAILABLE, CANCELLED and DEADLINE_EXCEEDED, so
// that what stays wrong has none of these.
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

// exact is an error whose code is more exact than that of its kind.
type exact struct {
	error
	code codes.Code
}

func (e exact) Unwrap() error { return e.error }

func withCode(err error, code codes.Code) error { return exact{err, code} }

// answer is what the client is told of err. Errors of gRPC itself, which an Unimplemented… type makes, are passed on with a sentence of ours.
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
	text := errors.Message(err)
	if remedy := errors.RemedyOf(err); remedy != "" {
		text += ". " + remedy
	}
	return status.Error(code, logf.Redacted(text))
}

package object

import (
	"context"
	"net/http"

	smithy "github.com/aws/smithy-go"
	smithyhttp "github.com/aws/smithy-go/transport/http"

	"github.com/RelevanceAI/harvest/client/errors"
	"github.com/RelevanceAI/harvest/internal/base/netguard"
	"github.com/RelevanceAI/harvest/internal/base/pattern"
	"github.com/RelevanceAI/harvest/internal/s3"
)

// Explain converts a refusal to an error with a reason and a remedy. Errors that already have them
// stay unchanged.
func (b *Bucket) Explain(err error) error {
	if err == nil {
		return nil
	}
	if errors.Is(err, errSilent) || errors.Is(err, context.DeadlineExceeded) {
		return errors.Remedy(errors.Explainf(err, errors.Unavailable, "S3 does not answer at %s", b.base.Host),
			"check the endpoint and the network, and try again")
	}
	if denied := netguard.Refusal(err); denied != nil {
		return denied
	}
	if k := errors.KindOf(err); k != errors.Internal {
		return err
	}
	status, code, region := 0, "", ""
	var api smithy.APIError
	var ours *serverError
	if errors.As(err, &ours) {
		status, code, region = ours.status, ours.code, ours.region
	} else if errors.As(err, &api) {
		code = api.ErrorCode()
		var res *smithyhttp.ResponseError
		if errors.As(err, &res) && res.Response != nil {
			status, region = res.HTTPStatusCode(), res.Response.Header.Get("X-Amz-Bucket-Region")
		}
	}
	if status == 0 && code == "" {
		return errors.Remedy(errors.Explainf(err, errors.Unavailable, "S3 cannot be reached at %s", b.base.Host),
			"check the endpoint and the network, and try again")
	}
	return b.refused(err, status, code, region)
}

func (b *Bucket) refused(err error, status int, code, region string) error {
	bucket := b.loc.Bucket
	say := func(kind errors.Kind, remedy, format string, args ...any) error {
		return errors.Remedy(errors.Explainf(err, kind, format, args...), "%s", remedy)
	}
	switch code {
	case "NoSuchBucket":
		return say(errors.NotFound, "create the bucket, or correct its name", "there is no bucket %s", bucket)
	case "InvalidAccessKeyId", "XAdminUserNotFound":
		return say(errors.Unauthenticated, "correct the secret with the credentials of S3",
			"S3 does not know the access key")
	case "SignatureDoesNotMatch":
		return say(errors.Unauthenticated, "correct the secret with the credentials of S3",
			"S3 refuses the signature: the secret access key is wrong")
	case "ExpiredToken", "TokenRefreshRequired", "ExpiredTokenException":
		return say(errors.Unauthenticated, "get new credentials", "the credentials of S3 have expired")
	case "InvalidToken":
		return say(errors.Unauthenticated, "get new credentials", "S3 refuses the session token")
	case "RequestTimeTooSkewed":
		return say(errors.Unauthenticated, "set this machine's clock",
			"this machine's clock and that of S3 are too far apart")
	case "PermanentRedirect", "AuthorizationHeaderMalformed", "IllegalLocationConstraintException", "TemporaryRedirect":
		return b.wrongRegion(err, region)
	// versitygw answers ErrDirectoryNotEmpty to the deletion of a key that ends with / and is no object: the
	// directory exists through the objects below it.
	case "NoSuchKey", "NoSuchUpload", "NotFound", "NoSuchVersion", "ErrDirectoryNotEmpty":
		return errors.Explainf(err, errors.NotFound, "there is no such object in %s", b)
	case "PreconditionFailed", "ConditionalRequestConflict", "InvalidRange": // InvalidRange: it is shorter than planned
		return errors.Join(ErrChangedObject, err)
	// The codes are those of versitygw and MinIO.
	case "ExistingObjectIsDirectory", "ObjectParentIsFile", "XMinioObjectExistsAsDirectory", "XMinioParentIsObject":
		return errors.Join(ErrInTheWay, err)
	case "InvalidObjectState":
		return say(errors.Conflict, "restore it first, for example with aws s3api restore-object; then try again",
			"the object is archived")
	case "QuotaExceeded", "XMinioStorageFull", "InsufficientStorage", "XAmzStorageFull":
		return say(errors.Exhausted, "make room there", "S3 has no space left")
	}
	switch {
	case region != "" && region != b.region && (status == http.StatusBadRequest ||
		status == http.StatusMovedPermanently || status == http.StatusTemporaryRedirect): // of a HEAD, without a code
		return b.wrongRegion(err, region)
	case status == http.StatusInsufficientStorage:
		return say(errors.Exhausted, "make room there", "S3 has no space left")
	case status == http.StatusNotFound:
		return errors.Explainf(err, errors.NotFound, "there is no such object in %s", b)
	case status == http.StatusForbidden || status == http.StatusUnauthorized:
		return say(errors.Denied,
			"allow s3:ListBucket, s3:GetObject, s3:PutObject, s3:DeleteObject and s3:AbortMultipartUpload on "+
				b.String(), "S3 does not allow it on %s (%s)", b, code)
	case status == http.StatusMovedPermanently || status == http.StatusTemporaryRedirect:
		return say(errors.Invalid, "set the bucket's region and endpoint", "the bucket %s is elsewhere", bucket)
	case status == http.StatusTooManyRequests || status >= 500 || code == "SlowDown" || code == "RequestTimeout":
		return say(errors.Unavailable, "try again later", "S3 is away or overloaded (%d %s)", status, code)
	}
	return errors.Explainf(err, errors.Invalid, "S3 refuses it (%d %s)", status, code)
}

// expected matches the right region in Amazon's message about a wrong one.
var expected = pattern.New(`expecting '([A-Za-z0-9-]{1,63})'`)

// wrongRegion explains that the bucket is in another region than the requests are signed for. region is "" if the
// server does not name it. The fault is in the configuration, which stays wrong until somebody corrects it: Invalid.
func (b *Bucket) wrongRegion(err error, region string) error {
	var api smithy.APIError
	if !s3.IsRegion(region) {
		region = ""
		if errors.As(err, &api) {
			if m := expected().FindStringSubmatch(api.ErrorMessage()); m != nil {
				region = m[1]
			}
		}
	}
	if region == "" || region == b.region {
		return errors.Remedy(errors.Explainf(err, errors.Invalid, "the bucket %s is not in the region %s", b.loc.Bucket,
			b.region), "set the bucket's region and endpoint")
	}
	return errors.Remedy(errors.Explainf(err, errors.Invalid, "the bucket %s is in the region %s, not in %s",
		b.loc.Bucket, region, b.region),
		"set the region %s: AWS_REGION=%s in the secret, or s3.region in the configuration", region, region)
}

// RefusedNow reports whether S3 refused a request that it may accept later.
func RefusedNow(err error) bool {
	var ours *serverError
	var api smithy.APIError
	kind := errors.KindOf(err)
	return (kind == errors.Exhausted || kind == errors.Denied) && (errors.As(err, &ours) || errors.As(err, &api))
}

// NoSuchKey reports whether a server answered that there is no object at a key, in a bucket that exists.
func NoSuchKey(err error) bool {
	var e *serverError
	return errors.As(err, &e) && e.code == "NoSuchKey"
}

func noCredentials(err error) error {
	if errors.Is(err, context.Canceled) || errors.Is(err, context.DeadlineExceeded) ||
		errors.KindOf(err) == errors.Unauthenticated {
		return err // Unauthenticated: a role cannot be assumed
	}
	return errors.Remedy(errors.Explainf(err, errors.Unauthenticated, "there are no credentials for S3"),
		"set a secret with AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY")
}

// ErrInTheWay reports that a server which stores objects as files has a directory at the key, or a file above it.
var ErrInTheWay = errors.Remedy(errors.Newf(errors.Conflict,
	"the bucket has a file in place of a directory or the reverse, and its server cannot have both"),
	"delete one of them in the bucket, or sync with --both --list or --mirror --list")

// ErrOvertaken reports that another sync replaced the manifest meanwhile.
var ErrOvertaken = errors.Remedy(errors.Newf(errors.Conflict, "another sync to the same place ended meanwhile"),
	"sync again")

// errNoETags reports a server that returns no ETags.
var errNoETags = errors.Newf(errors.Unsupported, "S3 returns no ETag of an object")

// noETags returns an error for a server that returns no ETags.
func noETags(host string) error {
	return errors.Remedy(errors.Explainf(errNoETags, errors.Unsupported,
		"S3 at %s returns no ETag of an object, so a sync cannot tell whether another program changed it", host),
		"use a server that returns ETags, or have the proxy before it pass the header ETag")
}

// Fatal reports whether an error will also affect all further requests. Then the sync ends, to be
// continued later. A damaged object affects only itself.
func Fatal(err error) bool {
	if errors.Is(err, ErrDamaged) {
		return false
	}
	if errors.Is(err, errNoETags) {
		return true
	}
	switch errors.KindOf(err) {
	case errors.Unauthenticated, errors.Unavailable, errors.Canceled:
		return true
	}
	return false
}

package object

import (
	"context"
	"io"
	"net/http"
	"net/url"
	"strings"
	"time"

	"github.com/aws/smithy-go/middleware"
	smithyhttp "github.com/aws/smithy-go/transport/http"

	"github.com/RelevanceAI/harvest/client/errors"
	"github.com/RelevanceAI/harvest/internal/s3"
)

// maxRedirects bounds the redirects of one request. S3 sends one: a new bucket in another region is reached through
// the first region until its name is known everywhere.
const maxRedirects = 3

// follow sends a request, and follows temporary redirects (307). Each request begins at the bucket's own address again,
// since S3 may send the next one elsewhere. again returns the request's body from its beginning; nil means that there
// is no body. follow never sends a request to a host of another provider.
// Source: https://docs.aws.amazon.com/AmazonS3/latest/userguide/Redirects.html
func (b *Bucket) follow(req *http.Request, send func(*http.Request) (*http.Response, error),
	again func() io.ReadCloser) (*http.Response, error) {
	for hops := 0; ; hops++ {
		res, err := send(req)
		if err != nil || !redirects(res) {
			return res, err
		}
		discard(res)
		if hops == maxRedirects {
			return nil, errTooFar
		}
		if req, err = b.redirected(req, res); err != nil {
			return nil, err
		}
		if send = b.http.Do; again != nil {
			req.Body, req.GetBody = again(), func() (io.ReadCloser, error) { return again(), nil }
		}
	}
}

// errTooFar reports redirects without end.
var errTooFar = errors.Remedy(errors.Newf(errors.Invalid, "S3 redirects a request more than %d times", maxRedirects),
	"set the bucket's region and endpoint")

func redirects(res *http.Response) bool {
	return res.StatusCode == http.StatusTemporaryRedirect && res.Header.Get("Location") != ""
}

// discard ends an answer, so that its connection can be used again.
func discard(res *http.Response) {
	_, _ = io.Copy(io.Discard, io.LimitReader(res.Body, 64<<10))
	res.Body.Close()
}

// redirected returns the request for the address in a redirect, signed for it.
func (b *Bucket) redirected(req *http.Request, res *http.Response) (*http.Request, error) {
	to, err := req.URL.Parse(res.Header.Get("Location"))
	if err != nil || to.Host == "" || to.User != nil {
		return nil, errors.Newf(errors.Unavailable, "S3 at %s redirects to an invalid address", req.URL.Host)
	}
	if to.Scheme != req.URL.Scheme || !b.mayFollow(to) {
		return nil, errors.Remedy(errors.Newf(errors.Invalid,
			"S3 at %.200s redirects to %.200s, which is not an address of the same provider", req.URL.Host,
			to.Scheme+"://"+to.Host), "if you trust that server, set it as the endpoint")
	}
	next := req.Clone(req.Context())
	next.URL, next.Host, next.Body, next.GetBody = to, bareHost(to), nil, nil
	for _, name := range []string{"Authorization", "X-Amz-Date", "X-Amz-Security-Token"} {
		next.Header.Del(name)
	}
	creds, err := b.creds.Retrieve(req.Context())
	if err != nil {
		return nil, noCredentials(err)
	}
	if !creds.HasKeys() {
		return next, nil
	}
	region := b.region
	if there := res.Header.Get("X-Amz-Bucket-Region"); s3.IsRegion(there) {
		region = there
	}
	now := time.Now().Add(time.Duration(b.skew.Load()))
	sum := req.Header.Get("X-Amz-Content-Sha256")
	return next, b.signer.SignHTTP(req.Context(), creds, next, sum, "s3", region, now)
}

// mayFollow reports whether an address belongs to the provider of the bucket: it is on the same host, on the
// endpoint's host or beneath it, or both are Amazon's. Which addresses a host may have is a matter of the location's
// rules, which hold for each connection.
func (b *Bucket) mayFollow(to *url.URL) bool {
	host := strings.ToLower(to.Hostname())
	if host == strings.ToLower(b.base.Hostname()) {
		return true
	}
	if u, err := url.Parse(b.loc.Endpoint); err == nil && u.Hostname() != "" {
		if own := strings.ToLower(u.Hostname()); host == own || strings.HasSuffix(host, "."+own) {
			return true
		}
	}
	for _, domain := range []string{"amazonaws.com", "amazonaws.com.cn"} {
		if strings.HasSuffix(host, "."+domain) && strings.HasSuffix(strings.ToLower(b.base.Hostname()), "."+domain) {
			return true
		}
	}
	return false
}

// bareHost returns the host of an address as it is sent and signed: without a default port.
func bareHost(u *url.URL) string {
	switch u.Scheme {
	case "http":
		return strings.TrimSuffix(u.Host, ":80")
	case "https":
		return strings.TrimSuffix(u.Host, ":443")
	}
	return u.Host
}

// followInSDK makes the SDK follow redirects, too. It is the last step before a request is sent.
func (b *Bucket) followInSDK(ctx context.Context, in middleware.DeserializeInput,
	next middleware.DeserializeHandler) (middleware.DeserializeOutput, middleware.Metadata, error) {
	for hops := 0; ; hops++ {
		out, meta, err := next.HandleDeserialize(ctx, in)
		res, ok := out.RawResponse.(*smithyhttp.Response)
		if err != nil || !ok || !redirects(res.Response) {
			return out, meta, err
		}
		discard(res.Response)
		if hops == maxRedirects {
			return out, meta, errTooFar
		}
		req, ok := in.Request.(*smithyhttp.Request)
		if !ok {
			return out, meta, errors.Errorf("the SDK sends a %T", in.Request)
		}
		to, err := b.redirected(req.Request, res.Response)
		if err == nil {
			err = req.RewindStream()
		}
		if err != nil {
			return out, meta, err
		}
		moved := req.Clone()
		moved.Request, in.Request = to, moved
	}
}

// Package object is the client of a bucket: it stores, reads, lists, copies and deletes objects, and
// explains the refusals of servers. It knows the metadata of files, but nothing of syncs.
package object

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"net"
	"net/http"
	"net/url"
	"path/filepath"
	"strings"
	"sync/atomic"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/aws/ratelimit"
	"github.com/aws/aws-sdk-go-v2/aws/retry"
	v4 "github.com/aws/aws-sdk-go-v2/aws/signer/v4"
	"github.com/aws/aws-sdk-go-v2/config"
	"github.com/aws/aws-sdk-go-v2/credentials"
	"github.com/aws/aws-sdk-go-v2/credentials/stscreds"
	sdk "github.com/aws/aws-sdk-go-v2/service/s3"
	"github.com/aws/aws-sdk-go-v2/service/sts"
	smithy "github.com/aws/smithy-go"
	"github.com/aws/smithy-go/middleware"

	"github.com/RelevanceAI/harvest/client/errors"
	"github.com/RelevanceAI/harvest/client/transport/socket"
	"github.com/RelevanceAI/harvest/internal/base/netguard"
	"github.com/RelevanceAI/harvest/internal/s3"
	"github.com/RelevanceAI/harvest/internal/s3/object/wire"
)

// maxParts is S3's limit for the number of parts.
const maxParts = 10000

// Bucket is a prefix in a bucket. All methods may be called concurrently.
type Bucket struct {
	loc     s3.Location
	prefix  string // "" or with a slash at its end
	s3      *sdk.Client
	http    *http.Client
	wire    *wire.Wire // for frequent requests; nil if they cannot go directly
	base    *url.URL   // of the bucket
	region  string
	creds   aws.CredentialsProvider
	signer  *v4.Signer
	retry   aws.RetryerV2
	silence time.Duration // maximum wait for an answer, besides the time for its body
	skew    atomic.Int64  // correction of this machine's clock, in nanoseconds
	md5     atomic.Bool   // the server does not know CRC-64/NVME
	single  atomic.Bool   // the server deletes one object at a time
	heed    *heeding      // of conditions
	waits   *waits

	truthful atomic.Bool // the answer to an upload in parts has the object's ETag
}

// Open returns the bucket at loc. It sends no request; Check does.
func Open(ctx context.Context, loc s3.Location) (*Bucket, error) {
	if err := loc.Check(); err != nil {
		return nil, err
	}
	client, err := client(loc)
	if err != nil {
		return nil, err
	}
	b := &Bucket{loc: loc, prefix: cleanPrefix(loc.Prefix), http: client, silence: time.Minute,
		heed: &heeding{}, waits: &waits{}}
	b.signer = v4.NewSigner(func(o *v4.SignerOptions) { o.DisableURIPathEscaping = true }) // keys are escaped once
	if b.loc.Patience == 0 {
		b.loc.Patience = 2 * time.Minute
	}
	b.retry = retryer(10 * time.Second)
	cfg, err := settings(ctx, loc, client)
	if err != nil {
		return nil, err
	}
	b.region, b.creds = cfg.Region, cfg.Credentials
	b.s3 = sdk.NewFromConfig(cfg, func(o *sdk.Options) {
		o.UsePathStyle = loc.PathStyle
		// Servers other than AWS do not know trailing checksums; this package sends its own in
		// headers.
		o.RequestChecksumCalculation = aws.RequestChecksumCalculationWhenRequired
		o.ResponseChecksumValidation = aws.ResponseChecksumValidationWhenRequired
		if loc.Endpoint != "" {
			o.BaseEndpoint = aws.String(strings.TrimSuffix(loc.Endpoint, "/"))
		}
		// The SDK signs Accept-Encoding, which proxies change: Google's storage refuses such a
		// signature. The client asks for no compression anyway.
		o.APIOptions = append(o.APIOptions, func(s *middleware.Stack) error {
			_, _ = s.Finalize.Remove("DisableAcceptEncodingGzip") // not every call has this step
			return s.Deserialize.Add(middleware.DeserializeMiddlewareFunc("FollowRedirects", b.followInSDK),
				middleware.After)
		})
	})
	params := sdk.EndpointParameters{Bucket: &loc.Bucket, Region: &b.region, ForcePathStyle: &loc.PathStyle}
	params.Endpoint = b.s3.Options().BaseEndpoint // the location's endpoint, or that of the machine's settings
	at, err := sdk.NewDefaultEndpointResolverV2().ResolveEndpoint(ctx, params)
	if err != nil {
		return nil, errors.Explainf(err, errors.Invalid, "the bucket %q has no address in the region %q",
			loc.Bucket, b.region)
	}
	b.base = &at.URI
	if t, ok := client.Transport.(*netguard.Transport); ok {
		b.wire = wire.New(t, b.base)
	}
	return b, nil
}

// retryer returns the retry rules, with the longest backoff given. The SDK's own rules do not retry
// status 429, which servers other than AWS send when they are overloaded.
func retryer(longest time.Duration) aws.RetryerV2 {
	return retry.NewStandard(func(o *retry.StandardOptions) {
		o.MaxAttempts, o.MaxBackoff, o.RateLimiter = 0, longest, ratelimit.None
		o.Retryables = append(o.Retryables,
			retry.RetryableHTTPStatusCode{Codes: map[int]struct{}{http.StatusTooManyRequests: {}}})
	})
}

// patient limits the SDK's retries by time instead of number. The call then returns the last error.
type patient struct {
	aws.RetryerV2
	until time.Time
}

func (patient) MaxAttempts() int { return 0 }

func (p patient) IsErrorRetryable(err error) bool {
	return netguard.Refusal(err) == nil && p.RetryerV2.IsErrorRetryable(err) && time.Now().Before(p.until)
}

// within bounds a call through the SDK, for servers that accept a request and never answer.
func (b *Bucket) within(ctx context.Context, extra time.Duration) (context.Context, context.CancelFunc) {
	end := b.waits.begin()
	ctx, cancel := context.WithTimeout(ctx, b.loc.Patience+2*time.Minute+extra)
	return ctx, func() {
		end()
		cancel()
	}
}

// patiently is an option for each call through the SDK that sets the retry rules.
func (b *Bucket) patiently(o *sdk.Options) {
	o.Retryer = patient{b.retry, time.Now().Add(b.loc.Patience)}
}

func cleanPrefix(prefix string) string {
	if prefix = strings.TrimSuffix(prefix, "/"); prefix == "" {
		return ""
	}
	return prefix + "/"
}

// client returns an HTTP client that keeps as many idle connections as there are workers.
func client(l s3.Location) (*http.Client, error) {
	t := &http.Transport{
		Proxy:               http.ProxyFromEnvironment,
		MaxIdleConns:        0,
		MaxIdleConnsPerHost: Workers,
		IdleConnTimeout:     90 * time.Second,
		TLSHandshakeTimeout: wire.HandshakeTime,
		DisableCompression:  true,
		WriteBufferSize:     32 << 10,
		ReadBufferSize:      32 << 10,
		TLSClientConfig:     &tls.Config{MinVersion: tls.VersionTLS12},
	}
	if len(l.CA) > 0 {
		pool, err := x509.SystemCertPool()
		if err != nil {
			pool = x509.NewCertPool()
		}
		if !pool.AppendCertsFromPEM(l.CA) {
			return nil, errors.Newf(errors.Invalid, "the certificate authority for S3 is not a certificate in PEM")
		}
		t.TLSClientConfig.RootCAs = pool
	}
	dial := l.Dial
	if dial == nil && l.Socket != "" {
		dial = func(ctx context.Context) (net.Conn, error) {
			return socket.Dial(ctx, filepath.Dir(l.Socket), filepath.Base(l.Socket))
		}
	}
	if dial != nil {
		t.Proxy = nil
		t.DialContext = func(ctx context.Context, _, _ string) (net.Conn, error) { return dial(ctx) }
		return &http.Client{Transport: netguard.Unguarded(t), CheckRedirect: keep}, nil
	}
	if l.Proxy != "" {
		u, err := url.Parse(l.Proxy)
		if err != nil || u.Host == "" {
			return nil, errors.Newf(errors.Invalid, "the proxy for S3 is not a URL")
		}
		t.Proxy = http.ProxyURL(u)
	}
	rules := netguard.Rules{Any: true}
	if l.Rules != nil {
		rules = *l.Rules
	}
	return &http.Client{Transport: rules.NewTransport(t), CheckRedirect: keep}, nil
}

// keep makes the client return redirects instead of following them.
func keep(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }

// settings returns an SDK configuration with region and credentials.
func settings(ctx context.Context, l s3.Location, client *http.Client) (aws.Config, error) {
	cfg := aws.Config{Region: l.Region, HTTPClient: client, Credentials: aws.AnonymousCredentials{}}
	if l.Ambient {
		found, err := config.LoadDefaultConfig(ctx, config.WithRegion(l.Region))
		if err != nil {
			return cfg, errors.Remedy(errors.Explainf(err, errors.Unauthenticated,
				"the AWS configuration of this machine cannot be read"),
				"correct ~/.aws, or name a secret with the keys")
		}
		cfg = found
		cfg.HTTPClient = client
	}
	if cfg.Region == "" {
		cfg.Region = "us-east-1"
	}
	if l.AccessKeyID != "" {
		cfg.Credentials = credentials.NewStaticCredentialsProvider(l.AccessKeyID, l.SecretAccessKey, l.SessionToken)
	}
	if l.RoleARN != "" {
		cfg.Credentials = role(l, cfg)
	}
	return cfg, nil
}

// roleRenewed is how long before their expiry the credentials of a role are replaced. Requests in
// progress still need them.
const roleRenewed = 5 * time.Minute

// role assumes the role with the credentials of cfg, or with the web identity. The provider renews
// its credentials before they expire.
func role(l s3.Location, cfg aws.Config) aws.CredentialsProvider {
	client := sts.NewFromConfig(cfg, func(o *sts.Options) {
		if l.STS != "" {
			o.BaseEndpoint = aws.String(strings.TrimSuffix(l.STS, "/"))
		}
	})
	early := func(o *aws.CredentialsCacheOptions) { o.ExpiryWindow = roleRenewed }
	if l.TokenFile != "" {
		return assumed{aws.NewCredentialsCache(stscreds.NewWebIdentityRoleProvider(client, l.RoleARN,
			stscreds.IdentityTokenFile(l.TokenFile)), early)}
	}
	return assumed{aws.NewCredentialsCache(stscreds.NewAssumeRoleProvider(client, l.RoleARN,
		func(o *stscreds.AssumeRoleOptions) {
			if l.ExternalID != "" {
				o.ExternalID = &l.ExternalID
			}
		}), early)}
}

// assumed marks errors of assuming a role, so that they are not taken for refusals by S3.
type assumed struct{ *aws.CredentialsCache }

// Retrieve implements aws.CredentialsProvider.
func (a assumed) Retrieve(ctx context.Context) (aws.Credentials, error) {
	creds, err := a.CredentialsCache.Retrieve(ctx)
	if err == nil || ctx.Err() != nil {
		return creds, err
	}
	why := ""
	var api smithy.APIError
	if errors.As(err, &api) {
		why = " (" + api.ErrorCode() + ")"
	}
	return creds, errors.Remedy(errors.Explainf(err, errors.Unauthenticated,
		"the role for S3 cannot be assumed%s", why),
		"correct AWS_ROLE_ARN in the secret, and have the role trust the caller")
}

// Close closes idle connections.
func (b *Bucket) Close() {
	b.http.CloseIdleConnections()
	if b.wire != nil {
		b.wire.Close()
	}
}

// At returns another prefix of the same bucket.
func (b *Bucket) At(prefix string) (*Bucket, error) {
	loc := b.loc
	loc.Prefix = prefix
	if err := loc.Check(); err != nil {
		return nil, err
	}
	return b.Below(prefix), nil
}

// Below is At for a prefix that is known to be valid.
func (b *Bucket) Below(prefix string) *Bucket {
	loc := b.loc
	loc.Prefix = prefix
	other := &Bucket{loc: loc, prefix: cleanPrefix(prefix), s3: b.s3, http: b.http, wire: b.wire, base: b.base,
		region: b.region, creds: b.creds, signer: b.signer, retry: b.retry, silence: b.silence, heed: b.heed,
		waits: b.waits}
	other.skew.Store(b.skew.Load())
	other.md5.Store(b.md5.Load())
	other.single.Store(b.single.Load())
	return other
}

// Location returns the place of the bucket, and the way to reach it.
func (b *Bucket) Location() s3.Location { return b.loc }

// Prefix returns the prefix of all keys: "", or a path with a slash at its end.
func (b *Bucket) Prefix() string { return b.prefix }

// Skew returns the correction of this machine's clock that the server's clock suggests.
func (b *Bucket) Skew() time.Duration { return time.Duration(b.skew.Load()) }

// URL returns the address of the bucket, without the prefix.
func (b *Bucket) URL() string { return b.base.String() }

// String returns the bucket and prefix as an s3:// URL.
func (b *Bucket) String() string { return "s3://" + b.loc.Bucket + "/" + b.prefix }

// Workers is the maximum number of concurrent requests: enough for a server that answers after 20
// ms (design: s3.md). MaxInFlight bounds the memory of their bodies.
const Workers = 128

package s3sync

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
	"github.com/aws/aws-sdk-go-v2/config"
	"github.com/aws/aws-sdk-go-v2/credentials"
	"github.com/aws/aws-sdk-go-v2/credentials/stscreds"
	"github.com/aws/aws-sdk-go-v2/service/s3"
	"github.com/aws/aws-sdk-go-v2/service/sts"
	smithy "github.com/aws/smithy-go"
	"github.com/aws/smithy-go/middleware"

	"github.com/RelevanceAI/harvest/errors"
	"github.com/RelevanceAI/harvest/internal/netguard"
	"github.com/RelevanceAI/harvest/internal/pattern"
	"github.com/RelevanceAI/harvest/internal/socket"
)

// Location says where files are in S3, and how to get there.
type Location struct {
	Bucket string
	// Prefix is before all keys; a slash is added at its end. "" is the whole bucket.
	Prefix string
	// Region is the bucket's, such as "eu-central-1"; "" is what the environment says, else us-east-1.
	Region string
	// Endpoint is the URL of a server that speaks S3; "" is AWS.
	Endpoint string
	// Socket is a Unix socket at which the server of Endpoint listens; "" is what Endpoint says.
	Socket string
	// PathStyle puts the bucket into the path and not into the host name, as most servers but AWS want it.
	PathStyle bool
	// CA is what to trust besides the system's authorities, in PEM.
	CA []byte
	// Proxy is the URL of an HTTP proxy; "" is what the environment says.
	Proxy string
	// Rules restrict the addresses that requests are sent to, also those to STS; nil means any address, for places of the operator.
	Rules *netguard.Rules `json:",omitempty"`
	// Patience is how long one request is tried again while the server is away or overloaded; 0 is two minutes.
	Patience time.Duration
	Credentials
}

// Credentials are how to sign requests. All empty: none, save with Ambient.
type Credentials struct {
	AccessKeyID     string
	SecretAccessKey string
	SessionToken    string
	// RoleARN is a role that is assumed with the above, or with the web identity token in the file TokenFile.
	RoleARN    string
	ExternalID string
	TokenFile  string
	// STS is the URL of the service that assumes roles; "" is AWS's.
	STS string
	// Ambient takes what the AWS SDK finds on this machine: environment, shared files, instance and container roles.
	Ambient bool
}

// partSize is how large the parts of large files are, at least: 16 MiB. Files above it are sent in parts.
const partSize = 16 << 20

// maxParts is how many parts S3 allows.
const maxParts = 10000

// Bucket is a prefix in a bucket. All methods may be called concurrently.
type Bucket struct {
	loc     Location
	prefix  string // "" or with a slash at its end
	s3      *s3.Client
	http    *http.Client
	wire    *wire    // for what there is much of; nil where that goes another way
	base    *url.URL // of the bucket
	region  string
	creds   aws.CredentialsProvider
	signer  *signer
	retry   aws.RetryerV2
	silence time.Duration // how long a request may go without an answer, besides what its body takes
	skew    atomic.Int64  // what to add to this machine's clock, in nanoseconds
	md5     atomic.Bool   // the server does not know CRC-64/NVME
	single  atomic.Bool   // the server deletes one object at a time
	heed    *heeding      // of conditions
}

// Open returns the bucket at loc. It asks nobody; Check does.
func Open(ctx context.Context, loc Location) (*Bucket, error) {
	if err := loc.check(); err != nil {
		return nil, err
	}
	client, err := loc.client()
	if err != nil {
		return nil, err
	}
	b := &Bucket{loc: loc, prefix: cleanPrefix(loc.Prefix), http: client, signer: &signer{}, silence: time.Minute, heed: &heeding{}}
	if b.loc.Patience == 0 {
		b.loc.Patience = 2 * time.Minute
	}
	b.retry = retryer(10 * time.Second)
	cfg, err := loc.config(ctx, client)
	if err != nil {
		return nil, err
	}
	b.region, b.creds = cfg.Region, cfg.Credentials
	b.s3 = s3.NewFromConfig(cfg, func(o *s3.Options) {
		o.UsePathStyle = loc.PathStyle
		// Servers that are not AWS know no trailing checksums; ours are in headers.
		o.RequestChecksumCalculation = aws.RequestChecksumCalculationWhenRequired
		o.ResponseChecksumValidation = aws.ResponseChecksumValidationWhenRequired
		if loc.Endpoint != "" {
			o.BaseEndpoint = aws.String(strings.TrimSuffix(loc.Endpoint, "/"))
		}
		// The SDK signs Accept-Encoding, which proxies change: Google's storage refuses such a signature. The client asks for no compression anyway.
		o.APIOptions = append(o.APIOptions, func(s *middleware.Stack) error {
			_, _ = s.Finalize.Remove("DisableAcceptEncodingGzip") // not every call has it
			return nil
		})
	})
	params := s3.EndpointParameters{Bucket: &loc.Bucket, Region: &b.region, ForcePathStyle: &loc.PathStyle}
	params.Endpoint = b.s3.Options().BaseEndpoint // the location's, or what the machine's own settings say
	at, err := s3.NewDefaultEndpointResolverV2().ResolveEndpoint(ctx, params)
	if err != nil {
		return nil, errors.Explainf(err, errors.Invalid, "the bucket %q has no address in the region %q", loc.Bucket, b.region)
	}
	b.base = &at.URI
	if t, ok := client.Transport.(*netguard.Transport); ok {
		b.wire = newWire(t, b.base)
	}
	return b, nil
}

// retryer says what is tried again, and after how long; longest is the most. The SDK's own rules do not know 429, with which others than
// AWS ask for patience.
func retryer(longest time.Duration) aws.RetryerV2 {
	return retry.NewStandard(func(o *retry.StandardOptions) {
		o.MaxAttempts, o.MaxBackoff, o.RateLimiter = 0, longest, ratelimit.None
		o.Retryables = append(o.Retryables, retry.RetryableHTTPStatusCode{Codes: map[int]struct{}{http.StatusTooManyRequests: {}}})
	})
}

// patient bounds the SDK's own attempts by time, not number: the last refusal is then what a call ends with.
type patient struct {
	aws.RetryerV2
	until time.Time
}

func (patient) MaxAttempts() int { return 0 }

func (p patient) IsErrorRetryable(err error) bool {
	return netguard.Refusal(err) == nil && p.RetryerV2.IsErrorRetryable(err) && time.Now().Before(p.until)
}

// within bounds a call through the SDK, for servers that take it and never answer.
func (b *Bucket) within(ctx context.Context, extra time.Duration) (context.Context, context.CancelFunc) {
	return context.WithTimeout(ctx, b.loc.Patience+2*time.Minute+extra)
}

// patiently is what each call through the SDK is made with.
func (b *Bucket) patiently(o *s3.Options) {
	o.Retryer = patient{b.retry, time.Now().Add(b.loc.Patience)}
}

func (l Location) check() error {
	switch {
	case l.Bucket == "":
		return errors.Remedy(errors.Newf(errors.Invalid, "no bucket is named"), "name one")
	case strings.ContainsAny(l.Bucket, "/?#% \x00") || len(l.Bucket) > 255:
		return errors.Newf(errors.Invalid, "%.100q cannot be a bucket's name", l.Bucket)
	case len(l.Prefix) > maxKey/2:
		return errors.Newf(errors.Invalid, "the prefix has %d bytes; at most %d leave room for files", len(l.Prefix), maxKey/2)
	}
	if p := strings.Trim(l.Prefix, "/"); p != "" && !ValidPath(p) {
		return errors.Remedy(errors.Newf(errors.Invalid, "%.100q cannot be a prefix", l.Prefix), "use names with slashes between them, none of them '.' or '..'")
	}
	if l.Endpoint != "" {
		if u, err := url.Parse(l.Endpoint); err != nil || u.Host == "" || u.Scheme != "http" && u.Scheme != "https" || u.User != nil || u.RawQuery != "" {
			return errors.Remedy(errors.Newf(errors.Invalid, "the endpoint is no address of a server"), "write it as https://host:port, without user or query")
		}
	}
	if l.Region != "" && (l.Endpoint == "" || l.RoleARN != "") && !regionName().MatchString(l.Region) {
		return errors.Remedy(errors.Newf(errors.Invalid, "%.100q cannot be a region", l.Region), "use a name such as eu-central-1")
	}
	if (l.AccessKeyID == "") != (l.SecretAccessKey == "") {
		return errors.Newf(errors.Invalid, "an access key's id and secret belong together, and one of them is missing")
	}
	return l.checkRole()
}

// regionName is what AWS's host names have of regions; who names one must not name another host.
var regionName = pattern.New(`^[A-Za-z0-9-]{1,63}$`)

func (l Location) checkRole() error {
	switch {
	case l.RoleARN == "":
	case l.AccessKeyID == "" && l.TokenFile == "" && !l.Ambient:
		return errors.Remedy(errors.Newf(errors.Invalid, "nothing says with what the role %.200q is assumed", l.RoleARN), "add an access key, or the file with a web identity token")
	}
	if l.STS != "" {
		if u, err := url.Parse(l.STS); err != nil || u.Host == "" || u.Scheme != "http" && u.Scheme != "https" || u.User != nil {
			return errors.Remedy(errors.Newf(errors.Invalid, "the service that assumes roles has no address"), "write it as https://host:port")
		}
	}
	return nil
}

func cleanPrefix(prefix string) string {
	if prefix = strings.Trim(prefix, "/"); prefix == "" {
		return ""
	}
	return prefix + "/"
}

// handshakeTime is how long a TLS handshake may take.
const handshakeTime = 15 * time.Second

// client returns an HTTP client that keeps as many connections as there are workers.
func (l Location) client() (*http.Client, error) {
	t := &http.Transport{
		Proxy:               http.ProxyFromEnvironment,
		MaxIdleConns:        0,
		MaxIdleConnsPerHost: workers,
		IdleConnTimeout:     90 * time.Second,
		TLSHandshakeTimeout: handshakeTime,
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
			return nil, errors.Newf(errors.Invalid, "the authority to trust for S3 is no certificate in PEM")
		}
		t.TLSClientConfig.RootCAs = pool
	}
	if l.Socket != "" {
		t.Proxy = nil
		t.DialContext = func(ctx context.Context, _, _ string) (net.Conn, error) {
			return socket.Dial(ctx, filepath.Dir(l.Socket), filepath.Base(l.Socket))
		}
		return &http.Client{Transport: netguard.Unguarded(t), CheckRedirect: keep}, nil
	}
	if l.Proxy != "" {
		u, err := url.Parse(l.Proxy)
		if err != nil || u.Host == "" {
			return nil, errors.Newf(errors.Invalid, "the proxy for S3 is no URL")
		}
		t.Proxy = http.ProxyURL(u)
	}
	rules := netguard.Rules{Any: true}
	if l.Rules != nil {
		rules = *l.Rules
	}
	return &http.Client{Transport: rules.NewTransport(t), CheckRedirect: keep}, nil
}

// keep has a redirect be an answer.
func keep(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }

// config has the SDK find region and credentials.
func (l Location) config(ctx context.Context, client *http.Client) (aws.Config, error) {
	cfg := aws.Config{Region: l.Region, HTTPClient: client, Credentials: aws.AnonymousCredentials{}}
	if l.Ambient {
		found, err := config.LoadDefaultConfig(ctx, config.WithRegion(l.Region))
		if err != nil {
			return cfg, errors.Remedy(errors.Explainf(err, errors.Unauthenticated, "the AWS configuration of this machine cannot be read"), "correct ~/.aws, or name a secret with the keys")
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
		cfg.Credentials = l.role(cfg)
	}
	return cfg, nil
}

// roleRenewed is how long before they expire the credentials of a role are replaced: requests that are under way need them, too.
const roleRenewed = 5 * time.Minute

// role assumes the role with the credentials of cfg, or with the web identity. What it gets it renews before that expires.
func (l Location) role(cfg aws.Config) aws.CredentialsProvider {
	client := sts.NewFromConfig(cfg, func(o *sts.Options) {
		if l.STS != "" {
			o.BaseEndpoint = aws.String(strings.TrimSuffix(l.STS, "/"))
		}
	})
	early := func(o *aws.CredentialsCacheOptions) { o.ExpiryWindow = roleRenewed }
	if l.TokenFile != "" {
		return assumed{aws.NewCredentialsCache(stscreds.NewWebIdentityRoleProvider(client, l.RoleARN, stscreds.IdentityTokenFile(l.TokenFile)), early)}
	}
	return assumed{aws.NewCredentialsCache(stscreds.NewAssumeRoleProvider(client, l.RoleARN, func(o *stscreds.AssumeRoleOptions) {
		if l.ExternalID != "" {
			o.ExternalID = &l.ExternalID
		}
	}), early)}
}

// assumed says of a role that cannot be assumed that it cannot, and not S3 refuses something.
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
	return creds, errors.Remedy(errors.Explainf(err, errors.Unauthenticated, "the role for S3 cannot be assumed%s", why),
		"correct AWS_ROLE_ARN in the secret, and have the role trust who assumes it")
}

// Close ends idle connections.
func (b *Bucket) Close() {
	b.http.CloseIdleConnections()
	if b.wire != nil {
		b.wire.close()
	}
}

// At returns another prefix of the same bucket.
func (b *Bucket) At(prefix string) (*Bucket, error) {
	loc := b.loc
	loc.Prefix = prefix
	if err := loc.check(); err != nil {
		return nil, err
	}
	return b.at(prefix), nil
}

// at is At for a prefix that is known to be good.
func (b *Bucket) at(prefix string) *Bucket {
	loc := b.loc
	loc.Prefix = prefix
	other := &Bucket{loc: loc, prefix: cleanPrefix(prefix), s3: b.s3, http: b.http, wire: b.wire, base: b.base, region: b.region, creds: b.creds, signer: b.signer, retry: b.retry, silence: b.silence, heed: b.heed}
	other.skew.Store(b.skew.Load())
	other.md5.Store(b.md5.Load())
	other.single.Store(b.single.Load())
	return other
}

// String is the bucket and prefix as an s3:// URL.
func (b *Bucket) String() string { return "s3://" + b.loc.Bucket + "/" + b.prefix }

package modal

import (
	"context"
	"net"
	"net/netip"
	"net/url"
	"slices"
	"strings"
	"sync/atomic"

	sdk "github.com/modal-labs/modal-client/go"
	pb "github.com/modal-labs/modal-client/go/proto/modal_proto"
	"google.golang.org/grpc"

	"github.com/RelevanceAI/harvest/client/errors"
	"github.com/RelevanceAI/harvest/internal/engine"
	"github.com/RelevanceAI/harvest/internal/engine/modal/call"
)

// Place is the location of a bucket, with the credentials. They are passed to Modal as an unnamed secret, and
// are not stored on this machine.
type Place struct {
	Endpoint  string // a URL; "" for Amazon's
	Region    string // "" lets Modal choose
	PathStyle bool   // the bucket name is in the path, not in the host name
	Local     bool   // the bucket is served at a socket of this machine

	AccessKeyID, SecretAccessKey, SessionToken string // empty if there are none
}

// buckets adds a sandbox's buckets to params. The caller must create the sandbox with the returned context.
func (e *Engine) buckets(ctx context.Context, spec engine.Spec,
	params *sdk.SandboxCreateParams) (context.Context, error) {
	var inPath []string
	for _, m := range spec.Mounts {
		if m.Place.Bucket == "" {
			continue
		}
		if e.opts.Locate == nil {
			return ctx, errors.Newf(errors.Unsupported, "the engine modal has no credentials for buckets")
		}
		place, err := e.opts.Locate(ctx, spec.Account, m.Place)
		if err == nil {
			err = reachable(place, e.to.host())
		}
		if err != nil {
			return ctx, errors.Stage(err, "bucket")
		}
		mount, err := e.cloudBucket(ctx, m, place)
		if err != nil {
			return ctx, err
		}
		if params.CloudBucketMounts == nil {
			params.CloudBucketMounts = map[string]*sdk.CloudBucketMount{}
		}
		params.CloudBucketMounts[m.Path] = mount
		if place.PathStyle {
			inPath = append(inPath, m.Path)
		}
	}
	return context.WithValue(ctx, pathKey{}, inPath), nil
}

// cloudBucket converts a mount into the SDK's form.
func (e *Engine) cloudBucket(ctx context.Context, m engine.Mount, p Place) (*sdk.CloudBucketMount, error) {
	params := &sdk.CloudBucketMountParams{ReadOnly: m.ReadOnly}
	if p.Endpoint != "" {
		params.BucketEndpointURL = &p.Endpoint
	}
	if prefix := strings.Trim(m.Place.Prefix, "/"); prefix != "" {
		prefix += "/"
		params.KeyPrefix = &prefix
	}
	if p.AccessKeyID != "" {
		keys := map[string]string{"AWS_ACCESS_KEY_ID": p.AccessKeyID, "AWS_SECRET_ACCESS_KEY": p.SecretAccessKey}
		// Modal expects Google's credentials under other names.
		if u, err := url.Parse(p.Endpoint); err == nil && strings.HasSuffix(u.Hostname(), "storage.googleapis.com") {
			keys = map[string]string{"GOOGLE_ACCESS_KEY_ID": p.AccessKeyID,
				"GOOGLE_ACCESS_KEY_SECRET": p.SecretAccessKey}
		}
		for key, value := range map[string]string{"AWS_SESSION_TOKEN": p.SessionToken, "AWS_REGION": p.Region} {
			if value != "" {
				keys[key] = value
			}
		}
		var err error
		if params.Secret, err = e.client.Secrets.FromMap(ctx, keys, nil); err != nil {
			return nil, call.Explain(err, "make a secret")
		}
	}
	mount, err := e.client.CloudBucketMounts.New(m.Place.Bucket, params)
	return mount, call.Explain(err, "mount a bucket")
}

// reachable refuses a bucket that Modal cannot reach. A server that stands in for Modal reaches every place
// that is at least as far away from this machine as the server itself.
func reachable(p Place, server string) error {
	if p.Local {
		return errors.Remedy(errors.Newf(errors.Unsupported, "Modal cannot reach the S3 of this machine"),
			"name a secret with the credentials of an S3 on the internet (--s3-secret), or have the sandbox run on "+
				"this machine")
	}
	u, err := url.Parse(p.Endpoint)
	if err != nil || p.Endpoint == "" || distance(u.Hostname()) >= distance(server) {
		return nil
	}
	return errors.Remedy(errors.Newf(errors.Unsupported, "Modal cannot reach S3 at %.200s", u.Host),
		"use an S3 on the internet, or have the sandbox run on this machine")
}

// distance classifies the location of a host: 0 for this machine, 1 for its network, 2 for the internet. Host
// names count as the internet.
func distance(host string) int {
	ip, err := netip.ParseAddr(host)
	switch ip = ip.Unmap(); {
	case host == "localhost", strings.HasSuffix(host, ".localhost"), err == nil &&
		(ip.IsLoopback() || ip.IsUnspecified()):
		return 0
	case err == nil && (ip.IsPrivate() || ip.IsLinkLocalUnicast()):
		return 1
	}
	return 2
}

// server records the destination of calls to Modal. The first call shows it: the SDK has several sources for
// it.
type server struct{ target atomic.Pointer[string] }

// host returns the server's host name, or "" before the first call.
func (s *server) host() string {
	if s.target.Load() == nil {
		return ""
	}
	target := *s.target.Load()
	host, _, err := net.SplitHostPort(target)
	if err != nil {
		return target
	}
	return host
}

// pathKey is the context key of the mounts with the bucket name in the path, for which the SDK has no
// parameter.
type pathKey struct{}

// call records the destination of a call, and adds the parameters that the SDK leaves out.
func (s *server) call(ctx context.Context, method string, req, reply any, conn *grpc.ClientConn,
	invoke grpc.UnaryInvoker, opts ...grpc.CallOption) error {
	target := conn.Target()
	s.target.Store(&target)
	inPath(ctx, req)
	fetchAnew(ctx, req)
	return invoke(ctx, method, req, reply, conn, opts...)
}

// inPath requests path-style access for the buckets that the context names.
func inPath(ctx context.Context, req any) {
	paths, _ := ctx.Value(pathKey{}).([]string)
	r, ok := req.(interface{ GetDefinition() *pb.Sandbox })
	if !ok || len(paths) == 0 {
		return
	}
	for _, m := range r.GetDefinition().GetCloudBucketMounts() {
		m.SetForcePathStyle(slices.Contains(paths, m.GetMountPath()))
	}
}

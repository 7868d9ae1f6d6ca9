package modal

import (
	"context"
	"crypto/rand"
	"maps"
	"net/url"
	"strings"
	"time"

	pb "github.com/modal-labs/modal-client/go/proto/modal_proto"
	"google.golang.org/grpc/codes"

	"github.com/RelevanceAI/harvest/client/errors"
	"github.com/RelevanceAI/harvest/internal/base/account"
	"github.com/RelevanceAI/harvest/internal/base/logf"
	"github.com/RelevanceAI/harvest/internal/base/pattern"
	"github.com/RelevanceAI/harvest/internal/base/places"
	"github.com/RelevanceAI/harvest/internal/base/secret"
	"github.com/RelevanceAI/harvest/internal/fleet/record"
	"github.com/RelevanceAI/harvest/internal/fleet/spec"
)

// A client's bucket mount becomes a live mount of the Fleet, with a named secret for the credentials. If the
// client's secret has no name, or the mount names an endpoint, the sandbox gets its own secret. That secret is
// kept until the sandbox and its copies no longer need it.

// bucketSecret is the prefix of such secrets' names, and ownSecret matches these names.
const bucketSecret = "modal-bucket-"

var ownSecret = pattern.New(`^` + bucketSecret + `[a-z2-7]{26}$`)

// How long the credentials are kept after a sandbox has ended, because its writes may still have to be
// uploaded.
const (
	storedFor = 10 * time.Minute
	unsentFor = 7 * 24 * time.Hour // failed uploads are retried when the server starts
)

// mountable returns an error if the definition has bucket mounts that are not supported.
func mountable(def *pb.Sandbox) error {
	refuse := func(kind errors.Kind, what, remedy string) error {
		return errors.Remedy(errors.Newf(kind, "%s", what), "%s", remedy)
	}
	mounts := def.GetCloudBucketMounts()
	if len(def.GetS3Mounts()) > 0 {
		return refuse(errors.Unsupported, "this way to mount buckets is too old",
			"use cloud_bucket_mounts, as newer SDKs do")
	}
	if len(mounts) > 1 {
		return refuse(errors.Unsupported, "a sandbox has no more than one bucket mounted here",
			"mount one, or have a sidecar mount the other one")
	}
	for _, m := range mounts {
		prefix := m.GetKeyPrefix()
		u, err := url.Parse(m.GetBucketEndpointUrl())
		switch {
		case m.GetRequesterPays():
			return refuse(errors.Unsupported, "buckets for which the requester pays are not mounted here",
				"leave requester_pays out, and have the bucket's owner pay")
		case m.GetOidcAuthRoleArn() != "":
			return refuse(errors.Unsupported, "no role is assumed here with a sandbox's identity token",
				"give the mount a secret with AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY")
		case prefix != "" && !strings.HasSuffix(prefix, "/"):
			return refuse(errors.Invalid, "key_prefix is put before all keys, so it must end with a '/'", "Add it")
		case err != nil || u.User != nil || u.RawQuery != "":
			return refuse(errors.Invalid, "the bucket's endpoint is no address of a server",
				"write it as https://host:port, and credentials into a secret")
		}
	}
	return nil
}

// bucket returns the bucket mount of a definition, nil without one. dropBucket recognizes a secret that is the
// sandbox's own.
func (s *Server) bucket(ctx context.Context, acc string, def *pb.Sandbox) (*spec.S3, error) {
	if len(def.GetCloudBucketMounts()) == 0 {
		return nil, nil
	}
	m := def.GetCloudBucketMounts()[0]
	mount := &spec.S3{Place: places.Place{Bucket: m.GetBucketName(), Prefix: m.GetKeyPrefix()},
		MountPath: m.GetMountPath(), Mount: true,
		ReadOnly: m.GetReadOnly()}
	where, err := s.whereBucket(acc, m)
	if err != nil {
		return nil, err
	}
	if m.GetCredentialsSecretId() == "" {
		if len(where) > 0 {
			return nil, errors.Remedy(errors.Newf(errors.Invalid,
				"a bucket at its own endpoint needs a secret"),
				"give the mount a secret with AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY")
		}
		return mount, nil // uses the account's S3 credentials
	}
	pairs, name, err := s.pairs(ctx, acc, m.GetCredentialsSecretId())
	if err != nil {
		return nil, err
	}
	if name != "" && len(where) == 0 && pairs["AWS_ACCESS_KEY_ID"] != "" {
		mount.Secret = name
		return mount, nil
	}
	own := keysOf(pairs)
	maps.Copy(own, where)
	if _, err := own.AWS(); err != nil {
		return nil, err
	}
	vault, err := s.vault()
	if err != nil {
		return nil, err
	}
	mount.Secret = bucketSecret + strings.ToLower(rand.Text())
	_, err = vault.Set(ctx, acc, mount.Secret, own, secret.Create)
	return mount, err
}

// whereBucket returns the endpoint settings that a mount's secret needs beside the credentials.
func (s *Server) whereBucket(acc string, m *pb.CloudBucketMount) (secret.Pairs, error) {
	endpoint, ours := strings.TrimRight(m.GetBucketEndpointUrl(), "/"), strings.TrimRight(s.opts.S3Endpoint, "/")
	if endpoint == "" || endpoint == ours {
		return nil, nil
	}
	if ours != "" {
		return nil, errors.Remedy(errors.Newf(errors.Unsupported,
			"this server uses only the S3 endpoint of its configuration"),
			"leave bucket_endpoint_url out, or s3.endpoint of the configuration")
	}
	if acc != account.Personal { // the server can reach addresses that other accounts must not
		return nil, errors.Remedy(errors.Newf(errors.Denied, "only the server's operator may choose an S3 endpoint"),
			"leave bucket_endpoint_url out, or ask the operator to set s3.endpoint in the server's configuration")
	}
	where := secret.Pairs{"AWS_ENDPOINT_URL_S3": endpoint}
	if m.GetForcePathStyle() {
		where[secret.PathStyle] = "true"
	}
	return where, nil
}

// keysOf returns the pairs of a client's secret that configure S3. Google's keys have other names.
func keysOf(pairs secret.Pairs) secret.Pairs {
	keys := secret.Pairs{}
	for _, key := range []string{
		"AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN", "AWS_REGION", "AWS_DEFAULT_REGION",
		"AWS_ENDPOINT_URL", "AWS_ENDPOINT_URL_S3", secret.PathStyle,
	} {
		if pairs[key] != "" {
			keys[key] = pairs[key]
		}
	}
	if keys["AWS_ACCESS_KEY_ID"] == "" && pairs["GOOGLE_ACCESS_KEY_ID"] != "" {
		keys["AWS_ACCESS_KEY_ID"], keys["AWS_SECRET_ACCESS_KEY"] = pairs["GOOGLE_ACCESS_KEY_ID"],
			pairs["GOOGLE_ACCESS_KEY_SECRET"]
	}
	return keys
}

// bucketError maps an error of creating a sandbox. A refusal by S3 must not have the code for a refusal by this
// server, which means that the client's own credentials are wrong.
func bucketError(mount *spec.S3, err error) error {
	if kind := errors.KindOf(err); mount != nil && (kind == errors.Unauthenticated || kind == errors.Denied) {
		return withCode(err, codes.InvalidArgument)
	}
	return err
}

// dropBucket removes the secret of a sandbox's mount if it is the sandbox's own.
func (s *Server) dropBucket(ctx context.Context, acc string, mount *spec.S3) {
	if mount == nil || !ownSecret().MatchString(mount.Secret) || s.opts.Secrets == nil {
		return
	}
	if err := s.opts.Secrets.Delete(context.WithoutCancel(ctx), acc, mount.Secret); err != nil &&
		errors.KindOf(err) != errors.NotFound {
		logf.Warnf(ctx, "remove the secret of a bucket's mount: %v", err) // sweepBuckets retries
	}
}

// endBucket is dropBucket for an ended sandbox, if all its writes are uploaded and no copy of the sandbox uses
// the same secret. Otherwise sweepBuckets removes the secret later.
func (s *Server) endBucket(ctx context.Context, sb record.Sandbox) {
	if sb.S3 == nil || sb.Status != record.Terminated || sb.S3.SyncError != "" {
		return
	}
	live, err := s.opts.Fleet.List(ctx, sb.Account, record.Filter{})
	if err != nil {
		logf.Debugf(ctx, "look for users of the secret of a bucket's mount: %v", err)
		return
	}
	for _, other := range live {
		if other.S3 != nil && other.S3.Secret == sb.S3.Secret {
			return
		}
	}
	s.dropBucket(ctx, sb.Account, &sb.S3.S3)
}

// sweepBuckets removes mount secrets that are no longer needed.
func (s *Server) sweepBuckets(ctx context.Context) {
	if s.opts.Secrets == nil {
		return
	}
	all, err := s.opts.Fleet.List(ctx, "", record.Filter{All: true})
	if err != nil {
		logf.Errorf(ctx, "look for mounts of buckets: %v", err)
		return
	}
	accounts, needed := map[string]bool{account.Personal: true}, map[string]bool{}
	for _, sb := range all {
		accounts[sb.Account] = true
		if sb.S3 != nil && needsSecret(sb) {
			needed[sb.Account+" "+sb.S3.Secret] = true
		}
	}
	for acc := range accounts {
		secrets, err := s.opts.Secrets.List(ctx, acc)
		if err != nil {
			logf.Errorf(ctx, "look for the secrets of mounts: %v", err)
			continue
		}
		for _, found := range secrets {
			if !needed[acc+" "+found.Name] && time.Since(found.Created) > storedFor { // the sandbox may not exist yet
				s.dropBucket(ctx, acc, &spec.S3{Place: places.Place{Secret: found.Name}})
			}
		}
	}
}

// needsSecret reports whether the credentials of a sandbox's mount may still be needed.
func needsSecret(sb record.Sandbox) bool {
	limit := storedFor
	if sb.S3.SyncError != "" {
		limit = unsentFor
	}
	return !sb.Status.Ended() || time.Since(sb.Ended) < limit
}

package oci

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"strings"
	"sync"
	"time"

	"github.com/google/go-containerregistry/pkg/authn"
	"github.com/google/go-containerregistry/pkg/name"
	"github.com/google/go-containerregistry/pkg/v1/remote/transport"
	"github.com/google/go-containerregistry/pkg/v1/types"

	"github.com/RelevanceAI/harvest/client/errors"
	"github.com/RelevanceAI/harvest/internal/base/logf"
	"github.com/RelevanceAI/harvest/internal/base/netguard"
	"github.com/RelevanceAI/harvest/internal/image"
)

// accepted are the manifest types that this package reads, or refuses with an error of its own.
var accepted = []types.MediaType{
	types.OCIImageIndex, types.DockerManifestList, types.OCIManifestSchema1, types.DockerManifestSchema2,
	types.DockerManifestSchema1, types.DockerManifestSchema1Signed,
}

// remote accesses the blobs of an image for one caller.
type remote struct {
	source *Source
	owner  string
	blobs  *blobs // of the caller's account
	ref    name.Reference
	opts   image.BuildOptions

	mu       sync.Mutex
	sessions []*session // guarded by mu; mirrors first, then the registry; connected on demand
}

// session is a connection to one repository.
type session struct {
	repo   name.Repository
	client *http.Client // nil until connected
	err    error        // why it is unusable
}

func (s *Source) remote(ref name.Reference, owner string, opts image.BuildOptions) (*remote, error) {
	b, err := s.blobs.of(owner)
	return &remote{source: s, owner: owner, blobs: b, ref: ref, opts: opts}, err
}

// each calls try with one session after another until one succeeds. The error is that of the last
// session, the registry itself.
func (r *remote) each(ctx context.Context, try func(*session) error) error {
	r.mu.Lock()
	if r.sessions == nil {
		repos, err := r.source.repositories(r.ref.Context())
		if err != nil {
			r.mu.Unlock()
			return err
		}
		for _, repo := range repos {
			r.sessions = append(r.sessions, &session{repo: repo})
		}
	}
	sessions := r.sessions
	r.mu.Unlock()
	for i, s := range sessions {
		err := r.connect(ctx, s)
		if err == nil {
			err = try(s)
		}
		if err == nil || i == len(sessions)-1 || ctx.Err() != nil {
			return err
		}
		logf.Warnf(ctx, "the mirror %s cannot give %s: %v", s.repo.RegistryStr(), r.ref.Name(), err)
	}
	return nil
}

// connect signs in. It does so once for all waiting callers.
func (r *remote) connect(ctx context.Context, s *session) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	if s.client != nil || s.err != nil {
		return s.err
	}
	auth, err := r.authenticator(ctx, s.repo)
	if err != nil {
		s.err = err
		return err
	}
	base := &retry{next: &confined{next: r.source.opts.Transport(r.owner), plain: s.repo.Scheme() == "http"},
		pause: r.source.pause}
	rt, err := transport.NewWithContext(ctx, s.repo.Registry, auth, base, []string{s.repo.Scope(transport.PullScope)})
	if err != nil {
		if ctx.Err() != nil {
			return errors.Wrapf(context.Cause(ctx), "connect to %s", hostOf(s.repo))
		}
		s.err = r.explain(s, err)
		return s.err
	}
	s.client = &http.Client{Transport: rt}
	return nil
}

// confined refuses addresses without TLS for token realms and blobs that a registry refers to,
// unless the registry itself has no TLS. Otherwise credentials meant for TLS could be read on the
// network.
type confined struct {
	next  http.RoundTripper
	plain bool
}

// RoundTrip implements http.RoundTripper.
func (c *confined) RoundTrip(req *http.Request) (*http.Response, error) {
	if req.URL.Scheme == "https" || c.plain && req.URL.Scheme == "http" {
		return c.next.RoundTrip(req)
	}
	if req.Body != nil {
		req.Body.Close()
	}
	return nil, netguard.Deny("the registry leads to %.200q, an address without TLS", req.URL.Host)
}

// authenticator returns the credentials of the caller, or else those of the user's Docker
// configuration.
func (r *remote) authenticator(ctx context.Context, repo name.Repository) (authn.Authenticator, error) {
	host := hostOf(repo)
	if r.opts.Credentials != nil {
		c, err := r.opts.Credentials(ctx, host)
		if err != nil {
			return nil, errors.Wrapf(err, "find the credentials for %s", host)
		}
		if c.Anonymous {
			return authn.Anonymous, nil
		}
		if c != (image.Credential{}) {
			return authn.FromConfig(authn.AuthConfig{Username: c.User, Password: c.Password, RegistryToken: c.Token}),
				nil
		}
	}
	auth, err := authn.Resolve(ctx, authn.DefaultKeychain, repo)
	if err != nil {
		err = errors.Explainf(err, errors.Unauthenticated,
			"the credentials for %s cannot be read from the Docker configuration of this user", host)
		return nil, errors.Remedy(err, "check ~/.docker/config.json and the credential helper that it names")
	}
	return auth, nil
}

// get requests a path of the repository. The caller closes the body.
func (r *remote) get(ctx context.Context, s *session, path string, header http.Header) (*http.Response, error) {
	url := fmt.Sprintf("%s://%s/v2/%s/%s", s.repo.Scheme(), s.repo.RegistryStr(), s.repo.RepositoryStr(), path)
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		return nil, errors.Wrapf(err, "make a request")
	}
	for key, values := range header {
		req.Header[key] = values
	}
	resp, err := s.client.Do(req)
	if err != nil {
		return nil, r.explain(s, err)
	}
	if resp.StatusCode == http.StatusOK || resp.StatusCode == http.StatusPartialContent {
		return resp, nil
	}
	defer resp.Body.Close()
	if resp.StatusCode == http.StatusRequestedRangeNotSatisfiable {
		return nil, errRange
	}
	wait, _ := retryAfter(resp.Header)
	said, _ := io.ReadAll(io.LimitReader(resp.Body, 512)) // the beginning of the body, for operators
	return nil, r.refused(s, resp.StatusCode, wait,
		errors.Errorf("%s: %s", resp.Status, strings.TrimSpace(string(said))))
}

// errRange reports that the registry cannot resume at the requested offset.
var errRange = errors.Newf(errors.Unavailable, "the registry cannot resume the download")

// manifest requests a manifest by tag or digest.
func (r *remote) manifest(ctx context.Context, s *session, identifier string) ([]byte, error) {
	header := http.Header{}
	for _, t := range accepted {
		header.Add("Accept", string(t))
	}
	resp, err := r.get(ctx, s, "manifests/"+identifier, header)
	if err != nil {
		return nil, err
	}
	defer resp.Body.Close()
	text, err := io.ReadAll(io.LimitReader(resp.Body, maxManifest+1))
	if err != nil {
		return nil, r.explain(s, err)
	}
	if len(text) > maxManifest {
		return nil, errors.Newf(errors.Invalid, "the manifest of %s has more than %d bytes", r.ref.Name(), maxManifest)
	}
	return text, nil
}

// explain adds kind and text to a connection error.
func (r *remote) explain(s *session, err error) error {
	var refused *transport.Error
	if denied := netguard.Refusal(err); denied != nil {
		return errors.Explainf(denied, errors.Denied, "%s: %s", r.ref.Name(), errors.Message(denied))
	}
	switch {
	case errors.Is(err, context.Canceled) || errors.Is(err, context.DeadlineExceeded):
		return errors.Wrapf(err, "ask %s", hostOf(s.repo))
	case errors.As(err, &refused):
		return r.refused(s, refused.StatusCode, 0, err)
	}
	err = errors.Explainf(err, errors.Unavailable, "the registry %s of %s cannot be reached",
		hostOf(s.repo), r.ref.Name())
	return errors.Remedy(err,
		"check the name of the image and the network; a registry without TLS must be in registries.insecure")
}

// refused returns the error for an HTTP status.
func (r *remote) refused(s *session, status int, wait time.Duration, cause error) error {
	host, ref := hostOf(s.repo), r.ref.Name()
	switch {
	case status == http.StatusUnauthorized:
		err := errors.Explainf(cause, errors.Unauthenticated,
			"the registry %s denies access to %s: the image does not exist, or needs other credentials", host, ref)
		return errors.Remedy(err, "check the name; for a private image sign in with docker login %s", host)
	case status == http.StatusForbidden:
		return errors.Remedy(errors.Explainf(cause, errors.Denied, "the registry %s denies access to %s", host,
			ref), "use credentials that may read it")
	case status == http.StatusNotFound:
		return errors.Remedy(errors.Explainf(cause, errors.NotFound, "the registry %s has no image %s", host, ref),
			"check the name and the tag")
	case status == http.StatusTooManyRequests:
		err := errors.Explainf(cause, errors.Unavailable, "registry %s: too many requests from this machine",
			host)
		if wait > 0 {
			return errors.Remedy(err, "try again in %v, or sign in for a higher limit", wait.Round(time.Second))
		}
		return errors.Remedy(err, "try again later, or sign in for a higher limit")
	case status >= 500:
		return errors.Remedy(errors.Explainf(cause, errors.Unavailable,
			"the registry %s failed (status %d)", host, status), "try again later")
	}
	return errors.Remedy(errors.Explainf(cause, errors.Unavailable, "the registry %s answered with the status %d", host,
		status), "check that it is a registry")
}

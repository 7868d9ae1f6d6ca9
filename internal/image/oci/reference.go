package oci

import (
	"net/http"
	"slices"
	"strings"
	"time"

	"github.com/google/go-containerregistry/pkg/name"

	"github.com/RelevanceAI/harvest/client/errors"
	"github.com/RelevanceAI/harvest/internal/base/netguard"
)

// dockerHub is the name that users give to Docker Hub, whose host is another one.
const dockerHub = "docker.io"

// parse parses a reference like Docker: without a registry it is at Docker Hub, without a tag it
// means "latest".
func (s *Source) parse(text string) (name.Reference, error) {
	ref, err := name.ParseReference(text)
	if err != nil {
		err = errors.Explainf(err, errors.Invalid, "%.200q is not the name of an image", text)
		return nil, errors.Remedy(err, "write it as debian:12 or ghcr.io/owner/name@sha256:…")
	}
	if d, ok := ref.(name.Digest); ok && !strings.HasPrefix(d.DigestStr(), "sha256:") {
		return nil, errors.Remedy(errors.Newf(errors.Unsupported, "only sha256 digests are supported"),
			"use the image's tag")
	}
	return ref, nil
}

// hostOf returns the registry's host as users write it.
func hostOf(repo name.Repository) string {
	if host := repo.RegistryStr(); host != name.DefaultRegistry {
		return host
	}
	return dockerHub
}

// repositories returns the repositories to try for repo, mirrors first.
func (s *Source) repositories(repo name.Repository) ([]name.Repository, error) {
	var all []name.Repository
	for _, mirror := range s.opts.Mirrors[hostOf(repo)] {
		host, prefix, _ := strings.Cut(strings.TrimRight(mirror, "/"), "/")
		path := strings.TrimPrefix(prefix+"/"+repo.RepositoryStr(), "/")
		at, err := name.NewRepository(host+"/"+path, s.nameOptions(host)...)
		if err != nil {
			return nil, errors.Remedy(errors.Explainf(err, errors.Invalid, "the mirror %.200q of %s is not a registry",
				mirror, hostOf(repo)), "correct registries.mirrors")
		}
		all = append(all, at)
	}
	own, err := name.NewRepository(repo.Name(), s.nameOptions(hostOf(repo))...)
	if err != nil {
		return nil, errors.Wrapf(err, "parse a repository")
	}
	return append(all, own), nil
}

func (s *Source) nameOptions(host string) []name.Option {
	if slices.Contains(s.opts.Insecure, host) {
		return []name.Option{name.Insecure}
	}
	return nil
}

// NewTransport returns a transport for registries under the rules. It times out on registries that
// never answer. The duration of a body is unlimited, but a download ends if no data
// arrives for a while.
func NewTransport(rules netguard.Rules) http.RoundTripper {
	return rules.NewTransport(&http.Transport{
		Proxy: http.ProxyFromEnvironment, ForceAttemptHTTP2: true, MaxIdleConns: 100, MaxIdleConnsPerHost: parallel,
		IdleConnTimeout:     90 * time.Second,
		TLSHandshakeTimeout: 10 * time.Second, ExpectContinueTimeout: time.Second, ResponseHeaderTimeout: time.Minute,
	})
}

func join(all []string) string {
	if len(all) == 0 {
		return "none"
	}
	return strings.Join(all, ", ")
}

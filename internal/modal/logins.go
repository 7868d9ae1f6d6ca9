package modal

import (
	"context"
	"maps"
	"slices"
	"strings"

	pb "github.com/modal-labs/modal-client/go/proto/modal_proto"

	"github.com/RelevanceAI/harvest/client/errors"
	"github.com/RelevanceAI/harvest/internal/base/secret"
	"github.com/RelevanceAI/harvest/internal/image"
)

// registryLogin returns the credentials for the registry of an image.
func (s *Server) registryLogin(ctx context.Context, acc string,
	config *pb.ImageRegistryConfig) (func(context.Context, string) (image.Credential, error), error) {
	kind := config.GetRegistryAuthType()
	if kind == pb.RegistryAuthType_REGISTRY_AUTH_TYPE_UNSPECIFIED ||
		kind == pb.RegistryAuthType_REGISTRY_AUTH_TYPE_PUBLIC {
		return s.opts.Fleet.Credentials(acc, ""), nil
	}
	pairs, _, err := s.pairs(ctx, acc, config.GetSecretId())
	if err != nil {
		return nil, err
	}
	var login image.Credential
	switch kind {
	case pb.RegistryAuthType_REGISTRY_AUTH_TYPE_STATIC_CREDS:
		login = image.Credential{User: pairs["REGISTRY_USERNAME"], Password: pairs["REGISTRY_PASSWORD"]}
	case pb.RegistryAuthType_REGISTRY_AUTH_TYPE_GCP:
		login = image.Credential{User: "_json_key", Password: pairs["SERVICE_ACCOUNT_JSON"]}
	case pb.RegistryAuthType_REGISTRY_AUTH_TYPE_AWS:
		err := errors.Newf(errors.Unsupported, "this server does not fetch Amazon's tokens for registries")
		return nil,
			errors.Remedy(err,
				"use a secret with REGISTRY_USERNAME=AWS and REGISTRY_PASSWORD from \"aws ecr get-login-password\"")
	}
	if login.User == "" || login.Password == "" {
		return nil, errors.Remedy(errors.Newf(errors.Invalid, "the secret has no login for a registry"),
			"give it REGISTRY_USERNAME and REGISTRY_PASSWORD, or SERVICE_ACCOUNT_JSON")
	}
	return func(context.Context, string) (image.Credential, error) { return login, nil }, nil
}

// buildSecrets gives each RUN the values of the secrets as its environment. The image does not contain them.
func (s *Server) buildSecrets(ctx context.Context, p *recipe, def *pb.Image) error {
	env, names, err := s.environment(ctx, def.GetSecretIds(), nil)
	if err != nil {
		return err
	}
	for _, name := range names {
		if _, bound, err := s.opts.Secrets.Held(ctx, callerOf(ctx).Account, secret.Bound, name); err != nil || bound {
			return errors.Join(err, errors.Remedy(errors.Newf(errors.Unsupported,
				"the secret %q is bound to hosts, and cannot be used in builds", name), "build with another secret"))
		}
	}
	mounts := ""
	for _, name := range slices.Sorted(maps.Keys(env)) {
		p.opts.Secrets[name] = []byte(env[name])
		mounts += "--mount=type=secret,id=" + name + ",env=" + name + " "
	}
	for i, line := range p.spec.Commands {
		if word, rest, ok := strings.Cut(strings.TrimSpace(line), " "); ok && strings.EqualFold(word, "RUN") {
			p.spec.Commands[i] = word + " " + mounts + rest
		}
	}
	return nil
}

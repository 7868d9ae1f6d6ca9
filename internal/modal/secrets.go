package modal

import (
	"context"
	"crypto/rand"
	"maps"
	"slices"
	"strings"
	"time"

	pb "github.com/modal-labs/modal-client/go/proto/modal_proto"
	"google.golang.org/protobuf/types/known/emptypb"

	"github.com/RelevanceAI/harvest/client/errors"
	"github.com/RelevanceAI/harvest/internal/base/secret"
	"github.com/RelevanceAI/harvest/internal/store/records"
)

// vault returns the named secrets. Unsupported if the server has no vault.
func (s *Server) vault() (*secret.Vault, error) {
	if s.opts.Secrets == nil {
		return nil, errors.Newf(errors.Unsupported, "this server has no secrets")
	}
	return s.opts.Secrets, nil
}

// SecretGetOrCreate implements ModalClient.
func (c *control) SecretGetOrCreate(ctx context.Context,
	req *pb.SecretGetOrCreateRequest) (*pb.SecretGetOrCreateResponse, error) {
	account := callerOf(ctx).Account
	switch req.GetObjectCreationType() {
	case pb.ObjectCreationType_OBJECT_CREATION_TYPE_EPHEMERAL,
		pb.ObjectCreationType_OBJECT_CREATION_TYPE_ANONYMOUS_OWNED_BY_APP:
		pairs := secret.Pairs(req.GetEnvDict())
		if len(pairs) > 0 {
			if err := pairs.Check(); err != nil {
				return nil, err
			}
		}
		id, err := once1(ctx, c.s, "secret", func() (string, error) { return c.s.addSecret(account, pairs) })
		return pb.SecretGetOrCreateResponse_builder{SecretId: id}.Build(), err
	}
	vault, err := c.s.vault()
	if err != nil {
		return nil, err
	}
	if err := errors.Join(checkName("Secret", req.GetDeploymentName()),
		checkEnv(req.GetEnvironmentName())); err != nil {
		return nil, err
	}
	name := scoped(req.GetEnvironmentName(), req.GetDeploymentName())
	if creates(req.GetObjectCreationType()) {
		if err := c.setSecret(ctx, vault, account, name, req); err != nil {
			return nil, err
		}
	}
	found, err := lookup(ctx, vault, account, name, req.GetDeploymentName())
	if err != nil {
		return nil, err
	}
	var lacks []string
	for _, key := range req.GetRequiredKeys() {
		if !slices.Contains(found.Keys, key) {
			lacks = append(lacks, key)
		}
	}
	if len(lacks) > 0 {
		err := errors.Newf(errors.Conflict, "Secret is missing key(s): %s", strings.Join(lacks, ", "))
		return nil, errors.Remedy(err, "add them to the secret")
	}
	return pb.SecretGetOrCreateResponse_builder{SecretId: named(secretID, found.Name),
		Metadata: pb.SecretMetadata_builder{
			Name: req.GetDeploymentName(), Keys: found.Keys, EnvironmentName: envOr(req.GetEnvironmentName()),
		}.Build()}.Build(), nil
}

// setSecret stores a secret according to the creation type.
func (c *control) setSecret(ctx context.Context, vault *secret.Vault, account, name string,
	req *pb.SecretGetOrCreateRequest) error {
	how := secret.Create
	if req.GetObjectCreationType() == pb.ObjectCreationType_OBJECT_CREATION_TYPE_CREATE_OVERWRITE_IF_EXISTS {
		how = secret.Replace
	}
	_, err := once1(ctx, c.s, "set secret",
		func() (secret.Secret, error) { return vault.Set(ctx, account, name, req.GetEnvDict(), how) })
	if errors.KindOf(err) != errors.Conflict {
		return err
	}
	if req.GetObjectCreationType() == pb.ObjectCreationType_OBJECT_CREATION_TYPE_CREATE_IF_MISSING {
		return nil
	}
	return withCode(err, alreadyExists)
}

// lookup finds the secret of an environment, or else the secret without an environment.
func lookup(ctx context.Context, vault *secret.Vault, account, name, plain string) (secret.Secret, error) {
	found, err := vault.Get(ctx, account, name)
	if errors.KindOf(err) == errors.NotFound {
		found, err = vault.Get(ctx, account, plain)
	}
	if errors.KindOf(err) == errors.NotFound {
		err = errors.Remedy(errors.Newf(errors.NotFound, "Secret '%.80s' not found", plain),
			"make it with: harvest secret set %s KEY=VALUE", plain)
	}
	return found, err
}

// addSecret adds an anonymous secret and returns its ID.
func (s *Server) addSecret(account string, pairs secret.Pairs) (string, error) {
	id := secretID + looseMark + rand.Text()
	return id, s.secrets.Add(records.ID{Account: account, ID: id}, pairs)
}

// pairs returns the values of the secret with that ID.
func (s *Server) pairs(ctx context.Context, account, id string) (secret.Pairs, string, error) {
	if pairs, ok := s.secrets.Get(records.ID{Account: account, ID: id}, time.Now()); ok {
		return pairs, "", nil
	}
	name, err := nameOf(id, secretID, "Secret")
	if err != nil {
		return nil, "", err
	}
	vault, err := s.vault()
	if err != nil {
		return nil, "", err
	}
	pairs, release, err := vault.Reveal(ctx, account, name)
	if err != nil {
		if errors.KindOf(err) == errors.NotFound {
			err = missing("Secret", name)
		}
		return nil, "", err
	}
	release() // the values stay redacted as long as the secret exists
	return pairs, name, nil
}

// environment merges the environment of a command from all places where SDKs put it: IDs of secrets, then
// sources in order, then variables. names lists the named secrets. Those that are bound have placeholders.
func (s *Server) environment(ctx context.Context, ids []string, sources []*pb.SecretSource,
	more ...map[string]string) (env map[string]string, names []string, err error) {
	account := callerOf(ctx).Account
	env = map[string]string{}
	take := func(id string) error {
		pairs, name, err := s.pairs(ctx, account, id)
		if err == nil && name != "" {
			pairs, _, err = s.opts.Secrets.Held(ctx, account, secret.Bound, name)
		}
		maps.Copy(env, pairs)
		if name != "" && !slices.Contains(names, name) {
			names = append(names, name)
		}
		return err
	}
	if len(sources) == 0 { // sources, if present, include the IDs
		for _, id := range ids {
			if err := take(id); err != nil {
				return nil, nil, err
			}
		}
	}
	for _, source := range sources {
		if source.GetSecretId() != "" {
			if err := take(source.GetSecretId()); err != nil {
				return nil, nil, err
			}
		}
		maps.Copy(env, source.GetEnv().GetContents())
	}
	for _, m := range more {
		maps.Copy(env, m)
	}
	return env, names, nil
}

// SecretDelete implements ModalClient.
func (c *control) SecretDelete(ctx context.Context, req *pb.SecretDeleteRequest) (*emptypb.Empty, error) {
	account := callerOf(ctx).Account
	if found, err := c.s.secrets.Delete(records.ID{Account: account, ID: req.GetSecretId()}); found || err != nil {
		return &emptypb.Empty{}, err
	}
	name, err := nameOf(req.GetSecretId(), secretID, "Secret")
	if err != nil {
		return nil, err
	}
	vault, err := c.s.vault()
	if err != nil {
		return nil, err
	}
	if err := vault.Delete(ctx, account, name); errors.KindOf(err) == errors.NotFound {
		return nil, missing("Secret", name)
	} else if err != nil {
		return nil, err
	}
	return &emptypb.Empty{}, nil
}

// SecretList implements ModalClient.
func (c *control) SecretList(ctx context.Context, req *pb.SecretListRequest) (*pb.SecretListResponse, error) {
	vault, err := c.s.vault()
	if err != nil {
		return nil, err
	}
	all, err := vault.List(ctx, callerOf(ctx).Account)
	if err != nil {
		return nil, err
	}
	for i := range all {
		if all[i].Created.IsZero() { // from the server's environment
			all[i].Created = c.s.began
		}
	}
	prefix := scoped(req.GetEnvironmentName(), "") // "main" has all: a name with a dot may be its own
	all = slices.DeleteFunc(all, func(found secret.Secret) bool { return !strings.HasPrefix(found.Name, prefix) })
	asked := req.GetPagination()
	var items []*pb.SecretListItem
	for _, found := range page(all, asked.GetCreatedBefore(), int(asked.GetMaxObjects()),
		func(found secret.Secret) time.Time { return found.Created }) {
		label := strings.TrimPrefix(found.Name, prefix)
		items = append(items, pb.SecretListItem_builder{
			Label: label, SecretId: named(secretID, found.Name), CreatedAt: seconds(found.Created),
			EnvironmentName: envOr(req.GetEnvironmentName()),
			Metadata: pb.SecretMetadata_builder{Name: label, Keys: found.Keys,
				CreationInfo: creation(found.Created)}.Build(),
		}.Build())
	}
	return pb.SecretListResponse_builder{Items: items, EnvironmentName: envOr(req.GetEnvironmentName())}.Build(), nil
}

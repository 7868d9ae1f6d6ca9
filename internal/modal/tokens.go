package modal

import (
	"cmp"
	"context"
	"maps"
	"time"

	pb "github.com/modal-labs/modal-client/go/proto/modal_proto"
	"google.golang.org/protobuf/types/known/emptypb"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/RelevanceAI/harvest/client/errors"
	"github.com/RelevanceAI/harvest/internal/base/account"
	"github.com/RelevanceAI/harvest/internal/base/secret"
	"github.com/RelevanceAI/harvest/internal/store/records"
)

// TokenInfoGet implements ModalClient. A token is a key, and a workspace an account.
func (c *control) TokenInfoGet(ctx context.Context, _ *pb.TokenInfoGetRequest) (*pb.TokenInfoGetResponse, error) {
	who := callerOf(ctx)
	by := account.Local()
	by.Account = who.Account
	all, err := c.s.opts.Keys.List(ctx, by, false)
	if err != nil {
		return nil, err
	}
	for _, k := range all {
		if k.ID != who.KeyID {
			continue
		}
		info := pb.TokenInfoGetResponse_builder{TokenId: k.ID, TokenName: k.Name, WorkspaceId: k.Account,
			WorkspaceName: k.Account, CreatedAt: timestamppb.New(k.Created),
			UserIdentity: pb.UserIdentity_builder{UserId: cmp.Or(k.Subject, k.Account),
				Username: cmp.Or(k.Subject, k.Account)}.Build()}
		if !k.Expires.IsZero() {
			info.ExpiresAt = timestamppb.New(k.Expires)
		}
		return info.Build(), nil
	}
	return nil, errors.Newf(errors.Unauthenticated, "the key of this token has been revoked, or has expired")
}

// storedSecret returns a named secret that may be changed, by its ID.
func (c *control) storedSecret(ctx context.Context, id string) (*secret.Vault, secret.Secret, error) {
	acc := callerOf(ctx).Account
	if _, ok := c.s.secrets.Get(records.ID{Account: acc, ID: id}, time.Now()); ok {
		return nil, secret.Secret{}, errors.Remedy(errors.Newf(errors.Unsupported,
			"a secret without a name cannot be changed"), "make another one, or use a secret with a name")
	}
	name, err := nameOf(id, secretID, "Secret")
	if err != nil {
		return nil, secret.Secret{}, err
	}
	vault, err := c.s.vault()
	if err != nil {
		return nil, secret.Secret{}, err
	}
	found, err := vault.Get(ctx, acc, name)
	if errors.KindOf(err) == errors.NotFound {
		err = missing("Secret", name)
	}
	return vault, found, err
}

// SecretGetInfo implements ModalClient.
func (c *control) SecretGetInfo(ctx context.Context, req *pb.SecretGetInfoRequest) (*pb.SecretGetInfoResponse, error) {
	_, found, err := c.storedSecret(ctx, req.GetSecretId())
	if err != nil {
		return nil, err
	}
	created := found.Created
	if created.IsZero() { // from the server's environment
		created = c.s.began
	}
	return pb.SecretGetInfoResponse_builder{Metadata: pb.SecretMetadata_builder{Name: found.Name, Keys: found.Keys,
		CreationInfo: creation(created)}.Build()}.Build(), nil
}

// SecretUpdate implements ModalClient. It replaces and adds keys; a key without a value is removed.
func (c *control) SecretUpdate(ctx context.Context, req *pb.SecretUpdateRequest) (*emptypb.Empty, error) {
	c.s.updating.Lock() // what is read must not change before it is written
	defer c.s.updating.Unlock()
	vault, found, err := c.storedSecret(ctx, req.GetSecretId())
	if err != nil {
		return nil, err
	}
	if found.Created.IsZero() {
		return nil, errors.Remedy(errors.Newf(errors.Unsupported, "secret %s: comes from the server's environment",
			found.Name), "make it with: harvest secret set %s KEY=VALUE", found.Name)
	}
	acc := callerOf(ctx).Account
	pairs, release, err := vault.Reveal(ctx, acc, found.Name)
	if err != nil {
		return nil, err
	}
	defer release()
	pairs = maps.Clone(pairs)
	for _, u := range req.GetUpdates() {
		if u.HasValue() {
			pairs[u.GetKey()] = u.GetValue()
		} else {
			delete(pairs, u.GetKey())
		}
	}
	_, err = vault.Set(ctx, acc, found.Name, pairs, secret.Replace)
	return &emptypb.Empty{}, err
}

package account

import (
	"context"

	"github.com/RelevanceAI/harvest/client/errors"
	"github.com/RelevanceAI/harvest/internal/base/ids"
	"github.com/RelevanceAI/harvest/internal/base/logf"
)

// AddPublic records the public key of a user, in the wire format of RFC 4253, section 6.6. It authenticates connections
// of SSH, and nothing else. Kinds: Invalid, Denied, Conflict (the key is known, or an SSH key of that name exists).
func AddPublic(ctx context.Context, r *Ring, by Principal, req Request, public []byte) (Key, error) {
	req, err := req.plan(by, r.time())
	if err != nil {
		return Key{}, err
	}
	hash := hashOf(string(public))
	switch known, err := r.store.KeyByHash(ctx, hash); {
	case err == nil && known.Account == by.Account:
		return Key{}, errors.Remedy(errors.Newf(errors.Conflict, "this public key is known as %s", known.Name),
			"to give it other scopes, remove that first: harvest key rm %s", known.ID)
	case err == nil:
		return Key{}, errors.Remedy(errors.Newf(errors.Conflict, "this public key belongs to another account"),
			"make another one with ssh-keygen")
	case !errors.Is(err, errors.NotFound):
		return Key{}, err
	}
	k := Key{ID: "ssh_" + ids.New(), Kind: SSHKey, Account: req.Account, Name: req.Name, Role: Member,
		Scopes: req.Scopes, Created: r.time(), Hash: hash, MadeBy: by.KeyID}
	if req.Life > 0 {
		k.Expires = k.Created.Add(req.Life)
	}
	k.Expires = earlier(k.Expires, by.Until)
	k.Until = k.Expires
	if err := r.insert(ctx, k); err != nil {
		return Key{}, err
	}
	logf.Infof(ctx, "SSH key %s of account %s added: %v", k.ID, k.Account, k.Scopes)
	return k, nil
}

// Public returns the principal of a public key whose owner has proved it, or is about to. Unauthenticated: it is
// unknown, or has expired.
func Public(ctx context.Context, r *Ring, public []byte) (Principal, error) {
	unknown := errors.Remedy(errors.Newf(errors.Unauthenticated, "the public key is not known"),
		"add it: harvest key add-ssh ~/.ssh/id_ed25519.pub")
	k, err := r.store.KeyByHash(ctx, hashOf(string(public)))
	if errors.Is(err, errors.NotFound) || err == nil && k.Kind != SSHKey {
		return Principal{}, unknown
	}
	if err != nil {
		return Principal{}, errors.Wrapf(err, "look for a public key")
	}
	now := r.time()
	if !k.Expires.IsZero() && !now.Before(k.Expires) {
		return Principal{}, unknown
	}
	return k.Principal(), nil
}

// PublicUsed records that the owner of a public key has proved it.
func PublicUsed(ctx context.Context, r *Ring, who Principal) { r.touch(ctx, who.KeyID, r.time()) }

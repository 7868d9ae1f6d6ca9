package account

import (
	"cmp"
	"context"
	"crypto/hmac"
	"crypto/sha256"
	"slices"
	"strings"
	"time"

	"github.com/RelevanceAI/harvest/client/errors"
	"github.com/RelevanceAI/harvest/internal/base/config"
	"github.com/RelevanceAI/harvest/internal/base/ids"
	"github.com/RelevanceAI/harvest/internal/base/logf"
)

// A grant lets a client of OAuth act for a user until it is revoked or expires. It is a Key of the kind OAuth, and its
// tokens are Keys of their own, which it made: so the list of keys shows it, and revoking it revokes its tokens.
//
// A refresh token has two parts: the first one names the grant, and the second one changes with each use. Only the
// current token and those used within refreshGrace are stored. Any other token with a known first part was used before
// or is forged; then the grant is revoked (RFC 9700, section 4.14.2).

// Kinds of the tokens of grants.
const (
	access  Kind = "access"
	refresh Kind = "refresh"
)

// Limits of grants.
const (
	grantLife = 30 * 24 * time.Hour
	// AccessLife is the lifetime of an access token.
	AccessLife = time.Hour
	// refreshGrace is how long a used refresh token returns the same successor: the client may have lost the answer,
	// and processes of one client share a token.
	refreshGrace   = time.Minute
	grantsAtMost   = 100 // per account
	accessesAtMost = 64  // per grant; processes of one client have one each
)

// Prefixes of the tokens.
const (
	accessPrefix  = "hva_"
	refreshPrefix = "hvr_"
)

// Tokens are the secrets of a grant for its client.
type Tokens struct {
	Grant   Principal
	Access  config.Secret // valid for Life
	Life    time.Duration // AccessLife, or until the end of the grant
	Refresh config.Secret // valid once
}

// Refusal is an error of Authorize that concerns the user, not the store: a full disk is Exhausted as well.
type Refusal struct{ err error }

// Error returns the text for the log.
func (r *Refusal) Error() string { return r.err.Error() }

// Unwrap returns the error with its kind and its message.
func (r *Refusal) Unwrap() error { return r.err }

// Authorize lets a client act for by with some of its scopes, as a member of the account. id and name are those of the
// client. The grant expires no later than the key of by, and is revoked with it. Unauthenticated: the key of by has
// ended. A Refusal, Denied or Exhausted: by lacks a scope, or its account has too many grants.
func Authorize(ctx context.Context, r *Ring, by Principal, id, name string, scopes []Scope) (Tokens, error) {
	for _, s := range scopes {
		if err := by.May(s); err != nil {
			return Tokens{}, &Refusal{err}
		}
	}
	if !by.Expires.IsZero() && !r.time().Before(by.Expires) {
		return Tokens{}, errExpired()
	}
	for _, kind := range []Kind{OAuth, access, refresh} {
		r.sweep(ctx, kind)
	}
	all, err := r.store.Keys(ctx, by.Account, OAuth)
	if err == nil && len(all) >= grantsAtMost {
		err = &Refusal{errors.Remedy(errors.Newf(errors.Exhausted, "%d clients are signed in to the account", len(all)),
			"revoke some of them: harvest key ls, harvest key rm KEY")}
	}
	if err != nil {
		return Tokens{}, err
	}
	part, hash := secret(refreshPrefix)
	now, unique := r.time(), ids.New()
	g := Key{ID: "oau_" + unique, Kind: OAuth, Account: by.Account, Name: grantName(name, unique), Role: Member,
		Scopes: scopes, Created: now, Expires: earlier(now.Add(grantLife), by.Until), Hash: hash, Subject: by.Subject,
		MadeBy: by.KeyID, Root: rootOf(by)}
	g.Until = g.Expires
	if err := r.insert(ctx, g); err != nil {
		return Tokens{}, err
	}
	last, _ := secret("")
	out, err := issue(ctx, r, g, id, part.Reveal()+last.Reveal())
	if err != nil {
		return Tokens{}, errors.Join(err, drop(context.WithoutCancel(ctx), r, g))
	}
	logf.Infof(ctx, "%s lets the client %q of OAuth act for account %s: %s, %v", cmp.Or(by.KeyID, "the operator"), name,
		g.Account, g.ID, g.Scopes)
	return out, nil
}

// grantName returns a unique key name that begins with the name of a client.
func grantName(client, unique string) string {
	words := strings.FieldsFunc(client, func(c rune) bool {
		return (c < 'a' || c > 'z') && (c < 'A' || c > 'Z') && (c < '0' || c > '9')
	})
	text := strings.Join(words, "-")
	text = strings.TrimSuffix(text[:min(len(text), 40)], "-")
	return cmp.Or(text, "client") + "-" + unique[len(unique)-6:]
}

// issue stores a refresh token of a grant and a new access token.
func issue(ctx context.Context, r *Ring, g Key, client, text string) (Tokens, error) {
	now := r.time()
	token := Key{ID: "oar_" + ids.New(), Kind: refresh, Account: g.Account, Role: g.Role, Created: now,
		Expires: g.Expires, Hash: hashOf(text), Subject: hashOf(client), MadeBy: g.ID, Until: g.Expires}
	// A conflict means that another request has issued the same token.
	if err := r.insert(ctx, token); err != nil && errors.KindOf(err) != errors.Conflict {
		return Tokens{}, err
	}
	key, hash := secret(accessPrefix)
	expires := earlier(now.Add(AccessLife), g.Expires)
	err := r.insert(ctx, Key{ID: "oaa_" + ids.New(), Kind: access, Account: g.Account, Role: g.Role, Scopes: g.Scopes,
		Created: now, Expires: expires, Hash: hash, Subject: hashOf(client),
		MadeBy: g.ID, Until: g.Expires})
	if err != nil {
		return Tokens{}, err
	}
	return Tokens{Grant: g.Principal(), Access: key, Life: expires.Sub(now), Refresh: config.Secret(text)}, nil
}

// errToken is the error for a token that is unknown, used, revoked or expired.
func errToken() error {
	return errors.Remedy(errors.Newf(errors.Unauthenticated, "the token is unknown, or has ended"),
		"sign in again from the client")
}

// Renew returns new tokens for a refresh token. signer is a secret of the server. If the token was used before, Renew
// revokes its grant. Kinds: Unauthenticated.
func Renew(ctx context.Context, r *Ring, signer []byte, client, text string) (Tokens, error) {
	g, err := grantOf(ctx, r, text)
	if err != nil {
		return Tokens{}, err
	}
	ctx = context.WithoutCancel(ctx) // the answer has the only valid token
	token, err := r.store.KeyByHash(ctx, hashOf(text))
	now := r.time()
	switch {
	case err != nil && errors.KindOf(err) != errors.NotFound:
		return Tokens{}, err
	case err != nil || !token.LastUsed.IsZero() && now.Sub(token.LastUsed) > refreshGrace:
		logf.Warnf(ctx, "a refresh token of %s was used twice, so the grant is revoked", g.ID)
		if err := drop(ctx, r, g); err != nil {
			return Tokens{}, err
		}
		return Tokens{}, errToken()
	case token.Subject != hashOf(client):
		return Tokens{}, errToken()
	}
	mac := hmac.New(sha256.New, signer)
	mac.Write([]byte("refresh\x00" + text))
	out, err := issue(ctx, r, g, client, text[:grantPart]+encoding.EncodeToString(mac.Sum(nil)))
	if err != nil {
		return Tokens{}, err
	}
	if token.LastUsed.IsZero() {
		if err := r.store.KeyUsed(ctx, token.ID, now); err != nil {
			return Tokens{}, err
		}
	}
	r.touch(ctx, g.ID, now)
	if err := prune(ctx, r, g); err != nil {
		logf.Warnf(ctx, "delete old tokens of %s: %v", g.ID, err)
	}
	return out, nil
}

// grantPart is the size of the first part of a refresh token.
var grantPart = len(refreshPrefix) + encoding.EncodedLen(bits/8)

// grantOf returns the grant of a refresh token, whose second part it does not check.
func grantOf(ctx context.Context, r *Ring, text string) (Key, error) {
	if !strings.HasPrefix(text, refreshPrefix) || len(text) != grantPart+encoding.EncodedLen(bits/8) {
		return Key{}, errToken()
	}
	g, err := r.store.KeyByHash(ctx, hashOf(text[:grantPart]))
	if errors.KindOf(err) == errors.NotFound || err == nil && (g.Kind != OAuth || !r.time().Before(g.Expires)) {
		return Key{}, errToken()
	}
	return g, errors.Wrapf(err, "look for a grant")
}

// prune deletes the tokens of a grant that are no longer needed.
func prune(ctx context.Context, r *Ring, g Key) error {
	tokens, err := r.store.Keys(ctx, g.Account, access) // newest first
	if err != nil {
		return err
	}
	now, kept := r.time(), 0
	tokens = slices.DeleteFunc(tokens, func(k Key) bool {
		if k.MadeBy != g.ID {
			return true
		}
		kept++
		return kept <= accessesAtMost && now.Before(k.Expires)
	})
	used, err := r.store.Keys(ctx, g.Account, refresh)
	for _, k := range used {
		if k.MadeBy == g.ID && !k.LastUsed.IsZero() && now.Sub(k.LastUsed) > refreshGrace {
			tokens = append(tokens, k)
		}
	}
	for _, k := range tokens {
		if gone := r.store.DeleteKey(ctx, k.ID); errors.KindOf(gone) != errors.NotFound {
			err = errors.Join(err, gone)
		}
	}
	return err
}

// Access returns the principal of an access token, whose KeyID is that of its grant. Unauthenticated: it is unknown or
// has ended.
func Access(ctx context.Context, r *Ring, text string) (Principal, error) {
	if !IsAccess(text) {
		return Principal{}, errToken()
	}
	k, err := r.store.KeyByHash(ctx, hashOf(text))
	now := r.time()
	if errors.KindOf(err) == errors.NotFound || err == nil && (k.Kind != access || !now.Before(k.Expires) ||
		r.Gone(k.MadeBy)) {
		return Principal{}, errToken()
	}
	if err != nil {
		return Principal{}, errors.Wrapf(err, "look for an access token")
	}
	grants, err := r.store.Keys(ctx, k.Account, OAuth)
	if err != nil {
		return Principal{}, errors.Wrapf(err, "look for a grant")
	}
	i := slices.IndexFunc(grants, func(g Key) bool { return g.ID == k.MadeBy })
	if i < 0 {
		return Principal{}, errToken()
	}
	r.touch(ctx, k.MadeBy, now)
	// Work may outlast the token, but not the grant.
	return Principal{Account: k.Account, Role: k.Role, Scopes: slices.Clone(k.Scopes), KeyID: k.MadeBy, Kind: OAuth,
		Subject: grants[i].Subject, Root: grants[i].Root, Expires: k.Until, Until: k.Until}, nil
}

// IsAccess reports whether a text has the form of an access token.
func IsAccess(text string) bool { return strings.HasPrefix(text, accessPrefix) }

// Withdraw revokes the grant of a refresh token or an access token, and returns its principal. A token that is unknown,
// used or of another client is not an error (RFC 7009, section 2.2).
func Withdraw(ctx context.Context, r *Ring, client, text string) (Principal, error) {
	token, err := r.store.KeyByHash(ctx, hashOf(text))
	if err != nil && errors.KindOf(err) != errors.NotFound {
		return Principal{}, errors.Wrapf(err, "look for a token")
	}
	if err != nil || token.Kind != access && token.Kind != refresh || token.Subject != hashOf(client) {
		return Principal{}, nil
	}
	g := Key{ID: token.MadeBy, Kind: OAuth, Account: token.Account, Role: token.Role}
	return g.Principal(), drop(context.WithoutCancel(ctx), r, g)
}

// EndGrant revokes the grant with this principal. It is not an error if it has ended already.
func EndGrant(ctx context.Context, r *Ring, who Principal) error {
	return drop(context.WithoutCancel(ctx), r, Key{ID: who.KeyID, Kind: OAuth, Account: who.Account})
}

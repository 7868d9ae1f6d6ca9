package account

import (
	"context"
	"crypto/rand"
	"crypto/sha256"
	"encoding/base32"
	"encoding/hex"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/RelevanceAI/harvest/client/errors"
	"github.com/RelevanceAI/harvest/internal/base/config"
	"github.com/RelevanceAI/harvest/internal/base/ids"
	"github.com/RelevanceAI/harvest/internal/base/logf"
)

// Store keeps keys and sign-ins. Package store has one on SQLite and one in memory; package storetest proves them.
type Store interface {
	// InsertKey records a new key. Conflict if the account already has a key of that kind and name, unless the
	// name is "", or if a key with that hash exists.
	InsertKey(ctx context.Context, k Key) error
	// KeyByHash returns the key with that hash, or NotFound.
	KeyByHash(ctx context.Context, hash string) (Key, error)
	// Keys returns the keys of the account ("" means every account), newest first.
	Keys(ctx context.Context, account string, kind Kind) ([]Key, error)
	// KeyUsed records when a key was last used. A missing key is not an error.
	KeyUsed(ctx context.Context, id string, at time.Time) error
	// DeleteKey removes a key. NotFound if it does not exist.
	DeleteKey(ctx context.Context, id string) error
}

// Times.
const (
	linkLife    = 15 * time.Minute
	signInLife  = 7 * 24 * time.Hour
	usedEvery   = time.Minute // resolution of LastUsed: a write for each request would cost more than the request
	linksAtMost = 100
)

// prefixes show the kind of a secret to people, to the server and to scanners for leaked secrets.
const (
	keyPrefix    = "hv_"
	signInPrefix = "hvs_"
	linkPrefix   = "hvl_"
	portPrefix   = "hvp_"
	bits         = 256
)

var encoding = base32.NewEncoding("abcdefghijklmnopqrstuvwxyz234567").WithPadding(base32.NoPadding)

// Ring makes, finds and revokes keys and sign-ins. All methods may be called concurrently.
type Ring struct {
	store Store
	now   func() time.Time

	mu    sync.Mutex
	links map[string]link      // guarded by mu; by hash. They live in memory only and end with the server
	used  map[string]time.Time // guarded by mu; when use of a key was last recorded

	following map[string]map[*follower]bool // guarded by mu; by the id of a key
	gone      map[string]time.Time          // guarded by mu; keys that ended within goneKept
}

// link permits one sign-in.
type link struct {
	as      Principal
	expires time.Time
}

// NewRing returns a Ring on store.
func NewRing(store Store) *Ring {
	return &Ring{store: store, now: time.Now, links: map[string]link{}, used: map[string]time.Time{},
		following: map[string]map[*follower]bool{}, gone: map[string]time.Time{}}
}

// secret returns a new secret and its hash.
func secret(prefix string) (config.Secret, string) {
	raw := make([]byte, bits/8)
	_, _ = rand.Read(raw) // never fails
	text := prefix + encoding.EncodeToString(raw)
	return config.Secret(text), hashOf(text)
}

func hashOf(text string) string {
	sum := sha256.Sum256([]byte(text))
	return hex.EncodeToString(sum[:])
}

// Create makes a key for by and returns its secret, which cannot be retrieved again. Kinds: Invalid, Denied,
// Conflict if a key of that name exists.
func (r *Ring) Create(ctx context.Context, by Principal, req Request) (Key, config.Secret, error) {
	req, err := req.plan(by, r.time())
	if err != nil {
		return Key{}, "", err
	}
	text, hash := secret(keyPrefix)
	k := Key{
		ID: "key_" + ids.New(), Kind: APIKey, Account: req.Account, Name: req.Name, Role: req.Role,
		Scopes: req.Scopes, Created: r.time(), Hash: hash, MadeBy: by.KeyID,
	}
	if req.Life > 0 {
		k.Expires = k.Created.Add(req.Life)
	}
	k.Expires = earlier(k.Expires, by.Until)
	k.Until = k.Expires
	if err := r.insert(ctx, k); err != nil {
		return Key{}, "", err
	}
	logf.Infof(ctx, "key %s of account %s created: %s, %v", k.ID, k.Account, k.Role, k.Scopes)
	return k, text, nil
}

// time is the current time as records store it.
func (r *Ring) time() time.Time { return r.now().UTC().Round(0) }

// Authenticate returns the principal of a key, a sign-in or a link. It returns Unauthenticated if the secret is
// unknown, revoked or expired.
func (r *Ring) Authenticate(ctx context.Context, kind Kind, text string) (Principal, error) {
	prefix, unknown := stranger(kind)
	if !strings.HasPrefix(text, prefix) || len(text) != len(prefix)+encoding.EncodedLen(bits/8) {
		return Principal{}, unknown
	}
	k, err := r.store.KeyByHash(ctx, hashOf(text))
	if errors.KindOf(err) == errors.NotFound || err == nil && k.Kind != kind {
		return Principal{}, unknown
	}
	if err != nil {
		return Principal{}, errors.Wrapf(err, "look for a key")
	}
	now := r.time()
	if !k.Expires.IsZero() && !now.Before(k.Expires) {
		if kind != APIKey {
			return Principal{}, unknown
		}
		return Principal{}, errors.Remedy(errors.Newf(errors.Unauthenticated, "the key has expired"),
			"ask an admin of the account for a new one")
	}
	r.touch(ctx, k.ID, now)
	return k.Principal(), nil
}

// stranger returns the prefix of secrets of the kind, and the error for an unknown secret.
func stranger(kind Kind) (prefix string, err error) {
	switch kind {
	case SignIn:
		return signInPrefix, errors.Remedy(errors.Newf(errors.Unauthenticated, "your sign-in has ended"),
			"sign in with a new link, which \"harvest key link\" prints")
	case Link:
		return portPrefix, errors.Remedy(errors.Newf(errors.Unauthenticated, "this link is not known, or has ended"),
			"ask for a new one: harvest sandbox port SANDBOX PORT --link")
	}
	return keyPrefix, errors.Remedy(errors.Newf(errors.Unauthenticated, "the key is not known"),
		"check it; it may have been revoked. An admin makes a new one with: harvest key create NAME")
}

// touch records the use of a key, unless a use was recorded within usedEvery. Best effort: a failure must not
// refuse the request.
func (r *Ring) touch(ctx context.Context, id string, now time.Time) {
	r.mu.Lock()
	last := r.used[id]
	due := now.Sub(last) >= usedEvery || now.Before(last) // the clock may have been set back
	if due {
		r.used[id] = now
	}
	r.mu.Unlock()
	if !due {
		return
	}
	if err := r.store.KeyUsed(context.WithoutCancel(ctx), id, now); err != nil {
		logf.Errorf(ctx, "record the use of %s: %v", id, err)
	}
}

// List returns the keys that by may see: those of its account, or of all accounts if everyone is true and by is an
// operator.
func (r *Ring) List(ctx context.Context, by Principal, everyone bool) ([]Key, error) {
	keys, err := r.list(ctx, by, everyone, APIKey)
	if err != nil {
		return nil, err
	}
	public, err := r.list(ctx, by, everyone, SSHKey)
	if err != nil {
		return nil, err
	}
	clients, err := r.list(ctx, by, everyone, OAuth)
	all := slices.Concat(keys, public, clients)
	slices.SortFunc(all, func(a, b Key) int { return b.Created.Compare(a.Created) })
	return all, err
}

func (r *Ring) list(ctx context.Context, by Principal, everyone bool, kind Kind) ([]Key, error) {
	if err := by.MustBeAdmin(); err != nil {
		return nil, err
	}
	account := by.Account
	if everyone {
		if err := by.MustBeOperator(); err != nil {
			return nil, err
		}
		account = ""
	}
	return r.store.Keys(ctx, account, kind)
}

// Revoke ends a key or a sign-in. A key is named by its id or, within the account of by, by its name; a sign-in
// by its id. NotFound if by cannot see it.
func (r *Ring) Revoke(ctx context.Context, by Principal, ref string) error {
	list := r.List
	if strings.HasPrefix(ref, "sig_") {
		list = func(ctx context.Context, by Principal, everyone bool) ([]Key, error) {
			return r.list(ctx, by, everyone, SignIn)
		}
	}
	keys, err := list(ctx, by, by.MustBeOperator() == nil)
	if err != nil {
		return err
	}
	named := slices.Clone(keys)
	named = slices.DeleteFunc(named, func(k Key) bool { return k.Name != ref || k.Account != by.Account })
	if len(named) > 1 { // a key of SSH and another one
		return errors.Remedy(errors.Newf(errors.Invalid, "two keys have the name %.80q: %s and %s", ref, named[0].ID,
			named[1].ID), "name one by its id")
	}
	for _, k := range keys {
		if k.ID == ref || k.Name == ref && k.Account == by.Account {
			return drop(context.WithoutCancel(ctx), r, k) // by may be k, or made with it, and then ctx ends
		}
	}
	return NoKey(ref)
}

// NoKey is the error for a key that does not exist.
func NoKey(ref string) error {
	return errors.Remedy(errors.Newf(errors.NotFound, "there is no key %.80q", ref),
		"list those there are with: harvest key ls")
}

// Link returns a token that permits one sign-in as by within 15 minutes.
func (r *Ring) Link(by Principal) (config.Secret, error) {
	if err := by.MustBeAdmin(); err != nil {
		return "", err
	}
	text, hash := secret(linkPrefix)
	now := r.time()
	r.mu.Lock()
	defer r.mu.Unlock()
	for h, l := range r.links {
		if !now.Before(l.expires) {
			delete(r.links, h)
		}
	}
	if len(r.links) >= linksAtMost {
		return "", errors.Remedy(errors.Newf(errors.Exhausted, "there are %d unused links", len(r.links)),
			"use one of them, or wait %s", linkLife)
	}
	if by.Kind == SignIn { // otherwise sign-ins could renew one another for ever
		by.Until = earlier(by.Until, by.Expires)
	}
	r.links[hash] = link{as: by, expires: earlier(now.Add(linkLife), by.Until)}
	return text, nil
}

// CheckLink returns the error that SignIn would return. It does not use up the link.
func (r *Ring) CheckLink(token string) error {
	hash := hashOf(token)
	now := r.time()
	r.mu.Lock()
	defer r.mu.Unlock()
	if l, ok := r.links[hash]; ok && now.Before(l.expires) {
		return nil
	}
	return errLink()
}

func errLink() error {
	return errors.Remedy(errors.Newf(errors.Unauthenticated, "this link was used already, or is older than %d minutes",
		int(linkLife.Minutes())),
		"create another one with: harvest key link")
}

// SignIn uses up a link and returns the secret of a new sign-in and its expiry. Unauthenticated if the link is
// unknown, used or expired.
func (r *Ring) SignIn(ctx context.Context, token string) (config.Secret, time.Time, error) {
	hash := hashOf(token)
	r.mu.Lock()
	l, ok := r.links[hash]
	delete(r.links, hash)
	r.mu.Unlock()
	now := r.time()
	if !ok || !now.Before(l.expires) {
		return "", time.Time{}, errLink()
	}
	return r.SignInAs(ctx, l.as)
}

// SignInAs signs a browser in as a person that the caller has authenticated. It returns the secret of a new
// sign-in and its expiry.
func (r *Ring) SignInAs(ctx context.Context, as Principal) (config.Secret, time.Time, error) {
	r.sweep(ctx, SignIn)
	text, hash := secret(signInPrefix)
	now := r.time()
	k := Key{
		ID: "sig_" + ids.New(), Kind: SignIn, Account: as.Account, Role: as.Role, Scopes: as.Scopes,
		Created: now, Expires: earlier(now.Add(signInLife), as.Until), Hash: hash, Subject: as.Subject,
		MadeBy: as.KeyID, Root: rootOf(as), Until: as.Until,
	}
	if err := r.insert(ctx, k); err != nil {
		return "", time.Time{}, errors.Wrapf(err, "record a sign-in")
	}
	logf.Infof(ctx, "%s signed in as %s %s", k.Account, k.ID, k.Subject)
	return text, k.Expires, nil
}

// sweep removes expired sign-ins or links.
func (r *Ring) sweep(ctx context.Context, kind Kind) {
	now := r.time()
	old, err := r.store.Keys(ctx, "", kind)
	for _, k := range old {
		if !now.Before(k.Expires) {
			err = errors.Join(err, r.store.DeleteKey(ctx, k.ID))
		}
	}
	if err != nil {
		logf.Warnf(ctx, "remove expired records of kind %s: %v", kind, err)
	}
}

// SignOut ends the sign-in of p.
func (r *Ring) SignOut(ctx context.Context, p Principal) error {
	if p.Kind != SignIn {
		return errors.Remedy(errors.Newf(errors.Invalid, "only a browser can sign out"), "revoke a key instead")
	}
	err := r.store.DeleteKey(ctx, p.KeyID)
	if err == nil {
		r.end(p.KeyID, errSignedOut())
	}
	if errors.KindOf(err) == errors.NotFound { // already signed out in another tab
		return nil
	}
	logf.Infof(ctx, "%s signed out of %s", p.Account, p.KeyID)
	return err
}

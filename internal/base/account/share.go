package account

import (
	"context"
	"slices"
	"strings"
	"time"

	"github.com/RelevanceAI/harvest/client/errors"
	"github.com/RelevanceAI/harvest/internal/base/config"
	"github.com/RelevanceAI/harvest/internal/base/ids"
	"github.com/RelevanceAI/harvest/internal/base/logf"
)

// Lives of links to ports.
const (
	linkDefault = 24 * time.Hour
	linkLongest = 30 * 24 * time.Hour
)

// Share makes a link to subject for anyone with its secret. life 0 means a day. The link expires no later than
// the key of by. Kinds: Denied, Invalid.
func (r *Ring) Share(ctx context.Context, by Principal, subject string,
	life time.Duration) (Key, config.Secret, error) {
	if err := by.May(Exec); err != nil {
		return Key{}, "", err
	}
	if life == 0 {
		life = linkDefault
	}
	if life < time.Second || life > linkLongest {
		return Key{}, "", errors.Remedy(errors.Newf(errors.Invalid, "a link cannot live for %s", life),
			"give a time from a second to 30 days")
	}
	r.sweep(ctx, Link)
	text, hash := secret(portPrefix)
	k := Key{
		ID: "lnk_" + ids.New(), Kind: Link, Account: by.Account, Role: Member, Scopes: []Scope{Exec},
		Created: r.time(), Hash: hash, Subject: subject, MadeBy: by.KeyID, Root: rootOf(by),
	}
	k.Expires = k.Created.Add(life)
	k.Expires = earlier(earlier(k.Expires, by.Expires), by.Until)
	k.Until = k.Expires
	if err := r.insert(ctx, k); err != nil {
		return Key{}, "", errors.Wrapf(err, "record a link")
	}
	logf.Infof(ctx, "link %s to %s made", k.ID, subject)
	return k, text, nil
}

// Shares returns the unexpired links of by's account whose subject begins with subject, newest first.
func (r *Ring) Shares(ctx context.Context, by Principal, subject string) ([]Key, error) {
	all, err := r.store.Keys(ctx, by.Account, Link)
	now := r.time()
	return slices.DeleteFunc(all, func(k Key) bool {
		return !strings.HasPrefix(k.Subject, subject) ||
			!now.Before(k.Expires)
	}), err
}

// Unshare revokes one of the links that Shares returns. NotFound if none has that id.
func (r *Ring) Unshare(ctx context.Context, by Principal, subject, id string) error {
	all, err := r.Shares(ctx, by, subject)
	if err != nil {
		return err
	}
	if !slices.ContainsFunc(all, func(k Key) bool { return k.ID == id }) {
		return errors.Remedy(errors.Newf(errors.NotFound, "there is no link %.80q", id),
			"list those there are with: harvest sandbox links SANDBOX")
	}
	if err := r.store.DeleteKey(ctx, id); err != nil {
		return err
	}
	r.end(id, errRevoked())
	logf.Infof(ctx, "link %s revoked", id)
	return nil
}

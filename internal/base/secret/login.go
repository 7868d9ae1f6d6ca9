package secret

import (
	"context"
	"maps"
	"slices"
	"time"

	"github.com/RelevanceAI/harvest/client/errors"
	"github.com/RelevanceAI/harvest/internal/base/binding"
	"github.com/RelevanceAI/harvest/internal/base/config"
	"github.com/RelevanceAI/harvest/internal/base/grant"
	"github.com/RelevanceAI/harvest/internal/base/logf"
)

// A login is a secret with the name of its provider. Its pair is the access token; the grant, with the refresh token,
// is sealed with it, and leaves the Vault only for its provider.

// grantKey is the key of the grant among the sealed pairs. No pair of a user can have it.
const grantKey = ".grant"

// split takes the grant out of the pairs that were sealed.
func (p Pairs) split() (text config.Secret) {
	text = config.Secret(p[grantKey])
	delete(p, grantKey)
	return text
}

// with returns the pairs to seal.
func (p Pairs) with(grant config.Secret) Pairs {
	if grant == "" {
		return p
	}
	p = maps.Clone(p)
	p[grantKey] = grant.Reveal()
	return p
}

// Providers returns the providers to which an account can log in; nil for none.
func (v *Vault) Providers() *grant.Providers { return v.opts.Providers }

// CheckLogin returns Conflict if an account has another secret with the name of a provider.
func (v *Vault) CheckLogin(ctx context.Context, account, provider string) error {
	_, err := v.loginOf(ctx, account, provider)
	if errors.Is(err, errors.NotFound) {
		return nil
	}
	return err
}

// loginOf returns the record of a login. NotFound if there is none, Conflict if it is another secret.
func (v *Vault) loginOf(ctx context.Context, account, provider string) (Record, error) {
	rec, err := v.opts.Store.Get(ctx, account, provider)
	if err == nil && rec.Login == nil {
		err = errors.Remedy(errors.Newf(errors.Conflict, "there is a secret %q that is not a login", provider),
			"delete it with \"harvest secret rm %s\", and log in again", provider)
	}
	return rec, err
}

// SetLogin stores a grant as the secret with the name of its provider, bound to the provider's hosts, and returns its
// description. An earlier login is replaced, and keeps its binding, and its placeholders unless the owner is another
// one. Conflict if another secret has the name.
func (v *Vault) SetLogin(ctx context.Context, account string, g grant.Grant) (Secret, error) {
	p, err := v.opts.Providers.Get(g.Provider)
	if err != nil {
		return Secret{}, err
	}
	bound, err := binding.Preset(p.Preset)
	if err != nil {
		return Secret{}, err
	}
	text, err := g.Text()
	if err != nil {
		return Secret{}, err
	}
	v.mu.Lock()
	defer v.mu.Unlock()
	if err := v.ready(ctx); err != nil {
		return Secret{}, err
	}
	pairs := pairsOf(p, g)
	now := v.now()
	state := grant.StateOf(g, now)
	rec := Record{Account: account, Name: p.Name, Keys: slices.Sorted(maps.Keys(pairs)), Created: now, Updated: now,
		Login: &state}
	old, err := v.loginOf(ctx, account, p.Name)
	switch {
	case err != nil && !errors.Is(err, errors.NotFound):
		return Secret{}, err
	case err == nil:
		rec.Created, rec.Used = old.Created, old.Used
		bound = *old.Binding
		if old.Login.Owner == state.Owner {
			rec.Placeholders = old.Placeholders
		}
	}
	rec.bind(&bound, pairs)
	if err := errors.Join(v.checkRoom(ctx, account, p.Name, pairs.with(text)), v.ensureKey()); err != nil {
		return Secret{}, err
	}
	all := pairs.with(text)
	if rec.Sealed, err = v.keys[0].seal(account, p.Name, all); err != nil {
		return Secret{}, err
	}
	release := all.hide()
	if err := v.opts.Store.Put(ctx, rec); err != nil {
		release()
		return Secret{}, err
	}
	v.forget(account, p.Name)
	v.hidden[[2]string{account, p.Name}] = release
	v.renewer.reset(account, p.Name)
	logf.Infof(ctx, "%s has logged in to %s", account, p.Name)
	v.changed(account, p.Name)
	return rec.secret(), nil
}

// pairsOf returns the pairs of a login.
func pairsOf(p *grant.Provider, g grant.Grant) Pairs {
	pairs := Pairs{p.Key: g.Access.Reveal()}
	maps.Copy(pairs, p.Plain)
	return pairs
}

// Logout deletes a login, and returns its grant, for the provider. NotFound if there is none.
func (v *Vault) Logout(ctx context.Context, account, provider string) (grant.Grant, error) {
	if _, err := v.opts.Providers.Get(provider); err != nil {
		return grant.Grant{}, err
	}
	v.mu.Lock()
	rec, err := v.opts.Store.Get(ctx, account, provider)
	if errors.Is(err, errors.NotFound) || err == nil && rec.Login == nil {
		err = errors.Remedy(errors.Newf(errors.NotFound, "there is no login to %s", provider),
			`list the logins with "harvest login"`)
	}
	var g grant.Grant
	if err == nil {
		g, err = v.grantOf(ctx, rec)
	}
	v.mu.Unlock()
	if err != nil {
		return grant.Grant{}, err
	}
	return g, v.Delete(ctx, account, provider)
}

// grantOf returns the grant of a login. v.mu is held.
func (v *Vault) grantOf(ctx context.Context, rec Record) (grant.Grant, error) {
	if err := v.ready(ctx); err != nil {
		return grant.Grant{}, err
	}
	p, err := v.keys.unseal(rec)
	if err != nil {
		return grant.Grant{}, err
	}
	return grant.Parse(p.split())
}

// File is a file of credentials that the program of a provider reads in a sandbox.
type File struct {
	Path string // below the home directory
	Text string // without secrets
}

// Files returns the files of the logins among the named secrets.
func (v *Vault) Files(ctx context.Context, account string, names ...string) (all []File, err error) {
	for _, name := range names {
		rec, err := v.opts.Store.Get(ctx, account, name)
		if errors.Is(err, errors.NotFound) || err == nil && rec.Login == nil || v.opts.Providers == nil {
			continue
		}
		if err != nil {
			return nil, err
		}
		p, err := v.opts.Providers.Get(rec.Login.Provider)
		if err != nil {
			return nil, err
		}
		if p.File == "" {
			continue
		}
		text, err := p.Text(rec.Placeholders[p.Key])
		if err != nil {
			return nil, err
		}
		all = append(all, File{p.File, text})
	}
	return all, nil
}

// now returns the time.
func (v *Vault) now() time.Time { return v.opts.Now().UTC().Round(0) }

package secret

import (
	"context"
	"crypto/rand"
	"maps"
	"slices"
	"time"

	"github.com/RelevanceAI/harvest/client/errors"
	"github.com/RelevanceAI/harvest/internal/base/authority"
	"github.com/RelevanceAI/harvest/internal/base/binding"
	"github.com/RelevanceAI/harvest/internal/base/config"
)

// Credential is a value of a bound secret, with the text that stands for it in sandboxes.
type Credential struct {
	Secret      string // name of the secret
	Key         string // of the pair
	Placeholder string
	Value       config.Secret
	Binding     binding.Binding
}

// bind changes the binding of a record with the pairs p: nil keeps it, and one without places removes it. Pairs that
// had a placeholder keep it.
func (r *Record) bind(to *binding.Binding, p Pairs) {
	if to != nil {
		r.Binding = to
	}
	if r.Binding == nil || len(r.Binding.Places) == 0 {
		r.Binding, r.Placeholders = nil, nil
		return
	}
	old := r.Placeholders
	r.Placeholders = map[string]string{}
	for key, value := range p {
		switch {
		case isPlain(key):
		case old[key] != "":
			r.Placeholders[key] = old[key]
		default:
			seed := make([]byte, 32)
			_, _ = rand.Read(seed) // it never fails: crypto/rand.Read
			r.Placeholders[key] = binding.Placeholder(seed, key, value)
		}
	}
}

// Credentials returns the values of those of the named secrets that are bound, in the order of the names. Secrets that
// do not exist have none.
func (v *Vault) Credentials(ctx context.Context, account string, names ...string) ([]Credential, error) {
	v.mu.Lock()
	defer v.mu.Unlock()
	var all []Credential
	for _, name := range names {
		rec, err := v.opts.Store.Get(ctx, account, name)
		if errors.Is(err, errors.NotFound) || err == nil && rec.Binding == nil {
			continue
		}
		if err != nil {
			return nil, err
		}
		p, err := v.reveal(ctx, account, name)
		if err != nil {
			return nil, err
		}
		for _, key := range slices.Sorted(maps.Keys(rec.Placeholders)) {
			all = append(all, Credential{Secret: name, Key: key, Placeholder: rec.Placeholders[key],
				Value: config.Secret(p[key]), Binding: *rec.Binding})
		}
	}
	return all, nil
}

// Notify calls f after each change of a secret. f must not call the Vault.
func (v *Vault) Notify(f func(account, name string)) {
	v.mu.Lock()
	defer v.mu.Unlock()
	v.notify = f
}

// changed reports a change. v.mu is held.
func (v *Vault) changed(account, name string) {
	if v.notify != nil {
		v.notify(account, name)
	}
}

// authorityName is the name of the record with an account's authority. No secret can have it.
const authorityName = ".authority"

// authorityKey is the key of the pair with the authority's key and certificate.
const authorityKey = "AUTHORITY"

// Authority returns the authority that signs for the hosts of an account's bound secrets. It makes one if there is
// none, or the one there is has expired.
func (v *Vault) Authority(ctx context.Context, account string) (*authority.Authority, error) {
	v.mu.Lock()
	defer v.mu.Unlock()
	if a := v.authorities[account]; a != nil && !a.Expired() {
		return a, nil
	}
	p, err := v.reveal(ctx, account, authorityName)
	if err == nil {
		a, err := authority.Parse([]byte(p[authorityKey]))
		if err != nil {
			return nil, errors.Wrapf(err, "read the authority of %s", account)
		}
		if !a.Expired() {
			v.authorities[account] = a
			return a, nil
		}
	} else if !errors.Is(err, errors.NotFound) {
		return nil, err
	}
	return v.newAuthority(ctx, account)
}

// newAuthority makes an authority and stores it. v.mu is held.
func (v *Vault) newAuthority(ctx context.Context, account string) (*authority.Authority, error) {
	if err := errors.Join(v.ready(ctx), v.ensureKey()); err != nil {
		return nil, err
	}
	a, err := authority.New("Harvest credentials", authority.Limits{})
	if err != nil {
		return nil, err
	}
	text, err := a.Secret()
	if err != nil {
		return nil, err
	}
	now := time.Now().UTC().Round(0)
	rec := Record{Account: account, Name: authorityName, Keys: []string{authorityKey}, Created: now, Updated: now}
	if rec.Sealed, err = v.keys[0].seal(account, authorityName, Pairs{authorityKey: string(text)}); err != nil {
		return nil, err
	}
	if err := v.opts.Store.Put(ctx, rec); err != nil {
		return nil, err
	}
	v.authorities[account] = a
	return a, nil
}

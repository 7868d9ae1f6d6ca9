package secret

import (
	"cmp"
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
	Withheld    string // why it may not be used now: what follows "the secret NAME" in a sentence; "" if it may
	// Renew returns the value of a login whose access token has ended or is about to, or an error with a text for
	// users. It is nil if Value is current.
	Renew func(ctx context.Context) (config.Secret, error)
}

// Terms say what a borrower has of secrets.
type Terms int

// The terms of a loan.
const (
	Bound    Terms = iota // placeholders of secrets that are bound to hosts, and the values of others
	Brokered              // also placeholders of secrets of known services, such as GITHUB_TOKEN
	Revealed              // the values
)

// bindingOf returns the binding of a secret for borrowers on terms: nil for one whose values they have.
func (r Record) bindingOf(p Pairs, terms Terms) *binding.Binding {
	if r.Binding != nil || terms != Brokered {
		return r.Binding
	}
	if b, ok := binding.Of(slices.Collect(maps.Keys(p))); ok {
		return &b
	}
	return p.gitBinding()
}

// gitBinding returns the binding of a token for a git server that p itself names; nil if it names none, or has values
// for something else.
func (p Pairs) gitBinding() *binding.Binding {
	names, keys := []string{p["GIT_HOST"]}, []string{"GIT_TOKEN", "GIT_PASSWORD"}
	if hub := p["GITHUB_HOST"]; hub != "" {
		names, keys = []string{hub, "api." + hub}, githubKeys
	}
	var to binding.Binding
	for _, name := range names {
		var place binding.Place
		if err := place.Host.UnmarshalText([]byte(name)); err != nil {
			return nil
		}
		to.Places = append(to.Places, place)
	}
	for key := range p {
		if !isPlain(key) && !slices.Contains(keys, key) {
			return nil
		}
	}
	return &to
}

// bind changes the binding of a record with the pairs p: nil keeps it, and one without places removes it. Pairs that
// had a placeholder keep it.
func (r *Record) bind(to *binding.Binding, p Pairs) {
	if to != nil {
		r.Binding = to
	}
	if r.Binding != nil && len(r.Binding.Places) == 0 {
		r.Binding = nil
	}
	old := r.Placeholders
	r.Placeholders = placeholders([]byte(rand.Text()), r.Name, p)
	for key := range r.Placeholders {
		r.Placeholders[key] = cmp.Or(old[key], r.Placeholders[key])
	}
}

// placeholders returns the texts that stand for the values of a secret: the same for the same seed.
func placeholders(seed []byte, name string, p Pairs) map[string]string {
	all := map[string]string{}
	for key, value := range p {
		if !isPlain(key) {
			all[key] = binding.Placeholder(seed, name+"\x00"+key, value)
		}
	}
	return all
}

// Credentials returns the values of those of the named secrets that are bound, or are of known services, in the order
// of the names. Secrets that do not exist have none.
func (v *Vault) Credentials(ctx context.Context, account string, names ...string) ([]Credential, error) {
	v.mu.Lock()
	defer v.mu.Unlock()
	var all []Credential
	for _, name := range names {
		rec, p, err := v.pairs(ctx, account, name)
		if errors.Is(err, errors.NotFound) {
			continue
		}
		if err != nil {
			return nil, err
		}
		to := rec.bindingOf(p, Brokered)
		if to == nil {
			continue
		}
		held, err := v.placeholders(ctx, rec, p)
		if err != nil {
			return nil, err
		}
		for _, key := range slices.Sorted(maps.Keys(held)) {
			all = append(all, Credential{Secret: name, Key: key, Placeholder: held[key],
				Value: config.Secret(p[key]), Binding: *to, Renew: v.renewable(rec, key)})
		}
	}
	return all, nil
}

// pairs returns a secret with its values, which are not older than the record. v.mu is held.
func (v *Vault) pairs(ctx context.Context, account, name string) (Record, Pairs, error) {
	rec, err := v.opts.Store.Get(ctx, account, name)
	if errors.Is(err, errors.NotFound) {
		rec, err = Record{Account: account, Name: name}, nil // perhaps of the environment
	}
	if err != nil {
		return Record{}, nil, err
	}
	p, err := v.reveal(ctx, account, name)
	return rec, p, err
}

// placeholders returns the texts that stand for the values of a secret. v.mu is held.
func (v *Vault) placeholders(ctx context.Context, rec Record, p Pairs) (map[string]string, error) {
	if len(rec.Placeholders) > 0 {
		return rec.Placeholders, nil
	}
	// It is of the environment, or was stored before secrets had placeholders.
	own, err := v.own(ctx, rec.Account)
	return placeholders([]byte(own.seed), rec.Name, p), err
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

// ownName is the name of the record with what the Vault itself keeps for an account. No secret can have it.
const ownName = ".own"

// Keys of the pairs of that record.
const (
	ownAuthority = "AUTHORITY" // key and certificate
	ownSeed      = "SEED"      // of placeholders
)

// own is what the Vault itself keeps for an account.
type own struct {
	authority *authority.Authority
	seed      string
}

// Authority returns the authority that signs for the hosts of an account's bound secrets. It makes one if there is
// none, or the one there is has expired.
func (v *Vault) Authority(ctx context.Context, account string) (*authority.Authority, error) {
	v.mu.Lock()
	defer v.mu.Unlock()
	o, err := v.own(ctx, account)
	return o.authority, err
}

// own returns what the Vault keeps for an account. v.mu is held.
func (v *Vault) own(ctx context.Context, account string) (own, error) {
	if o, ok := v.owned[account]; ok && !o.authority.Expired() {
		return o, nil
	}
	p, err := v.reveal(ctx, account, ownName)
	switch {
	case errors.Is(err, errors.NotFound):
		return v.newOwn(ctx, account, rand.Text())
	case err != nil:
		return own{}, err
	}
	a, err := authority.Parse([]byte(p[ownAuthority]))
	if err != nil {
		return own{}, errors.Wrapf(err, "read the authority of %s", account)
	}
	if a.Expired() {
		return v.newOwn(ctx, account, p[ownSeed])
	}
	v.owned[account] = own{a, p[ownSeed]}
	return v.owned[account], nil
}

// newOwn makes an authority, and stores it with a seed. v.mu is held.
func (v *Vault) newOwn(ctx context.Context, account, seed string) (own, error) {
	if err := errors.Join(v.ready(ctx), v.ensureKey()); err != nil {
		return own{}, err
	}
	a, err := authority.New("Harvest credentials", authority.Limits{})
	if err != nil {
		return own{}, err
	}
	text, err := a.Secret()
	if err != nil {
		return own{}, err
	}
	now := time.Now().UTC().Round(0)
	p := Pairs{ownAuthority: string(text), ownSeed: seed}
	rec := Record{Account: account, Name: ownName, Keys: []string{ownAuthority, ownSeed}, Created: now, Updated: now}
	if rec.Sealed, err = v.keys[0].seal(account, ownName, p); err != nil {
		return own{}, err
	}
	if err := v.opts.Store.Put(ctx, rec); err != nil {
		return own{}, err
	}
	v.owned[account] = own{a, seed}
	return v.owned[account], nil
}

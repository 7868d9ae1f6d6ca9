package secret

import (
	"context"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/RelevanceAI/harvest/client/errors"
	"github.com/RelevanceAI/harvest/internal/base/binding"
	"github.com/RelevanceAI/harvest/internal/base/config"
	"github.com/RelevanceAI/harvest/internal/base/fault"
	"github.com/RelevanceAI/harvest/internal/base/grant"
	"github.com/RelevanceAI/harvest/internal/base/logf"
)

// Options of a Vault. Store and KeyFile are required.
type Options struct {
	Store Store
	// KeyFile holds the key that seals. It is made when the first secret is stored, with mode 0600, and must never be
	// kept in one place with copies of the database.
	KeyFile string
	// Environ is the server's environment as os.Environ gives it; what package secret knows there become read-only
	// secrets of EnvironAccount: see FromEnviron. nil on machines that serve others.
	Environ        []string
	EnvironAccount string
	// Providers are those to which accounts can log in; nil for none.
	Providers *grant.Providers
	// Failed is called when a provider no longer accepts a login. reason is one sentence without a period. It must not
	// call the Vault. nil for nobody.
	Failed func(account, name, reason string)
	// Now returns the time; nil means time.Now.
	Now func() time.Time
}

// Vault keeps the secrets of all accounts. All methods may be called concurrently. One process at a time has a key
// file.
type Vault struct {
	opts    Options
	environ map[string]Pairs // by name of the secret; never changes

	mu     sync.Mutex
	keys   ring                 // guarded by mu; nil until there is a key file
	broken error                // guarded by mu; why the key file cannot be used
	hidden map[[2]string]func() // guarded by mu; by account and name: ends the hiding of its values
	used   map[[2]string]time.Time
	lent   map[string]func()          // guarded by mu; by borrower: ends the hiding of what it has
	notify func(account, name string) // guarded by mu; nil for nobody

	renewer *renewer // its lock is taken after mu

	owned map[string]own // guarded by mu; by account
}

// Open reads the key file and hides all values from the log. A key file that is missing although there are secrets, or
// is damaged or open to others, does not keep the Vault from opening: it is logged, and every use of a value says what
// is wrong, while List and Delete work.
func Open(ctx context.Context, opts Options) (*Vault, error) {
	if opts.Now == nil {
		opts.Now = time.Now
	}
	v := &Vault{opts: opts, renewer: newRenewer(), environ: FromEnviron(opts.Environ), hidden: map[[2]string]func(){},
		used: map[[2]string]time.Time{}, lent: map[string]func(){}, owned: map[string]own{}}
	for _, p := range v.environ {
		p.hide()
	}
	records, err := opts.Store.List(ctx, "")
	if err != nil {
		return nil, errors.Wrapf(err, "read the secrets")
	}
	v.keys, err = readRing(opts.KeyFile)
	switch {
	case errors.IsNotExist(err) && len(records) > 0:
		v.broken = missingKey(opts.KeyFile)
	case err != nil && !errors.IsNotExist(err):
		v.broken = err
	}
	if v.broken != nil {
		logf.Errorf(ctx, "secrets cannot be used: %v", v.broken)
		return v, nil
	}
	for _, rec := range records {
		p, err := v.keys.unseal(rec)
		if err != nil {
			logf.Errorf(ctx, "a secret of %s: %v", rec.Account, err)
			continue
		}
		v.hidden[[2]string{rec.Account, rec.Name}] = p.hide()
	}
	return v, errors.Wrapf(v.openLoans(ctx), "read the loans of secrets")
}

// ready returns why values cannot be used, or nil. v.mu is held.
func (v *Vault) ready(ctx context.Context) error {
	if v.broken == nil {
		return nil
	}
	// Somebody may have put the key file in order, or deleted the last secret.
	keys, err := readRing(v.opts.KeyFile)
	if errors.IsNotExist(err) {
		records, listed := v.opts.Store.List(ctx, "")
		if listed != nil || len(records) > 0 {
			return v.broken
		}
		err = nil
	}
	if err != nil {
		return err
	}
	v.keys, v.broken = keys, nil
	return nil
}

// Set stores a secret, and returns its description. A secret that exists keeps its binding. Conflict if it exists and
// how is Create, Exhausted if the account has too many.
func (v *Vault) Set(ctx context.Context, account, name string, p Pairs, how How) (Secret, error) {
	return v.SetBound(ctx, account, name, p, how, nil)
}

// SetBound is Set with a binding. nil keeps that of a secret that exists, and one without places removes it.
func (v *Vault) SetBound(ctx context.Context, account, name string, p Pairs, how How, bind *binding.Binding) (Secret,
	error) {
	err := CheckName(name)
	if bind != nil && len(bind.Places) > 0 {
		err = errors.Join(err, bind.Check())
	}
	if how != Merge || len(p) > 0 {
		err = errors.Join(err, p.Check())
	}
	if err != nil {
		return Secret{}, err
	}
	v.mu.Lock()
	defer v.mu.Unlock()
	if err := v.ready(ctx); err != nil {
		return Secret{}, err
	}
	old, err := v.opts.Store.Get(ctx, account, name)
	exists := err == nil
	held := config.Secret("") // the grant of a login
	switch {
	case err != nil && !errors.Is(err, errors.NotFound):
		return Secret{}, err
	case exists && how == Create:
		return Secret{}, errors.Remedy(errors.Newf(errors.Conflict, "there is a secret %q already", name),
			"choose another name, or replace it")
	case !exists && len(p) == 0:
		return Secret{}, NotFound(name)
	case exists && old.Login != nil && (len(p) > 0 || bind != nil && len(bind.Places) == 0):
		return Secret{}, errors.Remedy(errors.Newf(errors.Conflict,
			"the secret %q is a login, which is always bound", name),
			"change its hosts only, or log out with \"harvest logout %s\"", name)
	case exists && how == Merge:
		before, err := v.keys.unseal(old)
		if err != nil {
			return Secret{}, err
		}
		held = before.split()
		maps.Copy(before, p)
		p = before
		if err := p.Check(); err != nil {
			return Secret{}, err
		}
	}
	if err := v.checkRoom(ctx, account, name, p); err != nil {
		return Secret{}, err
	}
	if err := v.ensureKey(); err != nil {
		return Secret{}, err
	}
	now := time.Now().UTC().Round(0)
	rec := Record{Account: account, Name: name, Keys: slices.Sorted(maps.Keys(p)), Created: now, Updated: now}
	if exists {
		rec.Created, rec.Used, rec.Binding, rec.Placeholders = old.Created, old.Used, old.Binding, old.Placeholders
		rec.Login = old.Login
	}
	rec.bind(bind, p)
	p = p.with(held)
	if rec.Sealed, err = v.keys[0].seal(account, name, p); err != nil {
		return Secret{}, err
	}
	release := p.hide() // before anything can be said about it
	if err := v.opts.Store.Put(ctx, rec); err != nil {
		release()
		return Secret{}, err
	}
	v.forget(account, name)
	v.hidden[[2]string{account, name}] = release
	logf.Infof(ctx, "secret %s of %s set: %v", name, account, rec.Keys)
	v.changed(account, name)
	return rec.secret(), nil
}

// checkRoom bounds what one account keeps, and so what hiding its values takes. v.mu is held.
func (v *Vault) checkRoom(ctx context.Context, account, name string, p Pairs) error {
	records, err := v.opts.Store.List(ctx, account)
	if err != nil {
		return err
	}
	count, size := 1, p.size()
	for _, rec := range records {
		if rec.Name != name {
			count++
			size += len(rec.Sealed) // a little more than the values
		}
	}
	if count > MaxSecrets || size > MaxBytes {
		return errors.Remedy(errors.Newf(errors.Exhausted, "an account can have %d secrets with %d KiB together",
			MaxSecrets, MaxBytes>>10),
			"delete unused secrets, and keep large files in a volume")
	}
	return nil
}

// ensureKey makes the key file if there is none. v.mu is held.
func (v *Vault) ensureKey() error {
	if len(v.keys) > 0 {
		return nil
	}
	k, err := randomKey()
	if err != nil {
		return err
	}
	if err := (ring{k}).write(v.opts.KeyFile); err != nil {
		return errors.Stage(err, "key")
	}
	v.keys = ring{k}
	return nil
}

// forget ends the hiding of values that are replaced or deleted. v.mu is held.
func (v *Vault) forget(account, name string) {
	at := [2]string{account, name}
	if release := v.hidden[at]; release != nil {
		release()
	}
	delete(v.hidden, at)
	delete(v.used, at)
}

// Delete removes a secret. Who has borrowed it keeps it, and until it is given back its values stay hidden.
// NotFound if there is none, Conflict if it comes from the environment.
func (v *Vault) Delete(ctx context.Context, account, name string) error {
	v.mu.Lock()
	defer v.mu.Unlock()
	err := v.opts.Store.Delete(ctx, account, name)
	if errors.Is(err, errors.NotFound) && v.fromEnviron(account)[name] != nil {
		return errors.Remedy(errors.Newf(errors.Conflict, "the secret %q comes from the server's environment", name),
			"start the server without %s", slices.Sorted(maps.Keys(v.environ[name])))
	}
	if err != nil {
		return err
	}
	v.forget(account, name)
	logf.Infof(ctx, "secret %s of %s deleted", name, account)
	v.changed(account, name)
	return nil
}

// List returns the secrets of an account, by name. One that is stored hides one of that name from the environment.
func (v *Vault) List(ctx context.Context, account string) ([]Secret, error) {
	records, err := v.opts.Store.List(ctx, account)
	if err != nil {
		return nil, err
	}
	all := map[string]Secret{}
	for name, p := range v.fromEnviron(account) {
		all[name] = Secret{Name: name, Keys: slices.Sorted(maps.Keys(p)), Origin: Environment}
	}
	for _, rec := range records {
		if CheckName(rec.Name) == nil { // others are the Vault's own
			all[rec.Name] = rec.secret()
		}
	}
	found := make([]Secret, 0, len(all))
	for _, name := range slices.Sorted(maps.Keys(all)) {
		found = append(found, all[name])
	}
	return found, nil
}

// Get says what is known of one secret. NotFound if there is none.
func (v *Vault) Get(ctx context.Context, account, name string) (Secret, error) {
	all, err := v.List(ctx, account)
	if err != nil {
		return Secret{}, err
	}
	for _, s := range all {
		if s.Name == name {
			return s, nil
		}
	}
	return Secret{}, NotFound(name)
}

func (v *Vault) fromEnviron(account string) map[string]Pairs {
	if account != v.opts.EnvironAccount {
		return nil
	}
	return v.environ
}

// Reveal returns the pairs of the named secrets together; where several have a key, the one named last wins. The values
// are hidden from the log until release is called, whatever becomes of the secrets meanwhile. NotFound names all that
// are missing.
func (v *Vault) Reveal(ctx context.Context, account string, names ...string) (p Pairs, release func(), err error) {
	if err := v.current(ctx, account, names...); err != nil {
		return nil, nil, err
	}
	v.mu.Lock()
	defer v.mu.Unlock()
	return v.revealAll(ctx, account, names)
}

// revealAll is Reveal, without the renewal of logins. v.mu is held.
func (v *Vault) revealAll(ctx context.Context, account string, names []string) (p Pairs, release func(), err error) {
	all := Pairs{}
	var missing []string
	for _, name := range names {
		found, err := v.reveal(ctx, account, name)
		if errors.Is(err, errors.NotFound) {
			missing = append(missing, name)
			continue
		}
		if err != nil {
			return nil, nil, err
		}
		maps.Copy(all, found)
	}
	if len(missing) > 0 {
		return nil, nil, NotFound(missing...)
	}
	return all, all.hide(), nil
}

// reveal returns one secret. v.mu is held.
func (v *Vault) reveal(ctx context.Context, account, name string) (Pairs, error) {
	rec, err := v.opts.Store.Get(ctx, account, name)
	if errors.Is(err, errors.NotFound) {
		if p := v.fromEnviron(account)[name]; p != nil {
			return p, nil
		}
	}
	if err != nil {
		return nil, err
	}
	if err := v.ready(ctx); err != nil {
		return nil, err
	}
	p, err := v.keys.unseal(rec)
	if err != nil {
		return nil, err
	}
	at := [2]string{account, name}
	if v.hidden[at] == nil { // the key was missing when we began
		v.hidden[at] = p.hide()
	}
	p.split()
	if now := time.Now().UTC().Truncate(time.Minute); !v.used[at].Equal(now) {
		v.used[at] = now
		if err := v.opts.Store.Used(ctx, account, name, now); err != nil {
			logf.Warnf(ctx, "note that the secret %s was used: %v", name, err)
		}
	}
	return p, nil
}

// Rekey makes a new key, seals every secret with it, and returns how many there are. Interrupted at any point, all
// secrets can be read, and Rekey can be called again: the old key leaves the key file only when nothing is sealed with
// it any more.
func (v *Vault) Rekey(ctx context.Context) (secrets int, err error) {
	v.mu.Lock()
	defer v.mu.Unlock()
	if err := v.ready(ctx); err != nil {
		return 0, err
	}
	k, err := randomKey()
	if err != nil {
		return 0, err
	}
	records, err := v.opts.Store.List(ctx, "")
	if err != nil {
		return 0, err
	}
	for i, rec := range records {
		p, err := v.keys.unseal(rec)
		if err != nil {
			return 0, err
		}
		if records[i].Sealed, err = k.seal(rec.Account, rec.Name, p); err != nil {
			return 0, err
		}
	}
	loans, err := v.resealed(ctx, k)
	if err != nil {
		return 0, err
	}
	both := append(ring{k}, v.keys...)
	if err := both.write(v.opts.KeyFile); err != nil {
		return 0, errors.Stage(err, "key")
	}
	v.keys = both
	fault.Point("rekey.begun")
	if err := v.opts.Store.Put(ctx, records...); err != nil {
		return 0, err
	}
	if err := v.opts.Store.PutLoans(ctx, loans...); err != nil {
		return 0, err
	}
	fault.Point("rekey.sealed")
	if err := both[:1].write(v.opts.KeyFile); err != nil {
		return 0, errors.Stage(err, "key")
	}
	v.keys = both[:1]
	logf.Infof(ctx, "%d secrets are sealed with a new key", len(records))
	return len(records), nil
}

func (r Record) secret() Secret {
	return Secret{Name: r.Name, Keys: r.Keys, Origin: Stored, Created: r.Created, Updated: r.Updated, Used: r.Used,
		Binding: r.Binding, Login: r.Login}
}

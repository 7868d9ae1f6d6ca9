// Package environments maps the names of environments to prefixes of the names of their objects. The prefix of an
// environment is its first name, unless another environment has it. So an environment can be renamed without a change
// to its objects, and a new environment of an earlier name is empty.
//
// Environments need not be created: every valid name is one. The package records those that were created or renamed.
package environments

import (
	"context"
	"crypto/rand"
	"encoding/json"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/RelevanceAI/harvest/client/errors"
	"github.com/RelevanceAI/harvest/internal/store/records"
)

// Main is the environment of requests that name none. It has no prefix, and cannot be renamed or deleted.
const Main = "main"

const mostEnvs = 1500 // of one account, as at Modal

// Environment is the record of an environment.
type Environment struct {
	Prefix  string
	Created time.Time
}

// Record is the JSON of an environment's record. The record's ID is the prefix.
type Record struct {
	Name    string    `json:"name"`
	Created time.Time `json:"created_at"`
}

// Map holds the environments. Its methods may be called concurrently.
type Map struct {
	ctx   context.Context // of changes; it never ends
	store records.Store

	mu     sync.Mutex
	byName map[string]map[string]Environment // guarded by mu; by account and name
}

// Open reads the environments.
func Open(ctx context.Context, store records.Store) (*Map, error) {
	m := &Map{ctx: context.WithoutCancel(ctx), store: store, byName: map[string]map[string]Environment{}}
	all, err := store.List(ctx, records.Environment)
	if err != nil {
		return nil, errors.Wrapf(err, "read the environments")
	}
	for _, r := range all {
		var e Record
		if err := json.Unmarshal(r.Data, &e); err != nil {
			return nil, errors.Wrapf(err, "read the environment %s", r.ID.ID)
		}
		m.set(r.Account, e.Name, Environment{Prefix: r.ID.ID, Created: e.Created})
	}
	return m, nil
}

// set records an environment in memory. m.mu is held, or m is new.
func (m *Map) set(account, name string, e Environment) {
	if m.byName[account] == nil {
		m.byName[account] = map[string]Environment{}
	}
	m.byName[account][name] = e
}

// put records an environment, also under another name than before. m.mu is held.
func (m *Map) put(account, name string, e Environment) error {
	data, err := json.Marshal(Record{name, e.Created})
	if err == nil {
		err = m.store.Put(m.ctx, records.Record{Kind: records.Environment,
			ID: records.ID{Account: account, ID: e.Prefix}, Data: data})
	}
	if err != nil {
		return errors.Wrapf(err, "record an environment")
	}
	m.set(account, name, e)
	return nil
}

// List returns the recorded environments of an account, by name.
func (m *Map) List(account string) map[string]Environment {
	m.mu.Lock()
	defer m.mu.Unlock()
	return maps.Clone(m.byName[account])
}

// Renamed reports whether a name and a prefix of the account may differ. If not, both are the same.
func (m *Map) Renamed(account string) bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	for name, e := range m.byName[account] {
		if e.Prefix != name {
			return true
		}
	}
	return false
}

// Prefix returns the prefix of the environment with a name. If another environment has the name as its prefix, Prefix
// records a new one.
func (m *Map) Prefix(account, name string) (string, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if e, ok := m.byName[account][name]; ok {
		return e.Prefix, nil
	}
	if m.holder(account, name) == "" {
		return name, nil
	}
	e, err := m.add(account, name)
	return e.Prefix, err
}

// Name returns the name of the environment with a prefix.
func (m *Map) Name(account, prefix string) string {
	m.mu.Lock()
	defer m.mu.Unlock()
	if name := m.holder(account, prefix); name != "" {
		return name
	}
	return prefix
}

// holder returns the name of the environment with a prefix, "" if none is recorded. m.mu is held.
func (m *Map) holder(account, prefix string) string {
	for name, e := range m.byName[account] {
		if e.Prefix == prefix {
			return name
		}
	}
	return ""
}

// add records an environment. m.mu is held.
func (m *Map) add(account, name string) (Environment, error) {
	if len(m.byName[account]) >= mostEnvs {
		return Environment{}, errors.Remedy(errors.Newf(errors.Exhausted, "account: has %d environments", mostEnvs),
			"delete some")
	}
	e := Environment{Prefix: name, Created: time.Now().UTC()}
	if m.holder(account, name) != "" {
		e.Prefix = "env_" + strings.ToLower(rand.Text())[:12]
	}
	return e, m.put(account, name, e)
}

// Create records an environment. Conflict if it is recorded.
func (m *Map) Create(account, name string) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	if _, ok := m.byName[account][name]; ok || name == Main {
		return exists(name)
	}
	_, err := m.add(account, name)
	return err
}

func exists(name string) error {
	return errors.Newf(errors.Conflict, "Environment '%.80s' already exists", name)
}

// Rename gives an environment another name, which the caller knows to be unused by unrecorded ones. Conflict if another
// recorded environment has it.
func (m *Map) Rename(account, from, to string) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	if _, ok := m.byName[account][to]; ok || to == Main {
		return exists(to)
	}
	e, ok := m.byName[account][from]
	if !ok {
		var err error
		if e, err = m.add(account, from); err != nil {
			return err
		}
	}
	if err := m.put(account, to, e); err != nil {
		return err
	}
	delete(m.byName[account], from)
	return nil
}

// Delete removes the record of an environment, if there is one.
func (m *Map) Delete(account, name string) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	e, ok := m.byName[account][name]
	if !ok {
		return nil
	}
	if err := m.store.Delete(m.ctx, records.Environment, records.ID{Account: account, ID: e.Prefix}); err != nil {
		return errors.Wrapf(err, "remove an environment")
	}
	delete(m.byName[account], name)
	return nil
}

// Known returns the sorted names of environments: Main, the recorded ones, and those with one of the prefixes.
func (m *Map) Known(account string, prefixes ...string) []string {
	known := map[string]bool{Main: true}
	for name := range m.List(account) {
		known[name] = true
	}
	for _, p := range prefixes {
		known[m.Name(account, p)] = true
	}
	return slices.Sorted(maps.Keys(known))
}

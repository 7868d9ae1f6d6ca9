// Package volumeids finds volumes by Modal's IDs. The ID of a volume is derived from its first name, so that nothing
// has to be recorded for most volumes. A volume that is renamed keeps its ID, and a new volume of its earlier name gets
// another one; the package records both.
package volumeids

import (
	"context"
	"crypto/rand"
	"encoding/json"
	"sync"

	"github.com/RelevanceAI/harvest/client/errors"
	"github.com/RelevanceAI/harvest/internal/store/records"
)

// Derivation derives IDs from names.
type Derivation struct {
	ID   func(name string) string
	Name func(id string) (string, error) // the inverse of ID: NotFound for other IDs
	// Fresh makes an ID that is derived from no name out of a random text.
	Fresh func(random string) string
}

// Map maps the IDs of volumes to their names, and back. Its methods may be called concurrently.
type Map struct {
	ctx    context.Context // of changes; it never ends
	store  records.Store
	derive Derivation

	mu    sync.Mutex
	names map[string]map[string]string // guarded by mu; recorded names by account and ID
}

// Open reads the records.
func Open(ctx context.Context, store records.Store, derive Derivation) (*Map, error) {
	m := &Map{ctx: context.WithoutCancel(ctx), store: store, derive: derive, names: map[string]map[string]string{}}
	all, err := store.List(ctx, records.VolumeName)
	if err != nil {
		return nil, errors.Wrapf(err, "read the names of volumes")
	}
	for _, r := range all {
		var name string
		if err := json.Unmarshal(r.Data, &name); err != nil {
			return nil, errors.Wrapf(err, "read the name of the volume %s", r.ID.ID)
		}
		m.set(r.Account, r.ID.ID, name)
	}
	return m, nil
}

// set records a name in memory. m.mu is held, or m is new.
func (m *Map) set(account, id, name string) {
	if m.names[account] == nil {
		m.names[account] = map[string]string{}
	}
	m.names[account][id] = name
}

// put records the name of a volume. m.mu is held.
func (m *Map) put(account, id, name string) error {
	data, err := json.Marshal(name)
	if err == nil {
		err = m.store.Put(m.ctx, records.Record{Kind: records.VolumeName, ID: records.ID{Account: account, ID: id},
			Data: data})
	}
	if err != nil {
		return errors.Wrapf(err, "record the name of a volume")
	}
	m.set(account, id, name)
	return nil
}

// holder returns the recorded ID of a name, "" if there is none. m.mu is held.
func (m *Map) holder(account, name string) string {
	for id, recorded := range m.names[account] {
		if recorded == name {
			return id
		}
	}
	return ""
}

// ID returns the ID of the volume with a name. If the derived ID belongs to a renamed volume, ID records a new one.
func (m *Map) ID(account, name string) (string, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.id(account, name)
}

func (m *Map) id(account, name string) (string, error) {
	if id := m.holder(account, name); id != "" {
		return id, nil
	}
	id := m.derive.ID(name)
	if _, taken := m.names[account][id]; !taken {
		return id, nil
	}
	id = m.derive.Fresh(rand.Text())
	return id, m.put(account, id, name)
}

// Name returns the name of the volume with an ID, which need not exist. NotFound if id belongs to no volume.
func (m *Map) Name(account, id string) (string, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if name, ok := m.names[account][id]; ok {
		return name, nil
	}
	name, err := m.derive.Name(id)
	if err == nil && m.holder(account, name) != "" { // a renamed volume has taken the name
		return "", errors.Newf(errors.NotFound, "Volume '%.100s' not found", id)
	}
	return name, err
}

// Rename calls rename and records that the volume from has the name to. No volume gets an ID meanwhile.
func (m *Map) Rename(account, from, to string, rename func() error) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	id, err := m.id(account, from)
	if err != nil {
		return err
	}
	if err := rename(); err != nil {
		return err
	}
	if old := m.holder(account, to); old != "" && old != id { // of a volume that was removed with another client
		if err := m.forget(account, old); err != nil {
			return err
		}
	}
	return m.put(account, id, to)
}

// Forget removes the records of a volume that was deleted.
func (m *Map) Forget(account, name string) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	id := m.holder(account, name)
	if id == "" {
		return nil
	}
	return m.forget(account, id)
}

// forget removes a record. m.mu is held.
func (m *Map) forget(account, id string) error {
	if err := m.store.Delete(m.ctx, records.VolumeName, records.ID{Account: account, ID: id}); err != nil {
		return errors.Wrapf(err, "remove the name of a volume")
	}
	delete(m.names[account], id)
	return nil
}

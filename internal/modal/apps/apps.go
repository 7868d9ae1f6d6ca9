// Package apps keeps the records of apps: named ones, and the ephemeral ones of "with app.run()", which end with their
// client. It also keeps proxies and the IDs of deleted images. It knows no sandboxes: its caller ends those of a
// stopping app.
package apps

import (
	"context"
	"crypto/rand"
	"encoding/json"
	"maps"
	"math/big"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/RelevanceAI/harvest/client/errors"
	"github.com/RelevanceAI/harvest/internal/base/pattern"
	"github.com/RelevanceAI/harvest/internal/store/records"
)

// State is the state of an app.
type State string

// The states. An app without one was looked up or deployed by its name.
const (
	Deployed     State = ""
	Initializing State = "initializing" // being deployed; ends with its client
	Ephemeral    State = "ephemeral"    // ends with its client
	Detached     State = "detached"     // outlives its client
	Disconnected State = "disconnected" // detached, and its client is gone
	Stopping     State = "stopping"     // its sandboxes are being ended
	Stopped      State = "stopped"
)

// Patience is how long an app lives without a heartbeat of its client. Clients send one every 15 s.
const Patience = 90 * time.Second

const (
	mostApps     = 10_000         // of one account
	keptStopped  = 24 * time.Hour // how long the record of an app without a name is kept
	mostStopped  = 200            // such records of one account
	mostVersions = 100            // of one app
)

// App groups sandboxes, which have its key as a tag.
type App struct {
	Account     string            `json:"-"`
	ID          string            `json:"-"`
	Env         string            `json:"environment"`
	Name        string            `json:"name"` // an app without a name has its ID here
	Created     time.Time         `json:"created_at"`
	Proxy       bool              `json:"proxy,omitempty"` // a proxy, not an app
	State       State             `json:"state,omitempty"`
	Description string            `json:"description,omitempty"`
	Tags        map[string]string `json:"tags,omitempty"`
	Stopped     time.Time         `json:"stopped_at,omitzero"`
	StoppedBy   string            `json:"stopped_by,omitempty"` // "" if it finished
	Versions    []Version         `json:"versions,omitempty"`   // deployments, oldest first
}

// Version is a deployment.
type Version struct {
	Number uint32    `json:"number"`
	At     time.Time `json:"at"`
	Client string    `json:"client,omitempty"` // version
	By     string    `json:"by,omitempty"`
	Tag    string    `json:"tag,omitempty"`
	Commit []byte    `json:"commit,omitempty"` // as the client encoded it
}

// Running reports whether sandboxes may be created in the app.
func (a App) Running() bool { return a.State != Stopping && a.State != Stopped }

// Label is the app's name for people.
func (a App) Label() string {
	if a.Description != "" {
		return a.Description
	}
	return a.Name
}

// Last returns the newest deployment, or a zero Version.
func (a App) Last() Version {
	if len(a.Versions) == 0 {
		return Version{}
	}
	return a.Versions[len(a.Versions)-1]
}

// Deploy records a deployment of a, and returns a running.
func (a App) Deploy(v Version) App {
	v.Number = a.Last().Number + 1
	a.Versions = append(slices.Clone(a.Versions), v)
	a.Versions = a.Versions[max(0, len(a.Versions)-mostVersions):]
	a.State, a.Stopped, a.StoppedBy = Deployed, time.Time{}, ""
	return a
}

// random matches the IDs of apps without a name, by which Modal's command line recognizes an ID.
var random = pattern.New(`^ap-[a-zA-Z0-9]{22}$`)

// Random reports whether an ID or name is the ID of an app without a name.
func Random(id string) bool { return random().MatchString(id) }

// NewID returns the ID of a new app without a name.
func NewID() (string, error) {
	const letters = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789"
	id := []byte("ap-")
	for range 22 {
		n, err := rand.Int(rand.Reader, big.NewInt(int64(len(letters))))
		if err != nil {
			return "", errors.Wrapf(err, "make the ID of an app")
		}
		id = append(id, letters[n.Int64()])
	}
	return string(id), nil
}

// Registry holds every app, proxy and deleted image ID. Its methods may be called concurrently.
type Registry struct {
	ctx   context.Context // of changes; it never ends
	store records.Store
	now   func() time.Time

	mu      sync.Mutex
	byID    map[records.ID]App       // guarded by mu
	heard   map[records.ID]time.Time // guarded by mu; the last heartbeats
	deleted map[records.ID]bool      // guarded by mu; IDs of deleted images
}

// Open reads the registry. The heartbeats before are unknown, so they count as now.
func Open(ctx context.Context, store records.Store, now func() time.Time) (*Registry, error) {
	r := &Registry{ctx: context.WithoutCancel(ctx), store: store, now: now, byID: map[records.ID]App{},
		heard: map[records.ID]time.Time{}, deleted: map[records.ID]bool{}}
	all, err := store.List(ctx, records.App)
	if err != nil {
		return nil, errors.Wrapf(err, "read the apps")
	}
	for _, kept := range all {
		var a App
		if err := json.Unmarshal(kept.Data, &a); err != nil {
			return nil, errors.Wrapf(err, "read the app %s", kept.ID.ID)
		}
		a.Account, a.ID = kept.Account, kept.ID.ID
		r.byID[kept.ID], r.heard[kept.ID] = a, now()
	}
	deleted, err := store.IDs(ctx, records.DeletedImage)
	for _, id := range deleted {
		r.deleted[id] = true
	}
	return r, errors.Wrapf(err, "read the deleted images")
}

func keyOf(account, id string) records.ID { return records.ID{Account: account, ID: id} }

func notFound(id string) error { return errors.Newf(errors.NotFound, "App '%.100s' not found", id) }

// Ensure returns the record with made's ID. If there is none, create decides whether Ensure adds made or returns
// NotFound. A stopped app counts as missing: create starts it again.
func (r *Registry) Ensure(made App, create bool) (App, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	key := keyOf(made.Account, made.ID)
	old, ok := r.byID[key]
	if ok && old.Running() {
		return old, nil
	}
	if !create {
		return App{}, errors.Newf(errors.NotFound, "App '%.80s' not found in environment '%.80s'", made.Name, made.Env)
	}
	if ok {
		made.Versions = old.Versions
	} else if err := r.room(made.Account); err != nil {
		return App{}, err
	}
	return made, r.put(key, made)
}

// Add adds an app, or replaces a stopped one. Conflict if one with its ID runs.
func (r *Registry) Add(made App) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	key := keyOf(made.Account, made.ID)
	old, ok := r.byID[key]
	if ok && old.Running() {
		return errors.Newf(errors.Conflict, "App '%.80s' already exists", made.Name)
	}
	made.Versions = old.Versions
	r.prune()
	if !ok {
		if err := r.room(made.Account); err != nil {
			return err
		}
	}
	r.heard[key] = r.now()
	return r.put(key, made)
}

// room returns Exhausted if the account has too many apps. r.mu is held.
func (r *Registry) room(account string) error {
	n := 0
	for _, a := range r.byID {
		if a.Account == account && !a.Proxy {
			n++
		}
	}
	if n < mostApps {
		return nil
	}
	return errors.Remedy(errors.Newf(errors.Exhausted, "account: has %d apps", mostApps), "stop some")
}

// prune removes old records of stopped apps without a name. r.mu is held.
func (r *Registry) prune() {
	stopped := map[string][]App{} // by account
	for _, a := range r.byID {
		if Random(a.ID) && a.State == Stopped {
			stopped[a.Account] = append(stopped[a.Account], a)
		}
	}
	for _, all := range stopped {
		slices.SortFunc(all, func(a, b App) int { return b.Stopped.Compare(a.Stopped) }) // newest first
		for i, a := range all {
			if i < mostStopped && r.now().Sub(a.Stopped) <= keptStopped {
				continue
			}
			// After an error, the next call retries.
			if key := keyOf(a.Account, a.ID); r.store.Delete(r.ctx, records.App, key) == nil {
				delete(r.byID, key)
				delete(r.heard, key)
			}
		}
	}
}

// Get returns an app, running or stopped.
func (r *Registry) Get(account, id string) (App, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	a, ok := r.byID[keyOf(account, id)]
	if !ok || a.Proxy {
		return App{}, notFound(id)
	}
	return a, nil
}

// Change replaces an app by the result of change, unless change fails.
func (r *Registry) Change(account, id string, change func(App) (App, error)) (App, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	key := keyOf(account, id)
	a, ok := r.byID[key]
	if !ok || a.Proxy {
		return App{}, notFound(id)
	}
	a, err := change(a)
	if err != nil {
		return App{}, err
	}
	return a, r.put(key, a)
}

// Remove removes the record of an app.
func (r *Registry) Remove(account, id string) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	key := keyOf(account, id)
	if _, ok := r.byID[key]; !ok {
		return notFound(id)
	}
	if err := r.store.Delete(r.ctx, records.App, key); err != nil {
		return errors.Wrapf(err, "remove an app")
	}
	delete(r.byID, key)
	delete(r.heard, key)
	return nil
}

// Hear records a heartbeat.
func (r *Registry) Hear(account, id string) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	key := keyOf(account, id)
	if a, ok := r.byID[key]; !ok || !a.Running() || a.Proxy {
		return notFound(id)
	}
	r.heard[key] = r.now()
	return nil
}

// Unattended returns the apps whose sandboxes are to be ended at a time: those of clients that sent no heartbeat for
// Patience, and those whose stop was interrupted. Of detached apps it returns those whose client is gone.
func (r *Registry) Unattended(at time.Time) []App {
	r.mu.Lock()
	defer r.mu.Unlock()
	var found []App
	for key, a := range r.byID {
		switch a.State {
		case Stopping, Disconnected:
			found = append(found, a)
		case Ephemeral, Initializing, Detached:
			if at.Sub(r.heard[key]) > Patience {
				found = append(found, a)
			}
		}
	}
	return found
}

// Delete records that the image with an ID was deleted.
func (r *Registry) Delete(account, id string) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	key := keyOf(account, id)
	if err := r.store.Put(r.ctx, records.Record{Kind: records.DeletedImage, ID: key}); err != nil {
		return errors.Wrapf(err, "record a deleted image")
	}
	r.deleted[key] = true
	return nil
}

// Undelete removes the records that Delete made for IDs.
func (r *Registry) Undelete(account string, ids ...string) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, id := range ids {
		key := keyOf(account, id)
		if !r.deleted[key] {
			continue
		}
		if err := r.store.Delete(r.ctx, records.DeletedImage, key); err != nil {
			return errors.Wrapf(err, "forget a deleted image")
		}
		delete(r.deleted, key)
	}
	return nil
}

// Deleted reports whether Delete recorded the image.
func (r *Registry) Deleted(account, id string) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.deleted[keyOf(account, id)]
}

// List returns the apps or proxies of an account, sorted by ID.
func (r *Registry) List(account string, proxies bool) []App {
	r.mu.Lock()
	defer r.mu.Unlock()
	var found []App
	byID := func(a, b App) int { return strings.Compare(a.ID, b.ID) }
	for _, a := range slices.SortedFunc(maps.Values(r.byID), byID) {
		if a.Account == account && a.Proxy == proxies {
			found = append(found, a)
		}
	}
	return found
}

// put stores an app, or returns why it could not. r.mu is held.
func (r *Registry) put(key records.ID, a App) error {
	data, err := json.Marshal(a)
	if err == nil {
		err = r.store.Put(r.ctx, records.Record{Kind: records.App, ID: key, Data: data})
	}
	if err != nil {
		return errors.Wrapf(err, "record an app")
	}
	r.byID[key] = a
	return nil
}

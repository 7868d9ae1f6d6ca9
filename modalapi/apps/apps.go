// Package apps keeps the records of apps: named ones, and the ephemeral ones of "with app.run()", which end with their
// client. It also keeps proxies and the IDs of deleted images. It knows no sandboxes: its caller ends those of a
// stopping app.
package apps

import (
	"crypto/rand"
	"encoding/json"
	"maps"
	"math/big"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/RelevanceAI/harvest/errors"
	"github.com/RelevanceAI/harvest/internal/atomicfile"
	"github.com/RelevanceAI/harvest/internal/pattern"
)

// fileName stores the records. Harvest itself stores all other named objects.
const fileName = "apps.json"

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
	Account     string            `json:"account"`
	ID          string            `json:"-"`
	Env         string            `json:"environment"`
	Name        string            `json:"name"` // an app without a name has its ID here
	Created     time.Time         `json:"created_at"`
	Proxy       bool              `json:"proxy,omitempty"`   // a proxy, not an app
	Deleted     bool              `json:"deleted,omitempty"` // the ID of a deleted image, which is not reused
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
	path string
	now  func() time.Time

	mu    sync.Mutex
	byID  map[string]App       // guarded by mu; by account and ID
	heard map[string]time.Time // guarded by mu; the last heartbeats, by account and ID
}

// Open reads the registry in a directory. The heartbeats before are unknown, so they count as now.
func Open(dir string, now func() time.Time) (*Registry, error) {
	r := &Registry{path: filepath.Join(dir, fileName), now: now, byID: map[string]App{}, heard: map[string]time.Time{}}
	data, err := os.ReadFile(r.path)
	if errors.IsNotExist(err) {
		return r, nil
	}
	if err == nil {
		err = json.Unmarshal(data, &r.byID)
	}
	for key, a := range r.byID {
		_, a.ID, _ = strings.Cut(key, " ")
		r.byID[key] = a
		r.heard[key] = now()
	}
	return r, errors.Wrapf(err, "read the apps")
}

func keyOf(account, id string) string { return account + " " + id }

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
		if a.Account == account && !a.Deleted && !a.Proxy {
			n++
		}
	}
	if n < mostApps {
		return nil
	}
	return errors.Remedy(errors.Newf(errors.Exhausted, "account: has %d apps", mostApps), "Stop some")
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
			if i >= mostStopped || r.now().Sub(a.Stopped) > keptStopped {
				delete(r.byID, keyOf(a.Account, a.ID))
				delete(r.heard, keyOf(a.Account, a.ID))
			}
		}
	}
}

// Get returns an app, running or stopped.
func (r *Registry) Get(account, id string) (App, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	a, ok := r.byID[keyOf(account, id)]
	if !ok || a.Proxy || a.Deleted {
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
	if !ok || a.Proxy || a.Deleted {
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
	old, ok := r.byID[key]
	if !ok {
		return notFound(id)
	}
	delete(r.byID, key)
	if err := r.save(); err != nil {
		r.byID[key] = old
		return err
	}
	delete(r.heard, key)
	return nil
}

// Hear records a heartbeat.
func (r *Registry) Hear(account, id string) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	key := keyOf(account, id)
	if a, ok := r.byID[key]; !ok || !a.Running() || a.Proxy || a.Deleted {
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
	return r.put(keyOf(account, id), App{Account: account, ID: id, Name: id, Created: r.now().UTC(), Deleted: true})
}

// Undelete removes the records that Delete made for IDs.
func (r *Registry) Undelete(account string, ids ...string) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	changed := false
	for _, id := range ids {
		if key := keyOf(account, id); r.byID[key].Deleted {
			delete(r.byID, key)
			changed = true
		}
	}
	if !changed {
		return nil
	}
	return r.save()
}

// Deleted reports whether Delete recorded the image.
func (r *Registry) Deleted(account, id string) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.byID[keyOf(account, id)].Deleted
}

// List returns the apps or proxies of an account, sorted by ID.
func (r *Registry) List(account string, proxies bool) []App {
	r.mu.Lock()
	defer r.mu.Unlock()
	var found []App
	for _, key := range slices.Sorted(maps.Keys(r.byID)) {
		if a := r.byID[key]; a.Account == account && a.Proxy == proxies && !a.Deleted {
			found = append(found, a)
		}
	}
	return found
}

// put stores a record, or returns why it could not. r.mu is held.
func (r *Registry) put(key string, a App) error {
	old, had := r.byID[key]
	r.byID[key] = a
	err := r.save()
	if err != nil {
		if delete(r.byID, key); had {
			r.byID[key] = old
		}
	}
	return err
}

// save writes the file. r.mu is held.
func (r *Registry) save() error {
	data, err := json.Marshal(r.byID)
	if err == nil {
		err = atomicfile.Write(r.path, data, 0o600)
	}
	return errors.Wrapf(err, "remember an app")
}

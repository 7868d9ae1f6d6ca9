package modal

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"

	sdk "github.com/modal-labs/modal-client/go"

	"github.com/RelevanceAI/harvest/client/errors"
	"github.com/RelevanceAI/harvest/internal/base/atomicfile"
	"github.com/RelevanceAI/harvest/internal/engine/modal/call"
)

// apps are the apps at Modal: one for each account, and one for sandboxes without an account. Their names are
// recorded on this machine, since Modal lists sandboxes one app at a time.
type apps struct {
	e    *Engine
	file string // the names, one per line
	own  *sdk.App

	mu    sync.Mutex          // also held while the file is read or written
	found map[string]*sdk.App // guarded by mu; by name
}

// openApps finds the app for sandboxes without an account, and creates it if necessary.
func openApps(ctx context.Context, e *Engine) (*apps, error) {
	a := &apps{e: e, file: filepath.Join(e.opts.Dir, "apps"), found: map[string]*sdk.App{}}
	own, err := call.Bounded(ctx, func(ctx context.Context) (*sdk.App, error) {
		return e.client.Apps.FromName(ctx, e.opts.App, &sdk.AppFromNameParams{CreateIfMissing: true})
	})
	a.own = own
	return a, err
}

// appName returns the name of an account's app. Modal allows up to 63 letters, digits, dashes, dots and
// underscores.
func appName(prefix, account string) string {
	name := prefix + "-" + account
	if len(name) < 64 {
		return name
	}
	sum := sha256.Sum256([]byte(name))
	return name[:46] + "-" + hex.EncodeToString(sum[:8])
}

// of returns the app of an account. If necessary, it records the name and creates the app.
func (a *apps) of(ctx context.Context, account string) (*sdk.App, error) {
	if account == "" {
		return a.own, nil
	}
	name := appName(a.e.opts.App, account)
	if err := a.note(name); err != nil { // first, so that the app can be found after a crash
		return nil, err
	}
	return a.find(ctx, name, true)
}

// known returns an app that was found before, or nil.
func (a *apps) known(name string) *sdk.App {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.found[name]
}

// find asks Modal for an app, unless it was found before. It does not hold the lock during the call.
func (a *apps) find(ctx context.Context, name string, create bool) (*sdk.App, error) {
	if app := a.known(name); app != nil {
		return app, nil
	}
	app, err := ask(ctx, a.e, "find the app", func(ctx context.Context) (*sdk.App, error) {
		return a.e.client.Apps.FromName(ctx, name, &sdk.AppFromNameParams{CreateIfMissing: create})
	})
	if err != nil {
		return nil, err
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	a.found[name] = app
	return app, nil
}

// all returns every app in which this installation may have sandboxes.
func (a *apps) all(ctx context.Context) ([]*sdk.App, error) {
	a.mu.Lock()
	names, err := a.names()
	a.mu.Unlock()
	if err != nil {
		return nil, err
	}
	all := []*sdk.App{a.own}
	for _, name := range names {
		app, err := a.find(ctx, name, false)
		if errors.KindOf(err) == errors.NotFound {
			continue // removed at Modal with all its sandboxes, or never created
		}
		if err != nil {
			return nil, err
		}
		all = append(all, app)
	}
	return all, nil
}

// names reads the recorded names. mu is held.
func (a *apps) names() ([]string, error) {
	data, err := os.ReadFile(a.file)
	if err != nil && !errors.IsNotExist(err) {
		return nil, errors.Wrapf(err, "read the names of the apps at Modal")
	}
	return strings.Fields(string(data)), nil
}

// note records that an app may have sandboxes.
func (a *apps) note(name string) error {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.found[name] != nil {
		return nil
	}
	names, err := a.names()
	if err != nil || slices.Contains(names, name) {
		return err
	}
	text := strings.Join(append(names, name), "\n") + "\n"
	return errors.Wrapf(atomicfile.Write(a.file, []byte(text), 0o600), "note the app of an account")
}

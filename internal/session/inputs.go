package session

import (
	"context"
	"encoding/json"
	"io/fs"
	"os"

	"github.com/RelevanceAI/harvest/client/errors"
	"github.com/RelevanceAI/harvest/internal/base/logf"
	"github.com/RelevanceAI/harvest/internal/session/records"
	"github.com/RelevanceAI/harvest/internal/session/uploads"
	"github.com/RelevanceAI/harvest/internal/session/workspace"
)

// The files of a session in the Store of uploads.
const (
	bundleInput = "bundle"
	patchInput  = "patch"
	factsInput  = "facts.json"
)

// inputs are the files that clients send for their sessions. A session keeps them until its repository is cloned, also
// over a restart of the server.
type inputs struct {
	store *uploads.Store
	own   string // temporary directory of the store, to remove; "" for none
}

// openInputs uses a Store, or makes one if store is nil.
func openInputs(store *uploads.Store) (inputs, error) {
	if store != nil {
		return inputs{store: store}, nil
	}
	dir, err := os.MkdirTemp("", "harvest-uploads-")
	if err != nil {
		return inputs{}, errors.Wrapf(err, "create a directory for uploads")
	}
	store, err = uploads.Open(dir, 0)
	return inputs{store: store, own: dir}, err
}

func (i inputs) close() {
	if i.own != "" {
		i.store.Close()
		_ = os.RemoveAll(i.own) // it is temporary
	}
}

// retain removes the files of sessions that no longer need them.
func (i inputs) retain(ctx context.Context, live []records.Session) {
	keep := map[string]bool{}
	for _, s := range live {
		keep[s.ID] = s.Status == records.Creating
	}
	if err := i.store.Retain(keep); err != nil {
		logf.Errorf(ctx, "%v", err)
	}
}

// facts are the parts of a workspace.Given that are not files.
type facts struct {
	Shallow []byte           `json:"shallow,omitempty"`
	Author  workspace.Author `json:"author"`
}

// take gives a new session the files of its request. It returns NotFound if an upload has expired.
func (i inputs) take(account, session string, req Request) (given workspace.Given, err error) {
	if !req.sendsCommits() {
		return workspace.Given{}, nil
	}
	file := func(name, id string, content []byte) (path string) {
		switch {
		case err != nil || id == "" && len(content) == 0:
			return ""
		case id != "" && len(content) > 0:
			err = errors.Remedy(errors.Newf(errors.Invalid, "the request has a %s and an upload with one", name),
				"send one of them")
		case id != "":
			path, err = i.store.Claim(account, id, session, name)
		default:
			path, err = i.store.Put(session, name, content)
		}
		return path
	}
	by := req.Uncommitted.Author
	given = workspace.Given{Bundle: file(bundleInput, req.BundleID, req.Bundle),
		Patch: file(patchInput, req.PatchID, req.Uncommitted.Patch), Shallow: req.Shallow, Author: by}
	text, e := json.Marshal(facts{req.Shallow, by})
	if err = errors.Join(err, e); err == nil {
		_, err = i.store.Put(session, factsInput, text)
	}
	if err != nil {
		return workspace.Given{}, errors.Join(err, i.store.Release(session))
	}
	return given, nil
}

// find returns the files of a session of an earlier server.
func (i inputs) find(ctx context.Context, session string) (given workspace.Given) {
	text, err := os.ReadFile(i.store.Path(session, factsInput))
	if errors.Is(err, fs.ErrNotExist) {
		return given
	}
	var f facts
	if err = errors.Join(err, json.Unmarshal(text, &f)); err != nil {
		logf.Errorf(ctx, "read the inputs of session %s: %v", session, err)
		return given
	}
	given = workspace.Given{Bundle: i.store.Path(session, bundleInput), Shallow: f.Shallow, Author: f.Author}
	if patch := i.store.Path(session, patchInput); fileExists(patch) {
		given.Patch = patch
	}
	return given
}

func fileExists(path string) bool {
	_, err := os.Stat(path)
	return err == nil
}

// release removes the files of a session.
func (i inputs) release(ctx context.Context, session string) {
	if err := i.store.Release(session); err != nil {
		logf.Errorf(ctx, "%v", err)
	}
}

// Uploads returns the store of the files that clients send ahead of their sessions.
func (m *Manager) Uploads() *uploads.Store { return m.inputs.store }

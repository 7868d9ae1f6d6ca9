// Package inputs keeps the files that clients send for their sessions: bundles of commits, and patches.
package inputs

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

// Files are the files that clients send for their sessions. A session keeps them until its repository is cloned, also
// over a restart of the server.
type Files struct {
	Store *uploads.Store
	own   string // temporary directory of the store, to remove; "" for none
}

// Open uses a Store, or makes one if store is nil.
func Open(store *uploads.Store) (Files, error) {
	if store != nil {
		return Files{Store: store}, nil
	}
	dir, err := os.MkdirTemp("", "harvest-uploads-")
	if err != nil {
		return Files{}, errors.Wrapf(err, "create a directory for uploads")
	}
	store, err = uploads.Open(dir, 0)
	return Files{Store: store, own: dir}, err
}

// Close removes a store that Open made.
func (f Files) Close() {
	if f.own != "" {
		f.Store.Close()
		_ = os.RemoveAll(f.own) // it is temporary
	}
}

// Retain removes the files of sessions that no longer need them.
func (f Files) Retain(ctx context.Context, live []records.Session) {
	keep := map[string]bool{}
	for _, s := range live {
		keep[s.ID] = s.Status == records.Creating
	}
	if err := f.Store.Retain(keep); err != nil {
		logf.Errorf(ctx, "%v", err)
	}
}

// facts are the parts of a workspace.Given that are not files.
type facts struct {
	Shallow []byte           `json:"shallow,omitempty"`
	Author  workspace.Author `json:"author"`
}

// Request has the commits and the changes that a client sends for a session, or names its uploads with them.
type Request struct {
	Bundle, Patch     []byte
	BundleID, PatchID string
	Shallow           []byte
	Author            workspace.Author
}

// Take gives a new session the files of its request. It returns NotFound if an upload has expired.
func (f Files) Take(account, session string, req Request) (given workspace.Given, err error) {
	if len(req.Bundle) == 0 && req.BundleID == "" {
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
			path, err = f.Store.Claim(account, id, session, name)
		default:
			path, err = f.Store.Put(session, name, content)
		}
		return path
	}
	given = workspace.Given{Bundle: file(bundleInput, req.BundleID, req.Bundle),
		Patch: file(patchInput, req.PatchID, req.Patch), Shallow: req.Shallow, Author: req.Author}
	text, e := json.Marshal(facts{req.Shallow, req.Author})
	if err = errors.Join(err, e); err == nil {
		_, err = f.Store.Put(session, factsInput, text)
	}
	if err != nil {
		return workspace.Given{}, errors.Join(err, f.Store.Release(session))
	}
	return given, nil
}

// Find returns the files of a session of an earlier server.
func (f Files) Find(ctx context.Context, session string) (given workspace.Given) {
	text, err := os.ReadFile(f.Store.Path(session, factsInput))
	if errors.Is(err, fs.ErrNotExist) {
		return given
	}
	var about facts
	if err = errors.Join(err, json.Unmarshal(text, &about)); err != nil {
		logf.Errorf(ctx, "read the inputs of session %s: %v", session, err)
		return given
	}
	given = workspace.Given{Bundle: f.Store.Path(session, bundleInput), Shallow: about.Shallow, Author: about.Author}
	if patch := f.Store.Path(session, patchInput); fileExists(patch) {
		given.Patch = patch
	}
	return given
}

func fileExists(path string) bool {
	_, err := os.Stat(path)
	return err == nil
}

// Release removes the files of a session.
func (f Files) Release(ctx context.Context, session string) {
	if err := f.Store.Release(session); err != nil {
		logf.Errorf(ctx, "%v", err)
	}
}

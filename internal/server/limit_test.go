package server_test

import (
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/RelevanceAI/harvest/client/api"
	"github.com/RelevanceAI/harvest/internal/base/account"
	"github.com/RelevanceAI/harvest/internal/server"
	"github.com/RelevanceAI/harvest/internal/session"
	"github.com/RelevanceAI/harvest/internal/session/agent"
	"github.com/RelevanceAI/harvest/internal/session/agent/scripted"
	"github.com/RelevanceAI/harvest/internal/session/uploads"
	"github.com/RelevanceAI/harvest/internal/store/testdb"
)

// endless is a body that no handler understands, so that none has an effect.
type endless struct{}

func (endless) Read(p []byte) (int, error) {
	for i := range p {
		p[i] = 'x'
	}
	return len(p), nil
}

// TestIdempotencyKeepsLimits checks for each route that a request with an Idempotency-Key may be as large as one
// without it.
// mission: F1
func TestIdempotencyKeepsLimits(t *testing.T) {
	t.Parallel()
	blocks, events := withBlocks(t)
	w := start(t, blocks, func(o *server.Options) {
		manager, err := session.Open(t.Context(), session.Options{Fleet: o.Fleet, Journal: events,
			Store: testdb.Open(t).Sessions(), Agents: map[string]agent.Agent{"scripted": scripted.Agent{}}})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(manager.Close)
		o.Sessions = manager
	})
	answer := func(path string, size int64, key bool) int {
		// A local connection is the operator's.
		req := httptest.NewRequestWithContext(t.Context(), "POST", path, io.LimitReader(endless{}, size))
		req.ContentLength = size
		req.Header.Set("Content-Type", api.TypeJSON)
		if key {
			req.Header.Set(api.HeaderIdempotency, "k"+path)
		}
		rec := httptest.NewRecorder()
		server.Local(w.server).ServeHTTP(rec, req)
		return rec.Code
	}
	for _, rt := range server.Routes(w.server) {
		if rt.Method != "POST" || rt.Raw || !rt.JSON {
			continue
		}
		path := rt.Path
		for _, name := range []string{"id", "name", "question", "message", "command", "entity", "file...", "path..."} {
			path = strings.ReplaceAll(path, "{"+name+"}", "x")
		}
		for _, size := range []int64{api.MaxBody, 2 * api.MaxBody, 32 << 20, 40 << 20} {
			// The handler has read the body if it does not understand it.
			if answer(path, size, false) == http.StatusBadRequest &&
				answer(path, size, true) == http.StatusRequestEntityTooLarge {
				t.Errorf("POST %s: %d bytes are too many with an Idempotency-Key only", rt.Path, size)
			}
		}
	}
}

// TestUploads checks the routes of files that are sent ahead of a session.
// mission: E3
func TestUploads(t *testing.T) {
	t.Parallel()
	blocks, events := withBlocks(t)
	store, err := uploads.Open(t.TempDir(), 1<<20)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(store.Close)
	w := start(t, blocks, func(o *server.Options) {
		manager, err := session.Open(t.Context(), session.Options{Fleet: o.Fleet, Journal: events, Uploads: store,
			Store: testdb.Open(t).Sessions(), Agents: map[string]agent.Agent{"scripted": scripted.Agent{}}})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(manager.Close)
		o.Sessions = manager
	})
	acme, other := w.as(account.Request{Account: "acme"}), w.as(account.Request{Account: "other"})
	resp, text := acme.do("POST", api.Uploads, "commits")
	up := parse[api.FileUpload](t, text)
	if resp.StatusCode != 201 || up.Size != 7 || !strings.HasPrefix(up.ID, "upl_") {
		t.Errorf("%s %s", resp.Status, text)
	}
	acme.want(400, "POST", api.Uploads, "")
	acme.want(400, "POST", api.Uploads, strings.Repeat("x", 1<<20+1))
	session := `{"agent":"scripted","bundle_id":"` + up.ID + `"}`
	other.want(404, "POST", api.Sessions, session)
	acme.want(400, "POST", api.Sessions, `{"agent":"scripted","bundle":"eA==","bundle_id":"`+up.ID+`"}`)
	acme.want(400, "POST", api.Sessions, `{"agent":"scripted","uncommitted":{"patch_id":"`+up.ID+`","author":{}}}`)
	other.want(404, "DELETE", api.Path(api.Upload, up.ID), "")
	acme.want(204, "DELETE", api.Path(api.Upload, up.ID), "")
	acme.want(404, "POST", api.Sessions, session)
}

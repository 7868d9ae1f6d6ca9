package server_test

import (
	"testing"

	"github.com/RelevanceAI/harvest/internal/base/account"
	"github.com/RelevanceAI/harvest/internal/server"
	"github.com/RelevanceAI/harvest/internal/session"
	"github.com/RelevanceAI/harvest/internal/session/agent"
	"github.com/RelevanceAI/harvest/internal/session/agent/scripted"
	"github.com/RelevanceAI/harvest/internal/store/testdb"
)

// Announcements of sessions are limited for each account, and errors are those of creating the session.
func TestWarmSession(t *testing.T) {
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
	acme, other, third := w.as(account.Request{Account: "acme"}), w.as(account.Request{Account: "other"}),
		w.as(account.Request{Account: "third"})
	for range 2 {
		acme.want(204, "POST", "/v1/sessions/warm", `{"agent":"scripted","repo":"https://example.org/a/b"}`)
	}
	for range 10 { // the third one is refused, unless the machine is that slow
		if resp, _ := acme.do("POST", "/v1/sessions/warm", `{"agent":"scripted"}`); resp.StatusCode == 429 &&
			resp.Header.Get("Retry-After") != "" {
			acme = nil
			break
		}
	}
	if acme != nil {
		t.Error("no announcement was refused")
	}
	other.want(404, "POST", "/v1/sessions/warm", `{"agent":"nobody"}`)
	other.want(400, "POST", "/v1/sessions/warm", `{"agent":"scripted","repo":"no address"}`)
	third.want(400, "POST", "/v1/sessions/warm", `{"agent":"scripted","sandbox":{"cpu":"many"}}`)
}

package server

import (
	"net/http"
	"slices"

	"github.com/RelevanceAI/harvest/client/api"
	"github.com/RelevanceAI/harvest/internal/base/account"
	"github.com/RelevanceAI/harvest/internal/base/logf"
	"github.com/RelevanceAI/harvest/internal/server/edge"
	"github.com/RelevanceAI/harvest/internal/server/openapi"
)

// routes returns one row per route.
func (s *Server) routes() []edge.Route {
	p := s.parts
	return slices.Concat(p.sandboxes.Routes(), p.volumes.Routes(), p.images.Routes(), s.systemRoutes(),
		p.secrets.Routes(), p.logins.Routes(), p.schedules.Routes(), p.sessions.Routes(), p.inbox.Routes(),
		p.repos.Routes(), s.modalRoutes(), p.files.Routes(), s.linkRoutes(), sshRoutes(s), s.oidcRoutes(),
		s.inner.routes(), p.authorize.Routes(), s.proxyRoutes())
}

func (s *Server) systemRoutes() []edge.Route {
	const read, write = account.Read, account.Write
	return []edge.Route{
		{Method: "GET", Path: api.Events, Handle: s.streamEvents, Scope: read,
			Summary: "Follow the events of the account's sandboxes, or of one stream",
			Query: "stream: id or name of a sandbox, session or repository (default: all); after: only events " +
				"after this id, as with the header Last-Event-ID; tail: only the last N events, and new ones; " +
				"attended: true if a person reads the events and can answer questions",
			RawOut: api.TypeEvents, Status: 200},
		{Method: "POST", Path: api.Keys, Handle: s.withRing(s.createKey), Scope: write,
			Summary: "Create a key, which is shown only this time", In: api.KeyRequest{}, Out: api.NewKey{},
			Status: 201, Secret: true},
		{Method: "GET", Path: api.Keys, Handle: s.withRing(s.listKeys), Scope: read,
			Summary: "List the account's keys, newest first",
			Query:   edge.QueryPage + "; all: keys of all accounts, for operators",
			Out:     api.List[api.Key]{}, Status: 200},
		{Method: "DELETE", Path: api.Keyed, Handle: s.withRing(s.revokeKey), Scope: write,
			Summary: "Revoke a key, by its id or name", Status: 204},
		{Method: "GET", Path: api.Account, Handle: s.self, Scope: read,
			Summary: "Get the caller's identity, and the resource use of its account", Out: api.Self{}, Status: 200},
		{Method: "POST", Path: api.Links, Handle: s.withRing(s.createLink), Scope: write,
			Summary: "Create a single-use sign-in link for a browser", Out: api.Link{}, Status: 201, Secret: true},
		{Method: "GET", Path: api.SignIn, Handle: s.withRing(s.offerSignIn), Summary: "Page with a button to sign in",
			Query: "token: token of the link", RawOut: "text/html", Status: 200},
		{Method: "POST", Path: api.SignIn, Handle: s.withRing(s.signIn),
			Summary: "Sign in with the token of a link, which is used up",
			Query:   "token: token of the link", Status: 303},
		{Method: "POST", Path: api.SignOut, Handle: s.withRing(s.signOut), Scope: read, Summary: "Sign out",
			Status: 204},

		{Method: "GET", Path: api.Audit, Handle: s.listAudit, Scope: read,
			Summary: "List the changes that the account made, newest first; those of all accounts for operators",
			Query:   edge.QueryPage,
			Out:     api.List[api.AuditLine]{}, Status: 200},
		{Method: "GET", Path: api.Doctor, Handle: s.doctor, Scope: read, Operator: true,
			Summary: "Check the server's machine, and suggest fixes", Out: api.List[api.Finding]{}, Status: 200},
		{Method: "POST", Path: api.Shutdown, Handle: s.shutdown, Scope: write, Operator: true,
			Summary: "Stop the server; sandboxes keep running",
			In:      api.ShutdownRequest{}, Status: 202, Secret: true},
		{Method: "POST", Path: api.Backup, Handle: s.backup, Scope: write, Operator: true,
			Summary: "Get a backup of the server's records as a tar stream",
			In:      api.BackupRequest{}, RawOut: api.TypeTar, Status: 200, Raw: true},
		{Method: "GET", Path: api.Metrics, Handle: s.showMetrics, Scope: read,
			Summary: "Metrics for Prometheus, for keys of the account personal", RawOut: "text/plain", Status: 200},
		{Method: "GET", Path: api.Healthz, Handle: s.healthz, Summary: "Liveness of the server",
			RawOut: "text/plain", Status: 200},
		{Method: "GET", Path: api.Readyz, Handle: s.readyz, Summary: "Readiness of the server; with a key, details",
			Out: api.Server{}, Status: 200},
		{Method: "GET", Path: api.OpenAPI, Handle: s.openAPI, Summary: "This document, as JSON",
			RawOut: api.TypeJSON, Status: 200},
		{Method: "GET", Path: api.Docs, Handle: s.docs, Summary: "This document, as a page",
			RawOut: "text/html", Status: 200},
	}
}

func (s *Server) openAPI(w http.ResponseWriter, _ *http.Request) error {
	return openapi.Document(w, s.routes())
}

func (s *Server) docs(w http.ResponseWriter, _ *http.Request) error {
	return openapi.Page(w, s.routes())
}

// router returns the handler for all routes.
func (s *Server) router() http.Handler {
	mux := http.NewServeMux()
	for _, rt := range s.routes() {
		mux.Handle(rt.Method+" "+rt.Path, s.guarded(rt))
	}
	mux.Handle("GET /{$}", edge.Handler(s.page))
	mux.Handle("GET /ui/{file...}", edge.Handler(s.page))
	mux.Handle("/", edge.Handler(s.unknown))
	return mux
}

// guarded checks authentication, scope and rate limits before it calls the route's handler.
func (s *Server) guarded(rt edge.Route) edge.Handler {
	return func(w http.ResponseWriter, r *http.Request) error {
		v := visitOf(r.Context())
		if v != nil {
			v.audited = rt.Changes()
		}
		if rt.Scope == "" {
			return rt.Handle(w, r)
		}
		who, err := s.authenticate(r)
		if err != nil {
			if limit := s.limits.Allow(w, peerOf(r.Context()).addr.String(), strangers); limit != nil {
				return limit
			}
			return challenged(s, w, r, err)
		}
		w.Header().Set(api.HeaderVersion, s.opts.Version)
		w.Header().Set("Cache-Control", "no-store") // unless the route sets it
		ctx := edge.WithPrincipal(r.Context(), who)
		if v != nil {
			v.who = who
		}
		if who.KeyID != "" {
			ctx = logf.With(ctx, "account", who.Account, "key_id", who.KeyID)
			if err := s.limits.Allow(w, who.KeyID, s.opts.Rate); err != nil {
				return err
			}
		}
		r = r.WithContext(ctx)
		if err := who.May(rt.Scope); err != nil {
			challenge(s, w, r, "insufficient_scope")
			return err
		}
		if rt.Operator {
			if err := who.MustBeOperator(); err != nil {
				return err
			}
		}
		r, done := s.follow(w, r, who)
		defer done()
		if r.Method == http.MethodPost && !rt.Raw && r.Header.Get(api.HeaderIdempotency) != "" {
			err = s.once(rt, w, r)
		} else {
			err = rt.Handle(w, r)
		}
		if err != nil {
			return edge.EndedBy(r.Context(), err)
		}
		return nil
	}
}

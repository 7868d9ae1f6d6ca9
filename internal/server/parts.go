package server

import (
	"net/http"

	"github.com/RelevanceAI/harvest/client/api"
	"github.com/RelevanceAI/harvest/internal/base/account"
	"github.com/RelevanceAI/harvest/internal/server/authorize"
	"github.com/RelevanceAI/harvest/internal/server/files"
	"github.com/RelevanceAI/harvest/internal/server/images"
	"github.com/RelevanceAI/harvest/internal/server/inbox"
	"github.com/RelevanceAI/harvest/internal/server/logins"
	"github.com/RelevanceAI/harvest/internal/server/repos"
	"github.com/RelevanceAI/harvest/internal/server/sandboxes"
	"github.com/RelevanceAI/harvest/internal/server/schedules"
	"github.com/RelevanceAI/harvest/internal/server/secrets"
	"github.com/RelevanceAI/harvest/internal/server/sessions"
	"github.com/RelevanceAI/harvest/internal/server/volumes"
)

// parts are the handlers of the API that know one subject each.
type parts struct {
	sandboxes *sandboxes.Service
	files     *files.Service
	volumes   *volumes.Service
	images    *images.Service
	secrets   *secrets.Service
	logins    *logins.Service
	schedules *schedules.Service
	sessions  *sessions.Service
	repos     *repos.Service
	inbox     *inbox.Service
	authorize *authorize.Service
}

// openParts gives each part its dependencies from the options.
func (s *Server) openParts() parts {
	o := s.opts
	return parts{
		sandboxes: &sandboxes.Service{Settings: s.settings, Fleet: o.Fleet, Tracer: s.tracer, Patience: o.Patience},
		files:     &files.Service{Settings: s.settings, Fleet: o.Fleet},
		volumes:   &volumes.Service{Settings: s.settings, Fleet: o.Fleet, Volumes: o.Volumes, Storage: o.Storage},
		images: &images.Service{Settings: s.settings, Fleet: o.Fleet, Images: o.Images, Secrets: o.Secrets,
			Export: o.Export, Engine: o.Engine, Temp: o.Temp, Age: o.ImageAge},
		secrets:   &secrets.Service{Settings: s.settings, Secrets: o.Secrets},
		logins:    &logins.Service{Settings: s.settings, Secrets: o.Secrets},
		schedules: &schedules.Service{Settings: s.settings, Schedules: o.Schedules},
		sessions: &sessions.Service{Settings: s.settings, Sessions: o.Sessions, Volumes: o.Volumes,
			Events: s.streamEvents},
		repos:     &repos.Service{Settings: s.settings, Repos: o.Repos, Events: s.streamEvents},
		inbox:     &inbox.Service{Settings: s.settings, Box: o.Inbox, Events: s.streamEvents},
		authorize: openAuthorize(s),
	}
}

// openAuthorize returns the authorization server for clients of MCP.
func openAuthorize(s *Server) *authorize.Service {
	provider := ""
	if s.opts.OIDC != nil {
		provider = api.SignInOIDC
	}
	return &authorize.Service{
		Ring: s.opts.Keys, Key: s.settings.Key, Base: s.base, OIDC: provider,
		Caller: func(r *http.Request) (account.Principal, error) {
			cookie, err := r.Cookie(peerOf(r.Context()).cookieName())
			if err != nil {
				return account.Principal{}, s.errSignIn()
			}
			return s.opts.Keys.Authenticate(r.Context(), account.SignIn, cookie.Value)
		},
		OwnPage: func(r *http.Request) error { return peerOf(r.Context()).checkSite(r) },
		Limit: func(w http.ResponseWriter, r *http.Request) error {
			return s.limits.Allow(w, "oauth "+peerOf(r.Context()).addr.String(), signingIn)
		},
		Audit: func(r *http.Request, who account.Principal) {
			if v := visitOf(r.Context()); v != nil {
				v.who = who
			}
		},
	}
}

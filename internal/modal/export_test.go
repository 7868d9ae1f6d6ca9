package modal

import (
	"time"

	"github.com/RelevanceAI/harvest/internal/base/account"
)

// Scopes returns the tables of scopes.
func Scopes() (control, router map[string]account.Scope) { return controlScopes, routerScopes }

// Continuing reports whether a method continues the work of another call.
func Continuing(name string) bool { return continuing[name] }

// SweepApps looks after apps as at another time.
func (s *Server) SweepApps(at time.Time) { s.sweepApps(s.ctx, at) }

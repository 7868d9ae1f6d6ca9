package server

import (
	"github.com/RelevanceAI/harvest/internal/base/account"
)

// Route is a row of the router, for tests that walk all of them.
type Route struct {
	Method, Path string
	Scope        account.Scope
	Operator     bool
	Changes      bool // may change or run something
}

// Routes returns the rows of the router of a server that has every part.
func Routes(s *Server) []Route {
	var all []Route
	for _, rt := range s.routes() {
		all = append(all, Route{rt.Method, rt.Path, rt.Scope, rt.Operator, rt.Changes()})
	}
	return all
}

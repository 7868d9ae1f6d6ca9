package server

import (
	"context"
	"net/http"

	"github.com/RelevanceAI/harvest/internal/base/account"
)

// Route is a row of the router, for tests that walk all of them.
type Route struct {
	Method, Path string
	Scope        account.Scope
	Operator     bool
	Changes      bool // may change or run something
	JSON         bool // has a JSON body
	Raw          bool // passed through unread
}

// Routes returns the rows of the router of a server that has every part.
func Routes(s *Server) []Route {
	var all []Route
	for _, rt := range s.routes() {
		all = append(all, Route{rt.Method, rt.Path, rt.Scope, rt.Operator, rt.Changes(), rt.In != nil, rt.Raw})
	}
	return all
}

// Local returns a handler for requests of the operator.
func Local(s *Server) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		s.http.Handler.ServeHTTP(w, r.WithContext(context.WithValue(r.Context(), localKey{}, true)))
	})
}

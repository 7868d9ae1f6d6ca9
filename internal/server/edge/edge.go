// Package edge is the common base of the handlers of the HTTP API: rows of the router, callers, decoding, responses,
// pages of lists, server-sent events and rate limits. errors.go is the only exit for errors.
package edge

import (
	"context"
	"net/http"
	"time"

	"github.com/RelevanceAI/harvest/internal/base/account"
)

// Settings are the values of a server that its handlers share.
type Settings struct {
	Key       []byte          // signs data that clients send back, such as cursors
	Stopping  context.Context // ends when the server stops
	Heartbeat time.Duration   // maximum pause of an event stream before a comment is sent as a sign of life
}

// Route is one row of the API, for the router and for the OpenAPI document.
type Route struct {
	Method, Path string
	Handle       Handler
	Scope        account.Scope // required scope; "" for everyone, signed in or not
	Operator     bool          // only for the operator
	SignsIn      bool          // a GET that ends with a new sign-in

	Summary string
	Query   string // parameters, as "name: description", separated by ';'
	In      any    // a value of the JSON body's type; nil for none
	Out     any    // a value of the response's type; nil for none
	Status  int    // on success
	// RawIn and RawOut are the types of bodies that are not JSON.
	RawIn, RawOut string
	Events        string // server-sent events for Accept: text/event-stream
	Socket        string // description of the route as a WebSocket
	Secret        bool   // the response must not be kept
	Raw           bool   // pass the request through unread: no Idempotency-Key
}

// Changes reports whether a request may change or run something. Such requests are in the audit log, whatever their
// result.
func (rt Route) Changes() bool {
	return rt.Method != http.MethodGet || rt.SignsIn || rt.Scope != account.Read && rt.Scope != ""
}

// Only returns routes for something that the server may lack: if it is not there, they respond with Unsupported.
func Only(there bool, what string, routes []Route) []Route {
	for i := range routes {
		if !there {
			routes[i].Handle = func(http.ResponseWriter, *http.Request) error { return Lacks(what) }
		}
	}
	return routes
}

// Query parameters of several routes.
const (
	QueryPage = "limit: maximum number of entries, up to 1000; cursor: next_cursor of the previous page"
	QueryPath = "path: path of the file or directory"
)

// Package authorize lets clients of MCP sign in: it is the authorization server (OAuth 2.1) of the route /mcp, as the
// MCP authorization specification asks. Package base/account keeps the grants and their tokens.
package authorize

import (
	"net/http"
	"net/url"
	"slices"
	"strings"
	"sync"

	"github.com/RelevanceAI/harvest/client/api"
	"github.com/RelevanceAI/harvest/client/errors"
	"github.com/RelevanceAI/harvest/internal/base/account"
	"github.com/RelevanceAI/harvest/internal/server/edge"
)

// Service serves the routes of OAuth.
type Service struct {
	Ring *account.Ring // nil: not supported
	Key  []byte        // signs the IDs of clients
	// Base returns the address of the server that the sender of a request used.
	Base func(*http.Request) (string, error)
	// Caller returns the user who is signed in to the browser that sent a request.
	Caller func(*http.Request) (account.Principal, error)
	// OwnPage returns Denied unless a request comes from a page of this server.
	OwnPage func(*http.Request) error
	// Limit returns Exhausted if the sender of a request sends too many.
	Limit func(http.ResponseWriter, *http.Request) error
	// Audit records for the audit log for whom a request acts.
	Audit func(*http.Request, account.Principal)
	// OIDC is the path at which a browser signs in with a provider; "" if there is none.
	OIDC string

	mu    sync.Mutex
	codes map[string]*code // guarded by mu; by hash
}

// Routes returns one row per route.
func (s *Service) Routes() []edge.Route {
	routes := []edge.Route{
		{Method: "GET", Path: api.OAuthResource, Handle: s.resource,
			Summary: "OAuth: description of the resource /mcp (RFC 9728)", Out: api.OAuthResourceInfo{}, Status: 200},
		{Method: "GET", Path: api.OAuthResourceMCP, Handle: s.resource,
			Summary: "OAuth: description of the resource /mcp (RFC 9728)", Out: api.OAuthResourceInfo{}, Status: 200},
		{Method: "GET", Path: api.OAuthServer, Handle: s.server,
			Summary: "OAuth: description of the authorization server (RFC 8414)", Out: api.OAuthServerInfo{},
			Status: 200},
		{Method: "POST", Path: api.OAuthRegister, Handle: s.register, Raw: true,
			Summary: "OAuth: register a client (RFC 7591)", RawIn: api.TypeJSON, Out: api.OAuthClient{}, Status: 201},
		{Method: "GET", Path: api.OAuthAuthorize, Handle: s.ask,
			Summary: "OAuth: page that asks the user to let a client act for them", Query: authorizeQuery,
			RawOut: "text/html", Status: 200},
		{Method: "POST", Path: api.OAuthAuthorize, Handle: s.decide, Raw: true,
			Summary: "OAuth: the user's answer; redirects to the client", RawIn: api.TypeURLForm, Status: 303},
		{Method: "POST", Path: api.OAuthToken, Handle: s.token, Raw: true,
			Summary: "OAuth: exchange a code or a refresh token for tokens", RawIn: api.TypeURLForm,
			Out: api.OAuthTokens{}, Status: 200},
		{Method: "POST", Path: api.OAuthRevoke, Handle: s.revoke, Raw: true,
			Summary: "OAuth: revoke the tokens of a client (RFC 7009)", RawIn: api.TypeURLForm, Status: 200},
	}
	for i, rt := range routes {
		routes[i].Handle = func(w http.ResponseWriter, r *http.Request) error {
			w.Header().Set("Cache-Control", "no-store")
			if err := s.Limit(w, r); err != nil {
				return err
			}
			return rt.Handle(w, r)
		}
	}
	return edge.Only(s.Ring != nil, "keys", routes)
}

// scopes are the names of all scopes.
func scopes() []string {
	return edge.Each(account.Scopes, func(s account.Scope) string { return string(s) })
}

// Challenge returns the value of WWW-Authenticate for a request to /mcp that is refused. base is the server's address;
// code is an error of RFC 6750, or "" if the request has no token.
func Challenge(base, code string) string {
	text := `Bearer resource_metadata="` + base + api.OAuthResourceMCP + `", scope="` +
		strings.Join(scopes(), " ") + `"`
	if code != "" {
		text += `, error="` + code + `"`
	}
	return text
}

func (s *Service) resource(w http.ResponseWriter, r *http.Request) error {
	base, err := s.Base(r)
	if err != nil {
		return err
	}
	return edge.Respond(w, http.StatusOK, api.OAuthResourceInfo{Resource: base + api.MCP, Servers: []string{base},
		Scopes: scopes(), Methods: []string{"header"}, Name: "Harvest"})
}

func (s *Service) server(w http.ResponseWriter, r *http.Request) error {
	base, err := s.Base(r)
	if err != nil {
		return err
	}
	none := []string{"none"}
	return edge.Respond(w, http.StatusOK, api.OAuthServerInfo{Issuer: base, Authorize: base + api.OAuthAuthorize,
		Token: base + api.OAuthToken, Register: base + api.OAuthRegister, Revoke: base + api.OAuthRevoke,
		Scopes: scopes(), ResponseTypes: []string{"code"}, ResponseModes: []string{"query"},
		GrantTypes: []string{grantCode, grantRefresh}, ClientAuth: none, RevokeAuth: none,
		ChallengeMethods: []string{"S256"}, IssuerInResponses: true})
}

// checkResource returns an error unless the parameter "resource" (RFC 8707) is the route /mcp of this server, or is
// missing: there is no other resource.
func (s *Service) checkResource(r *http.Request, named string) error {
	if named == "" {
		return nil
	}
	base, err := s.Base(r)
	if err != nil {
		return err
	}
	want, err := url.Parse(base + api.MCP)
	if err != nil {
		return errors.Wrapf(err, "parse the server's address")
	}
	got, err := url.Parse(named)
	if err != nil || got.User != nil || got.RawQuery != "" || got.Fragment != "" ||
		!strings.EqualFold(got.Scheme, want.Scheme) || !strings.EqualFold(hostOf(got), hostOf(want)) ||
		strings.TrimSuffix(got.EscapedPath(), "/") != want.Path {
		return errorf("invalid_target", "the resource is not %s", want)
	}
	return nil
}

// hostOf returns the host and the port of u, without a default port.
func hostOf(u *url.URL) string {
	return strings.TrimSuffix(u.Host, map[string]string{"http": ":80", "https": ":443"}[strings.ToLower(u.Scheme)])
}

// values are the parameters of a request.
type values url.Values

// get returns a parameter. A missing one is "".
func (v values) get(name string) string { return url.Values(v).Get(name) }

// largest is the maximum size of a parameter, in bytes. The ID of a client is larger than all others.
const largest = 8 << 10

// check returns an error if a parameter is repeated (RFC 6749, section 3.1) or too large.
func (v values) check() error {
	for name, all := range v {
		if len(all) > 1 {
			return errorf("invalid_request", "the parameter %.40q is repeated", name)
		}
		if len(all[0]) > largest {
			return errorf("invalid_request", "the parameter %.40q has more than %d bytes", name, largest)
		}
	}
	return nil
}

// formSize is the maximum size of a body, in bytes.
const formSize = 32 << 10

// form returns the parameters in the body of a request.
func form(w http.ResponseWriter, r *http.Request) (values, error) {
	kind, _, _ := strings.Cut(r.Header.Get("Content-Type"), ";")
	if !strings.EqualFold(strings.TrimSpace(kind), api.TypeURLForm) {
		return nil, errorf("invalid_request", "the content type is not %s", api.TypeURLForm)
	}
	data, err := edge.Body(w, r, formSize)
	if err != nil {
		return nil, err
	}
	all, err := url.ParseQuery(string(data))
	if err != nil {
		return nil, errorf("invalid_request", "invalid form")
	}
	return values(all), values(all).check()
}

// failure is an error in the form of OAuth.
type failure struct{ api.OAuthError }

func (f *failure) Error() string { return f.Code + ": " + f.Description }

// errorf returns an error with a code of OAuth.
func errorf(code, format string, args ...any) error {
	return &failure{api.OAuthError{Code: code, Description: description(errors.Message(errors.Newf(errors.Invalid,
		format, args...)))}}
}

// description returns a text with only the characters that error_description can have (RFC 6749, section 5.2).
func description(text string) string {
	return strings.Map(func(r rune) rune {
		switch {
		case r == '"':
			return '\''
		case r == '\\' || r < ' ' || r > '~':
			return -1
		}
		return r
	}, text)
}

// answered sends err in the form of OAuth if it has one, and returns it otherwise.
func answered(w http.ResponseWriter, err error) error {
	var f *failure
	if !errors.As(err, &f) {
		return err
	}
	return edge.Respond(w, http.StatusBadRequest, f.OAuthError)
}

// narrowed returns the scopes of a request that the caller has; all of the caller's if it names none. They include
// read, which each request to /mcp needs.
func narrowed(wanted string, who account.Principal) ([]account.Scope, error) {
	if who.May(account.Read) != nil {
		return nil, errorf("invalid_scope", "clients need the scope read, which the user does not have")
	}
	named := strings.Fields(wanted)
	some := len(named) == 0
	var out []account.Scope
	for _, scope := range who.Scopes {
		is := len(named) == 0 || slices.Contains(named, string(scope))
		if is || scope == account.Read {
			out = append(out, scope)
		}
		some = some || is
	}
	if !some {
		return nil, errorf("invalid_scope", "none of the scopes is available; there are: %s",
			strings.Join(scopes(), " "))
	}
	return out, nil
}

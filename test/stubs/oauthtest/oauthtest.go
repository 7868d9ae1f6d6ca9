// Package oauthtest is an authorization server for tests: RFC 6749 with PKCE (RFC 7636), RFC 8628 and RFC 7009. Refresh
// tokens rotate. As the real servers do, it revokes a grant whose old refresh token is used.
package oauthtest

import (
	"cmp"
	"crypto/rand"
	"crypto/sha256"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strings"
	"sync"
	"testing"
	"time"
)

// Server is the authorization server. Set its fields before it is used; Lock guards those that a test changes later.
type Server struct {
	URL    string
	Client string        // ID of the only client
	Life   time.Duration // of access tokens
	Prefix string        // of access tokens; "jwt" makes JSON Web Tokens with the account
	Keep   bool          // refresh tokens do not rotate

	mu       sync.Mutex
	status   int               // of answers to requests for tokens; 0 for the right one
	hold     chan struct{}     // answers to renewals wait for it
	grants   map[string]*grant // by refresh token, also old ones
	access   map[string]*grant // by access token, also old ones
	pending  map[string]url.Values
	device   string   // what the user does: approve, deny, or nothing
	polls    []string // errors for the next polls of a device
	renewals int
	bodies   []string // media types of requests for tokens
	revoked  []string
}

// grant is what a user allowed.
type grant struct {
	refresh, access string // current ones
	expires         time.Time
	revoked         bool
}

// New starts a server.
func New(t testing.TB) *Server {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	return Serve(t, l)
}

// Serve starts a server on a listener.
func Serve(t testing.TB, l net.Listener) *Server {
	t.Helper()
	s := &Server{Client: "client", Life: time.Hour, grants: map[string]*grant{}, access: map[string]*grant{},
		pending: map[string]url.Values{}}
	mux := http.NewServeMux()
	mux.HandleFunc("POST /device", s.serveDevice)
	mux.HandleFunc("POST /token", s.serveToken)
	mux.HandleFunc("POST /revoke", s.serveRevoke)
	h := &httptest.Server{Listener: l, Config: &http.Server{Handler: mux}}
	h.Start()
	t.Cleanup(h.Close)
	s.URL = h.URL
	return s
}

// Settings returns the settings that make a provider use the server.
func (s *Server) Settings(provider string) []string {
	return []string{provider + ".client_id=" + s.Client, provider + ".authorize_url=" + s.URL + "/authorize",
		provider + ".token_url=" + s.URL + "/token", provider + ".device_url=" + s.deviceURL(provider),
		provider + ".revoke_url=" + s.URL + "/revoke"}
}

func (s *Server) deviceURL(provider string) string {
	if provider == "github" {
		return s.URL + "/device"
	}
	return ""
}

// Approve is a user who opens the address of a login and allows the access. It returns the address to which their
// browser is led.
func (s *Server) Approve(t testing.TB, address string) string {
	t.Helper()
	u, err := url.Parse(address)
	if err != nil {
		t.Fatal(err)
	}
	q := u.Query()
	if q.Get("response_type") != "code" || q.Get("client_id") != s.Client || q.Get("code_challenge_method") != "S256" ||
		q.Get("state") == "" {
		t.Fatalf("a bad request for a code: %s", address)
	}
	code := "code-" + rand.Text()
	s.mu.Lock()
	defer s.mu.Unlock()
	s.pending[code] = q
	return q.Get("redirect_uri") + "?" + url.Values{"code": {code}, "state": {q.Get("state")}}.Encode()
}

// Device sets what the user does with a device's code: "approve", "deny" or "". The next polls get the given errors.
func (s *Server) Device(user string, polls ...string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.device, s.polls = user, polls
}

// Fail makes the server answer requests for tokens with a status; 0 ends that.
func (s *Server) Fail(status int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.status = status
}

// Hold makes the answers to renewals wait until release is called.
func (s *Server) Hold() (release func()) {
	s.mu.Lock()
	defer s.mu.Unlock()
	hold := make(chan struct{})
	s.hold = hold
	return func() {
		s.mu.Lock()
		s.hold = nil
		s.mu.Unlock()
		close(hold)
	}
}

// Grant makes a grant, and returns its tokens.
func (s *Server) Grant() (access, refresh string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	g := &grant{}
	s.issue(g)
	return g.access, g.refresh
}

// RevokeAll ends all grants, as a user does in the settings of the account.
func (s *Server) RevokeAll() {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, g := range s.grants {
		g.revoked = true
	}
}

// Valid reports whether an access token is valid.
func (s *Server) Valid(access string) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	g := s.access[access]
	return g != nil && !g.revoked && g.access == access && time.Now().Before(g.expires)
}

// Renewals returns how many renewals were asked for.
func (s *Server) Renewals() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.renewals
}

// Bodies returns the media types of the requests for tokens.
func (s *Server) Bodies() []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return append([]string(nil), s.bodies...)
}

// Revoked returns the tokens that were revoked by a request.
func (s *Server) Revoked() []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return append([]string(nil), s.revoked...)
}

// issue gives a grant new tokens. s.mu is held.
func (s *Server) issue(g *grant) {
	g.access, g.expires = s.token(), time.Now().Add(s.Life)
	if g.refresh == "" || !s.Keep {
		g.refresh = "refresh-" + rand.Text()
	}
	s.grants[g.refresh], s.access[g.access] = g, g
}

func (s *Server) token() string {
	if s.Prefix != "jwt" {
		return cmp.Or(s.Prefix, "access-") + rand.Text() + rand.Text()
	}
	encode := base64.RawURLEncoding.EncodeToString
	return encode([]byte(`{"alg":"RS256"}`)) + "." + encode([]byte(fmt.Sprintf(`{"iss":"test","exp":%d,"jti":%q,`+
		`"https://api.openai.com/auth":{"chatgpt_account_id":"acc-1","chatgpt_plan_type":"pro",`+
		`"chatgpt_user_id":"u-1"}}`, time.Now().Add(s.Life).Unix(), rand.Text()))) + "." + rand.Text()
}

// fields returns the fields of a form or of JSON.
func fields(r *http.Request) url.Values {
	if strings.HasPrefix(r.Header.Get("Content-Type"), "application/json") {
		var all map[string]any
		_ = json.NewDecoder(r.Body).Decode(&all)
		v := url.Values{}
		for name, value := range all {
			v.Set(name, fmt.Sprint(value))
		}
		return v
	}
	body, _ := io.ReadAll(r.Body)
	v, _ := url.ParseQuery(string(body))
	return v
}

func answer(w http.ResponseWriter, status int, v map[string]any) {
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(status)
	_ = json.NewEncoder(w).Encode(v)
}

func refuse(w http.ResponseWriter, code string) {
	answer(w, http.StatusBadRequest, map[string]any{"error": code, "error_description": "with the words of the server"})
}

func (s *Server) serveDevice(w http.ResponseWriter, r *http.Request) {
	if fields(r).Get("client_id") != s.Client {
		refuse(w, "unauthorized_client")
		return
	}
	answer(w, http.StatusOK, map[string]any{"device_code": "device", "user_code": "WDJB-MJHT",
		"verification_uri": s.URL + "/login/device", "expires_in": 900, "interval": 1})
}

func (s *Server) serveToken(w http.ResponseWriter, r *http.Request) {
	v := fields(r)
	s.mu.Lock()
	s.bodies = append(s.bodies, r.Header.Get("Content-Type"))
	if v.Get("grant_type") == "refresh_token" {
		s.renewals++
		if hold := s.hold; hold != nil {
			s.mu.Unlock()
			<-hold
			s.mu.Lock()
		}
	}
	defer s.mu.Unlock()
	switch {
	case s.status != 0:
		answer(w, s.status, map[string]any{"oops": v.Get("refresh_token")})
	case v.Get("client_id") != s.Client:
		refuse(w, "invalid_client")
	default:
		s.give(w, v)
	}
}

// give answers a request for tokens. s.mu is held.
func (s *Server) give(w http.ResponseWriter, v url.Values) {
	g := &grant{}
	switch v.Get("grant_type") {
	case "authorization_code":
		q, known := s.pending[v.Get("code")]
		sum := sha256.Sum256([]byte(v.Get("code_verifier")))
		if !known || base64.RawURLEncoding.EncodeToString(sum[:]) != q.Get("code_challenge") ||
			v.Get("redirect_uri") != q.Get("redirect_uri") {
			refuse(w, "invalid_grant")
			return
		}
		delete(s.pending, v.Get("code"))
	case "urn:ietf:params:oauth:grant-type:device_code":
		if len(s.polls) > 0 {
			code := s.polls[0]
			s.polls = s.polls[1:]
			refuse(w, code)
			return
		}
		if s.device != "approve" {
			refuse(w, map[string]string{"deny": "access_denied", "": "authorization_pending"}[s.device])
			return
		}
	case "refresh_token":
		g = s.grants[v.Get("refresh_token")]
		if g != nil && g.refresh != v.Get("refresh_token") {
			g.revoked = true // somebody has stolen it
		}
		if g == nil || g.revoked {
			refuse(w, "invalid_grant")
			return
		}
	default:
		refuse(w, "unsupported_grant_type")
		return
	}
	s.issue(g)
	answer(w, http.StatusOK, map[string]any{"access_token": g.access, "refresh_token": g.refresh,
		"token_type": "bearer", "expires_in": int(s.Life.Seconds())})
}

func (s *Server) serveRevoke(w http.ResponseWriter, r *http.Request) {
	v := fields(r)
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, token := range []string{v.Get("token"), strings.Trim(v.Get("credentials"), "[]")} {
		if token == "" {
			continue
		}
		s.revoked = append(s.revoked, token)
		for _, g := range []*grant{s.grants[token], s.access[token]} {
			if g != nil {
				g.revoked = true
			}
		}
	}
}

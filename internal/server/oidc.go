package server

import (
	"bytes"
	"crypto/hmac"
	"crypto/sha256"
	"encoding/base64"
	"encoding/json"
	"net/http"
	"time"

	"github.com/RelevanceAI/harvest/client/api"
	"github.com/RelevanceAI/harvest/client/errors"
	"github.com/RelevanceAI/harvest/internal/base/account/oidc"
	"github.com/RelevanceAI/harvest/internal/server/edge"
)

// oidcRoutes returns the routes for sign-in with a provider.
func (s *Server) oidcRoutes() []edge.Route {
	if s.opts.OIDC == nil {
		return nil
	}
	return []edge.Route{
		{Method: "GET", Path: api.SignInOIDC, Handle: s.beginSignIn,
			Summary: "Sign in with the OpenID Connect provider", Status: 303},
		{Method: "GET", Path: api.SignInBack, Handle: s.endSignIn, SignsIn: true,
			Summary: "Redirect target of the provider",
			Query:   "state: state of the sign-in; code: authorization code of the provider", Status: 200,
			RawOut: "text/html"},
	}
}

// attemptCookie is the name of the cookie that stores a sign-in in progress.
func (p peer) attemptCookie() string {
	if p.https {
		return "__Host-harvest-oidc"
	}
	return "harvest-oidc"
}

// beginSignIn redirects a browser to the provider.
func (s *Server) beginSignIn(w http.ResponseWriter, r *http.Request) error {
	if err := s.limits.Allow(w, peerOf(r.Context()).addr.String(), strangers); err != nil {
		return err
	}
	base, err := s.base(r)
	if err != nil {
		return err
	}
	to, attempt, err := s.opts.OIDC.Begin(r.Context(), base+api.SignInBack)
	if err != nil {
		return err
	}
	s.setAttempt(w, r, s.sealAttempt(attempt), attempt.Expires)
	w.Header().Set("Referrer-Policy", "no-referrer")
	w.Header().Set("Location", to)
	w.WriteHeader(http.StatusSeeOther)
	return nil
}

// endSignIn signs a browser in after the provider has redirected it back.
func (s *Server) endSignIn(w http.ResponseWriter, r *http.Request) error {
	p := peerOf(r.Context())
	if err := s.limits.Allow(w, p.addr.String(), strangers); err != nil {
		return err
	}
	ring, err := s.ring()
	if err != nil {
		return err
	}
	attempt := oidc.Attempt{} // zero: no sign-in can finish with it
	if cookie, err := r.Cookie(p.attemptCookie()); err == nil {
		attempt = s.openAttempt(cookie.Value)
	}
	s.setAttempt(w, r, "", time.Unix(1, 0))
	who, err := s.opts.OIDC.Finish(r.Context(), attempt, r.URL.Query())
	if err != nil {
		return err
	}
	secret, expires, err := ring.SignInAs(r.Context(), who)
	if err != nil {
		return err
	}
	signedIn(r, ring, secret)
	s.setCookie(w, r, secret.Reveal(), expires)
	// The browser would send no cookie with a redirect, since the request chain began on another site; a page of this
	// server starts a new chain.
	return edge.SendPage(w,
		[]byte(`<!doctype html><html lang="en"><meta charset="utf-8"><meta http-equiv="refresh" `+
			`content="0;url=../../"><title>Harvest</title><p>Signed in. <a href="../../">Go on</a>.</p></html>`))
}

func (s *Server) setAttempt(w http.ResponseWriter, r *http.Request, value string, expires time.Time) {
	p := peerOf(r.Context())
	http.SetCookie(w, &http.Cookie{
		Name: p.attemptCookie(), Value: value, Path: "/", Expires: expires, Secure: p.https, HttpOnly: true,
		SameSite: http.SameSiteLaxMode,
	})
	w.Header().Set("Cache-Control", "no-store")
}

func (s *Server) attemptSum(data []byte) []byte {
	mac := hmac.New(sha256.New, s.settings.Key)
	mac.Write([]byte("oidc\x00"))
	mac.Write(data)
	return mac.Sum(nil)
}

// sealAttempt encodes an attempt with a signature, so that it cannot be forged.
func (s *Server) sealAttempt(a oidc.Attempt) string {
	data := edge.Marshal(a)
	return base64.RawURLEncoding.EncodeToString(append(s.attemptSum(data), data...))
}

// openAttempt decodes the output of sealAttempt. It returns the zero Attempt for any other input.
func (s *Server) openAttempt(text string) oidc.Attempt {
	var a oidc.Attempt
	data, err := base64.RawURLEncoding.DecodeString(text)
	if err != nil || len(data) <= sha256.Size || !hmac.Equal(data[:sha256.Size], s.attemptSum(data[sha256.Size:])) {
		return a
	}
	if err := json.NewDecoder(bytes.NewReader(data[sha256.Size:])).Decode(&a); err != nil {
		return oidc.Attempt{}
	}
	return a
}

// howToSignIn is the remedy for requests without a key.
func (s *Server) howToSignIn() string {
	how := "send \"Authorization: Bearer hv_…\" with a key of \"harvest key create NAME\", or open a link of " +
		"\"harvest key link\""
	if s.opts.OIDC != nil {
		how += ", or " + api.SignInOIDC
	}
	return how
}

// errSignIn returns the error for requests without a key.
func (s *Server) errSignIn() error {
	return errors.Remedy(errors.Newf(errors.Unauthenticated, "sign in first"), "%s", s.howToSignIn())
}

package server

import (
	"bytes"
	"cmp"
	"context"
	"crypto/rsa"
	"net/http"
	"strings"
	"time"
	"unicode"
	"unicode/utf8"

	"golang.org/x/crypto/ssh"

	"github.com/RelevanceAI/harvest/client/api"
	"github.com/RelevanceAI/harvest/client/errors"
	"github.com/RelevanceAI/harvest/internal/base/account"
	"github.com/RelevanceAI/harvest/internal/server/edge"
)

// ring returns the server's keys, or Unsupported.
func (s *Server) ring() (*account.Ring, error) {
	if s.opts.Keys == nil {
		return nil, edge.Lacks("keys")
	}
	return s.opts.Keys, nil
}

// withRing returns a handler that has the server's keys, or responds with Unsupported.
func (s *Server) withRing(handle func(ring *account.Ring, w http.ResponseWriter,
	r *http.Request) error) edge.Handler {
	return func(w http.ResponseWriter, r *http.Request) error {
		ring, err := s.ring()
		if err != nil {
			return err
		}
		return handle(ring, w, r)
	}
}

func (s *Server) createKey(ring *account.Ring, w http.ResponseWriter, r *http.Request) error {
	var req api.KeyRequest
	if err := edge.DecodeBody(w, r, api.MaxBody, &req); err != nil {
		return err
	}
	life, err := edge.Seconds("expires_in_seconds", req.ExpiresIn)
	if err != nil {
		return err
	}
	by, wanted := edge.PrincipalOf(r.Context()), account.Request{
		Name: req.Name, Account: req.Account, Role: account.Role(req.Role), Life: life,
		Scopes: edge.Each(req.Scopes, func(text string) account.Scope { return account.Scope(text) }),
	}
	if req.PublicKey != "" {
		made, err := addPublic(r.Context(), ring, by, wanted, req.PublicKey)
		return edge.Send(w, http.StatusCreated, func(k account.Key) api.NewKey { return api.NewKey{Key: keyOut(k)} },
			made, err)
	}
	made, secret, err := ring.Create(r.Context(), by, wanted)
	if err != nil {
		return err
	}
	w.Header().Set("Cache-Control", "no-store")
	return edge.Respond(w, http.StatusCreated, api.NewKey{Key: keyOut(made), Secret: secret.Reveal()})
}

// leastRSA is the least size of an RSA key, in bits.
const leastRSA = 2048

// addPublic adds an SSH key, which is a line as in a file id_ed25519.pub.
func addPublic(ctx context.Context, ring *account.Ring, by account.Principal, wanted account.Request,
	line string) (account.Key, error) {
	key, comment, options, rest, err := ssh.ParseAuthorizedKey([]byte(line))
	if err != nil {
		err = errors.Explainf(err, errors.Invalid, "this is not a public key of SSH")
		return account.Key{}, errors.Remedy(err, "send the content of a file such as id_ed25519.pub, not of id_ed25519")
	}
	if _, certified := key.(*ssh.Certificate); certified || len(options) > 0 || len(bytes.TrimSpace(rest)) > 0 {
		err := errors.Newf(errors.Invalid, "certificates, options and further keys are not supported")
		return account.Key{}, errors.Remedy(err, "send one key, as in id_ed25519.pub; scopes and an expiry limit it")
	}
	if public, ok := key.(ssh.CryptoPublicKey); ok {
		if weak, ok := public.CryptoPublicKey().(*rsa.PublicKey); ok && weak.N.BitLen() < leastRSA {
			return account.Key{}, errors.Remedy(errors.Newf(errors.Invalid, "the RSA key has %d bits, fewer than %d",
				weak.N.BitLen(), leastRSA), "make another one: ssh-keygen -t ed25519")
		}
	}
	if wanted.Role == account.Admin {
		return account.Key{}, errors.Newf(errors.Invalid, "an SSH key has the role member")
	}
	if wanted.Name == "" {
		wanted.Name = cmp.Or(nameFrom(comment), nameFrom("ssh-"+ssh.FingerprintSHA256(key)))
	}
	return account.AddPublic(ctx, ring, by, wanted, key.Marshal())
}

// nameFrom returns a name of a key from a text, such as "me-laptop" from "me@laptop". It returns "" if there is nothing
// in the text that names may have.
func nameFrom(text string) string {
	text = strings.Map(func(r rune) rune {
		if r < utf8.RuneSelf && (unicode.IsLetter(r) || unicode.IsDigit(r) || strings.ContainsRune("_.-", r)) {
			return r
		}
		return '-'
	}, text)
	text = strings.TrimLeft(text, "_.-")
	return text[:min(len(text), 63)]
}

func (s *Server) listKeys(ring *account.Ring, w http.ResponseWriter, r *http.Request) error {
	everyone, err := edge.Flag(r, "all")
	if err != nil {
		return err
	}
	found, err := ring.List(r.Context(), edge.PrincipalOf(r.Context()), everyone)
	if err != nil {
		return err
	}
	return edge.Paged(s.settings, w, r, found, true, func(k account.Key) string { return k.ID }, keyOut)
}

func (s *Server) revokeKey(ring *account.Ring, w http.ResponseWriter, r *http.Request) error {
	return edge.NoContent(w, ring.Revoke(r.Context(), edge.PrincipalOf(r.Context()), r.PathValue("id")))
}

func (s *Server) self(w http.ResponseWriter, r *http.Request) error {
	p := edge.PrincipalOf(r.Context())
	used, err := s.accountUsage(r.Context(), p.Account)
	if err != nil {
		return err
	}
	return edge.Respond(w, http.StatusOK, api.Self{Account: p.Account, Role: string(p.Role),
		Scopes: scopesOut(p.Scopes), KeyID: p.KeyID, User: user(p), Usage: used})
}

// accountUsage returns the total usage of an account.
func (s *Server) accountUsage(ctx context.Context, of string) (api.AccountUsage, error) {
	boxes, err := s.opts.Fleet.Totals(ctx, of)
	if err != nil {
		return api.AccountUsage{}, err
	}
	used := api.AccountUsage{Sandboxes: boxes.Sandboxes, SandboxSeconds: boxes.Seconds, SandboxCost: boxes.Cost}
	if s.opts.Sessions == nil {
		return used, nil
	}
	agents, err := s.opts.Sessions.Totals(ctx, of)
	used.Sessions, used.Turns, used.Agents = agents.Sessions, agents.Turns, api.Usage(agents.Usage)
	return used, err
}

// user returns the user who signed in with a provider, or whose client of OAuth p is.
func user(p account.Principal) string {
	if p.Kind == account.SignIn || p.Kind == account.OAuth {
		return p.Subject
	}
	return ""
}

// createLink responds with a link that signs a browser in as the caller.
func (s *Server) createLink(ring *account.Ring, w http.ResponseWriter, r *http.Request) error {
	base, err := s.base(r)
	if err != nil {
		return err
	}
	link, err := SignInLink(ring, edge.PrincipalOf(r.Context()), base)
	if err != nil {
		return err
	}
	w.Header().Set("Cache-Control", "no-store")
	return edge.Respond(w, http.StatusCreated, api.Link{URL: link})
}

// SignInLink returns a single-use link that signs a browser in, at the server whose address is base.
func SignInLink(ring *account.Ring, as account.Principal, base string) (string, error) {
	token, err := ring.Link(as)
	if err != nil {
		return "", err
	}
	return strings.TrimSuffix(base, "/") + api.SignIn + "?token=" + token.Reveal(), nil
}

// offerSignIn responds to a link with a button, so that programs that preview links, and HEAD requests, do not use it
// up.
func (s *Server) offerSignIn(ring *account.Ring, w http.ResponseWriter, r *http.Request) error {
	if err := ring.CheckLink(r.URL.Query().Get("token")); err != nil {
		return err
	}
	h := w.Header()
	h.Set("Cache-Control", "no-store")
	return edge.SendForm(w, []byte(`<!doctype html><html lang="en"><head><meta charset="utf-8">
<meta name="viewport" content="width=device-width"><title>Sign in · Harvest</title>
`+edge.Look+`<main><h1>Sign this browser in to Harvest?</h1>
<p class="soft">The link works once. Sign in only on a device of your own.</p>
<form method="post"><button id="sign-in">Sign in</button></form></main></body></html>`), "'self'", "same-origin")
}

// signIn consumes a link: the browser gets a cookie and is redirected to the page.
func (s *Server) signIn(ring *account.Ring, w http.ResponseWriter, r *http.Request) error {
	// A foreign page must not sign the browser in as another user.
	if r.Header.Get("Sec-Fetch-Site") != "" || r.Header.Get("Origin") != "" {
		if err := peerOf(r.Context()).checkSite(r); err != nil {
			return err
		}
	}
	secret, expires, err := ring.SignIn(r.Context(), r.URL.Query().Get("token"))
	if err != nil {
		return err
	}
	signedIn(r, ring, secret)
	s.setCookie(w, r, secret.Reveal(), expires)
	w.Header().Set("Referrer-Policy", "no-referrer")
	w.Header().Set("Location", "./") // not "/": a proxy may serve this server below a path
	w.WriteHeader(http.StatusSeeOther)
	return nil
}

func (s *Server) signOut(ring *account.Ring, w http.ResponseWriter, r *http.Request) error {
	if err := ring.SignOut(r.Context(), edge.PrincipalOf(r.Context())); err != nil {
		return err
	}
	s.setCookie(w, r, "", time.Unix(1, 0))
	w.WriteHeader(http.StatusNoContent)
	return nil
}

func (s *Server) setCookie(w http.ResponseWriter, r *http.Request, value string, expires time.Time) {
	p := peerOf(r.Context())
	http.SetCookie(w, &http.Cookie{
		Name: p.cookieName(), Value: value, Path: "/", Expires: expires, Secure: p.https, HttpOnly: true,
		SameSite: http.SameSiteStrictMode,
	})
	w.Header().Set("Cache-Control", "no-store")
}

func keyOut(k account.Key) api.Key {
	return api.Key{
		ID: k.ID, Kind: string(k.Kind), Name: k.Name, Account: k.Account, Role: string(k.Role),
		Scopes:  scopesOut(k.Scopes),
		Created: k.Created.UTC(), Expires: k.Expires.UTC(), LastUsed: k.LastUsed.UTC(), MadeBy: k.MadeBy,
		User: user(k.Principal()),
	}
}

func scopesOut(scopes []account.Scope) []string {
	return edge.Each(scopes, func(s account.Scope) string { return string(s) })
}

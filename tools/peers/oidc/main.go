// Command oidc is an OpenID Connect provider for tests, based on Ory's Fosite (https://github.com/ory/fosite).
// Every visitor is signed in as the person that was set last: PUT /person takes {"redirect": URI of the client,
// "claims": the person's claims}. It prints its issuer's URL and serves until its standard input ends.
package main

import (
	"context"
	"crypto/rand"
	"crypto/rsa"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"sync"
	"time"

	"github.com/go-jose/go-jose/v3"
	"github.com/ory/fosite"
	"github.com/ory/fosite/compose"
	"github.com/ory/fosite/handler/openid"
	"github.com/ory/fosite/storage"
	"github.com/ory/fosite/token/jwt"
	"golang.org/x/crypto/bcrypt"
)

// The one client.
const (
	clientID     = "harvest"
	clientSecret = "the secret of the client"
	keyID        = "key-1"
)

type provider struct {
	fosite.OAuth2Provider
	issuer string
	key    *rsa.PrivateKey
	store  *storage.MemoryStore

	mu     sync.Mutex
	claims map[string]any // guarded by mu
}

func main() {
	if err := run(); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func run() error {
	key, err := rsa.GenerateKey(rand.Reader, 2048)
	if err != nil {
		return err
	}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return err
	}
	p := &provider{issuer: "http://" + l.Addr().String(), key: key, store: storage.NewMemoryStore()}
	if err := p.register(""); err != nil {
		return err
	}
	p.OAuth2Provider = compose.ComposeAllEnabled(&fosite.Config{
		GlobalSecret: []byte(rand.Text() + rand.Text())[:32], IDTokenIssuer: p.issuer, EnforcePKCE: true,
		AccessTokenLifespan: time.Minute, IDTokenLifespan: time.Minute,
		MinParameterEntropy: 16,
	}, p.store, key)
	mux := http.NewServeMux()
	mux.HandleFunc("GET /.well-known/openid-configuration", p.discover)
	mux.HandleFunc("GET /keys", p.keys)
	mux.HandleFunc("GET /auth", p.authorize)
	mux.HandleFunc("POST /token", p.token)
	mux.HandleFunc("PUT /person", p.person)
	server := http.Server{Handler: mux}
	go server.Serve(l)
	fmt.Fprintln(os.Stdout, p.issuer)
	_, err = io.Copy(io.Discard, os.Stdin)
	return err
}

func (p *provider) register(redirect string) error {
	hash, err := bcrypt.GenerateFromPassword([]byte(clientSecret), bcrypt.MinCost)
	if err != nil {
		return err
	}
	p.store.Clients[clientID] = &fosite.DefaultClient{
		ID: clientID, Secret: hash, RedirectURIs: []string{redirect}, ResponseTypes: []string{"code"},
		GrantTypes: []string{"authorization_code"},
		Scopes:     []string{"openid", "email", "profile", "groups"},
	}
	return nil
}

func answer(w http.ResponseWriter, v any) {
	w.Header().Set("Content-Type", "application/json")
	_ = json.NewEncoder(w).Encode(v)
}

func (p *provider) discover(w http.ResponseWriter, _ *http.Request) {
	answer(w, map[string]any{
		"issuer": p.issuer, "authorization_endpoint": p.issuer + "/auth", "token_endpoint": p.issuer + "/token",
		"jwks_uri":                 p.issuer + "/keys",
		"response_types_supported": []string{"code"}, "subject_types_supported": []string{"public"},
		"id_token_signing_alg_values_supported": []string{"RS256"},
		"code_challenge_methods_supported":      []string{"S256"},
	})
}

func (p *provider) keys(w http.ResponseWriter, _ *http.Request) {
	answer(w, jose.JSONWebKeySet{Keys: []jose.JSONWebKey{{Key: p.key.Public(), KeyID: keyID, Algorithm: "RS256",
		Use: "sig"}}})
}

func (p *provider) person(w http.ResponseWriter, r *http.Request) {
	var body struct {
		Redirect string
		Claims   map[string]any
	}
	if err := json.NewDecoder(r.Body).Decode(&body); err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.claims = body.Claims
	if err := p.register(body.Redirect); err != nil {
		http.Error(w, err.Error(), http.StatusInternalServerError)
	}
}

func session() *openid.DefaultSession {
	return &openid.DefaultSession{Claims: &jwt.IDTokenClaims{},
		Headers: &jwt.Headers{Extra: map[string]any{"kid": keyID}}}
}

func (p *provider) authorize(w http.ResponseWriter, r *http.Request) {
	p.mu.Lock()
	defer p.mu.Unlock()
	ctx := context.WithoutCancel(r.Context())
	ask, err := p.NewAuthorizeRequest(ctx, r)
	if err == nil && p.claims == nil {
		err = fosite.ErrAccessDenied
	}
	if err != nil {
		p.WriteAuthorizeError(ctx, w, ask, err)
		return
	}
	for _, scope := range ask.GetRequestedScopes() {
		ask.GrantScope(scope)
	}
	s := session()
	s.Subject, _ = p.claims["sub"].(string)
	s.Claims.Subject, s.Claims.Issuer, s.Claims.Audience, s.Claims.Extra = s.Subject, p.issuer,
		[]string{clientID}, p.claims
	resp, err := p.NewAuthorizeResponse(ctx, ask, s)
	if err != nil {
		p.WriteAuthorizeError(ctx, w, ask, err)
		return
	}
	p.WriteAuthorizeResponse(ctx, w, ask, resp)
}

func (p *provider) token(w http.ResponseWriter, r *http.Request) {
	ctx := context.WithoutCancel(r.Context())
	ask, err := p.NewAccessRequest(ctx, r, session())
	if err != nil {
		p.WriteAccessError(ctx, w, ask, err)
		return
	}
	resp, err := p.NewAccessResponse(ctx, ask)
	if err != nil {
		p.WriteAccessError(ctx, w, ask, err)
		return
	}
	p.WriteAccessResponse(ctx, w, ask, resp)
}

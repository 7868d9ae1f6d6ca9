package authorize

import (
	"context"
	"crypto/rand"
	"crypto/sha256"
	"crypto/subtle"
	"encoding/base64"
	"net/http"
	"strings"
	"time"

	"github.com/RelevanceAI/harvest/client/api"
	"github.com/RelevanceAI/harvest/client/errors"
	"github.com/RelevanceAI/harvest/internal/base/account"
	"github.com/RelevanceAI/harvest/internal/base/logf"
	"github.com/RelevanceAI/harvest/internal/base/pattern"
	"github.com/RelevanceAI/harvest/internal/server/edge"
)

// The grant types of the token endpoint.
const (
	grantCode    = "authorization_code"
	grantRefresh = "refresh_token"
)

// Limits of codes. A user who pastes an address into a terminal needs some minutes.
const (
	codeLife    = 5 * time.Minute
	codesAtMost = 20 // per account, unused
	usedAtMost  = 80 // per account
)

// code stands for a client that the user has allowed. Codes are in memory only: a restart of the server ends
// those that are unused.
type code struct {
	account string
	expires time.Time

	allowed *allowed          // guarded by Service.mu; nil if the code was used
	again   bool              // guarded by Service.mu; it was sent twice
	grant   account.Principal // guarded by Service.mu; zero until the grant exists
}

// allowed is the content of a code.
type allowed struct {
	by        account.Principal
	clientID  string
	client    client
	redirect  string
	challenge string
	scopes    []account.Scope
}

// hashed is the key of a code in the table.
func hashed(text string) string {
	sum := sha256.Sum256([]byte(text))
	return string(sum[:])
}

// keep stores a new code and returns its text.
func (s *Service) keep(what allowed) (string, error) {
	text, now := rand.Text()+rand.Text(), time.Now()
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.codes == nil {
		s.codes = map[string]*code{}
	}
	unused, used := 0, 0
	for key, one := range s.codes {
		switch {
		case !now.Before(one.expires):
			delete(s.codes, key)
		case one.account != what.by.Account:
		case one.allowed != nil:
			unused++
		default:
			used++
		}
	}
	if unused >= codesAtMost || used >= usedAtMost {
		return "", errors.Remedy(errors.Newf(errors.Exhausted, "too many clients are signing in to the account"),
			"wait %s", codeLife)
	}
	s.codes[hashed(text)] = &code{account: what.by.Account, expires: now.Add(codeLife), allowed: &what}
	return text, nil
}

// take returns an unused code and its content, and marks the code as used. If it was used before, take ends
// the grant that it led to.
func (s *Service) take(ctx context.Context, text string) (*code, *allowed, error) {
	unknown := errorf("invalid_grant", "the code is unknown, used or older than %d minutes", int(codeLife.Minutes()))
	s.mu.Lock()
	c := s.codes[hashed(text)]
	if c == nil || !time.Now().Before(c.expires) {
		s.mu.Unlock()
		return nil, nil, unknown
	}
	what, grant := c.allowed, c.grant
	c.allowed, c.again = nil, what == nil
	s.mu.Unlock()
	if what != nil {
		return c, what, nil
	}
	if grant.KeyID != "" {
		logf.Warnf(ctx, "the code of %s was used twice, so the grant is revoked", grant.KeyID)
		if err := account.EndGrant(ctx, s.Ring, grant); err != nil {
			return nil, nil, err
		}
	}
	return nil, nil, unknown
}

// granted records the grant of a code. It reports whether the code was used again meanwhile.
func (s *Service) granted(c *code, grant account.Principal) (again bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	c.grant = grant
	return c.again
}

// verifierPattern matches verifiers of PKCE (RFC 7636, section 4.1).
var verifierPattern = pattern.New(`^[A-Za-z0-9._~-]{43,128}$`)

// proves reports whether a verifier belongs to the challenge of a code.
func (c *allowed) proves(verifier string) bool {
	sum := sha256.Sum256([]byte(verifier))
	want := base64.RawURLEncoding.EncodeToString(sum[:])
	return verifierPattern().MatchString(verifier) && subtle.ConstantTimeCompare([]byte(want), []byte(c.challenge)) == 1
}

// token answers with tokens for a code or a refresh token.
func (s *Service) token(w http.ResponseWriter, r *http.Request) error {
	in, err := form(w, r)
	if err != nil {
		return answered(w, err)
	}
	var out account.Tokens
	switch kind := in.get("grant_type"); kind {
	case grantCode:
		out, err = s.exchange(r, in)
	case grantRefresh:
		out, err = s.renew(r, in)
	case "":
		err = errorf("invalid_request", "grant_type is missing")
	default:
		err = errorf("unsupported_grant_type", "the grant type %.60q is not supported", kind)
	}
	if err != nil {
		return answered(w, err)
	}
	s.Audit(r, out.Grant)
	return edge.Respond(w, http.StatusOK, api.OAuthTokens{Access: out.Access.Reveal(), Type: "Bearer",
		ExpiresIn: int(out.Life.Seconds()), Refresh: out.Refresh.Reveal(),
		Scope: strings.Join(edge.Each(out.Grant.Scopes, func(s account.Scope) string { return string(s) }), " ")})
}

// exchange returns the tokens for a code.
func (s *Service) exchange(r *http.Request, in values) (account.Tokens, error) {
	ctx := context.WithoutCancel(r.Context())
	if _, err := s.open(in.get("client_id")); err != nil {
		return account.Tokens{}, err
	}
	if err := s.checkResource(r, in.get("resource")); err != nil {
		return account.Tokens{}, err
	}
	c, what, err := s.take(ctx, in.get("code"))
	if err != nil {
		return account.Tokens{}, err
	}
	switch {
	case what.clientID != in.get("client_id"):
		return account.Tokens{}, errorf("invalid_grant", "the code belongs to another client")
	case what.redirect != in.get("redirect_uri"):
		return account.Tokens{}, errorf("invalid_grant", "redirect_uri differs from that of the code")
	case !what.proves(in.get("code_verifier")):
		return account.Tokens{}, errorf("invalid_grant", "code_verifier does not belong to the code")
	}
	out, err := account.Authorize(ctx, s.Ring, what.by, what.clientID, what.client.Name, what.scopes)
	if err != nil {
		return account.Tokens{}, asGrant(err)
	}
	if !s.granted(c, out.Grant) {
		return out, nil
	}
	if err := account.EndGrant(ctx, s.Ring, out.Grant); err != nil {
		return account.Tokens{}, err
	}
	return account.Tokens{}, errorf("invalid_grant", "the code was used twice")
}

// renew returns the tokens for a refresh token. They have all scopes of the grant, as the answer says.
func (s *Service) renew(r *http.Request, in values) (account.Tokens, error) {
	if _, err := s.open(in.get("client_id")); err != nil {
		return account.Tokens{}, err
	}
	if err := s.checkResource(r, in.get("resource")); err != nil {
		return account.Tokens{}, err
	}
	out, err := account.Renew(r.Context(), s.Ring, s.Key, in.get("client_id"), in.get("refresh_token"))
	if err != nil {
		return account.Tokens{}, asGrant(err)
	}
	return out, nil
}

// asGrant gives errors about the user or a token the form of OAuth. The others, such as that of a full disk, do not
// mean that the client must sign in again.
func asGrant(err error) error {
	var refusal *account.Refusal
	if errors.KindOf(err) == errors.Unauthenticated || errors.As(err, &refusal) {
		return errorf("invalid_grant", "%s", errors.Message(err))
	}
	return err
}

// revoke ends the grant of a token.
func (s *Service) revoke(w http.ResponseWriter, r *http.Request) error {
	in, err := form(w, r)
	if err == nil {
		_, err = s.open(in.get("client_id"))
	}
	if err == nil && in.get("token") == "" {
		err = errorf("invalid_request", "token is missing")
	}
	if err != nil {
		return answered(w, err)
	}
	grant, err := account.Withdraw(r.Context(), s.Ring, in.get("client_id"), in.get("token"))
	if err != nil {
		return err
	}
	s.Audit(r, grant)
	w.WriteHeader(http.StatusOK)
	return nil
}

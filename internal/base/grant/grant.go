// Package grant knows the OAuth 2.0 grants of providers whose subscriptions agents use: how a user gives one (RFC 6749,
// RFC 7636, RFC 8628), how it is renewed and revoked, and how programs in sandboxes read its access token.
//
// The package keeps nothing. Package secret keeps grants, and is the only one that renews them.
package grant

import (
	"encoding/base64"
	"encoding/json"
	"strings"
	"time"

	"github.com/RelevanceAI/harvest/client/errors"
	"github.com/RelevanceAI/harvest/internal/base/config"
)

// Grant is the permission of a user to act for them at a provider.
type Grant struct {
	Provider string
	Client   string        // ID of the client to which it was given
	Access   config.Secret // token for requests; "" before the first renewal of an imported refresh token
	Refresh  config.Secret // token for renewals; "" for a grant that cannot be renewed
	Expires  time.Time     // end of Access; zero if it is not known, or there is none
}

// sealed is the form of a Grant inside of a sealed secret.
type sealed struct {
	Provider string    `json:"provider"`
	Client   string    `json:"client"`
	Access   string    `json:"access"`
	Refresh  string    `json:"refresh,omitempty"`
	Expires  time.Time `json:"expires,omitzero"`
}

// Text returns the grant with its tokens, for Parse. It must not leave the server.
func (g Grant) Text() (config.Secret, error) {
	text, err := json.Marshal(sealed{g.Provider, g.Client, g.Access.Reveal(), g.Refresh.Reveal(), g.Expires})
	return config.Secret(text), errors.Wrapf(err, "encode a grant")
}

// Parse returns the grant of a Text.
func Parse(text config.Secret) (Grant, error) {
	var s sealed
	if json.Unmarshal([]byte(text.Reveal()), &s) != nil { // the error could quote it
		return Grant{}, errors.Errorf("a stored grant is damaged")
	}
	return Grant{s.Provider, s.Client, config.Secret(s.Access), config.Secret(s.Refresh), s.Expires}, nil
}

// claims are the public claims of a JSON Web Token that this package reads.
type claims struct {
	Expires float64 `json:"exp"`
	Auth    struct {
		Account string `json:"chatgpt_account_id"`
	} `json:"https://api.openai.com/auth"`
}

// claimsOf returns the claims of a JSON Web Token. The zero claims: the text is none.
func claimsOf(token string) (c claims) {
	parts := strings.Split(token, ".")
	if len(parts) != 3 {
		return claims{}
	}
	text, err := base64.RawURLEncoding.DecodeString(parts[1])
	if err != nil || json.Unmarshal(text, &c) != nil {
		return claims{}
	}
	return c
}

// Owner returns the ID of the provider's account that a token names, or "". Programs that read it from a placeholder
// need a new one when it changes.
func (g Grant) Owner() string { return claimsOf(g.Access.Reveal()).Auth.Account }

// expiry returns the end of a token: the given time, or that in its claims.
func expiry(token string, at time.Time) time.Time {
	if c := claimsOf(token); at.IsZero() && c.Expires > 0 {
		at = time.Unix(int64(c.Expires), 0)
	}
	if at.IsZero() {
		return at
	}
	return at.UTC().Truncate(time.Second)
}

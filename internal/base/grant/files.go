package grant

import (
	"encoding/json"
	"slices"
	"strings"
	"time"

	"github.com/RelevanceAI/harvest/client/errors"
	"github.com/RelevanceAI/harvest/internal/base/config"
)

// credentials are the tokens of a program's own file.
type credentials struct {
	access, refresh string
	expires         time.Time
}

// maxGiven is the maximum size of a token or a file, in bytes.
const maxGiven = 64 << 10

// Given returns the grant of a token, or of the file in which a provider's program keeps its own. A refresh token alone
// has to be renewed before it is of use. Its errors do not quote the text.
func (p *Provider) Given(text string) (Grant, error) {
	text = strings.TrimSpace(text)
	g := Grant{Provider: p.Name, Client: p.Client}
	var c credentials
	switch {
	case text == "" || len(text) > maxGiven:
		return Grant{}, p.badToken()
	case text[0] == '{':
		if p.imported == nil {
			return Grant{}, p.badToken()
		}
		var err error
		if c, err = p.imported([]byte(text)); err != nil || c.access == "" && c.refresh == "" {
			return Grant{}, errors.Remedy(errors.Newf(errors.Invalid, "the file has no login of %s", p.Name),
				"give the file of a program that is logged in with a subscription, not with an API key")
		}
	case strings.ContainsFunc(text, func(r rune) bool { return r <= ' ' || r >= 0x7f }):
		return Grant{}, p.badToken()
	case begins(text, p.access):
		c.access = text
	case p.refresh == nil || begins(text, p.refresh):
		c.refresh = text
	default:
		return Grant{}, p.badToken()
	}
	g.Access, g.Refresh = config.Secret(c.access), config.Secret(c.refresh)
	g.Expires = expiry(c.access, c.expires)
	return g, nil
}

func begins(text string, with []string) bool {
	return slices.ContainsFunc(with, func(b string) bool { return strings.HasPrefix(text, b) })
}

func (p *Provider) badToken() error {
	return errors.Remedy(errors.Newf(errors.Invalid, "this is not a token of %s", p.Name),
		"give one token, or the file of credentials of the provider's own program")
}

// claudeFile reads ~/.claude/.credentials.json.
func claudeFile(text []byte) (credentials, error) {
	var f struct {
		OAuth struct {
			Access  string `json:"accessToken"`
			Refresh string `json:"refreshToken"`
			Expires int64  `json:"expiresAt"` // in milliseconds
		} `json:"claudeAiOauth"`
	}
	err := json.Unmarshal(text, &f)
	return credentials{f.OAuth.Access, f.OAuth.Refresh, milliseconds(f.OAuth.Expires)}, err
}

// codexFile reads ~/.codex/auth.json: codex-rs/login/src/auth/storage.rs, AuthDotJson.
func codexFile(text []byte) (credentials, error) {
	var f struct {
		Tokens struct {
			Access  string `json:"access_token"`
			Refresh string `json:"refresh_token"`
		} `json:"tokens"`
	}
	err := json.Unmarshal(text, &f)
	return credentials{access: f.Tokens.Access, refresh: f.Tokens.Refresh}, err
}

// geminiFile reads ~/.gemini/oauth_creds.json.
func geminiFile(text []byte) (credentials, error) {
	var f struct {
		Access  string `json:"access_token"`
		Refresh string `json:"refresh_token"`
		Expires int64  `json:"expiry_date"` // in milliseconds
	}
	err := json.Unmarshal(text, &f)
	return credentials{f.Access, f.Refresh, milliseconds(f.Expires)}, err
}

func milliseconds(n int64) time.Time {
	if n == 0 {
		return time.Time{}
	}
	return time.UnixMilli(n)
}

// noRefresh stands for the refresh token in files of credentials. Programs want one, and never use it: the placeholder
// of the access token does not expire.
const noRefresh = "kept-by-harvest"

// codexText returns ~/.codex/auth.json. The placeholder has the claims with the account, so it serves as the ID token
// too, which Codex reads and does not send.
func codexText(placeholder string) (string, error) {
	tokens := map[string]string{"id_token": placeholder, "access_token": placeholder, "refresh_token": noRefresh}
	if id := claimsOf(placeholder).Auth.Account; id != "" {
		tokens["account_id"] = id
	}
	text, err := json.MarshalIndent(map[string]any{"OPENAI_API_KEY": nil, "tokens": tokens,
		"last_refresh": time.Now().UTC().Format(time.RFC3339)}, "", "  ")
	return string(text) + "\n", errors.Wrapf(err, "write the credentials of Codex")
}

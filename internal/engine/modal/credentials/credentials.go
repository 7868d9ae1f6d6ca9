// Package credentials finds the credentials with which Modal's SDK would speak to Modal.
package credentials

import (
	"cmp"
	"fmt"
	"os"
	"path/filepath"
	"slices"

	"github.com/pelletier/go-toml/v2"

	"github.com/RelevanceAI/harvest/client/errors"
)

// Remedy is the remedy for missing or wrong credentials.
const Remedy = "set modal.token_id and modal.token_secret (HARVEST_MODAL_TOKEN_ID, HARVEST_MODAL_TOKEN_SECRET), " +
	"or MODAL_TOKEN_ID and " +
	"MODAL_TOKEN_SECRET in the environment of the server, or run `modal token new`, which writes ~/.modal.toml"

// Check returns nil if Modal's SDK finds complete credentials, valid or not, in the given token, in the environment or
// in its file, in this order for each part. Unauthenticated without any. Invalid if they are incomplete or
// ambiguous, or if the file cannot be read, without which the SDK does not work.
func Check(tokenID, tokenSecret string, env func(string) string) error {
	p, err := readProfile(env)
	if err != nil {
		return err
	}
	id := first(part{"modal.token_id", tokenID}, part{"MODAL_TOKEN_ID", env("MODAL_TOKEN_ID")},
		part{"token_id " + p.where, p.TokenID})
	secret := first(part{"modal.token_secret", tokenSecret}, part{"MODAL_TOKEN_SECRET", env("MODAL_TOKEN_SECRET")},
		part{"token_secret " + p.where, p.TokenSecret})
	if tokenID == "" && tokenSecret == "" {
		if found, err := p.oauth(env); found {
			if err == nil && (id.value != "" || secret.value != "") {
				err = errors.Remedy(errors.Newf(errors.Invalid,
					"two kinds of credentials for Modal are set: a token, and OAuth (MODAL_OAUTH_…)"),
					"remove one of them")
			}
			return err
		}
	}
	switch {
	case id.value != "" && secret.value != "":
		return nil
	case id.value != "":
		return lacking(id.name, "the token's secret", "modal.token_secret, MODAL_TOKEN_SECRET or token_secret "+p.where)
	case secret.value != "":
		return lacking(secret.name, "the token's ID", "modal.token_id, MODAL_TOKEN_ID or token_id "+p.where)
	}
	return errors.Remedy(errors.Newf(errors.Unauthenticated, "there are no credentials for Modal: %s", p.without), "%s",
		Remedy)
}

// lacking returns the error for a pair of credentials with one half missing.
func lacking(has, lacks, set string) error {
	return errors.Remedy(errors.Newf(errors.Invalid,
		"incomplete credentials for Modal: %s is set, but not %s", has, lacks), "set %s", set)
}

// part is a value with the name of its source.
type part struct{ name, value string }

// first returns the first part that is not empty.
func first(parts ...part) part {
	for _, p := range parts {
		if p.value != "" {
			return p
		}
	}
	return part{}
}

// profile holds the credentials of a profile in the SDK's file.
type profile struct {
	TokenID           string `toml:"token_id"`
	TokenSecret       string `toml:"token_secret"`
	OAuthRefreshToken string `toml:"oauth_refresh_token"`
	OAuthClientID     string `toml:"oauth_client_id"`
	OAuthClientSecret string `toml:"oauth_client_secret"`
	OAuthJWTKey       string `toml:"oauth_jwt_key"`
	Active            bool   `toml:"active"`

	where   string // the profile and file of these values, for error texts
	without string // why the profile may be empty
}

// readProfile reads the profile that the SDK uses: the one that MODAL_PROFILE names, or the active one. If
// several are active, the SDK picks an arbitrary one.
func readProfile(env func(string) string) (profile, error) {
	file := env("MODAL_CONFIG_PATH")
	if file == "" {
		home := env("HOME")
		if home == "" {
			return profile{}, errors.Remedy(errors.Newf(errors.Invalid,
				"Modal's SDK cannot find its file: HOME is not set"),
				"set HOME, or MODAL_CONFIG_PATH")
		}
		file = filepath.Join(home, ".modal.toml")
	}
	data, err := os.ReadFile(file)
	missing := errors.IsNotExist(err)
	all := map[string]profile{}
	if err == nil {
		err = toml.Unmarshal(data, &all)
	}
	if err != nil && !missing {
		return profile{}, errors.Remedy(errors.Explainf(err, errors.Invalid, "Modal's SDK cannot read its file %.300s",
			file), "correct it, or remove it and run `modal token new`")
	}
	name := env("MODAL_PROFILE")
	var active []string
	for n, p := range all {
		if p.Active {
			active = append(active, n)
		}
	}
	slices.Sort(active)
	switch {
	case name == "" && len(active) > 1:
		return profile{}, errors.Remedy(errors.Newf(errors.Invalid, "in %.300s more than one profile is active: %.200q",
			file, active),
			"leave active = true with one of them, or name one with MODAL_PROFILE")
	case name == "" && len(active) == 1:
		name = active[0]
	}
	p, found := all[name]
	p.where = fmt.Sprintf("of the profile %.100q in %.300s", name, file)
	switch {
	case missing:
		p.where, p.without = "in "+file, "there is no "+file
	case name == "":
		p.where, p.without = "of an active profile in "+file,
			"in "+file+" no profile is active, and MODAL_PROFILE names none"
	case !found:
		p.without = fmt.Sprintf("MODAL_PROFILE names the profile %.100q, which %.300s does not have", name, file)
	default:
		p.without = fmt.Sprintf("the profile %.100q in %.300s has none", name, file)
	}
	return p, nil
}

// oauth reports whether there are OAuth credentials, and returns an error if they are incomplete. The
// environment's client secret and key replace those of the file.
func (p profile) oauth(env func(string) string) (found bool, err error) {
	token, client := cmp.Or(env("MODAL_OAUTH_REFRESH_TOKEN"), p.OAuthRefreshToken),
		cmp.Or(env("MODAL_OAUTH_CLIENT_ID"), p.OAuthClientID)
	secret, key := env("MODAL_OAUTH_CLIENT_SECRET"), env("MODAL_OAUTH_JWT_KEY")
	if secret == "" && key == "" {
		secret, key = p.OAuthClientSecret, p.OAuthJWTKey
	}
	if token == "" && client == "" && secret == "" && key == "" {
		return false, nil
	}
	if token == "" || client == "" || (secret == "") == (key == "") {
		return true, errors.Remedy(errors.Newf(errors.Invalid, "incomplete OAuth credentials for Modal"),
			"set MODAL_OAUTH_REFRESH_TOKEN, MODAL_OAUTH_CLIENT_ID and one of MODAL_OAUTH_CLIENT_SECRET and "+
				"MODAL_OAUTH_JWT_KEY, or none of them")
	}
	return true, nil
}

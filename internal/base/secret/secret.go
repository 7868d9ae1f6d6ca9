// Package secret keeps named secrets: sets of NAME=value pairs, sealed at rest, which sandboxes get by name as
// environment.
//
// Vault is the entry. What leaves it for lists and records are names and times, never values; values leave through
// Vault.Reveal alone, and whatever the log or logf.Redacted shows has them hidden as long as Harvest knows them.
package secret

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/RelevanceAI/harvest/client/errors"
	"github.com/RelevanceAI/harvest/internal/base/binding"
	"github.com/RelevanceAI/harvest/internal/base/config"
	"github.com/RelevanceAI/harvest/internal/base/grant"
	"github.com/RelevanceAI/harvest/internal/base/logf"
	"github.com/RelevanceAI/harvest/internal/base/pattern"
)

// What a secret and an account may hold.
const (
	MaxPairs   = 128      // of one secret
	MaxValue   = 64 << 10 // bytes of one value
	MaxSecrets = 1000     // of one account
	MaxBytes   = 1 << 20  // of all values of one account together
)

// Secret is what may be shown of a secret: everything but its values.
type Secret struct {
	Name    string    `json:"name"`
	Keys    []string  `json:"keys"` // sorted
	Origin  Origin    `json:"origin"`
	Created time.Time `json:"created_at,omitzero"`
	Updated time.Time `json:"updated_at,omitzero"`
	Used    time.Time `json:"last_used_at,omitzero"` // to the minute
	// Binding is where the values may go. Sandboxes with the secret have placeholders then. nil: they have the values.
	Binding *binding.Binding `json:"binding,omitempty"`
	// Login is the state of the login that the secret is; nil for other secrets.
	Login *grant.State `json:"login,omitempty"`
}

// Origin is where a secret's values come from.
type Origin string

// The origins.
const (
	Stored      Origin = "stored"      // given to Vault.Set
	Environment Origin = "environment" // found in the server's environment; read-only
)

// Pairs are the values of secrets by the names of the environment variables that carry them. Nothing prints the values.
type Pairs map[string]string

// String names the keys.
func (p Pairs) String() string {
	return "[" + strings.Join(slices.Sorted(maps.Keys(p)), " ") + "]"
}

// Format writes String for every verb, so that none shows the values.
func (p Pairs) Format(f fmt.State, _ rune) { fmt.Fprint(f, p.String()) }

// MarshalText is what encoders write that know nothing of Pairs.
func (p Pairs) MarshalText() ([]byte, error) { return []byte(p.String()), nil }

// How says what Vault.Set does with a secret that exists.
type How int

// Create refuses with Conflict, Replace forgets what it was, Merge keeps the pairs that are not given anew.
const (
	Create How = iota
	Replace
	Merge
)

// Record is a secret as a Store keeps it. Sealed can be opened only with the key, and only under this Account and Name.
type Record struct {
	Account, Name string
	Keys          []string
	Sealed        []byte
	Created       time.Time
	Updated       time.Time
	Used          time.Time         // zero if never
	Binding       *binding.Binding  // nil for a secret that is not bound
	Placeholders  map[string]string // by key; they stay the same when values change
	Login         *grant.State      // nil for a secret that is not a login
}

// Store keeps records. Package store has one on SQLite and one in memory; package storetest proves them.
type Store interface {
	// Put inserts or replaces records, all or none.
	Put(ctx context.Context, records ...Record) error
	// Get returns a record. NotFound if there is none.
	Get(ctx context.Context, account, name string) (Record, error)
	// List returns the records of the account ("" means every account), by account and name.
	List(ctx context.Context, account string) ([]Record, error)
	// Delete removes a record. NotFound if there is none.
	Delete(ctx context.Context, account, name string) error
	// Swap replaces Sealed and Login of a record, and nothing else, if its Login is still that of old. It reports
	// whether it did: not for a record that is gone, or has no Login.
	Swap(ctx context.Context, old, changed Record) (bool, error)
	// Used notes when a secret was used last. It does nothing if there is no such record.
	Used(ctx context.Context, account, name string, at time.Time) error

	// PutLoans inserts or replaces loans, all or none. There is one for each borrower.
	PutLoans(ctx context.Context, loans ...Loan) error
	// Loans returns all loans, by borrower.
	Loans(ctx context.Context) ([]Loan, error)
	// DeleteLoans removes the loans of borrowers; those that there are not are no error.
	DeleteLoans(ctx context.Context, borrowers ...string) error
}

// NotFound is what a Store's Get and Delete return, and Vault.Reveal for one or more secrets that there are not.
func NotFound(names ...string) error {
	text := "there is no secret %s"
	if len(names) > 1 {
		text = "there are no secrets %s"
	}
	quoted := make([]string, len(names))
	for i, name := range names {
		quoted[i] = fmt.Sprintf("%.80q", name)
	}
	return errors.Remedy(errors.Newf(errors.NotFound, text, strings.Join(quoted, ", ")),
		"list those there are with \"harvest secret ls\", or make one with \"harvest secret set NAME KEY=VALUE\"")
}

var (
	namePattern = pattern.New(`^[a-zA-Z0-9][a-zA-Z0-9_.-]{0,62}$`)
	keyPattern  = pattern.New(`^[a-zA-Z_][a-zA-Z0-9_]{0,127}$`)
)

// CheckName returns Invalid if name cannot be a secret's.
func CheckName(name string) error {
	if namePattern().MatchString(name) {
		return nil
	}
	return errors.Remedy(errors.Newf(errors.Invalid, "%.100q cannot be a secret's name", name),
		"use 1 to 63 letters, digits, '_', '.' or '-', beginning with a letter or digit")
}

// Check returns Invalid if p cannot be a secret's pairs. Its text has keys, never values.
func (p Pairs) Check() error {
	if len(p) == 0 {
		return errors.Remedy(errors.Newf(errors.Invalid, "the secret has no pairs"), "give at least one KEY=VALUE")
	}
	if len(p) > MaxPairs {
		return errors.Remedy(errors.Newf(errors.Invalid, "the secret has %d pairs, %d are allowed", len(p), MaxPairs),
			"make several secrets of it")
	}
	for _, key := range slices.Sorted(maps.Keys(p)) {
		switch {
		case !keyPattern().MatchString(key):
			// What stands where a key should may be a value in the wrong place.
			return errors.Remedy(errors.Newf(errors.Invalid,
				"one of the secret's keys cannot be the name of an environment variable"),
				"use letters, digits and '_', not beginning with a digit, such as API_TOKEN")
		case len(p[key]) > MaxValue:
			return errors.Remedy(errors.Newf(errors.Invalid, "the value of %s takes %d bytes, %d are allowed", key,
				len(p[key]), MaxValue), "keep large files in a volume")
		case strings.ContainsRune(p[key], 0):
			return errors.Remedy(errors.Newf(errors.Invalid, "the value of %s contains a NUL byte", key),
				"encode binary values, for example as base64")
		}
	}
	return nil
}

func (p Pairs) size() int {
	n := 0
	for _, value := range p {
		n += len(value)
	}
	return n
}

// plain are keys whose values are no secrets, and would hide words in logs that operators need.
var plain = []string{
	"AWS_REGION", "AWS_DEFAULT_REGION", "AWS_ENDPOINT_URL", "AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL_STS",
	"AWS_PROFILE", "AWS_ROLE_ARN", "AWS_WEB_IDENTITY_TOKEN_FILE",
	"ANTHROPIC_BASE_URL", "ANTHROPIC_MODEL", "CLAUDE_CODE_USE_BEDROCK", "OPENAI_BASE_URL",
	"OPENROUTER_BASE_URL", "GOOGLE_GEMINI_BASE_URL",
	"MODAL_ENVIRONMENT", "MODAL_PROFILE", "REGISTRY_SERVER", "REGISTRY_USERNAME", "GITHUB_API_URL", "SENTRY_URL",
	"GOOGLE_GENAI_USE_GCA",
	"GITHUB_HOST", "GITHUB_APP_ID", "GITHUB_APP_INSTALLATION_ID", "GIT_HOST", "GIT_USERNAME",
}

// hide keeps p's values out of the log until release is called.
//
// The rule: every value of 6 bytes and more, and every line of 6 bytes and more of a value of several lines, except for
// those of keys that are known to hold no secret, such as AWS_REGION. Shorter ones would hide ordinary words and
// numbers everywhere.
func (p Pairs) hide() (release func()) {
	var values []string
	for key, value := range p {
		if key == grantKey {
			g, err := grant.Parse(config.Secret(value))
			if err != nil {
				continue // it has nothing to hide
			}
			value = g.Refresh.Reveal()
		}
		if !isPlain(key) {
			values = append(values, value)
		}
	}
	return logf.Redact(values...)
}

func isPlain(key string) bool { return slices.Contains(plain, key) }

// Package account authorizes requests: accounts own everything, API keys authenticate programs, and sign-ins
// authenticate browsers.
//
// Secrets are 256 random bits, so they cannot be guessed. Only their SHA-256 is stored. A slow password hash
// would cost time on each request and protect nothing: it exists for secrets that people choose, and these are
// random.
package account

import (
	"cmp"
	"slices"
	"time"

	"github.com/RelevanceAI/harvest/client/errors"
	"github.com/RelevanceAI/harvest/internal/base/pattern"
)

// Personal is the account of the person who runs the server. Its admins are the server's operators.
const Personal = "personal"

// Role is a principal's role within an account.
type Role string

// The roles.
const (
	Admin  Role = "admin"  // also makes and revokes keys; in "personal" also those of others, and stops the server
	Member Role = "member" // works with the objects of the account
)

// Scope narrows the operations that a key allows.
type Scope string

// The scopes.
const (
	Read  Scope = "read"  // read everything, including files and output
	Write Scope = "write" // create, change and delete
	Exec  Scope = "exec"  // run commands, and reach the ports of sandboxes
)

// Scopes lists every scope.
var Scopes = []Scope{Read, Write, Exec}

// Principal is the authenticated caller. The zero value has no permissions.
type Principal struct {
	Account string
	Role    Role
	Scopes  []Scope   // empty only for a principal without permissions
	KeyID   string    // id of the key or sign-in; "" for a caller on the server's Unix socket
	Kind    Kind      // of KeyID; "" without one
	Subject string    // of that key
	Root    string    // of that key
	Expires time.Time // of that key; zero: never
	Until   time.Time // upper bound for the expiry of keys, sign-ins and links that it makes; zero: no bound
}

// Local is a caller on the server's Unix socket: the person who owns the data directory.
func Local() Principal {
	return Principal{Account: Personal, Role: Admin, Scopes: slices.Clone(Scopes)}
}

// May returns Denied unless p has the scope.
func (p Principal) May(scope Scope) error {
	if slices.Contains(p.Scopes, scope) {
		return nil
	}
	return errors.Remedy(errors.Newf(errors.Denied, "this key does not have the scope %q", scope),
		"use a key with that scope, or ask an admin of the account for one")
}

// MustBeAdmin returns Denied unless p is an admin of its account.
func (p Principal) MustBeAdmin() error {
	if p.Role == Admin {
		return nil
	}
	return errors.Remedy(errors.Newf(errors.Denied, "only an admin of the account may do this"),
		"use the key of an admin, or ask one")
}

// MustBeOperator returns Denied unless p is an admin of the personal account.
func (p Principal) MustBeOperator() error {
	if p.Role == Admin && p.Account == Personal {
		return nil
	}
	return errors.Remedy(errors.Newf(errors.Denied, "only the server's operator may do this"), "ask the operator")
}

// Owner returns the mark of an account's volumes and images. It is "" for the personal account, which is older
// than the others.
func Owner(account string) string {
	if account == Personal {
		return ""
	}
	return account
}

var (
	accountPattern = pattern.New(`^[a-z0-9]([a-z0-9-]{0,37}[a-z0-9])?$`)
	namePattern    = pattern.New(`^[a-zA-Z0-9][a-zA-Z0-9_.-]{0,62}$`)
)

// CheckName returns Invalid if name is not a valid account name.
func CheckName(name string) error {
	if accountPattern().MatchString(name) {
		return nil
	}
	return errors.Remedy(errors.Newf(errors.Invalid, "invalid account name %.60q", name),
		"use 1 to 39 lower-case letters, digits or '-', not at the ends")
}

// Kind separates API keys, the sign-ins of browsers and links to ports: a secret of one kind never
// authenticates as another kind.
type Kind string

// The kinds.
const (
	APIKey Kind = "key"
	SignIn Kind = "sign-in"
	Link   Kind = "link"  // to one port of one sandbox
	SSHKey Kind = "ssh"   // a public key, whose owner proves it by the protocol of SSH
	OAuth  Kind = "oauth" // a client of OAuth that acts for a user, such as an agent that uses /mcp
)

// Key is the record of a key, a sign-in or a link. It has only a hash of the secret; the secret is not stored.
//
// Subject is the person of a sign-in, or of a grant that a sign-in made, if a provider named one. That of a link is its
// target, and that of a token of OAuth is a hash of its client's ID.
//
// Root is the id of the key for which a sign-in, a link or a grant acts. It is MadeBy or, if that is a sign-in, its
// Root: the sign-in may end and be deleted earlier. If no key is behind the sign-ins, Root is the first sign-in.
type Key struct {
	ID       string    `json:"id"` // "key_", "ssh_", "oau_", "oaa_", "oar_", "sig_" or "lnk_" and a ULID
	Kind     Kind      `json:"kind"`
	Account  string    `json:"account"`
	Name     string    `json:"name,omitempty"`
	Role     Role      `json:"role"`
	Scopes   []Scope   `json:"scopes"`
	Created  time.Time `json:"created_at"`
	Expires  time.Time `json:"expires_at,omitzero"`   // zero: never
	LastUsed time.Time `json:"last_used_at,omitzero"` // to the minute
	Hash     string    `json:"-"`                     // hex SHA-256 of the secret, or of the public key
	Subject  string    `json:"subject,omitempty"`     // see below
	MadeBy   string    `json:"made_by,omitempty"`     // id of its maker; "" over the Unix socket or by a provider
	Root     string    `json:"-"`                     // see below
	Until    time.Time `json:"-"`                     // latest expiry of keys, sign-ins, links it makes; zero: none
}

// Principal returns the principal that the key authenticates.
func (k Key) Principal() Principal {
	return Principal{Account: k.Account, Role: k.Role, Scopes: slices.Clone(k.Scopes), KeyID: k.ID, Kind: k.Kind,
		Subject: k.Subject, Root: k.Root, Expires: k.Expires, Until: k.Until}
}

// rootOf returns the Root of the records that by makes.
func rootOf(by Principal) string { return cmp.Or(by.Root, by.KeyID) }

// Request describes a key to make.
type Request struct {
	Name    string        // unique among the account's keys
	Account string        // "" means the caller's account
	Role    Role          // "" means Member
	Scopes  []Scope       // empty means all scopes of the caller
	Life    time.Duration // 0 means no expiry, or the expiry of the caller's key
}

// longestLife bounds the life of a key that expires.
const longestLife = 10 * 365 * 24 * time.Hour

// plan validates the request of by and fills in the defaults.
func (r Request) plan(by Principal, now time.Time) (Request, error) {
	if err := by.MustBeAdmin(); err != nil {
		return r, err
	}
	if r.Account == "" {
		r.Account = by.Account
	}
	if err := CheckName(r.Account); err != nil {
		return r, err
	}
	if r.Account != by.Account {
		if err := by.MustBeOperator(); err != nil {
			return r, err
		}
	}
	if !namePattern().MatchString(r.Name) {
		return r, errors.Remedy(errors.Newf(errors.Invalid, "invalid key name %.80q", r.Name),
			"use 1 to 63 letters, digits, '_', '.' or '-', beginning with a letter or digit")
	}
	switch r.Role {
	case "":
		r.Role = Member
	case Admin, Member:
	default:
		return r, errors.Remedy(errors.Newf(errors.Invalid, "there is no role %.40q", string(r.Role)),
			"use admin or member")
	}
	if r.Life < 0 || r.Life > longestLife {
		return r, errors.Remedy(errors.Newf(errors.Invalid, "a key cannot live for %s", r.Life),
			"give a time up to ten years, or none for a key without an end")
	}
	if !by.Until.IsZero() && r.Life > 0 && now.Add(r.Life).After(by.Until) {
		err := errors.Newf(errors.Denied, "a key cannot end later than the one that makes it, which ends at %s",
			by.Until.UTC().Format(time.RFC3339))
		return r, errors.Remedy(err, "give it a shorter life, or none for that end")
	}
	if len(r.Scopes) == 0 {
		r.Scopes = by.Scopes
	}
	for _, s := range r.Scopes {
		if !slices.Contains(Scopes, s) {
			return r, errors.Remedy(errors.Newf(errors.Invalid, "there is no scope %.40q", string(s)),
				"use some of %v", Scopes)
		}
		if err := by.May(s); err != nil { // a caller cannot grant a scope that it lacks
			return r, err
		}
	}
	r.Scopes = slices.Compact(slices.Sorted(slices.Values(r.Scopes)))
	return r, nil
}

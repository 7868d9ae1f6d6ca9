// Package account says who may do what: accounts own everything, keys let programs in, and sign-ins let browsers in.
//
// Secrets are 256 random bits, so that nothing can be guessed of them; what is stored is their SHA-256. A slow hash, as for
// passwords, would add nothing but time to each request: it protects what people think up, and this nobody has thought up.
package account

import (
	"slices"
	"time"

	"github.com/RelevanceAI/harvest/errors"
	"github.com/RelevanceAI/harvest/internal/pattern"
)

// Personal is the account of whoever runs the server. Its admins are the server's operators.
const Personal = "personal"

// Role is what somebody is within an account.
type Role string

// The roles.
const (
	Admin  Role = "admin"  // also makes and revokes keys; in the personal account also those of other accounts, and ends the server
	Member Role = "member" // works with what the account has
)

// Scope narrows what a key is good for.
type Scope string

// The scopes.
const (
	Read  Scope = "read"  // look at everything, files and output included
	Write Scope = "write" // create, change and delete
	Exec  Scope = "exec"  // run commands, and reach the ports of sandboxes
)

// Scopes lists every scope.
var Scopes = []Scope{Read, Write, Exec}

// Principal is who asks. The zero value may do nothing.
type Principal struct {
	Account string
	Role    Role
	Scopes  []Scope   // never empty for somebody who may do anything
	KeyID   string    // of the key or sign-in; "" for who can open the server's Unix socket
	Kind    Kind      // of what KeyID names; "" without one
	Subject string    // of that key
	Expires time.Time // of that key; zero: never
	Until   time.Time // no key, sign-in or link that it makes ends later; zero: no such limit
}

// Local is who can open the server's Unix socket: the person whose data directory it is.
func Local() Principal {
	return Principal{Account: Personal, Role: Admin, Scopes: slices.Clone(Scopes)}
}

// May returns Denied unless p has the scope.
func (p Principal) May(scope Scope) error {
	if slices.Contains(p.Scopes, scope) {
		return nil
	}
	return errors.Remedy(errors.Newf(errors.Denied, "this key does not have the scope %q", scope), "use a key that has it, or ask an admin of the account for one")
}

// MustBeAdmin returns Denied unless p is an admin of its account.
func (p Principal) MustBeAdmin() error {
	if p.Role == Admin {
		return nil
	}
	return errors.Remedy(errors.Newf(errors.Denied, "only an admin of the account may do this"), "use the key of an admin, or ask one")
}

// MustBeOperator returns Denied unless p is an admin of the personal account.
func (p Principal) MustBeOperator() error {
	if p.Role == Admin && p.Account == Personal {
		return nil
	}
	return errors.Remedy(errors.Newf(errors.Denied, "only who runs the server may do this"), "ask the server's operator")
}

// Owner returns what an account's volumes and images are marked with: "" for the personal one, which was there before there were
// others.
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

// CheckName returns Invalid if name cannot be an account's.
func CheckName(name string) error {
	if accountPattern().MatchString(name) {
		return nil
	}
	return errors.Remedy(errors.Newf(errors.Invalid, "%.60q cannot be an account's name", name), "use 1 to 39 lower-case letters, digits or '-', not at the ends")
}

// Kind tells keys of programs, sign-ins of browsers and links to ports apart: none is good for another's way in.
type Kind string

// The kinds.
const (
	APIKey Kind = "key"
	SignIn Kind = "sign-in"
	Link   Kind = "link" // to one port of one sandbox
)

// Key is the record of a key, a sign-in or a link. Its secret is nowhere: only a hash of it is kept.
type Key struct {
	ID       string    `json:"id"` // "key_", "sig_" or "lnk_" and a ULID
	Kind     Kind      `json:"kind"`
	Account  string    `json:"account"`
	Name     string    `json:"name,omitempty"`
	Role     Role      `json:"role"`
	Scopes   []Scope   `json:"scopes"`
	Created  time.Time `json:"created_at"`
	Expires  time.Time `json:"expires_at,omitzero"`   // zero: never
	LastUsed time.Time `json:"last_used_at,omitzero"` // to the minute
	Hash     string    `json:"-"`                     // hex SHA-256 of the secret
	Subject  string    `json:"subject,omitempty"`     // who signed in, if a provider said so; what a link leads to
	MadeBy   string    `json:"made_by,omitempty"`     // id of the key or sign-in that made it; "" for who can open the Unix socket, or a provider
	Until    time.Time `json:"-"`                     // no key, sign-in or link that it makes ends later; zero: no such limit
}

// Principal returns who comes with the key.
func (k Key) Principal() Principal {
	return Principal{Account: k.Account, Role: k.Role, Scopes: slices.Clone(k.Scopes), KeyID: k.ID, Kind: k.Kind, Subject: k.Subject, Expires: k.Expires, Until: k.Until}
}

// Request describes a key to make.
type Request struct {
	Name    string        // unique among the account's keys
	Account string        // "" means that of who asks
	Role    Role          // "" means Member
	Scopes  []Scope       // none means all that who asks has
	Life    time.Duration // 0 means no end, or that of the key of who asks
}

// longestLife bounds the life of a key that has an end at all.
const longestLife = 10 * 365 * 24 * time.Hour

// plan checks what by asks for and fills in the defaults.
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
		return r, errors.Remedy(errors.Newf(errors.Invalid, "%.80q cannot be a key's name", r.Name), "use 1 to 63 letters, digits, '_', '.' or '-', beginning with a letter or digit")
	}
	switch r.Role {
	case "":
		r.Role = Member
	case Admin, Member:
	default:
		return r, errors.Remedy(errors.Newf(errors.Invalid, "there is no role %.40q", string(r.Role)), "use admin or member")
	}
	if r.Life < 0 || r.Life > longestLife {
		return r, errors.Remedy(errors.Newf(errors.Invalid, "a key cannot live for %s", r.Life), "give a time up to ten years, or none for a key without an end")
	}
	if !by.Until.IsZero() && r.Life > 0 && now.Add(r.Life).After(by.Until) {
		err := errors.Newf(errors.Denied, "a key cannot end later than the one that makes it, which ends at %s", by.Until.UTC().Format(time.RFC3339))
		return r, errors.Remedy(err, "give it a shorter life, or none for that end")
	}
	if len(r.Scopes) == 0 {
		r.Scopes = by.Scopes
	}
	for _, s := range r.Scopes {
		if !slices.Contains(Scopes, s) {
			return r, errors.Remedy(errors.Newf(errors.Invalid, "there is no scope %.40q", string(s)), "use some of %v", Scopes)
		}
		if err := by.May(s); err != nil { // nobody gives what he does not have
			return r, err
		}
	}
	r.Scopes = slices.Compact(slices.Sorted(slices.Values(r.Scopes)))
	return r, nil
}

package api

import "time"

// KeyRequest is the body of POST /v1/keys.
type KeyRequest struct {
	Name      string   `json:"name"`
	Account   string   `json:"account,omitempty"`            // "" means one's own; only the server's operator may name another
	Role      string   `json:"role,omitempty"`               // "member", which is also what "" means, or "admin"
	Scopes    []string `json:"scopes,omitempty"`             // some of "read", "write" and "exec"; none means all that one has
	ExpiresIn float64  `json:"expires_in_seconds,omitempty"` // 0: never
}

// Key is a key as it is shown.
type Key struct {
	ID       string    `json:"id"`
	Name     string    `json:"name"`
	Account  string    `json:"account"`
	Role     string    `json:"role"`
	Scopes   []string  `json:"scopes"`
	Created  time.Time `json:"created_at"`
	Expires  time.Time `json:"expires_at,omitzero"`
	LastUsed time.Time `json:"last_used_at,omitzero"`
	MadeBy   string    `json:"made_by,omitempty"` // the key or sign-in that made it; "" for the server's own command line, or a provider's sign-in
}

// NewKey is a key that was just made.
type NewKey struct {
	Key
	Secret string `json:"key"` // what to send as "Authorization: Bearer …". It is shown this once
}

// Self says who one is, and what one's account has used.
type Self struct {
	Account string       `json:"account"`
	Role    string       `json:"role"`
	Scopes  []string     `json:"scopes"`
	KeyID   string       `json:"key_id,omitempty"`
	User    string       `json:"user,omitempty"` // who signed in with a provider, by mail address or what it calls them
	Usage   AccountUsage `json:"usage"`
}

// AccountUsage is what an account has used since it began, also what has no record any more.
type AccountUsage struct {
	Sandboxes      int     `json:"sandboxes"`
	SandboxSeconds float64 `json:"sandbox_seconds"`  // from when each was ready for commands to its end, or until now
	SandboxCost    float64 `json:"sandbox_cost_usd"` // by the server's prices
	Sessions       int     `json:"sessions"`
	Turns          int     `json:"turns"`
	Agents         Usage   `json:"agents"` // of all turns; the cost is by the agents' own price lists
}

// Link signs a browser in, once, within some minutes.
type Link struct {
	URL string `json:"url"`
}

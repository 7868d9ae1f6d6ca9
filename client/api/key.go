package api

import "time"

// KeyRequest is the body of POST /v1/keys.
type KeyRequest struct {
	Name string `json:"name"`
	// Account "" means the caller's own; only the operator may name another.
	Account string `json:"account,omitempty"`
	Role    string `json:"role,omitempty"` // "member", the default, or "admin"
	// Scopes are some of "read", "write" and "exec"; none means all of the caller's.
	Scopes    []string `json:"scopes,omitempty"`
	ExpiresIn float64  `json:"expires_in_seconds,omitempty"` // 0: never
	// PublicKey makes it an SSH key instead of an API key: a line as in a file id_ed25519.pub. There is no secret then,
	// and the role is "member".
	PublicKey string `json:"public_key,omitempty"`
}

// Key is a key without its secret.
type Key struct {
	ID       string    `json:"id"`
	Kind     string    `json:"kind"` // "key", "ssh" for the public key of a user of SSH, "oauth" for a client of MCP
	Name     string    `json:"name"`
	Account  string    `json:"account"`
	Role     string    `json:"role"`
	Scopes   []string  `json:"scopes"`
	Created  time.Time `json:"created_at"`
	Expires  time.Time `json:"expires_at,omitzero"`
	LastUsed time.Time `json:"last_used_at,omitzero"`
	// MadeBy is the key or sign-in that created it; "" for the server's own command line, or a provider's sign-in.
	MadeBy string `json:"made_by,omitempty"`
	// User is the user who allowed a client of MCP after signing in with a provider, as in Self.
	User string `json:"user,omitempty"`
}

// NewKey is a key that was just created.
type NewKey struct {
	Key
	// Secret is for "Authorization: Bearer …". It is shown only once. An SSH key has none.
	Secret string `json:"key,omitempty"`
}

// Self is the caller's identity, and the usage of its account.
type Self struct {
	Account string   `json:"account"`
	Role    string   `json:"role"`
	Scopes  []string `json:"scopes"`
	KeyID   string   `json:"key_id,omitempty"`
	// User is the user who signed in with a provider, by mail address or the provider's name.
	User  string       `json:"user,omitempty"`
	Usage AccountUsage `json:"usage"`
}

// AccountUsage is the total usage of an account, including usage whose records were deleted.
type AccountUsage struct {
	Sandboxes      int     `json:"sandboxes"`
	SandboxSeconds float64 `json:"sandbox_seconds"`  // from each start to the end, or until now
	SandboxCost    float64 `json:"sandbox_cost_usd"` // by the server's prices
	Sessions       int     `json:"sessions"`
	Turns          int     `json:"turns"`
	Agents         Usage   `json:"agents"` // of all turns; the cost is by the agents' own price lists
}

// Link is a single-use link that signs a browser in. It is valid for some minutes.
type Link struct {
	URL string `json:"url"`
}

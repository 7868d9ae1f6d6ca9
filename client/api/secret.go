package api

import "time"

// SecretRequest is the body of POST /v1/secrets.
type SecretRequest struct {
	Name  string            `json:"name"`
	Pairs map[string]string `json:"pairs"` // values by the names of environment variables
	// Mode applies if the secret exists: "create", the default, refuses; "replace" replaces it; "merge" keeps the
	// other pairs.
	Mode string `json:"mode,omitempty"`
}

// Secret describes a secret without its values.
type Secret struct {
	Name     string    `json:"name"`
	Keys     []string  `json:"keys"`
	Origin   string    `json:"origin"` // "stored", or "environment": the server's environment, read-only
	Created  time.Time `json:"created_at,omitzero"`
	Updated  time.Time `json:"updated_at,omitzero"`
	LastUsed time.Time `json:"last_used_at,omitzero"`
}

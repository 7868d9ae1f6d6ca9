package api

import "time"

// SecretRequest is the body of POST /v1/secrets.
type SecretRequest struct {
	Name  string            `json:"name"`
	Pairs map[string]string `json:"pairs"`          // values by the names of environment variables
	Mode  string            `json:"mode,omitempty"` // of one that exists: "create", which is also what "" means, refuses; "replace"; "merge" keeps the other pairs
}

// Secret is what is shown of a secret: never its values.
type Secret struct {
	Name     string    `json:"name"`
	Keys     []string  `json:"keys"`
	Origin   string    `json:"origin"` // "stored", or "environment": that of the server, read-only
	Created  time.Time `json:"created_at,omitzero"`
	Updated  time.Time `json:"updated_at,omitzero"`
	LastUsed time.Time `json:"last_used_at,omitzero"`
}

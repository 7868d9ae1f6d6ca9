package api

import "time"

// SecretRequest is the body of POST /v1/secrets.
type SecretRequest struct {
	Name  string            `json:"name"`
	Pairs map[string]string `json:"pairs"` // values by the names of environment variables
	// Mode applies if the secret exists: "create", the default, refuses; "replace" replaces it; "merge" keeps the
	// other pairs.
	Mode string `json:"mode,omitempty"`
	// Binding keeps the values outside of sandboxes. Without it, a secret that exists keeps its own; one without hosts
	// and preset removes it.
	Binding *Binding `json:"binding,omitempty"`
}

// Binding says where the values of a secret may go. Sandboxes with the secret have placeholders; the server puts the
// values into their requests to these hosts.
type Binding struct {
	// Preset is a known service, such as "github": its hosts come before Hosts. It is in requests only.
	Preset string      `json:"preset,omitempty"`
	Hosts  []BoundHost `json:"hosts,omitempty"`
	// Allow limits the requests that get values, such as "GET /repos/**". Without any, every request does.
	Allow []string `json:"allow,omitempty"`
	// Body also replaces placeholders in the bodies of requests that are text.
	Body bool `json:"body,omitempty"`
	// Elsewhere handles requests with a placeholder to other hosts, or that Allow does not have: "refuse", the default;
	// "pass" sends the placeholder; "end" ends the sandbox.
	Elsewhere string `json:"elsewhere,omitempty"`
}

// BoundHost is a server that takes the values of a secret.
type BoundHost struct {
	// Host is a domain, "*." and a domain, or an address, each with an optional ":port". "http://" in front means a
	// server without TLS.
	Host string `json:"host"`
	// Inject adds a value to requests without a credential: "bearer", "basic USER", "header NAME" or "query NAME"; ""
	// does not. After it may stand the key of the pair. "sigv4 SERVICE REGION" signs requests for AWS again.
	Inject string `json:"inject,omitempty"`
}

// Secret describes a secret without its values.
type Secret struct {
	Name     string    `json:"name"`
	Keys     []string  `json:"keys"`
	Origin   string    `json:"origin"` // "stored", or "environment": the server's environment, read-only
	Created  time.Time `json:"created_at,omitzero"`
	Updated  time.Time `json:"updated_at,omitzero"`
	LastUsed time.Time `json:"last_used_at,omitzero"`
	// Binding is where the values may go; nil if sandboxes have the values.
	Binding *Binding `json:"binding,omitempty"`
}

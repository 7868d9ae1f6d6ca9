package api

import "time"

// Routes of links to ports.
const (
	SandboxLinks  = "/v1/sandboxes/{id}/links"
	SandboxLinked = "/v1/sandboxes/{id}/links/{link}"
)

// LinkParameter is the query parameter of a link that contains its secret. It is removed from the address when the
// link is opened.
const LinkParameter = "harvest-link"

// PortLinkRequest is the body of POST /v1/sandboxes/{id}/links.
type PortLinkRequest struct {
	Port      int     `json:"port"`                         // of a server in the sandbox
	ExpiresIn float64 `json:"expires_in_seconds,omitempty"` // 0: a day; at most 30 days
}

// PortLink is a link to a port, without its secret.
type PortLink struct {
	ID        string    `json:"id"`
	SandboxID string    `json:"sandbox_id"`
	Port      int       `json:"port"`
	Created   time.Time `json:"created_at"`
	Expires   time.Time `json:"expires_at"`
	LastUsed  time.Time `json:"last_used_at,omitzero"`
}

// NewPortLink is a link that was just created.
type NewPortLink struct {
	PortLink
	URL string `json:"url"` // gives access to the port to everyone who has it; shown only once
}

package api

import "time"

// Routes of links to ports.
const (
	SandboxLinks  = "/v1/sandboxes/{id}/links"
	SandboxLinked = "/v1/sandboxes/{id}/links/{link}"
)

// LinkParameter is the query's parameter of a link that has its secret. It leaves the address when the link is opened.
const LinkParameter = "harvest-link"

// PortLinkRequest is the body of POST /v1/sandboxes/{id}/links.
type PortLinkRequest struct {
	Port      int     `json:"port"`                         // of a server in the sandbox
	ExpiresIn float64 `json:"expires_in_seconds,omitempty"` // 0: a day; at most 30 days
}

// PortLink is a link to a port as it is shown.
type PortLink struct {
	ID        string    `json:"id"`
	SandboxID string    `json:"sandbox_id"`
	Port      int       `json:"port"`
	Created   time.Time `json:"created_at"`
	Expires   time.Time `json:"expires_at"`
	LastUsed  time.Time `json:"last_used_at,omitzero"`
}

// NewPortLink is a link that was just made.
type NewPortLink struct {
	PortLink
	URL string `json:"url"` // whoever opens it reaches the port. It is shown this once
}

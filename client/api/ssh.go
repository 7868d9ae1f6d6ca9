package api

// SSH describes the SSH of a server, as the response of GET /v1/ssh.
type SSH struct {
	HostKey string `json:"host_key"` // public key of the server, as a line of known_hosts has it after the host
	// Listen is the address for clients with an SSH key; "" without one. GET /v1/sandboxes/{id}/ssh serves clients
	// with an API key.
	Listen string `json:"listen,omitempty"`
}

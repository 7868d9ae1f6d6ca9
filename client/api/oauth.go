package api

// Routes of OAuth, with which clients of MCP sign in. The paths below /.well-known are fixed by RFC 9728 and RFC 8414.
const (
	OAuthResource    = "/.well-known/oauth-protected-resource"
	OAuthResourceMCP = "/.well-known/oauth-protected-resource/mcp"
	OAuthServer      = "/.well-known/oauth-authorization-server"
	OAuthRegister    = "/oauth/register"
	OAuthAuthorize   = "/oauth/authorize"
	OAuthToken       = "/oauth/token"
	OAuthRevoke      = "/oauth/revoke"
)

// OAuthResourceInfo describes the route /mcp to clients of OAuth (RFC 9728).
type OAuthResourceInfo struct {
	Resource string   `json:"resource"`
	Servers  []string `json:"authorization_servers"`
	Scopes   []string `json:"scopes_supported"`
	Methods  []string `json:"bearer_methods_supported"`
	Name     string   `json:"resource_name"`
}

// OAuthServerInfo describes the server to clients of OAuth (RFC 8414).
type OAuthServerInfo struct {
	Issuer            string   `json:"issuer"`
	Authorize         string   `json:"authorization_endpoint"`
	Token             string   `json:"token_endpoint"`
	Register          string   `json:"registration_endpoint"`
	Revoke            string   `json:"revocation_endpoint"`
	Scopes            []string `json:"scopes_supported"`
	ResponseTypes     []string `json:"response_types_supported"`
	ResponseModes     []string `json:"response_modes_supported"`
	GrantTypes        []string `json:"grant_types_supported"`
	ClientAuth        []string `json:"token_endpoint_auth_methods_supported"`
	RevokeAuth        []string `json:"revocation_endpoint_auth_methods_supported"`
	ChallengeMethods  []string `json:"code_challenge_methods_supported"`
	IssuerInResponses bool     `json:"authorization_response_iss_parameter_supported"`
}

// OAuthClient is a registered client of OAuth (RFC 7591).
type OAuthClient struct {
	ID            string   `json:"client_id"`
	Issued        int64    `json:"client_id_issued_at"` // Unix seconds
	Name          string   `json:"client_name,omitempty"`
	Redirects     []string `json:"redirect_uris"`
	ClientAuth    string   `json:"token_endpoint_auth_method"`
	GrantTypes    []string `json:"grant_types"`
	ResponseTypes []string `json:"response_types"`
}

// OAuthTokens are the tokens of a client (RFC 6749, section 5.1).
type OAuthTokens struct {
	Access    string `json:"access_token"`
	Type      string `json:"token_type"`
	ExpiresIn int    `json:"expires_in"` // seconds
	Refresh   string `json:"refresh_token"`
	Scope     string `json:"scope"`
}

// OAuthError is an error in the form of OAuth (RFC 6749, section 5.2).
type OAuthError struct {
	Code        string `json:"error"`
	Description string `json:"error_description,omitempty"`
}

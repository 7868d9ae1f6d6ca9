package api

import "time"

// LoginRequest is the body of POST /v1/logins/{provider}.
type LoginRequest struct {
	// Client is the ID of a client at the provider; "" means the server's choice.
	Client string `json:"client_id,omitempty"`
	// Token is a token, or the content of the file of credentials of the provider's own program. With it, the login is
	// finished at once, and the server is the only owner of it.
	Token string `json:"token,omitempty"`
}

// LoginFinish is the body of POST /v1/logins/{provider}/finish.
type LoginFinish struct {
	// Code is the code that the provider has shown, or the address to which it led the browser. Without one, the
	// request ends when the user has typed UserCode at the provider.
	Code string `json:"code,omitempty"`
}

// LoginAttempt is a login that has begun.
type LoginAttempt struct {
	// URL is where the user allows the access; "" if the login is finished.
	URL      string    `json:"url,omitempty"`
	UserCode string    `json:"user_code,omitempty"` // to type there; "" if the provider shows a code to finish with
	Expires  time.Time `json:"expires_at,omitzero"` // end of the attempt
	Login    Login     `json:"login"`
}

// Login describes the login of an account to a provider, without its tokens. Sandboxes get it as the secret with the
// provider's name.
type Login struct {
	Provider string `json:"provider"`
	Title    string `json:"title"`
	// State is "none", "ready", "expired" (the token has ended, and cannot be renewed) or "failed" (the provider no
	// longer accepts the login).
	State    string    `json:"state"`
	Reason   string    `json:"reason,omitempty"`      // of the state failed
	Renews   bool      `json:"renews,omitempty"`      // the server renews the access token
	Expires  time.Time `json:"expires_at,omitzero"`   // of the access token
	Renewed  time.Time `json:"renewed_at,omitzero"`   // when the access token arrived
	LastUsed time.Time `json:"last_used_at,omitzero"` // to the minute
}

// LoggedOut is the result of a logout.
type LoggedOut struct {
	Revoked bool   `json:"revoked"`          // the provider no longer accepts the login
	Reason  string `json:"reason,omitempty"` // why it was not revoked
	Remedy  string `json:"remedy,omitempty"`
}

package grant

import "time"

// State is what is known of a kept grant besides its tokens.
type State struct {
	Provider string    `json:"provider"`
	Owner    string    `json:"owner,omitempty"` // see Grant.Owner
	Renews   bool      `json:"renews,omitempty"`
	Expires  time.Time `json:"expires,omitzero"` // of the access token
	Renewed  time.Time `json:"renewed"`          // when there was a new access token
	// Failed says why the provider no longer accepts the grant, one sentence without a period; "" while it does.
	Failed string `json:"failed,omitempty"`
	// Lease is the exclusive right of a server to renew the grant; nil while none does.
	Lease *Lease `json:"lease,omitempty"`
}

// Lease is the right to renew a grant until a time. A server that is killed leaves it behind.
type Lease struct {
	ID    string    `json:"id"`
	Until time.Time `json:"until"`
}

// margin is how long before its end an access token is renewed. Tokens with a short life are renewed in their second
// half.
const margin = 5 * time.Minute

// Due reports whether the access token should be renewed.
func (s State) Due(now time.Time) bool {
	return s.Renews && s.Failed == "" && !s.Expires.IsZero() &&
		!now.Before(s.Expires.Add(-min(margin, s.Expires.Sub(s.Renewed)/2)))
}

// Expired reports whether the access token can no longer be used.
func (s State) Expired(now time.Time) bool { return !s.Expires.IsZero() && !now.Before(s.Expires) }

// StateOf returns the state of a new grant.
func StateOf(g Grant, now time.Time) State {
	return State{Provider: g.Provider, Owner: g.Owner(), Renews: g.Refresh != "", Expires: g.Expires, Renewed: now}
}

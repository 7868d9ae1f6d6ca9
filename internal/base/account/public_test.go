package account

import (
	"testing"
	"time"

	"github.com/RelevanceAI/harvest/client/errors"
)

// TestPublicKeys records public keys, finds them, lists them beside the other keys, and removes them.
func TestPublicKeys(t *testing.T) {
	t.Parallel()
	r, s, now := clock()
	public := []byte("a public key in the format of the protocol")
	wanted := Request{Name: "laptop", Scopes: []Scope{Exec}, Life: time.Hour}
	k, err := AddPublic(t.Context(), r, Local(), wanted, public)
	if err != nil {
		t.Fatal(err)
	}
	if k.Kind != SSHKey || k.Role != Member || !k.Expires.Equal(now.Add(time.Hour)) || k.Account != Personal {
		t.Errorf("key: %+v", k)
	}
	p, err := Public(t.Context(), r, public)
	if err != nil || p.KeyID != k.ID || p.May(Exec) != nil || p.May(Write) == nil || p.MustBeOperator() == nil {
		t.Errorf("principal: %+v, %v", p, err)
	}
	if !s.keys[0].LastUsed.IsZero() {
		t.Error("a key is used before its owner has proved it")
	}
	if PublicUsed(t.Context(), r, p); !s.keys[0].LastUsed.Equal(*now) {
		t.Errorf("last used %v", s.keys[0].LastUsed)
	}
	if _, err := r.Authenticate(t.Context(), APIKey, string(public)); errors.KindOf(err) != errors.Unauthenticated {
		t.Errorf("a public key is a secret: %v", err)
	}
	_, secret, err := r.Create(t.Context(), Local(), Request{Name: "ci"})
	if err != nil {
		t.Fatal(err)
	}
	for _, other := range []string{secret.Reveal(), "another key", ""} {
		if _, err := Public(t.Context(), r, []byte(other)); errors.KindOf(err) != errors.Unauthenticated ||
			errors.RemedyOf(err) == "" {
			t.Errorf("%q: %v", other, err)
		}
	}
	if keys, err := r.List(t.Context(), Local(), false); err != nil || len(keys) != 2 {
		t.Errorf("the list has %+v, %v", keys, err)
	}

	_, err = AddPublic(t.Context(), r, Local(), Request{Name: "again"}, public)
	if errors.KindOf(err) != errors.Conflict || errors.RemedyOf(err) == "" {
		t.Errorf("the same key again: %v", err)
	}
	acme, _, err := r.Create(t.Context(), Local(), Request{Name: "first", Account: "acme", Role: Admin})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := AddPublic(t.Context(), r, acme.Principal(), Request{Name: "theirs"}, public); errors.KindOf(err) !=
		errors.Conflict {
		t.Errorf("the key of another account: %v", err)
	}
	member := p
	if _, err := AddPublic(t.Context(), r, member, Request{Name: "mine"}, []byte("new")); errors.KindOf(err) !=
		errors.Denied {
		t.Errorf("a member adds a key: %v", err)
	}

	*now = now.Add(time.Hour)
	if _, err := Public(t.Context(), r, public); errors.KindOf(err) != errors.Unauthenticated {
		t.Errorf("at its end: %v", err)
	}
	*now = now.Add(-time.Minute)
	s.err = errors.Newf(errors.Unavailable, "the disk is full")
	if _, err := Public(t.Context(), r, public); errors.KindOf(err) != errors.Unavailable {
		t.Errorf("without records: %v", err)
	}
	_, err = AddPublic(t.Context(), r, Local(), Request{Name: "x"}, public)
	if errors.KindOf(err) != errors.Unavailable {
		t.Errorf("added without records: %v", err)
	}
	s.err = nil
	ctx, done := r.Follow(t.Context(), p)
	defer done()
	if err := r.Revoke(t.Context(), Local(), "laptop"); err != nil {
		t.Fatal(err)
	}
	if <-ctx.Done(); Ended(ctx) == nil {
		t.Error("work continues after its key is revoked")
	}
	if _, err := Public(t.Context(), r, public); errors.KindOf(err) != errors.Unauthenticated {
		t.Errorf("revoked: %v", err)
	}
}

package account

import (
	"strings"
	"testing"
	"time"

	"github.com/RelevanceAI/harvest/client/errors"
)

// mission: A6, A7
func TestShares(t *testing.T) {
	t.Parallel()
	r, s, now := clock()
	by := Principal{Account: "acme", Role: Member, Scopes: []Scope{Exec, Read}}
	k, secret, err := r.Share(t.Context(), by, "sbx_a:80", 0)
	if err != nil || !k.Expires.Equal(now.Add(linkDefault)) || !strings.HasPrefix(secret.Reveal(), "hvp_") ||
		k.Account != "acme" {
		t.Fatalf("%+v, %v", k, err)
	}
	p, err := r.Authenticate(t.Context(), Link, secret.Reveal())
	if err != nil || p.Subject != "sbx_a:80" || p.Account != "acme" || p.May(Exec) != nil || p.May(Read) == nil ||
		!p.Expires.Equal(k.Expires) {
		t.Errorf("who opens it is %+v, %v", p, err)
	}
	for _, kind := range []Kind{APIKey, SignIn} {
		if _, err := r.Authenticate(t.Context(), kind, secret.Reveal()); errors.KindOf(err) != errors.Unauthenticated {
			t.Errorf("as a %s: %v", kind, err)
		}
	}
	if _, _, err := r.Share(t.Context(), Principal{Scopes: []Scope{Read, Write}}, "x",
		0); errors.KindOf(err) != errors.Denied {
		t.Errorf("without the scope: %v", err)
	}
	for _, life := range []time.Duration{-1, 1, linkLongest + 1} {
		if _, _, err := r.Share(t.Context(), by, "x", life); errors.KindOf(err) != errors.Invalid {
			t.Errorf("for %s: %v", life, err)
		}
	}
	by.Expires = now.Add(time.Minute)
	short, _, err := r.Share(t.Context(), by, "sbx_a:81", time.Hour)
	if err != nil || !short.Expires.Equal(by.Expires) {
		t.Errorf("it outlives its maker: %+v, %v", short, err)
	}
	if _, _, err := r.Share(t.Context(), Local(), "sbx_b:80", time.Hour); err != nil {
		t.Fatal(err)
	}
	if all, err := r.Shares(t.Context(), by, "sbx_a:"); err != nil || len(all) != 2 {
		t.Errorf("acme's: %v, %v", all, err)
	}
	if all, err := r.Shares(t.Context(), by, "sbx_b:"); err != nil || len(all) != 0 {
		t.Errorf("another account's: %v, %v", all, err)
	}
	for _, c := range [][2]string{{"sbx_b:", k.ID}, {"sbx_a:", "lnk_none"}} {
		if err := r.Unshare(t.Context(), by, c[0], c[1]); errors.KindOf(err) != errors.NotFound {
			t.Errorf("%v: %v", c, err)
		}
	}
	if err := r.Unshare(t.Context(), Local(), "sbx_a:", k.ID); errors.KindOf(err) != errors.NotFound {
		t.Errorf("another account's admin: %v", err)
	}
	if err := r.Unshare(t.Context(), by, "sbx_a:", k.ID); err != nil {
		t.Error(err)
	}
	if _, err := r.Authenticate(t.Context(), Link, secret.Reveal()); errors.KindOf(err) != errors.Unauthenticated {
		t.Errorf("revoked: %v", err)
	}
	*now = now.Add(2 * time.Minute)
	if all, err := r.Shares(t.Context(), by, "sbx_a:"); err != nil || len(all) != 0 {
		t.Errorf("after their time: %v, %v", all, err)
	}
	if _, _, err := r.Share(t.Context(), Local(), "sbx_b:81", time.Hour); err != nil { // which sweeps
		t.Fatal(err)
	}
	if len(s.keys) != 2 {
		t.Errorf("%d links are kept", len(s.keys))
	}
	s.err = errors.Errorf("disk")
	if _, _, err := r.Share(t.Context(), Local(), "x", 0); errors.KindOf(err) != errors.Internal {
		t.Errorf("a store that fails: %v", err)
	}
	if err := r.Unshare(t.Context(), Local(), "sbx_b:", "x"); errors.KindOf(err) != errors.Internal {
		t.Errorf("a store that fails: %v", err)
	}
}

package account

import (
	"context"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/RelevanceAI/harvest/client/errors"
)

// made returns a key of the account personal and its principal.
func made(t *testing.T, r *Ring, by Principal, req Request) (Key, Principal) {
	t.Helper()
	k, secret, err := r.Create(t.Context(), by, req)
	if err != nil {
		t.Fatal(err)
	}
	who, err := r.Authenticate(t.Context(), APIKey, secret.Reveal())
	if err != nil {
		t.Fatal(err)
	}
	return k, who
}

func TestWorkEndsWithItsKey(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		r := NewRing(&shelf{})
		k, who := made(t, r, Local(), Request{Name: "a"})
		_, short := made(t, r, Local(), Request{Name: "short", Life: time.Hour})
		_, other := made(t, r, Local(), Request{Name: "b"})
		ctx, done := r.Follow(t.Context(), who)
		defer done()
		still, done2 := r.Follow(t.Context(), other)
		defer done2()
		expires, done3 := r.Follow(t.Context(), short)
		defer done3()
		if Ended(ctx) != nil || Ended(still) != nil {
			t.Fatal("a key has ended that was not revoked")
		}
		if err := r.Revoke(t.Context(), Local(), k.ID); err != nil {
			t.Fatal(err)
		}
		if err := Ended(ctx); errors.KindOf(err) != errors.Unauthenticated ||
			!strings.Contains(errors.Message(err), "revoked") || errors.RemedyOf(err) == "" {
			t.Errorf("after the revocation: %v", err)
		}
		late, done4 := r.Follow(t.Context(), who) // authenticated just before
		defer done4()
		if Ended(late) == nil {
			t.Error("work begins with a key that was revoked")
		}
		time.Sleep(time.Hour)
		synctest.Wait()
		if err := Ended(expires); errors.KindOf(err) != errors.Unauthenticated ||
			!strings.Contains(errors.Message(err), "expired") {
			t.Errorf("after the key's end: %v", err)
		}
		if Ended(still) != nil {
			t.Error("the work of another key ended")
		}
		local, done5 := r.Follow(t.Context(), Local())
		done5()
		done2()
		if Ended(local) != nil || Ended(still) != nil {
			t.Error("the end of work is taken for the end of a key")
		}
		done()
		done3()
		done4()
		if len(r.following) != 0 {
			t.Errorf("%d keys are followed for ever", len(r.following))
		}
		time.Sleep(2 * goneKept)
		k, _ = made(t, r, Local(), Request{Name: "c"})
		if err := r.Revoke(t.Context(), Local(), k.ID); err != nil || len(r.gone) != 1 {
			t.Errorf("%v; %d keys that have ended are remembered", err, len(r.gone))
		}
	})
}

// TestWhatAKeyMakesEndsWithIt checks that a key creates nothing that expires later than the key itself, by any path.
func TestWhatAKeyMakesEndsWithIt(t *testing.T) {
	t.Parallel()
	now := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	r := NewRing(&shelf{})
	r.now = func() time.Time { return now }
	end := now.Add(time.Hour)
	k, who := made(t, r, Local(), Request{Name: "admin", Role: Admin, Life: time.Hour})

	child, as := made(t, r, who, Request{Name: "child", Role: Admin})
	if !child.Expires.Equal(end) || child.MadeBy != k.ID {
		t.Errorf("a key without a life of its own ends at %s, made by %s", child.Expires, child.MadeBy)
	}
	if grandchild, _ := made(t, r, as, Request{Name: "grandchild", Role: Admin}); !grandchild.Expires.Equal(end) {
		t.Errorf("its own key ends at %s", grandchild.Expires)
	}
	if _, _, err := r.Create(t.Context(), who,
		Request{Name: "late", Life: 2 * time.Hour}); errors.KindOf(err) != errors.Denied || errors.RemedyOf(err) == "" {
		t.Errorf("a longer life: %v", err)
	}
	if shorter, _ := made(t, r, who, Request{Name: "shorter",
		Life: time.Minute}); !shorter.Expires.Equal(now.Add(time.Minute)) {
		t.Errorf("a shorter life ends at %s", shorter.Expires)
	}
	signIn := func(by Principal) (Principal, time.Time) {
		t.Helper()
		link, err := r.Link(by)
		if err != nil {
			t.Fatal(err)
		}
		text, ends, err := r.SignIn(t.Context(), link.Reveal())
		if err != nil {
			t.Fatal(err)
		}
		p, err := r.Authenticate(t.Context(), SignIn, text.Reveal())
		if err != nil {
			t.Fatal(err)
		}
		return p, ends
	}
	browser, ends := signIn(who)
	if !ends.Equal(end) {
		t.Errorf("the sign-in ends at %s", ends)
	}
	if again, ends := signIn(browser); !ends.Equal(end) || again.Role != Admin {
		t.Errorf("its own sign-in ends at %s", ends)
	}
	if fromPage, _ := made(t, r, browser, Request{Name: "page", Role: Admin}); !fromPage.Expires.Equal(end) {
		t.Errorf("a key of the sign-in ends at %s", fromPage.Expires)
	}
	if share, _, err := r.Share(t.Context(), browser, "sbx_x:80", 0); err != nil || !share.Expires.Equal(end) {
		t.Errorf("a link to a port ends at %s: %v", share.Expires, err)
	}
	// People who can open the socket, and their sign-ins, make keys without an expiry. Their sign-ins do not renew one
	// another.
	person, ends := signIn(Local())
	if !ends.Equal(now.Add(signInLife)) {
		t.Errorf("a person's sign-in ends at %s", ends)
	}
	if forever, _ := made(t, r, person, Request{Name: "forever"}); !forever.Expires.IsZero() {
		t.Errorf("a person's key ends at %s", forever.Expires)
	}
	now = now.Add(24 * time.Hour)
	if _, ends := signIn(person); !ends.Equal(person.Expires) {
		t.Errorf("a sign-in made by one ends at %s", ends)
	}
}

// TestSignInsHaveTheRightsOfTheirKey checks that a sign-in and its own sign-ins have the role and the scopes of the key
// that made the link, and no others.
func TestSignInsHaveTheRightsOfTheirKey(t *testing.T) {
	t.Parallel()
	r := NewRing(&shelf{})
	_, as := made(t, r, Local(), Request{Name: "reader", Account: "acme", Role: Admin, Scopes: []Scope{Read}})
	for i := range 2 {
		link, err := r.Link(as)
		if err != nil {
			t.Fatal(err)
		}
		text, _, err := r.SignIn(t.Context(), link.Reveal())
		if err != nil {
			t.Fatal(err)
		}
		if as, err = r.Authenticate(t.Context(), SignIn, text.Reveal()); err != nil {
			t.Fatal(err)
		}
		if !slices.Equal(as.Scopes, []Scope{Read}) || as.Role != Admin || as.Account != "acme" {
			t.Errorf("sign-in %d is %+v", i, as)
		}
	}
}

// TestSignInLinksEndWithTheirKey checks that an unused sign-in link expires with the key that made it.
func TestSignInLinksEndWithTheirKey(t *testing.T) {
	t.Parallel()
	now := time.Now()
	r := NewRing(&shelf{})
	r.now = func() time.Time { return now }
	_, brief := made(t, r, Local(), Request{Name: "brief", Role: Admin, Life: time.Minute})
	k, revoked := made(t, r, Local(), Request{Name: "revoked", Role: Admin})
	for name, by := range map[string]Principal{"expired": brief, "revoked": revoked} {
		link, err := r.Link(by)
		if err != nil {
			t.Fatal(err)
		}
		if name == "expired" {
			now = now.Add(2 * time.Minute)
		} else if err := r.Revoke(t.Context(), Local(), k.ID); err != nil {
			t.Fatal(err)
		}
		if _, _, err := r.SignIn(t.Context(), link.Reveal()); errors.KindOf(err) != errors.Unauthenticated {
			t.Errorf("a link of a key that has %s: %v", name, err)
		}
	}
	// Objects made while the key is revoked end, too.
	if _, _, err := r.SignInAs(t.Context(), revoked); errors.KindOf(err) != errors.Unauthenticated {
		t.Errorf("a sign-in with a key that was revoked: %v", err)
	}
	if all, err := r.store.Keys(t.Context(), "", SignIn); err != nil || len(all) != 0 {
		t.Errorf("sign-ins stay: %v, %v", all, err)
	}
}

// TestRevocationReachesSignInsAndLinks checks that sign-ins and links act for the key that made them and are revoked
// with it, and that other keys are not.
func TestRevocationReachesSignInsAndLinks(t *testing.T) {
	t.Parallel()
	r := NewRing(&shelf{})
	k, who := made(t, r, Local(), Request{Name: "admin", Role: Admin})
	_, kept := made(t, r, who, Request{Name: "others"})
	text, _, err := r.SignInAs(t.Context(), who)
	if err != nil {
		t.Fatal(err)
	}
	browser, err := r.Authenticate(t.Context(), SignIn, text.Reveal())
	if err != nil {
		t.Fatal(err)
	}
	_, shared, err := r.Share(t.Context(), browser, "sbx_x:80", 0)
	if err != nil {
		t.Fatal(err)
	}
	visitor, err := r.Authenticate(t.Context(), Link, shared.Reveal())
	if err != nil {
		t.Fatal(err)
	}
	var streams []context.Context
	for _, p := range []Principal{browser, visitor, kept} {
		ctx, done := r.Follow(t.Context(), p)
		defer done()
		streams = append(streams, ctx)
	}
	if err := r.Revoke(t.Context(), Local(), k.ID); err != nil {
		t.Fatal(err)
	}
	if Ended(streams[0]) == nil || Ended(streams[1]) == nil || Ended(streams[2]) != nil {
		t.Errorf("%v %v %v", Ended(streams[0]), Ended(streams[1]), Ended(streams[2]))
	}
	if _, err := r.Authenticate(t.Context(), SignIn, text.Reveal()); errors.KindOf(err) != errors.Unauthenticated {
		t.Errorf("the sign-in: %v", err)
	}
	if _, err := r.Authenticate(t.Context(), Link, shared.Reveal()); errors.KindOf(err) != errors.Unauthenticated {
		t.Errorf("the link: %v", err)
	}
	// A sign-out, and a revoked link, end the streams, too.
	text, _, err = r.SignInAs(t.Context(), Local())
	if err != nil {
		t.Fatal(err)
	}
	if browser, err = r.Authenticate(t.Context(), SignIn, text.Reveal()); err != nil {
		t.Fatal(err)
	}
	link, shared, err := r.Share(t.Context(), browser, "sbx_x:80", 0)
	if err != nil {
		t.Fatal(err)
	}
	if visitor, err = r.Authenticate(t.Context(), Link, shared.Reveal()); err != nil {
		t.Fatal(err)
	}
	page, done := r.Follow(t.Context(), browser)
	defer done()
	port, done := r.Follow(t.Context(), visitor)
	defer done()
	if err := errors.Join(r.Unshare(t.Context(), browser, "sbx_x:", link.ID),
		r.SignOut(t.Context(), browser)); err != nil {
		t.Fatal(err)
	}
	if Ended(page) == nil || Ended(port) == nil {
		t.Errorf("%v %v", Ended(page), Ended(port))
	}
}

// TestKeysRevokeThemselves checks that a key can revoke itself, with all sign-ins that it made, although the context of
// its request ends then.
func TestKeysRevokeThemselves(t *testing.T) {
	t.Parallel()
	r := NewRing(&shelf{})
	k, who := made(t, r, Local(), Request{Name: "admin", Role: Admin})
	text, _, err := r.SignInAs(t.Context(), who)
	if err != nil {
		t.Fatal(err)
	}
	request, done := r.Follow(t.Context(), who)
	defer done()
	if err := r.Revoke(request, who, k.ID); err != nil {
		t.Error(err)
	}
	if _, err := r.Authenticate(t.Context(), SignIn, text.Reveal()); errors.KindOf(err) != errors.Unauthenticated {
		t.Errorf("a sign-in of a key that revoked itself: %v", err)
	}
}

func TestRevocationReportsWhatStays(t *testing.T) {
	t.Parallel()
	store := &shelf{}
	r := NewRing(store)
	k, _ := made(t, r, Local(), Request{Name: "admin", Role: Admin})
	store.err = errors.Errorf("the disk is broken")
	if err := r.revokeMade(t.Context(), k); err == nil {
		t.Error("sign-ins that cannot be found are not reported")
	}
}

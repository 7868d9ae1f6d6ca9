package account

import (
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/RelevanceAI/harvest/client/errors"
)

var testSigner = []byte("the server's secret")

// renewed returns the result of Renew by the client "c".
func renewed(t *testing.T, r *Ring, token Tokens) (Tokens, error) {
	t.Helper()
	return Renew(t.Context(), r, testSigner, "c", token.Refresh.Reveal())
}

func granted(t *testing.T, r *Ring, by Principal) Tokens {
	t.Helper()
	out, err := Authorize(t.Context(), r, by, "c", "Claude Code (harvest)", by.Scopes)
	if err != nil {
		t.Fatal(err)
	}
	return out
}

// works reports whether an access token authenticates.
func works(t *testing.T, r *Ring, tokens Tokens) bool {
	t.Helper()
	_, err := Access(t.Context(), r, tokens.Access.Reveal())
	if err != nil && errors.KindOf(err) != errors.Unauthenticated {
		t.Error(err)
	}
	return err == nil
}

func TestGrants(t *testing.T) {
	t.Parallel()
	r, s, now := clock()
	_, admin := made(t, r, Local(), Request{Name: "admin", Role: Admin, Scopes: []Scope{Read, Exec}})
	one := granted(t, r, admin)
	who, err := Access(t.Context(), r, one.Access.Reveal())
	if err != nil || who.Account != Personal || who.Role != Member || !slices.Equal(who.Scopes, []Scope{Exec, Read}) ||
		who.KeyID != one.Grant.KeyID || who.Kind != OAuth || !who.Expires.Equal(now.Add(grantLife)) {
		t.Errorf("%+v, %v", who, err)
	}
	for _, k := range s.keys {
		for _, text := range []string{one.Access.Reveal(), one.Refresh.Reveal()} {
			if strings.Contains(k.Hash+k.Subject+k.Name, text[8:]) {
				t.Errorf("a secret is stored: %+v", k)
			}
		}
	}
	// Tokens are of no other kind.
	for _, text := range []string{one.Access.Reveal(), one.Refresh.Reveal()} {
		for _, kind := range []Kind{APIKey, SignIn, Link} {
			if _, err := r.Authenticate(t.Context(), kind, text); errors.KindOf(err) != errors.Unauthenticated {
				t.Errorf("a token is a %s: %v", kind, err)
			}
		}
	}
	if _, err := Access(t.Context(), r, one.Refresh.Reveal()); errors.KindOf(err) != errors.Unauthenticated {
		t.Errorf("a refresh token gives access: %v", err)
	}
	keys, err := r.List(t.Context(), Local(), false)
	if err != nil || len(keys) != 2 || keys[1].Kind != OAuth ||
		!strings.HasPrefix(keys[1].Name, "Claude-Code-harvest-") {
		t.Errorf("%+v, %v", keys, err)
	}
	if err := r.Revoke(t.Context(), Local(), keys[1].Name); err != nil {
		t.Fatal(err)
	}
	if works(t, r, one) || len(s.keys) != 1 {
		t.Errorf("a revoked grant works, or leaves %d records", len(s.keys))
	}
	if _, err := renewed(t, r, one); errors.KindOf(err) != errors.Unauthenticated {
		t.Errorf("a revoked grant is renewed: %v", err)
	}
	if _, err := Authorize(t.Context(), r, admin, "c", "x", []Scope{Write}); errors.KindOf(err) != errors.Denied {
		t.Errorf("more than the user has: %v", err)
	}
}

// TestRefreshTokensRotate checks that a refresh token is valid once, and that a repeated one ends the grant, also if
// the token is so old that its record is gone.
func TestRefreshTokensRotate(t *testing.T) {
	t.Parallel()
	for name, later := range map[string]int{"the last token": 1, "an older token": 3} {
		r, s, now := clock()
		first := granted(t, r, Local())
		last := first
		for range later {
			*now = now.Add(30 * time.Minute)
			next, err := renewed(t, r, last)
			if err != nil || next.Refresh == last.Refresh || !works(t, r, next) ||
				next.Grant.KeyID != first.Grant.KeyID {
				t.Fatalf("%s: %+v, %v", name, next, err)
			}
			last = next
		}
		if n := len(s.keys); n > 6 {
			t.Errorf("%s: %d records", name, n)
		}
		*now = now.Add(2 * refreshGrace)
		if _, err := Renew(t.Context(), r, testSigner, "other", last.Refresh.Reveal()); errors.KindOf(err) !=
			errors.Unauthenticated || !works(t, r, last) {
			t.Errorf("%s: another client: %v", name, err)
		}
		if _, err := renewed(t, r, first); errors.KindOf(err) != errors.Unauthenticated {
			t.Errorf("%s again: %v", name, err)
		}
		if _, err := renewed(t, r, last); errors.KindOf(err) != errors.Unauthenticated || works(t, r, last) ||
			len(s.keys) != 0 {
			t.Errorf("%s: the grant goes on: %v, %d records", name, err, len(s.keys))
		}
	}
}

// TestRefreshIsIdempotent checks that a client that loses an answer, or has several processes, gets the same token.
func TestRefreshIsIdempotent(t *testing.T) {
	t.Parallel()
	r, s, now := clock()
	first := granted(t, r, Local())
	a, err := renewed(t, r, first)
	if err != nil {
		t.Fatal(err)
	}
	*now = now.Add(refreshGrace)
	b, err := renewed(t, r, first)
	if err != nil || a.Refresh != b.Refresh || a.Access == b.Access || !works(t, r, a) || !works(t, r, b) {
		t.Errorf("again: %v", err)
	}
	all := []Tokens{first, a, b}
	for range accessesAtMost - 2 { // one more than the limit
		next, err := renewed(t, r, first)
		if err != nil {
			t.Fatal(err)
		}
		all = append(all, next)
	}
	for i, one := range all {
		if works(t, r, one) != (i > 0) {
			t.Errorf("token %d of %d: valid: %t", i, len(all), i == 0)
		}
	}
	if len(s.keys) > accessesAtMost+3 {
		t.Errorf("%d records", len(s.keys))
	}
	for _, wrong := range []string{"", "hvr_", first.Access.Reveal(), first.Refresh.Reveal() + "a",
		"hvr_" + strings.Repeat("a", 104)} {
		if _, err := Renew(t.Context(), r, testSigner, "c", wrong); errors.KindOf(err) != errors.Unauthenticated {
			t.Errorf("%q: %v", wrong, err)
		}
	}
}

func TestGrantsExpire(t *testing.T) {
	t.Parallel()
	r, s, now := clock()
	_, short := made(t, r, Local(), Request{Name: "short", Role: Admin, Life: 2 * time.Hour})
	one := granted(t, r, short)
	*now = now.Add(AccessLife)
	if works(t, r, one) {
		t.Error("an access token is valid for too long")
	}
	*now = now.Add(15 * time.Minute)
	next, err := renewed(t, r, one)
	if err != nil || !works(t, r, next) || next.Life != 45*time.Minute || one.Life != AccessLife {
		t.Fatal(next.Life, err)
	}
	*now = now.Add(45 * time.Minute)
	if _, err := renewed(t, r, next); errors.KindOf(err) != errors.Unauthenticated || works(t, r, next) {
		t.Errorf("a grant outlives the key of its user: %v", err)
	}
	last := granted(t, r, Local())
	if len(s.keys) != 4 { // the key, and one grant with two tokens
		t.Errorf("%d records", len(s.keys))
	}
	*now = now.Add(grantLife)
	if _, err := renewed(t, r, last); errors.KindOf(err) != errors.Unauthenticated {
		t.Errorf("a grant never expires: %v", err)
	}
}

// TestGrantsEndWithTheirKey checks that revoking the key or the sign-in with which a user has allowed a client, or the
// key behind that sign-in, revokes the grant, also when the sign-in has long expired.
func TestGrantsEndWithTheirKey(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		wait   time.Duration
		signIn bool // revoke the sign-in, not the key
	}{"key": {}, "key, later": {wait: signInLife + time.Hour}, "sign-in": {signIn: true}} {
		r, _, now := clock()
		k, admin := made(t, r, Local(), Request{Name: "admin", Role: Admin})
		text, _, err := r.SignInAs(t.Context(), admin)
		if err != nil {
			t.Fatal(err)
		}
		browser, err := r.Authenticate(t.Context(), SignIn, text.Reveal())
		if err != nil {
			t.Fatal(err)
		}
		one := granted(t, r, browser)
		*now = now.Add(c.wait)
		r.sweep(t.Context(), SignIn)
		if one, err = renewed(t, r, one); err != nil {
			t.Fatal(name, err)
		}
		ctx, done := r.Follow(t.Context(), one.Grant)
		defer done()
		ref := k.ID
		if c.signIn {
			ref = browser.KeyID
		}
		if err := r.Revoke(t.Context(), Local(), ref); err != nil {
			t.Fatal(err)
		}
		if works(t, r, one) || Ended(ctx) == nil {
			t.Errorf("%s: the grant goes on", name)
		}
		if _, err := Authorize(t.Context(), r, browser, "c", "x", []Scope{Read}); errors.KindOf(err) !=
			errors.Unauthenticated {
			t.Errorf("%s: a new grant: %v", name, err)
		}
	}
}

// signedIn returns the user of a browser that as has signed in.
func signedIn(t *testing.T, r *Ring, as Principal) Principal {
	t.Helper()
	text, _, err := r.SignInAs(t.Context(), as)
	if err != nil {
		t.Fatal(err)
	}
	who, err := r.Authenticate(t.Context(), SignIn, text.Reveal())
	if err != nil {
		t.Fatal(err)
	}
	return who
}

// TestRevocationCanBeRepeated checks that a revocation that fails at any record can be repeated, also after a restart.
func TestRevocationCanBeRepeated(t *testing.T) {
	t.Parallel()
	for _, stuck := range []string{"key_", "sig_", "oau_", "oaa_", "oar_", "lnk_"} {
		r, s, _ := clock()
		k, admin := made(t, r, Local(), Request{Name: "admin", Role: Admin})
		browser := signedIn(t, r, admin)
		one := granted(t, r, browser)
		if _, _, err := r.Share(t.Context(), browser, "sbx_x:80", 0); err != nil {
			t.Fatal(err)
		}
		s.stuck = stuck
		if err := r.Revoke(t.Context(), Local(), k.ID); err == nil {
			t.Errorf("%s: no error", stuck)
		}
		s.stuck = ""
		restarted := NewRing(s)
		restarted.now = r.now
		if err := restarted.Revoke(t.Context(), Local(), k.ID); err != nil || len(s.keys) != 0 ||
			works(t, restarted, one) {
			t.Errorf("%s: again: %v, %d records", stuck, err, len(s.keys))
		}
	}
}

// TestGrantsEndTheirLinks checks that the links which a client has made end with its grant, however that ends, and that
// those of the user stay.
func TestGrantsEndTheirLinks(t *testing.T) {
	t.Parallel()
	for name, end := range map[string]func(*Ring, Tokens) error{
		"revoked": func(r *Ring, one Tokens) error { return r.Revoke(t.Context(), Local(), one.Grant.KeyID) },
		"ended":   func(r *Ring, one Tokens) error { return EndGrant(t.Context(), r, one.Grant) },
		"withdrawn": func(r *Ring, one Tokens) error {
			_, err := Withdraw(t.Context(), r, "c", one.Refresh.Reveal())
			return err
		},
	} {
		r, _, _ := clock()
		_, admin := made(t, r, Local(), Request{Name: "admin", Role: Admin})
		one := granted(t, r, admin)
		client, err := Access(t.Context(), r, one.Access.Reveal())
		if err != nil {
			t.Fatal(err)
		}
		own, _, err := r.Share(t.Context(), admin, "sbx_x:80", 0)
		if err != nil {
			t.Fatal(err)
		}
		if _, _, err := r.Share(t.Context(), client, "sbx_x:80", 0); err != nil {
			t.Fatal(err)
		}
		if err := end(r, one); err != nil {
			t.Errorf("%s: %v", name, err)
		}
		left, err := r.Shares(t.Context(), admin, "")
		if err != nil || len(left) != 1 || left[0].ID != own.ID {
			t.Errorf("%s: %d links are left, %v", name, len(left), err)
		}
	}
}

// TestGrantsEndWithTheRootKey checks that revoking a key ends the grant of a sign-in that a link of another sign-in
// made, also when that one has signed out.
func TestGrantsEndWithTheRootKey(t *testing.T) {
	t.Parallel()
	r, s, _ := clock()
	k, admin := made(t, r, Local(), Request{Name: "admin", Role: Admin})
	first := signedIn(t, r, admin)
	second := signedIn(t, r, first)
	one, unused := granted(t, r, second), signedIn(t, r, second)
	if err := r.SignOut(t.Context(), first); err != nil || !works(t, r, one) {
		t.Fatal(err)
	}
	if err := r.Revoke(t.Context(), Local(), k.ID); err != nil || works(t, r, one) || len(s.keys) != 0 {
		t.Errorf("%v, %d records", err, len(s.keys))
	}
	if _, err := Authorize(t.Context(), r, unused, "c", "x", []Scope{Read}); errors.KindOf(err) !=
		errors.Unauthenticated {
		t.Errorf("a new grant: %v", err)
	}
}

// TestGrantsNameThePerson checks that a grant records who gave it, and by which sign-in.
func TestGrantsNameThePerson(t *testing.T) {
	t.Parallel()
	r, s, _ := clock()
	ann := Principal{Account: "acme", Role: Member, Scopes: Scopes, Subject: "ann@example.org"}
	browser := signedIn(t, r, ann)
	one := granted(t, r, browser)
	who, err := Access(t.Context(), r, one.Access.Reveal())
	if err != nil || who.Subject != ann.Subject || one.Grant.Subject != ann.Subject {
		t.Errorf("%+v, %v", who, err)
	}
	if g := s.keys[1]; g.Kind != OAuth || g.Subject != ann.Subject || g.MadeBy != browser.KeyID {
		t.Errorf("%+v", g)
	}
}

// TestAccessNeedsItsGrant checks that a token whose grant has no record is not valid.
func TestAccessNeedsItsGrant(t *testing.T) {
	t.Parallel()
	r, s, _ := clock()
	one := granted(t, r, Local())
	if err := s.DeleteKey(t.Context(), one.Grant.KeyID); err != nil {
		t.Fatal(err)
	}
	if works(t, r, one) {
		t.Error("an access token works without its grant")
	}
}

func TestWithdraw(t *testing.T) {
	t.Parallel()
	for name, token := range map[string]func(Tokens) string{
		"refresh": func(t Tokens) string { return t.Refresh.Reveal() },
		"access":  func(t Tokens) string { return t.Access.Reveal() },
	} {
		r, s, _ := clock()
		_, who := made(t, r, Local(), Request{Name: "a"})
		one := granted(t, r, who)
		for _, c := range [][2]string{{"other", token(one)}, {"c", "x"}, {"c", ""}, {"", token(one)}} {
			if got, err := Withdraw(t.Context(), r, c[0], c[1]); err != nil || got.KeyID != "" || !works(t, r, one) {
				t.Errorf("%s: %q: %+v, %v", name, c, got, err)
			}
		}
		got, err := Withdraw(t.Context(), r, "c", token(one))
		if err != nil || got.KeyID != one.Grant.KeyID || works(t, r, one) || len(s.keys) != 1 {
			t.Errorf("%s: %+v, %v, %d records", name, got, err, len(s.keys))
		}
	}
}

func TestGrantsAreLimited(t *testing.T) {
	t.Parallel()
	r, _, _ := clock()
	for range grantsAtMost {
		granted(t, r, Local())
	}
	if _, err := Authorize(t.Context(), r, Local(), "c", "x", []Scope{Read}); errors.KindOf(err) != errors.Exhausted ||
		errors.RemedyOf(err) == "" {
		t.Errorf("%v", err)
	}
}

// TestRefusalsAreNotErrorsOfTheStore checks that a full disk can be told from a full account.
func TestRefusalsAreNotErrorsOfTheStore(t *testing.T) {
	t.Parallel()
	r, s, _ := clock()
	var refusal *Refusal
	for range grantsAtMost {
		granted(t, r, Local())
	}
	if _, err := Authorize(t.Context(), r, Local(), "c", "x", []Scope{Read}); !errors.As(err, &refusal) {
		t.Errorf("a full account: %v", err)
	}
	if _, err := Authorize(t.Context(), r, Principal{}, "c", "x", []Scope{Read}); !errors.As(err, &refusal) {
		t.Errorf("a missing scope: %v", err)
	}
	s.keys, s.err = nil, errors.Newf(errors.Exhausted, "the disk is full")
	if _, err := Authorize(t.Context(), r, Local(), "c", "x", []Scope{Read}); errors.As(err, &refusal) ||
		errors.KindOf(err) != errors.Exhausted {
		t.Errorf("a full disk: %v", err)
	}
}

func TestGrantsOnAStoreThatFails(t *testing.T) {
	t.Parallel()
	r, s, _ := clock()
	one := granted(t, r, Local())
	s.err = errors.Errorf("disk")
	_, access := Access(t.Context(), r, one.Access.Reveal())
	_, renew := renewed(t, r, one)
	_, authorize := Authorize(t.Context(), r, Local(), "c", "x", []Scope{Read})
	_, withdraw := Withdraw(t.Context(), r, "c", one.Refresh.Reveal())
	for name, err := range map[string]error{"access": access, "renew": renew, "authorize": authorize,
		"withdraw": withdraw, "end": EndGrant(t.Context(), r, one.Grant)} {
		if errors.KindOf(err) != errors.Internal {
			t.Errorf("%s: %v", name, err)
		}
	}
}

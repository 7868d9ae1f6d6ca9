package account

import (
	"context"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/RelevanceAI/harvest/client/errors"
)

// shelf is a Store for one test at a time; package storetest proves the real ones.
type shelf struct {
	keys  []Key
	err   error
	stuck string // records whose ID begins with this cannot be deleted; "": none
}

func (s *shelf) InsertKey(_ context.Context, k Key) error {
	if slices.ContainsFunc(s.keys, func(one Key) bool { return one.Hash == k.Hash }) {
		return NameTaken(k.Name)
	}
	s.keys = append(s.keys, k)
	return s.err
}

func (s *shelf) KeyByHash(_ context.Context, hash string) (Key, error) {
	for _, k := range s.keys {
		if k.Hash == hash {
			return k, s.err
		}
	}
	return Key{}, errors.Join(s.err, errors.Newf(errors.NotFound, "none"))
}

func (s *shelf) Keys(ctx context.Context, owner string, kind Kind) ([]Key, error) {
	var found []Key
	for _, k := range s.keys {
		if k.Kind == kind && (owner == "" || owner == k.Account) {
			found = append(found, k)
		}
	}
	slices.Reverse(found)
	return found, errors.Join(s.err, ctx.Err())
}

func (s *shelf) KeyUsed(_ context.Context, id string, at time.Time) error {
	for i := range s.keys {
		if s.keys[i].ID == id {
			s.keys[i].LastUsed = at
		}
	}
	return s.err
}

func (s *shelf) DeleteKey(ctx context.Context, id string) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	if s.stuck != "" && strings.HasPrefix(id, s.stuck) {
		return errors.Errorf("stuck")
	}
	before := len(s.keys)
	s.keys = slices.DeleteFunc(s.keys, func(k Key) bool { return k.ID == id })
	if len(s.keys) == before {
		return NoKey(id)
	}
	return s.err
}

// clock is a Ring whose clock moves only when the test moves it.
func clock() (*Ring, *shelf, *time.Time) {
	s, now := &shelf{}, time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	r := NewRing(s)
	r.now = func() time.Time { return now }
	return r, s, &now
}

// mission: A7
func TestKeysLetIn(t *testing.T) {
	t.Parallel()
	r, s, now := clock()
	k, secret, err := r.Create(t.Context(), Local(), Request{Name: "ci", Scopes: []Scope{Read, Exec, Read},
		Life: time.Hour})
	if err != nil {
		t.Fatal(err)
	}
	text := secret.Reveal()
	if !strings.HasPrefix(text, "hv_") || len(text) != 3+52 || strings.Contains(secret.String(), text) {
		t.Errorf("the secret is %q", text)
	}
	if k.Role != Member || k.Account != Personal || !slices.Equal(k.Scopes, []Scope{Exec, Read}) ||
		!k.Expires.Equal(now.Add(time.Hour)) {
		t.Errorf("key: %+v", k)
	}
	if strings.Contains(k.Hash, text) || len(k.Hash) != 64 {
		t.Errorf("the hash is %q", k.Hash)
	}
	p, err := r.Authenticate(t.Context(), APIKey, text)
	if err != nil || p.Account != Personal || p.KeyID != k.ID || p.May(Exec) != nil ||
		errors.KindOf(p.May(Write)) != errors.Denied {
		t.Errorf("principal: %+v, %v", p, err)
	}
	if !s.keys[0].LastUsed.Equal(*now) {
		t.Errorf("last used %v", s.keys[0].LastUsed)
	}
	*now = now.Add(time.Hour)
	if _, err := r.Authenticate(t.Context(), APIKey, text); errors.KindOf(err) != errors.Unauthenticated ||
		!strings.Contains(errors.Message(err), "expired") {
		t.Errorf("at its end: %v", err)
	}
	*now = now.Add(-2 * time.Hour) // the clock is set back
	if _, err := r.Authenticate(t.Context(), APIKey, text); err != nil {
		t.Errorf("before its end: %v", err)
	}
	if err := r.Revoke(t.Context(), Local(), "ci"); err != nil {
		t.Fatal(err)
	}
	if _, err := r.Authenticate(t.Context(), APIKey, text); errors.KindOf(err) != errors.Unauthenticated {
		t.Errorf("revoked: %v", err)
	}
	if err := r.Revoke(t.Context(), Local(), "ci"); errors.KindOf(err) != errors.NotFound {
		t.Errorf("revoked again: %v", err)
	}
	for _, wrong := range []string{"", "hv_", text + "a", text[:54] + "!", "hvs_" + text[3:], strings.ToUpper(text),
		"hv_" + strings.Repeat("a", 52)} {
		if _, err := r.Authenticate(t.Context(), APIKey, wrong); errors.KindOf(err) != errors.Unauthenticated {
			t.Errorf("%q: %v", wrong, err)
		}
	}
}

func TestUseIsRecordedOnceAMinute(t *testing.T) {
	t.Parallel()
	r, s, now := clock()
	_, secret, err := r.Create(t.Context(), Local(), Request{Name: "a"})
	if err != nil {
		t.Fatal(err)
	}
	first := *now
	for range 3 {
		if _, err := r.Authenticate(t.Context(), APIKey, secret.Reveal()); err != nil {
			t.Fatal(err)
		}
		*now = now.Add(29 * time.Second)
	}
	if !s.keys[0].LastUsed.Equal(first) {
		t.Errorf("used at %v, want %v", s.keys[0].LastUsed, first)
	}
	if _, err := r.Authenticate(t.Context(), APIKey, secret.Reveal()); err != nil || !s.keys[0].LastUsed.Equal(*now) {
		t.Errorf("used at %v, %v", s.keys[0].LastUsed, err)
	}
	s.err = errors.Errorf("disk")
	if _, err := r.Authenticate(t.Context(), APIKey, secret.Reveal()); errors.KindOf(err) != errors.Internal {
		t.Errorf("a store that fails: %v", err)
	}
}

func TestWhoMayMakeKeys(t *testing.T) {
	t.Parallel()
	r, _, _ := clock()
	admin := Principal{Account: "acme", Role: Admin, Scopes: []Scope{Read, Write}}
	member := Principal{Account: Personal, Role: Member, Scopes: Scopes}
	for name, c := range map[string]struct {
		by   Principal
		req  Request
		kind errors.Kind
	}{
		"operator":        {Local(), Request{Name: "a", Role: Admin}, ""},
		"another account": {Local(), Request{Name: "a", Account: "acme"}, ""},
		"admin":           {admin, Request{Name: "b"}, ""},
		"member":          {member, Request{Name: "c"}, errors.Denied},
		"nobody":          {Principal{}, Request{Name: "c"}, errors.Denied},
		"elsewhere":       {admin, Request{Name: "c", Account: Personal}, errors.Denied},
		"more scope":      {admin, Request{Name: "c", Scopes: []Scope{Exec}}, errors.Denied},
		"no scope":        {admin, Request{Name: "c", Scopes: []Scope{"all"}}, errors.Invalid},
		"no name":         {admin, Request{}, errors.Invalid},
		"long name":       {admin, Request{Name: strings.Repeat("a", 64)}, errors.Invalid},
		"no role":         {admin, Request{Name: "c", Role: "root"}, errors.Invalid},
		"account's name":  {Local(), Request{Name: "c", Account: "A~b"}, errors.Invalid},
		"ended":           {admin, Request{Name: "c", Life: -1}, errors.Invalid},
		"too long a life": {admin, Request{Name: "c", Life: longestLife + 1}, errors.Invalid},
	} {
		k, _, err := r.Create(t.Context(), c.by, c.req)
		if errors.KindOf(err) != c.kind {
			t.Errorf("%s: %v", name, err)
		}
		if name == "admin" && !slices.Equal(k.Scopes, admin.Scopes) {
			t.Errorf("an admin gives %v", k.Scopes)
		}
	}
	if _, err := r.List(t.Context(), member, false); errors.KindOf(err) != errors.Denied {
		t.Errorf("a member lists: %v", err)
	}
	if _, err := r.List(t.Context(), admin, true); errors.KindOf(err) != errors.Denied {
		t.Errorf("an admin lists all: %v", err)
	}
	mine, err := r.List(t.Context(), admin, false)
	if err != nil || len(mine) != 2 {
		t.Errorf("acme's: %v, %v", mine, err)
	}
	all, err := r.List(t.Context(), Local(), true)
	if err != nil || len(all) != 3 {
		t.Errorf("all: %v, %v", all, err)
	}
	for _, k := range all {
		want := errors.NotFound
		if k.Account == "acme" {
			want = ""
		}
		if err := r.Revoke(t.Context(), admin, k.ID); errors.KindOf(err) != want {
			t.Errorf("acme's admin revokes %s of %s: %v", k.Name, k.Account, err)
		}
	}
}

func TestLinksAreGoodOnce(t *testing.T) {
	t.Parallel()
	r, s, now := clock()
	link, err := r.Link(Local())
	if err != nil {
		t.Fatal(err)
	}
	secret, expires, err := r.SignIn(t.Context(), link.Reveal())
	if err != nil || !expires.Equal(now.Add(signInLife)) {
		t.Fatalf("%v, %v", expires, err)
	}
	if _, _, err := r.SignIn(t.Context(), link.Reveal()); errors.KindOf(err) != errors.Unauthenticated {
		t.Errorf("a second time: %v", err)
	}
	p, err := r.Authenticate(t.Context(), SignIn, secret.Reveal())
	if err != nil || p.MustBeOperator() != nil || p.Kind != SignIn {
		t.Errorf("signed in as %+v, %v", p, err)
	}
	if _, err := r.Authenticate(t.Context(), APIKey, secret.Reveal()); errors.KindOf(err) != errors.Unauthenticated {
		t.Errorf("as a key: %v", err)
	}
	if err := r.SignOut(t.Context(), Local()); errors.KindOf(err) != errors.Invalid {
		t.Errorf("sign out without a sign-in: %v", err)
	}
	for range 2 {
		if err := r.SignOut(t.Context(), p); err != nil {
			t.Error(err)
		}
	}
	if _, err := r.Authenticate(t.Context(), SignIn, secret.Reveal()); errors.KindOf(err) != errors.Unauthenticated {
		t.Errorf("signed out: %v", err)
	}
	old, err := r.Link(Local())
	if err != nil {
		t.Fatal(err)
	}
	*now = now.Add(linkLife)
	if err := r.CheckLink(old.Reveal()); errors.KindOf(err) != errors.Unauthenticated {
		t.Errorf("an old link that is only shown: %v", err)
	}
	if _, _, err := r.SignIn(t.Context(), old.Reveal()); errors.KindOf(err) != errors.Unauthenticated {
		t.Errorf("an old link: %v", err)
	}
	for range linksAtMost {
		if link, err = r.Link(Local()); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := r.Link(Local()); errors.KindOf(err) != errors.Exhausted {
		t.Errorf("too many: %v", err)
	}
	if _, err := r.Link(Principal{Role: Member}); errors.KindOf(err) != errors.Denied {
		t.Errorf("a member's link: %v", err)
	}
	// An admin ends another member's sign-ins.
	secret, _, err = r.SignInAs(t.Context(), Principal{Account: "acme", Role: Member, Scopes: Scopes,
		Subject: "ann@example.org"})
	if err != nil {
		t.Fatal(err)
	}
	p, err = r.Authenticate(t.Context(), SignIn, secret.Reveal())
	if err != nil || p.Subject != "ann@example.org" || p.MustBeAdmin() == nil {
		t.Errorf("signed in as %+v, %v", p, err)
	}
	if err := r.Revoke(t.Context(), Principal{Account: "other", Role: Admin},
		p.KeyID); errors.KindOf(err) != errors.NotFound {
		t.Errorf("another account's admin: %v", err)
	}
	if err := r.Revoke(t.Context(), Local(), p.KeyID); err != nil {
		t.Error(err)
	}
	if _, err := r.Authenticate(t.Context(), SignIn, secret.Reveal()); errors.KindOf(err) != errors.Unauthenticated {
		t.Errorf("ended by an admin: %v", err)
	}
	if secret, _, err = r.SignIn(t.Context(), link.Reveal()); err != nil {
		t.Fatal(err)
	}
	*now = now.Add(signInLife)
	if _, err := r.Authenticate(t.Context(), SignIn, secret.Reveal()); errors.KindOf(err) != errors.Unauthenticated {
		t.Errorf("an old sign-in: %v", err)
	}
	fresh, err := r.Link(Local()) // expired ones are swept at a sign-in
	if err != nil {
		t.Fatal(err)
	}
	if _, _, err := r.SignIn(t.Context(), fresh.Reveal()); err != nil || len(s.keys) != 1 {
		t.Errorf("%d sign-ins are left, %v", len(s.keys), err)
	}
}

func TestOwner(t *testing.T) {
	t.Parallel()
	if Owner(Personal) != "" || Owner("acme") != "acme" {
		t.Error("owners")
	}
}

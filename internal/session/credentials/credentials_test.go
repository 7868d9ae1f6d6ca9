package credentials

import (
	"context"
	"testing"

	"github.com/RelevanceAI/harvest/internal/base/secret"
	"github.com/RelevanceAI/harvest/internal/base/tasks"
	"github.com/RelevanceAI/harvest/internal/session/shell"
)

// TestLogins checks that a token is used only for the host that its secret names, over https, and that a repository
// with an SSH address is cloned from there.
// mission: E7
func TestLogins(t *testing.T) {
	t.Parallel()
	l := Logins{{where: "https://github.com/o/n", user: "app"}, {where: "https://git.example.org", user: "all"}}
	for address, want := range map[string]string{
		"https://github.com/o/n.git": "app", "git@github.com:o/n.git": "app", "https://github.com/o/other": "",
		"https://git.example.org/any/thing":  "all",
		"ssh://git@git.example.org:2222/a/b": "all", "http://git.example.org/a/b": "", "git://github.com/o/n": "",
		"ext::x": "", "https://git.example.org.evil.org/a/b": "",
	} {
		if got, _ := l.of(address); got.user != want {
			t.Errorf("%s: %q, want %q", address, got.user, want)
		}
	}
	for address, want := range map[string]string{
		"git@github.com:o/n.git": "https://github.com/o/n", "git@github.com:o/other": "",
		"ssh://git@git.example.org:2222/a/b": "https://git.example.org/a/b",
		"https://github.com/o/n":             "", "x": "",
	} {
		if got := l.HTTPS(address); got != want {
			t.Errorf("%s: %q, want %q", address, got, want)
		}
	}
	if _, ok := (Logins{{where: "http://github.com"}}).of("http://github.com/o/n"); ok {
		t.Error("a token would be sent without TLS")
	}
	if l := (Logins{}); !l.expires().IsZero() {
		t.Error("nothing ends")
	}
	req := Request{URLs: []string{"https://github.com/o/n"}}
	if l, err := (Source{}).Find(t.Context(), req); l != nil || err != nil {
		t.Errorf("no secrets: %v, %v", l, err)
	}
	req.Secret = None
	if l, err := (Source{Secrets: new(secret.Vault)}).Find(t.Context(), req); l != nil || err != nil {
		t.Errorf("none wanted: %v, %v", l, err)
	}
	err := Logins{{where: "https://x", user: "u", password: "a\nhttps://y\tu\tp"}}.Put(t.Context(), shell.Sandbox{})
	if err == nil {
		t.Error("a token with a line end was taken")
	}
}

// TestKeeperAfterEnd checks that a Keeper releases the logins that it replaces, those that it has when it ends, and
// those that it takes afterwards.
func TestKeeperAfterEnd(t *testing.T) {
	t.Parallel()
	released := ""
	one := func(name string) Logins {
		return Logins{{where: "https://" + name, release: func() { released += name + " " }}}
	}
	var work tasks.Group
	k := NewKeeper(t.Context(), &work, "ses_1", func(context.Context) (Logins, error) { return one("found"), nil })
	k.Take(one("first"))
	k.Take(one("second"))
	if released != "first " {
		t.Errorf("replaced: %q", released)
	}
	k.Find()
	work.Close()
	k.End(t.Context())
	k.Take(one("late"))
	if want := "first second found late "; released != want {
		t.Errorf("released: %q, want %q", released, want)
	}
}

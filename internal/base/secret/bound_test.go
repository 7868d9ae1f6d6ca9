package secret_test

import (
	"context"
	"maps"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/RelevanceAI/harvest/client/errors"
	"github.com/RelevanceAI/harvest/internal/base/binding"
	"github.com/RelevanceAI/harvest/internal/base/secret"
)

func preset(t *testing.T, name string) *binding.Binding {
	t.Helper()
	b, err := binding.Preset(name)
	if err != nil {
		t.Fatal(err)
	}
	return &b
}

func setBound(t *testing.T, v *secret.Vault, p secret.Pairs, how secret.How, b *binding.Binding) secret.Secret {
	t.Helper()
	s, err := v.SetBound(t.Context(), account, "github", p, how, b)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

func credentials(t *testing.T, v *secret.Vault) []secret.Credential {
	t.Helper()
	all, err := v.Credentials(t.Context(), account, "github", "none")
	if err != nil {
		t.Fatal(err)
	}
	return all
}

const token, token2 = "ghp_0123456789abcdefghijABCDEFGHIJ012345", "ghp_another0123456789abcdefghijABCDEFGHI"

// TestBoundSecretsAreLentAsPlaceholders checks what a borrower has of a bound secret, and that the placeholder stays
// the same while values and bindings change.
//
// mission: 9.1
func TestBoundSecretsAreLentAsPlaceholders(t *testing.T) {
	t.Parallel()
	v := newHome(t).open(t)
	github := preset(t, "github")
	made := setBound(t, v, secret.Pairs{"GITHUB_TOKEN": token, "GITHUB_HOST": "github.com"}, secret.Create, github)
	if diff := cmp.Diff(github, made.Binding); diff != "" {
		t.Errorf("the binding (-want +got):\n%s", diff)
	}
	p, bound, err := v.Lend(t.Context(), account, "sbx_a", secret.Bound, "github")
	if err != nil || len(bound) != 1 || bound[0] != "github" {
		t.Fatalf("got %q, %v", bound, err)
	}
	held := p["GITHUB_TOKEN"]
	if held == token || !strings.HasPrefix(held, "ghp_") || len(held) != len(token) ||
		p["GITHUB_HOST"] != "github.com" {
		t.Errorf("got %q, %q", held, p["GITHUB_HOST"])
	}
	want := []secret.Credential{{Secret: "github", Key: "GITHUB_TOKEN", Placeholder: held, Value: token,
		Binding: *github}}
	if diff := cmp.Diff(want, credentials(t, v)); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	p, bound, err = v.Lend(t.Context(), account, "sbx_b", secret.Revealed, "github")
	if err != nil || p["GITHUB_TOKEN"] != token || len(bound) > 0 {
		t.Errorf("revealed: got %q, %q, %v", p["GITHUB_TOKEN"], bound, err)
	}

	setBound(t, v, secret.Pairs{"GITHUB_TOKEN": token2}, secret.Merge, nil)
	if got := credentials(t, v); len(got) != 1 || got[0].Placeholder != held || got[0].Value != token2 {
		t.Errorf("after a new value: got %+v", got)
	}
	github.Elsewhere = binding.End
	setBound(t, v, nil, secret.Merge, github)
	if got := credentials(t, v); len(got) != 1 || got[0].Placeholder != held ||
		got[0].Binding.Elsewhere != binding.End {
		t.Errorf("after a new binding: got %+v", got)
	}
	setBound(t, v, secret.Pairs{"GITHUB_TOKEN": token}, secret.Replace, nil)
	if got := credentials(t, v); len(got) != 1 || got[0].Placeholder != held || got[0].Value != token {
		t.Errorf("after a replacement: got %+v", got)
	}
	made = setBound(t, v, nil, secret.Merge, &binding.Binding{})
	// Who has a placeholder of a known service goes on.
	if got := credentials(t, v); made.Binding != nil || len(got) != 1 || got[0].Placeholder != held {
		t.Errorf("after the end of the binding: got %+v, %+v", made.Binding, got)
	}
	setBound(t, v, secret.Pairs{"OTHER": token}, secret.Replace, nil)
	if got := credentials(t, v); len(got) > 0 {
		t.Errorf("of no known service, and not bound: got %+v", got)
	}
	if err := v.Delete(t.Context(), account, "github"); err != nil || len(credentials(t, v)) > 0 {
		t.Errorf("after the deletion: %v", err)
	}
}

// TestKnownServicesAreBrokered checks what borrowers on these terms have of secrets without a binding, those of the
// environment among them, and that placeholders stay through a restart and a new key.
func TestKnownServicesAreBrokered(t *testing.T) {
	t.Parallel()
	w := newHome(t)
	w.environ = []string{"NPM_TOKEN=npm_x", "GITHUB_TOKEN=" + token, "LINEAR_API_KEY=lin_api_0123456789"}
	v := w.open(t)
	set(t, v, "npm", secret.Pairs{"NPM_TOKEN": "npm_0123456789abcdefghijABCDEFGHIJ012345"}, secret.Create)
	set(t, v, "enterprise", secret.Pairs{"GH_TOKEN": token, "GITHUB_HOST": "git.example.org"}, secret.Create)
	set(t, v, "forge", secret.Pairs{"GIT_TOKEN": "forge-token", "GIT_HOST": "forge.example.org:8443"}, secret.Create)
	set(t, v, "mixed", secret.Pairs{"GIT_PASSWORD": "of-git", "GIT_HOST": "git.example.org", "OTHER": "of-another"},
		secret.Create)
	names := []string{"enterprise", "forge", "github", "linear", "mixed", "npm"}
	lend := func(borrower string, terms secret.Terms) (secret.Pairs, []string) {
		t.Helper()
		p, bound, err := v.Lend(t.Context(), account, borrower, terms, names...)
		if err != nil {
			t.Fatal(err)
		}
		return p, bound
	}
	if p, bound := lend("sbx_a", secret.Bound); len(bound) > 0 || p["GITHUB_TOKEN"] != token {
		t.Errorf("terms of bound secrets: %q have placeholders", bound)
	}
	p, bound := lend("sbx_b", secret.Brokered)
	if !slices.Equal(bound, []string{"enterprise", "forge", "github", "linear", "npm"}) || p["GITHUB_TOKEN"] == token ||
		!strings.HasPrefix(p["GITHUB_TOKEN"], "ghp_") || !strings.HasPrefix(p["NPM_TOKEN"], "npm_") ||
		p["GH_TOKEN"] == token || p["GIT_TOKEN"] == "forge-token" || p["GIT_PASSWORD"] != "of-git" ||
		!strings.HasPrefix(p["LINEAR_API_KEY"], "lin_") || p["LINEAR_API_KEY"] == "lin_api_0123456789" {
		t.Errorf("%q have placeholders; the borrower has %q", bound, map[string]string(p))
	}
	hosts := map[string]string{}
	named, err := v.Credentials(t.Context(), account, "enterprise", "forge", "mixed")
	for _, c := range named {
		for _, place := range c.Binding.Places {
			hosts[c.Key] += place.Host.String() + " "
		}
	}
	if want := map[string]string{"GH_TOKEN": "git.example.org api.git.example.org ",
		"GIT_TOKEN": "forge.example.org:8443 "}; err != nil || !maps.Equal(hosts, want) {
		t.Errorf("got %v, %v, want %v", hosts, err, want)
	}
	setBoundTo := func(name string) {
		t.Helper()
		if _, err := v.SetBound(t.Context(), account, name, nil, secret.Merge, preset(t, "github")); err != nil {
			t.Fatal(err)
		}
	}
	setBoundTo("enterprise")
	if _, err := v.Rekey(t.Context()); err != nil {
		t.Fatal(err)
	}
	v = w.open(t)
	all, err := v.Credentials(t.Context(), account, "github", "npm")
	if err != nil || len(all) != 2 || all[0].Placeholder != p["GITHUB_TOKEN"] || all[0].Value != token ||
		all[1].Placeholder != p["NPM_TOKEN"] {
		t.Errorf("after a restart: got %+v, %v", all, err)
	}
}

func TestBindingsThatCannotBe(t *testing.T) {
	t.Parallel()
	v := newHome(t).open(t)
	bad := &binding.Binding{Places: []binding.Place{{}}}
	_, invalid := v.SetBound(t.Context(), account, "github", secret.Pairs{"A": "value"}, secret.Create, bad)
	_, missing := v.SetBound(t.Context(), account, "github", nil, secret.Merge, preset(t, "github"))
	for name, c := range map[string]struct {
		err  error
		kind errors.Kind
	}{"an invalid binding": {invalid, errors.Invalid}, "no secret to bind": {missing, errors.NotFound}} {
		if !errors.Is(c.err, c.kind) {
			t.Errorf("%s: got %v, want %v", name, c.err, c.kind)
		}
	}
}

func TestNotify(t *testing.T) {
	t.Parallel()
	v := newHome(t).open(t)
	var got []string
	v.Notify(func(account, name string) { got = append(got, account+" "+name) })
	setBound(t, v, secret.Pairs{"A": "value"}, secret.Create, nil)
	setBound(t, v, nil, secret.Merge, preset(t, "github"))
	if err := v.Delete(t.Context(), account, "github"); err != nil {
		t.Fatal(err)
	}
	want := strings.Repeat(account+" github,", 3)
	if strings.Join(got, ",")+"," != want {
		t.Errorf("got %q, want %q", got, want)
	}
}

// TestAuthority checks that an account has one authority, through restarts and new keys, which no list shows.
func TestAuthority(t *testing.T) {
	t.Parallel()
	w := newHome(t)
	v := w.open(t)
	pem := func(v *secret.Vault, account string) string {
		t.Helper()
		a, err := v.Authority(context.WithoutCancel(t.Context()), account)
		if err != nil {
			t.Fatal(err)
		}
		return a.PEM()
	}
	first := pem(v, account)
	if again := pem(v, account); again != first {
		t.Error("a second authority was made")
	}
	if other := pem(v, "other"); other == first {
		t.Error("two accounts have one authority")
	}
	if _, err := v.Rekey(t.Context()); err != nil {
		t.Fatal(err)
	}
	if again := pem(w.open(t), account); again != first {
		t.Error("after a restart there is another authority")
	}
	if all, err := v.List(t.Context(), account); err != nil || len(all) != 0 {
		t.Errorf("the list has %+v, %v", all, err)
	}
}

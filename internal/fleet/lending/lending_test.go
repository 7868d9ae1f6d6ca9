package lending_test

import (
	"context"
	"path/filepath"
	"slices"
	"sync"
	"testing"

	"github.com/RelevanceAI/harvest/internal/base/binding"
	"github.com/RelevanceAI/harvest/internal/base/secret"
	"github.com/RelevanceAI/harvest/internal/fleet/lending"
	"github.com/RelevanceAI/harvest/internal/store/testdb"
)

const account = "personal"

// borrower returns a sandbox with a secret that is bound to places.
func borrower(t *testing.T, places ...string) (*lending.Borrower, *secret.Vault) {
	t.Helper()
	v, err := secret.Open(t.Context(), secret.Options{Store: testdb.Open(t).Secrets(),
		KeyFile: filepath.Join(t.TempDir(), "secret.key")})
	if err != nil {
		t.Fatal(err)
	}
	var b binding.Binding
	for _, text := range places {
		var p binding.Place
		if err := p.Host.UnmarshalText([]byte(text)); err != nil {
			t.Fatal(err)
		}
		b.Places = append(b.Places, p)
	}
	if _, err := v.SetBound(t.Context(), account, "api", secret.Pairs{"API_TOKEN": "a-value-of-a-secret"},
		secret.Create,
		&b); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	var tasks sync.WaitGroup
	t.Cleanup(func() {
		cancel()
		tasks.Wait()
	})
	return lending.New(ctx, v, &tasks, nil).Of(lending.Sandbox{ID: "sbx", Account: account,
		Hosts: func() []string { return nil }, PerTurn: func() bool { return false }, Lent: func() []string {
			return []string{"api"}
		}}), v
}

// TestHosts checks that connections to bound hosts are intercepted, also those without TLS.
func TestHosts(t *testing.T) {
	t.Parallel()
	b, _ := borrower(t, "api.example.org", "*.example.org:8443", "http://plain.example.org:81")
	got, err := b.Hosts(t.Context())
	want := []string{"*.example.org:80", "*.example.org:8443", "api.example.org:443", "api.example.org:80",
		"plain.example.org:81"}
	if err != nil || !slices.Equal(got, want) {
		t.Errorf("got %q, %v, want %q", got, err, want)
	}
}

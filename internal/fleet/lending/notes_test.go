package lending_test

import (
	"context"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"github.com/RelevanceAI/harvest/internal/base/binding"
	"github.com/RelevanceAI/harvest/internal/base/secret"
	"github.com/RelevanceAI/harvest/internal/engine"
	"github.com/RelevanceAI/harvest/internal/fleet/lending"
	"github.com/RelevanceAI/harvest/internal/store/testdb"
)

// TestNotes checks what is said at the creation of a sandbox about its network policy and the hosts of its secrets.
func TestNotes(t *testing.T) {
	t.Parallel()
	vault, err := secret.Open(t.Context(), secret.Options{Store: testdb.Open(t).Secrets(),
		KeyFile: filepath.Join(t.TempDir(), "key")})
	if err != nil {
		t.Fatal(err)
	}
	var hosts binding.Binding
	for _, name := range []string{"api.example.org", "*.example.com", "192.0.2.7"} {
		var h binding.Host
		if err := h.UnmarshalText([]byte(name)); err != nil {
			t.Fatal(err)
		}
		hosts.Places = append(hosts.Places, binding.Place{Host: h})
	}
	if _, err := vault.SetBound(t.Context(), "acme", "api", secret.Pairs{"API_TOKEN": "value"}, secret.Create,
		&hosts); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	var tasks sync.WaitGroup
	defer tasks.Wait()
	defer cancel()
	server := lending.New(ctx, vault, &tasks, nil)
	lent := []string{"api"}
	b := server.Of(lending.Sandbox{ID: "sbx_1", Account: "acme", Lent: func() []string { return lent },
		Hosts: func() []string { return nil }, PerTurn: func() bool { return false }})
	allow := func(hosts ...string) engine.Network { return engine.Network{Mode: engine.NetworkAllow, Allow: hosts} }
	for name, c := range map[string]struct {
		network engine.Network
		want    string // words of the only note; "" for none
	}{
		"one of the hosts":  {allow("api.example.org"), ""},
		"below a domain":    {allow("*.example.com", "example.com"), ""},
		"an address":        {allow("192.0.2.7"), ""},
		"none of the hosts": {allow("other.example"), "cannot use: api.example.org, *.example.com, 192.0.2.7"},
		"no network":        {engine.Network{Mode: engine.NetworkNone}, "forbids the hosts of the secret api"},
		"every host":        {engine.Network{Mode: engine.NetworkDefault}, "allows every public host"},
	} {
		notes, err := b.Notes(t.Context(), c.network)
		if err != nil || len(notes) > 1 || (len(notes) == 0) != (c.want == "") ||
			!strings.Contains(strings.Join(notes, ""), c.want) {
			t.Errorf("%s: got %q, %v", name, notes, err)
		}
	}
	lent = nil
	if notes, err := b.Notes(t.Context(), engine.Network{Mode: engine.NetworkDefault}); err != nil || len(notes) > 0 {
		t.Errorf("without secrets: got %q, %v", notes, err)
	}
}

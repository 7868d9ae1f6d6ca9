package app

import (
	"context"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/RelevanceAI/harvest/client/errors"
	"github.com/RelevanceAI/harvest/internal/base/config"
	"github.com/RelevanceAI/harvest/internal/base/netguard"
	"github.com/RelevanceAI/harvest/internal/image"
	"github.com/RelevanceAI/harvest/internal/session/github"
)

func TestRulesOfAccounts(t *testing.T) {
	t.Parallel()
	var cfg config.Config
	cfg.Connect.Allow = []string{"10.1.0.0/16"}
	cfg.Registries = config.Registries{Mirrors: []string{"docker.io=mirror.example.org/hub", "quay.io=10.9.9.9:5000"},
		Insecure: []string{"reg:5000"}}
	rules, err := rulesOf(cfg)
	if err != nil {
		t.Fatal(err)
	}
	for name, loopback := range map[string]bool{"": true, "personal": true, "acme": false} {
		r := rules(name)
		for text, want := range map[string]bool{"127.0.0.1": loopback, "10.1.2.3": true, "10.2.0.1": false,
			"1.1.1.1": true, "169.254.169.254": false} {
			if ok, _ := r.Allows(netip.MustParseAddr(text)); ok != want {
				t.Errorf("%q may connect to %s: %v", name, text, ok)
			}
		}
		if got := strings.Join(r.Hosts, " "); !strings.Contains(got, "reg:5000") ||
			!strings.Contains(got, "10.9.9.9:5000") || !strings.Contains(got, "mirror.example.org:443 ") {
			t.Errorf("configured servers: %s", got)
		}
	}
	made := map[string]int{}
	find := transports(rules, func(r netguard.Rules) http.RoundTripper { made["all"]++; return r.NewTransport(nil) })
	if find("") != find("personal") || find("acme") != find("rival") || find("acme") == find("") || made["all"] != 2 {
		t.Error("accounts with different rules share connections, or each has its own")
	}
	if c := clients(rules)("acme"); c.Timeout == 0 {
		t.Error("requests to GitHub have no time limit")
	}
	if f := connections(cfg); !f.OK || !strings.Contains(f.Detail, "10.1.0.0/16") ||
		!strings.Contains(f.Detail, "loopback") {
		t.Errorf("%+v", f)
	}
}

// The parts that connect for accounts are opened with the rules of the account.
func TestPartsConnectUnderTheRules(t *testing.T) {
	t.Parallel()
	var cfg config.Config
	cfg.Data = t.TempDir()
	var arrived atomic.Int32
	inner := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { arrived.Add(1) }))
	defer inner.Close()
	host := strings.TrimPrefix(inner.URL, "http://")
	sessions, err := (&App{cfg: cfg}).sessionOptions()
	if err != nil {
		t.Fatal(err)
	}
	images, _, err := openImages(cfg)
	if err != nil {
		t.Fatal(err)
	}
	for name, try := range map[string]func(account string) error{
		"GitHub": func(account string) error {
			return (&github.Client{API: inner.URL, HTTP: sessions.GitHub(account)}).Revoke(t.Context())
		},
		"images": func(account string) error {
			_, err := images.Library.Build(t.Context(), image.Spec{Base: host + "/a/b", Owner: account},
				image.BuildOptions{Credentials: func(context.Context, string) (image.Credential, error) {
					return image.Credential{Anonymous: true}, nil
				}})
			return err
		},
	} {
		if err := try("acme"); errors.KindOf(err) != errors.Denied || arrived.Load() != 0 {
			t.Errorf("%s: %v; %d requests arrived", name, err, arrived.Load())
		}
		if err := try(""); arrived.Swap(0) == 0 {
			t.Errorf("%s: requests of the operator do not arrive: %v", name, err)
		}
	}
}

func TestAllowedNetworksMustBeSpecial(t *testing.T) {
	t.Parallel()
	var cfg config.Config
	cfg.Connect.Allow = []string{"0.0.0.0/0"}
	if _, err := rulesOf(cfg); errors.KindOf(err) != errors.Invalid {
		t.Error(err)
	}
	if _, err := openModels(cfg, nil); err == nil {
		t.Error("a gateway opens")
	}
	if _, _, err := openImages(cfg); err == nil {
		t.Error("images open")
	}
	if f := connections(cfg); f.OK || f.Remedy == "" {
		t.Errorf("%+v", f)
	}
}

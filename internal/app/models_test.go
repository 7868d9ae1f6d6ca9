package app

import (
	"context"
	"encoding/base64"
	"fmt"
	"net"
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"

	"golang.org/x/net/dns/dnsmessage"
	"golang.org/x/net/http/httpproxy"

	"github.com/RelevanceAI/harvest/client/errors"
	"github.com/RelevanceAI/harvest/internal/base/config"
	"github.com/RelevanceAI/harvest/internal/base/secret"
	"github.com/RelevanceAI/harvest/internal/base/testenv"
	"github.com/RelevanceAI/harvest/internal/session/model"
	"github.com/RelevanceAI/harvest/internal/store/testdb"
)

// TestModelsConnectUnderTheRules checks that a request to Amazon Bedrock, whose address depends on a secret, connects
// under the rules of the account: a name that resolves to this machine's loopback leads nowhere, except for the
// operator, and for others if the operator has allowed it. It replaces the resolver of this process, and is not
// parallel.
//
// mission: A7
func TestModelsConnectUnderTheRules(t *testing.T) {
	testenv.Root(t)
	if httpproxy.FromEnvironment().HTTPSProxy != "" {
		t.Skip("a proxy of this machine resolves the names of models: unset HTTPS_PROXY")
	}
	l, err := new(net.ListenConfig).Listen(t.Context(), "tcp", "127.0.0.1:443")
	if errors.Is(err, syscall.EADDRINUSE) {
		t.Skip("port 443 of this machine is in use, which requests to models are for")
	}
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	var arrived atomic.Int32
	go func() {
		for {
			conn, err := l.Accept()
			if err != nil {
				return
			}
			arrived.Add(1)
			_ = conn.Close() // a TLS handshake fails
		}
	}()
	before := net.DefaultResolver
	defer func() { net.DefaultResolver = before }()
	net.DefaultResolver = loopbackNames(t)

	const credential = "canary-of-bedrock"
	vault, err := secret.Open(t.Context(), secret.Options{Store: testdb.Open(t).Secrets(),
		KeyFile: filepath.Join(t.TempDir(), "key")})
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"acme", "personal"} {
		if _, err := vault.Set(t.Context(), name, "bedrock", secret.Pairs{"AWS_BEARER_TOKEN_BEDROCK": credential,
			"AWS_REGION": "test-1"}, secret.Create); err != nil {
			t.Fatal(err)
		}
	}
	t.Setenv("ANTHROPIC_BEDROCK_BASE_URL", "")
	for _, c := range []struct {
		account string
		allow   []string
		reaches bool
	}{{"acme", nil, false}, {"personal", nil, true}, {"acme", []string{"127.0.0.0/8"}, true}} {
		var cfg config.Config
		cfg.Data, cfg.Connect.Allow = t.TempDir(), c.allow
		models, err := openModels(cfg, vault)
		if err != nil {
			t.Fatal(err)
		}
		arrived.Store(0)
		req := httptest.NewRequestWithContext(t.Context(), http.MethodPost, "/model/claude/invoke",
			strings.NewReader("{}"))
		req.Header.Set("X-Api-Key", models.Token("one"))
		w := httptest.NewRecorder()
		models.Handler(model.Grant{ID: "one", Account: c.account}).ServeHTTP(w, req)
		if w.Code != http.StatusBadGateway || !strings.Contains(w.Body.String(), "cannot be reached") ||
			(arrived.Load() > 0) != c.reaches {
			t.Errorf("%s, allowed %q: %d %s; %d connections arrived", c.account, c.allow, w.Code, w.Body,
				arrived.Load())
		}
	}
}

// TestCredentialsOfProviders checks that each provider's credential is found among an account's secrets, that a named
// secret comes first, and that the login of a subscription has its account.
//
// mission: F6
func TestCredentialsOfProviders(t *testing.T) {
	t.Parallel()
	vault, err := secret.Open(t.Context(), secret.Options{Store: testdb.Open(t).Secrets(),
		KeyFile: filepath.Join(t.TempDir(), "key")})
	if err != nil {
		t.Fatal(err)
	}
	claims := base64.RawURLEncoding.EncodeToString([]byte(
		`{"https://api.openai.com/auth":{"chatgpt_account_id":"acc-1"}}`))
	for name, pairs := range map[string]secret.Pairs{
		"a": {"ANTHROPIC_API_KEY": "key-of-anthropic"}, "b": {"OPENAI_API_KEY": "key-of-openai"},
		"c": {"GOOGLE_API_KEY": "key-of-gemini"}, "d": {"CHATGPT_ACCESS_TOKEN": "x." + claims + ".x"},
		"e": {"OPENAI_API_KEY": "other-of-openai", "OPENAI_BASE_URL": "https://llm.example.org/v1"}} {
		if _, err := vault.Set(t.Context(), "acme", name, pairs, secret.Create); err != nil {
			t.Fatal(err)
		}
	}
	var cfg config.Config
	cfg.Data = t.TempDir()
	models, err := openModels(cfg, vault)
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		named     []string
		providers []model.Provider
		want      string
	}{
		{nil, []model.Provider{model.Anthropic, model.Bedrock}, "api_key key-of-anthropic  "},
		{nil, model.OpenAI.With(), "openai key-of-openai  "},
		{[]string{"e"}, model.OpenAI.With(), "openai other-of-openai https://llm.example.org/v1 "},
		{[]string{"d"}, model.OpenAI.With(), "chatgpt x." + claims + ".x  acc-1"},
		{[]string{"a"}, model.Gemini.With(), "gemini key-of-gemini  "},
		{nil, model.OpenRouter.With(), "   "},
	} {
		got, err := models.Credential(t.Context(), "acme", c.named, c.providers...)
		text := fmt.Sprint(got.Kind, " ", got.Value.Reveal(), " ", got.Base, " ", got.Owner)
		if text != c.want || err != nil {
			t.Errorf("%v %v: %q, %v, want %q", c.named, c.providers, text, err, c.want)
		}
	}
}

// loopbackNames returns a resolver for which each name has the address 127.0.0.1.
func loopbackNames(t *testing.T) *net.Resolver {
	t.Helper()
	server, err := new(net.ListenConfig).ListenPacket(t.Context(), "udp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = server.Close() })
	go func() {
		packet := make([]byte, 1500)
		for {
			n, from, err := server.ReadFrom(packet)
			if err != nil {
				return
			}
			var m dnsmessage.Message
			if m.Unpack(packet[:n]) != nil || len(m.Questions) != 1 {
				continue
			}
			q := m.Questions[0]
			m.Header.Response, m.Additionals = true, nil
			if q.Type == dnsmessage.TypeA {
				m.Answers = []dnsmessage.Resource{{Header: dnsmessage.ResourceHeader{Name: q.Name, Class: q.Class},
					Body: &dnsmessage.AResource{A: [4]byte{127, 0, 0, 1}}}}
			}
			if answer, err := m.Pack(); err == nil {
				_, _ = server.WriteTo(answer, from)
			}
		}
	}()
	return &net.Resolver{PreferGo: true, Dial: func(ctx context.Context, _, _ string) (net.Conn, error) {
		return new(net.Dialer).DialContext(ctx, "udp", server.LocalAddr().String())
	}}
}

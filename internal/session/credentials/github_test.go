package credentials_test

import (
	"crypto/rand"
	"crypto/rsa"
	"crypto/x509"
	"encoding/pem"
	"io"
	"net/http"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/RelevanceAI/harvest/internal/base/secret"
	"github.com/RelevanceAI/harvest/internal/session/credentials"
	"github.com/RelevanceAI/harvest/internal/store/testdb"
)

// roundTrip is a function that sends requests.
type roundTrip func(*http.Request) (*http.Response, error)

func (f roundTrip) RoundTrip(r *http.Request) (*http.Response, error) { return f(r) }

// TestGitHubIsReachedByTheAccountsClient checks that all requests to the address in an account's secret, for a token of
// an App, a pull request and the end of a token, are sent by the client of that account.
//
// mission: A7
func TestGitHubIsReachedByTheAccountsClient(t *testing.T) {
	t.Parallel()
	private, err := rsa.GenerateKey(rand.Reader, 2048)
	if err != nil {
		t.Fatal(err)
	}
	vault, err := secret.Open(t.Context(), secret.Options{Store: testdb.Open(t).Secrets(),
		KeyFile: filepath.Join(t.TempDir(), "key")})
	if err != nil {
		t.Fatal(err)
	}
	app := secret.Pairs{"GITHUB_HOST": "git.example.org", "GITHUB_API_URL": "https://api.example.org",
		"GITHUB_APP_ID": "1", "GITHUB_APP_PRIVATE_KEY": string(pem.EncodeToMemory(&pem.Block{Type: "RSA PRIVATE KEY",
			Bytes: x509.MarshalPKCS1PrivateKey(private)}))}
	token := secret.Pairs{"GITHUB_HOST": "git.example.org", "GITHUB_API_URL": "https://api.example.org",
		"GITHUB_TOKEN": "ghp_canary"}
	for account, p := range map[string]secret.Pairs{"acme": app, "rival": token} {
		if _, err := vault.Set(t.Context(), account, "git", p, secret.Create); err != nil {
			t.Fatal(err)
		}
	}
	var mu sync.Mutex
	var sent []string
	src := credentials.Source{Secrets: vault, GitHub: func(account string) *http.Client {
		return &http.Client{Transport: roundTrip(func(r *http.Request) (*http.Response, error) {
			mu.Lock()
			defer mu.Unlock()
			sent = append(sent, account+" "+r.Method+" "+r.URL.Host+r.URL.Path)
			body := `{"id":7,"token":"ghs_canary","expires_at":"2100-01-01T00:00:00Z"}`
			if strings.HasSuffix(r.URL.Path, "/pulls") {
				body = "[]"
			}
			return &http.Response{StatusCode: http.StatusOK, Body: io.NopCloser(strings.NewReader(body))}, nil
		})}
	}}
	const repository = "https://git.example.org/o/n"
	for _, account := range []string{"acme", "rival"} {
		l, err := src.Find(t.Context(), credentials.Request{Account: account, URLs: []string{repository}})
		if err != nil {
			t.Fatal(err)
		}
		defer l.Release()
		hub, ok := l.GitHub(repository)
		if !ok {
			t.Fatalf("%s has no login", account)
		}
		if _, err := hub.FindPull(t.Context(), "o/n", "branch"); err != nil {
			t.Error(err)
		}
		l.Revoke(t.Context())
	}
	want := []string{"acme GET api.example.org/repos/o/n/installation",
		"acme POST api.example.org/app/installations/7/access_tokens", "acme GET api.example.org/repos/o/n/pulls",
		"acme DELETE api.example.org/installation/token", "rival GET api.example.org/repos/o/n/pulls"}
	if !slices.Equal(sent, want) {
		t.Errorf("sent %q, want %q", sent, want)
	}
}

// Package login tests logins with the real Claude Code and the real Codex in sandboxes, at providers that the test
// plays.
package login

import (
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/RelevanceAI/harvest/test/host"
	"github.com/RelevanceAI/harvest/test/stubs/modeltest"
	"github.com/RelevanceAI/harvest/test/stubs/oauthtest"
)

// The addresses of the providers, in a network of their own.
const (
	address = "192.0.2.1"
	api     = "http://" + address + ":8080"
)

// life is that of access tokens: so short that there are renewals while an agent works.
const life = 4 * time.Second

// world is a network of its own, in which a server of Harvest and the providers run.
type world struct {
	*host.Host
	*host.Network
	t     *testing.T
	model *modeltest.Stub
	at    map[string]*oauthtest.Server // by provider

	mu    sync.Mutex
	wrong []string // guarded by mu; requests to the API without a valid token
}

func newWorld(t *testing.T) *world {
	t.Helper()
	w := &world{Network: host.NewNetwork(t, "", address), t: t, model: modeltest.New(t, host.ModelKey),
		at: map[string]*oauthtest.Server{}}
	var settings []string
	for i, name := range []string{"claude", "codex"} {
		w.at[name] = oauthtest.Serve(t, w.Listen(address, 8081+i))
		w.at[name].Life = life
		settings = append(settings, w.at[name].Settings(name)...)
	}
	w.at["claude"].Prefix, w.at["codex"].Prefix = "sk-ant-oat01-", "jwt"
	l := w.Listen(address, 8080)
	served := &http.Server{Handler: http.HandlerFunc(w.serve)}
	go func() { _ = served.Serve(l) }()
	t.Cleanup(func() { _ = served.Close() })
	w.Host = host.NewCLI(t, w.model)
	w.Env.Setenv("ANTHROPIC_API_KEY", "")
	w.Hold(w.Host)
	w.Env.Setenv("HARVEST_LOGINS_PROVIDERS", strings.Join(settings, ","))
	return w
}

// serve is the API of both providers. It accepts access tokens that are valid now.
func (w *world) serve(rw http.ResponseWriter, r *http.Request) {
	token := strings.TrimPrefix(r.Header.Get("Authorization"), "Bearer ")
	if token == "" { // Claude Code looks for the server first
		rw.WriteHeader(http.StatusNotFound)
		return
	}
	if !w.at["claude"].Valid(token) && !w.at["codex"].Valid(token) {
		w.mu.Lock()
		w.wrong = append(w.wrong, r.Method+" "+r.URL.Path)
		w.mu.Unlock()
		rw.WriteHeader(http.StatusUnauthorized)
		return
	}
	switch {
	case strings.HasPrefix(r.URL.Path, "/v1/"), r.URL.Path == "/codex/responses":
		r.Header.Del("Authorization")
		r.Header.Set("X-Api-Key", host.ModelKey)
		w.model.ServeHTTP(rw, r)
	default:
		rw.WriteHeader(http.StatusNotFound)
	}
}

// login logs in to a provider with a refresh token.
func (w *world) login(provider string) {
	w.t.Helper()
	_, refresh := w.at[provider].Grant()
	cmd := w.Command(w.t.Context(), "login", provider, "--token", "-")
	cmd.Stdin = strings.NewReader(refresh + "\n")
	if out, err := cmd.CombinedOutput(); err != nil || strings.Contains(string(out), refresh) {
		w.t.Fatalf("log in to %s: %v: %s\n%s", provider, err, out, w.Log())
	}
	w.Must("secret", "set", provider, "--hosts", api)
}

// in runs a script in a sandbox, and returns its output.
func (w *world) in(box, script string) (output string, code int) {
	w.t.Helper()
	stdout, stderr, code := w.Run("sandbox", "exec", box, "--", "bash", "-c", script)
	return stdout + stderr, code
}

package secrets_test

import (
	"context"
	"encoding/json"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/spf13/cobra"

	"github.com/RelevanceAI/harvest/client/api"
	"github.com/RelevanceAI/harvest/client/errors"
	"github.com/RelevanceAI/harvest/internal/cli"
	"github.com/RelevanceAI/harvest/internal/cli/secrets"
)

// serve starts a server that knows logins only. It passes the bodies of requests to got.
func serve(t *testing.T, got func(request, body string)) string {
	t.Helper()
	ready := api.Login{Provider: "claude", State: "ready", Renews: true}
	answer := func(w http.ResponseWriter, r *http.Request, v any) {
		body, _ := io.ReadAll(r.Body)
		got(r.Method+" "+r.URL.Path, strings.TrimSpace(string(body)))
		w.Header().Set("Content-Type", api.TypeJSON)
		_ = json.NewEncoder(w).Encode(v)
	}
	mux := http.NewServeMux()
	mux.HandleFunc("GET /v1/logins", func(w http.ResponseWriter, r *http.Request) {
		answer(w, r, api.List[api.Login]{Data: []api.Login{ready, {Provider: "github", State: "none"}}})
	})
	mux.HandleFunc("POST /v1/logins/{name}", func(w http.ResponseWriter, r *http.Request) {
		attempt := api.LoginAttempt{URL: "https://provider.example/authorize", Expires: time.Now().Add(time.Hour)}
		switch {
		case r.ContentLength > 30: // with a token
			attempt = api.LoginAttempt{Login: ready}
		case r.PathValue("name") == "github":
			attempt.UserCode = "WDJB-MJHT"
		}
		answer(w, r, attempt)
	})
	mux.HandleFunc("POST /v1/logins/{name}/finish", func(w http.ResponseWriter, r *http.Request) {
		answer(w, r, ready)
	})
	mux.HandleFunc("DELETE /v1/logins/{name}", func(w http.ResponseWriter, r *http.Request) {
		answer(w, r, api.LoggedOut{Reason: "claude has no way to revoke a login", Remedy: "end the session there"})
	})
	s := httptest.NewServer(mux)
	t.Cleanup(s.Close)
	return s.URL
}

// TestLogin checks what the commands for logins send and print. No token is printed, and none is taken from an
// argument.
//
// mission: 9.1
func TestLogin(t *testing.T) {
	t.Parallel()
	file := filepath.Join(t.TempDir(), "auth.json")
	if err := os.WriteFile(file, []byte(`{"tokens":{"refresh_token":"rt_of_the_file"}}`), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		args, input string
		sent        string // the last request
		printed     string
		kind        errors.Kind
	}{
		{args: "login", sent: "GET /v1/logins ", printed: "github"},
		{args: "login claude", input: " the-code#state \n", sent: `/finish {"code":"the-code#state"}`,
			printed: "https://provider.example/authorize"},
		{args: "login github", sent: `POST /v1/logins/github/finish {}`, printed: "WDJB-MJHT"},
		{args: "login github --client-id Iv1.x -o name", sent: "/finish {}", printed: "claude\n"},
		{args: "login claude --token -", input: "sk-ant-oat01-of-the-input\n",
			sent: `POST /v1/logins/claude {"token":"sk-ant-oat01-of-the-input"}`, printed: "ready"},
		{args: "login codex --file " + file, sent: `rt_of_the_file`, printed: "delete " + file},
		{args: "logout claude", sent: "DELETE /v1/logins/claude ", printed: "no way to revoke"},
		{args: "login claude --token sk-ant-oat01-of-the-arguments", kind: errors.Invalid},
		{args: "login claude --token -", input: "\n", kind: errors.Invalid},
		{args: "login claude --file " + file + ".none", kind: errors.Invalid},
		{args: "login --token -", kind: errors.Invalid},
		{args: "login claude", input: "\n", sent: "POST /v1/logins/claude {}", kind: errors.Invalid},
	} {
		sent := ""
		url := serve(t, func(request, body string) { sent = request + " " + body })
		out, err := run(t.Context(), url, c.args, strings.NewReader(c.input))
		text := out + errors.Message(err) + errors.RemedyOf(err)
		if errors.KindOf(err) != c.kind || !strings.Contains(sent, c.sent) || !strings.Contains(text, c.printed) ||
			c.kind != "" && errors.RemedyOf(err) == "" {
			t.Errorf("%s: sent %q, printed %q, %v", c.args, sent, text, err)
		}
		if strings.Contains(text, "sk-ant-oat01") || strings.Contains(text, "rt_of") {
			t.Errorf("%s: a token is printed: %s", c.args, text)
		}
	}
}

// TestLoginIsCanceled checks that Ctrl-C ends the wait for a code.
func TestLoginIsCanceled(t *testing.T) {
	t.Parallel()
	ctx, cancel := context.WithCancel(t.Context())
	url := serve(t, func(string, string) { cancel() })
	never, write := io.Pipe()
	defer write.Close()
	if _, err := run(ctx, url, "login claude", never); errors.KindOf(err) != errors.Canceled {
		t.Errorf("got %v", err)
	}
}

// run runs a command line.
func run(ctx context.Context, url, args string, in io.Reader) (printed string, err error) {
	var out strings.Builder
	c := cli.New("harvest", in, &out, &out, []string{cli.EnvURL + "=" + url})
	root := &cobra.Command{Use: "harvest", SilenceErrors: true, SilenceUsage: true}
	root.AddCommand(secrets.Logins(c)...)
	root.SetArgs(strings.Fields(args))
	err = root.ExecuteContext(ctx)
	return out.String(), err
}

package login

import (
	"strings"
	"testing"

	"github.com/RelevanceAI/harvest/internal/base/testenv"
	"github.com/RelevanceAI/harvest/test/host"
	"github.com/RelevanceAI/harvest/test/stubs/modeltest"
)

const (
	runClaude = `claude -p '[hello] hi' </dev/null`
	runCodex  = `/tmp/codex exec --skip-git-repo-check --sandbox danger-full-access -c 'model_provider="test"' -c ` +
		`'model_providers.test={name="test",base_url="` + api + `/codex",wire_api="responses",` +
		`requires_openai_auth=true}' '[codex] hi' </dev/null`
)

// TestAgentsUseLogins checks that the real Claude Code and the real Codex work in a sandbox with placeholders only,
// while their access tokens are renewed, also after a restart of the server, and that they end with the reason once
// the provider no longer accepts the login.
//
// mission: 9.1
func TestAgentsUseLogins(t *testing.T) {
	testenv.Long(t)
	t.Parallel()
	w := newWorld(t)
	w.model.Script("hello", modeltest.Step{Say: "Hello from Claude."})
	w.model.Script("codex", modeltest.Step{Say: "Hello from Codex."})
	for _, provider := range []string{"claude", "codex"} {
		w.login(provider)
	}
	w.Must("sandbox", "create", "--name", "box", "--image", "cli", "--secret", "claude", "--secret", "codex",
		"--network", "default", "--network", "allow="+address, "-e", "ANTHROPIC_BASE_URL="+api,
		"-e", "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC=1")
	w.Must("sandbox", "cp", host.Codex(t), "box:/tmp/codex")
	for round := range 3 {
		if out, code := w.in("box", runClaude); code != 0 || !strings.Contains(out, "Hello from Claude.") {
			t.Fatalf("round %d: exit code %d: %s\n%s", round, code, out, w.Log())
		}
		if out, code := w.in("box", runCodex); code != 0 || !strings.Contains(out, "Hello from Codex.") {
			t.Fatalf("round %d: exit code %d: %s\n%s", round, code, out, w.Log())
		}
		if round == 1 {
			w.Must("down")
		}
	}
	for provider, variable := range map[string]string{"claude": "CLAUDE_CODE_OAUTH_TOKEN",
		"codex": "CHATGPT_ACCESS_TOKEN"} {
		if n := w.at[provider].Renewals(); n < 2 {
			t.Errorf("%s: %d renewals", provider, n)
		}
		held, _ := w.in("box", "printenv "+variable+"; cat ~/.codex/auth.json")
		if strings.Contains(held, "refresh-") || w.at[provider].Valid(strings.Fields(held)[0]) {
			t.Errorf("%s: the sandbox has a token", provider)
		}
	}
	w.mu.Lock()
	if len(w.wrong) > 0 {
		t.Errorf("requests without a valid token: %q", w.wrong)
	}
	w.mu.Unlock()

	w.at["claude"].RevokeAll()
	testenv.Eventually(t, "the login has failed", func() bool {
		_, _ = w.in("box", runClaude)
		return strings.Contains(w.Must("login"), "failed")
	})
	if out, code := w.in("box", runClaude); code == 0 || !strings.Contains(out, "no longer accepts the login") {
		t.Errorf("exit code %d: %s", code, out)
	}
	w.login("claude")
	if out, code := w.in("box", runClaude); code != 0 || !strings.Contains(out, "Hello from Claude.") {
		t.Errorf("after a new login: exit code %d: %s", code, out)
	}
}

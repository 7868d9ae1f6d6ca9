package fleet_test

import (
	"encoding/json"
	"maps"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/RelevanceAI/harvest/client/errors"
	"github.com/RelevanceAI/harvest/internal/base/logf"
	"github.com/RelevanceAI/harvest/internal/base/secret"
	"github.com/RelevanceAI/harvest/internal/fleet/record"
	"github.com/RelevanceAI/harvest/internal/fleet/spec"
	"github.com/RelevanceAI/harvest/internal/store/testdb"
)

// withSecrets gives w a vault with those secrets of account.
func withSecrets(t *testing.T, w *world, secrets map[string]secret.Pairs) *secret.Vault {
	t.Helper()
	v, err := secret.Open(t.Context(), secret.Options{Store: testdb.Open(t).Secrets(),
		KeyFile: filepath.Join(t.TempDir(), "secret.key")})
	if err != nil {
		t.Fatal(err)
	}
	for name, p := range secrets {
		if _, err := v.Set(t.Context(), account, name, p, secret.Create); err != nil {
			t.Fatal(err)
		}
	}
	w.opts.Secrets = v
	return v
}

// mission: A6, F4, 1.8
func TestSecretsBecomeEnvironment(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	v := withSecrets(t, w, map[string]secret.Pairs{
		"one": {"A": "sandbox-secret-one-a", "B": "sandbox-secret-one-b", "C": "sandbox-secret-one-c"},
		"two": {"B": "sandbox-secret-two-b", "C": "sandbox-secret-two-c"},
	})
	f := w.open(t)
	env := map[string]string{"C": "given", "D": "given too"}
	sb := create(t, f, spec.Request{Secrets: []string{"one", "two"}, Env: env})
	want := map[string]string{"A": "sandbox-secret-one-a", "B": "sandbox-secret-two-b", "C": "given", "D": "given too"}
	if diff := cmp.Diff(want, w.specs[0].Env); diff != "" {
		t.Errorf("environment (-want +got):\n%s", diff)
	}
	if !maps.Equal(env, map[string]string{"C": "given", "D": "given too"}) {
		t.Errorf("the caller's map is now %v", env)
	}
	stored, err := w.store.Get(t.Context(), sb.ID)
	if err != nil {
		t.Fatal(err)
	}
	w.mu.Lock()
	everything, err := json.Marshal([]any{sb, stored, w.events})
	w.mu.Unlock()
	if err != nil || strings.Contains(string(everything), "sandbox-secret") ||
		strings.Join(stored.Secrets, " ") != "one two" {
		t.Errorf("records and events: %s, %v", everything, err)
	}
	// The values stay hidden as long as the sandbox has them.
	if err := v.Delete(t.Context(), account, "one"); err != nil {
		t.Fatal(err)
	}
	if logf.Redacted("sandbox-secret-one-a") != logf.Hidden {
		t.Error("a value that a sandbox has is seen in the log")
	}
	if err := f.Destroy(t.Context(), account, sb.ID); err != nil {
		t.Fatal(err)
	}
	if logf.Redacted("sandbox-secret-one-a") == logf.Hidden {
		t.Error("a value that nobody has is hidden for ever")
	}
}

// mission: A9, F4
func TestSecretsThatAreMissing(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	_, err := w.open(t).Create(t.Context(), account, spec.Request{Secrets: []string{"one"}})
	wantError(t, err, errors.Unsupported, "does not support secrets", "| validate")
	withSecrets(t, w, map[string]secret.Pairs{"one": {"A": "x"}, "big": {"BIG": strings.Repeat("x", secret.MaxValue)},
		"odd": {"A": "x", "B": ""}})
	f := w.open(t)
	sb, err := f.Create(t.Context(), account, spec.Request{Secrets: []string{"none", "one", "neither"}})
	wantError(t, err, errors.NotFound, `no secrets "none", "neither"`, "harvest secret", "| secrets")
	if sb.Status != record.Failed || sb.FailedStage != "secrets" || len(w.refs()) != 0 {
		t.Errorf("%+v, left %v", sb, w.refs())
	}
	_, err = f.Create(t.Context(), "other", spec.Request{Secrets: []string{"one"}})
	wantError(t, err, errors.NotFound, `no secret "one"`)
	_, err = f.Create(t.Context(), account, spec.Request{Secrets: []string{"../one"}})
	wantError(t, err, errors.Invalid, "cannot be a secret's name", "| validate")
	_, err = f.Create(t.Context(), account, spec.Request{Secrets: make([]string, 65)})
	wantError(t, err, errors.Invalid, "65 secrets", "at most 64")
	env := map[string]string{}
	for _, name := range []string{"A", "B", "C", "D", "E", "F", "G", "H", "I", "J", "K", "L"} {
		env[name] = strings.Repeat("x", 124<<10)
	}
	_, err = f.Create(t.Context(), account, spec.Request{Secrets: []string{"big"}, Env: env})
	wantError(t, err, errors.Invalid, "arguments and environment have", "bytes together", "| secrets")
}

// TestWithheldSecrets checks that the creator of a sandbox may withhold some of its secrets.
func TestWithheldSecrets(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	withSecrets(t, w, map[string]secret.Pairs{"one": {"A": "withheld-secret-one-a", "B": "withheld-secret-one-b"}})
	f := w.open(t)
	create(t, f, spec.Request{Secrets: []string{"one"}, Env: map[string]string{"C": "given"},
		Withhold: []string{"B", "C", "D"}})
	if diff := cmp.Diff(map[string]string{"A": "withheld-secret-one-a", "C": "given"}, w.specs[0].Env); diff != "" {
		t.Errorf("environment (-want +got):\n%s", diff)
	}
}

package app

import (
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/RelevanceAI/harvest/client/api"
)

// TestFailedLoginsAreFindings checks that doctor names the logins that cannot be used, and how to repair them.
func TestFailedLoginsAreFindings(t *testing.T) {
	t.Parallel()
	got := failedLogins([]api.Login{{Provider: "claude", State: "failed", Reason: "claude no longer accepts the login"},
		{Provider: "codex", State: "ready"}, {Provider: "gemini", State: "none"},
		{Provider: "github", State: "expired"}})
	want := []finding{
		{Name: "login", Detail: "claude no longer accepts the login", Remedy: "harvest login claude"},
		{Name: "login", Detail: "the token of the login to github has expired, and cannot be renewed",
			Remedy: "harvest login github"},
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}

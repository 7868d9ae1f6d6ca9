package repo_test

import (
	"testing"

	"github.com/RelevanceAI/harvest/internal/base/testenv"
	"github.com/RelevanceAI/harvest/internal/session/repo"
)

// TestStartDuringClose starts a build while the Manager is closed, and afterwards. No build may be under way then.
func TestStartDuringClose(t *testing.T) {
	t.Parallel()
	opts := options(t)
	if err := opts.Store.PutRepo(t.Context(), repo.Repo{ID: "repo_01", Account: "acme", Name: "one",
		URL: "https://example.invalid/one"}); err != nil {
		t.Fatal(err)
	}
	testenv.CloseWhileUsed(t, func() (use, end func()) {
		m, err := repo.Open(t.Context(), opts)
		if err != nil {
			t.Fatal(err)
		}
		return func() { _, _ = m.Refresh(t.Context(), "acme", "one") }, m.Close
	})
}

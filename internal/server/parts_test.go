package server_test

import (
	"testing"

	"github.com/RelevanceAI/harvest/client/api"
)

// TestMissingParts checks that a server without a subject refuses its routes, and no others.
func TestMissingParts(t *testing.T) {
	t.Parallel()
	w := start(t)
	for _, path := range []string{api.Secrets, api.Schedules, api.Sessions, api.Path(api.SessionDiff, "x"), api.Repos} {
		w.want(501, "GET", path, "")
	}
	w.want(200, "GET", api.Memories, "")
}

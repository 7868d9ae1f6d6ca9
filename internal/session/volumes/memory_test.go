package volumes

import (
	"strings"
	"testing"

	"github.com/RelevanceAI/harvest/internal/session/workspace"
)

// TestMemoryOfRepository checks which volume of memory is mounted for a repository: the same for each of its addresses.
// mission: C3
func TestMemoryOfRepository(t *testing.T) {
	t.Parallel()
	for want, r := range map[string]workspace.Repository{
		"harvest-memory-o-n":                        {URL: "https://github.com/O/n.git", Dir: "/workspace/n"},
		"harvest-memory-example.org-o-n":            {URL: "git@example.org:o/n", Dir: "/workspace/n"},
		"harvest-memory-local-project":              {Dir: "/workspace/project"},
		"harvest-memory-local-project-0123456789ab": {Dir: "/workspace/project", Identity: "0123456789abcdef"},
		"harvest-memory-local-project-fedcba987654": {Dir: "/workspace/project", Identity: "fedcba9876543210"},
		"harvest-memory-local-work-fedcba987654":    {Dir: "/workspace/work", Identity: "fedcba9876543210"},
		"":                                          {Dir: "/workspace/work"},
	} {
		mounts := Mounted(nil, Memory(r))
		if got := strings.TrimPrefix(mounts[len(mounts)-1].Name, stateVolume); got != want {
			t.Errorf("%+v: %q, want %q", r, got, want)
		}
	}
}

package session

import (
	"testing"

	"github.com/RelevanceAI/harvest/session/workspace"
)

func TestRepositories(t *testing.T) {
	t.Parallel()
	old := Session{Repo: "https://example.org/a/b", Branch: "main", Dir: "/workspace/b",
		Base: "abc"} // of an earlier version
	if got := old.Repositories(); len(got) != 1 || got[0].Start != "abc" || got[0].Name() != "b" ||
		got[0].URL != old.Repo {
		t.Errorf("%+v", got)
	}
	for want, r := range map[string]workspace.Repository{
		"harvest-memory-o-n":             {URL: "https://github.com/O/n.git", Dir: "/workspace/n"},
		"harvest-memory-example.org-o-n": {URL: "git@example.org:o/n", Dir: "/workspace/n"},
		"harvest-memory-local-project":   {Dir: "/workspace/project"},
		"":                               {Dir: "/workspace/work"},
	} {
		if got := memoryVolume(memoryOf(r)); got != want {
			t.Errorf("%+v: %q, want %q", r, got, want)
		}
	}
}

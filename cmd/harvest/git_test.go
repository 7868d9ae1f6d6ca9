package main

import (
	"testing"

	"github.com/RelevanceAI/harvest/api"
)

func TestGitText(t *testing.T) {
	t.Parallel()
	for want, c := range map[string]struct {
		kind string
		e    api.GitEvent
	}{
		"pushed b":            {"git.pushed", api.GitEvent{Branch: "b"}},
		"committed s":         {"git.committed", api.GitEvent{Subject: "s\nmore"}},
		"not synchronised: r": {"git.synced", api.GitEvent{Failed: true, Reason: "r"}},
		"synchronised with origin/main: 2 commits": {"git.synced",
			api.GitEvent{Onto: "main", Commits: 2}},
		"the agent pressed the panic button: r; a person must n": {"git.panic",
			api.GitEvent{Reason: "r", Need: "n\x1b"}},
	} {
		if got := gitText(c.kind, c.e); got != want {
			t.Errorf("%q, want %q", got, want)
		}
	}
}

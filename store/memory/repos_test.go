package memory_test

import (
	"testing"

	"github.com/RelevanceAI/harvest/repo"
	"github.com/RelevanceAI/harvest/store/memory"
	"github.com/RelevanceAI/harvest/store/storetest"
)

func TestRepos(t *testing.T) {
	t.Parallel()
	storetest.RunRepos(t, func(*testing.T) repo.Store { return new(memory.Repos) })
}

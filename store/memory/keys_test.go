package memory_test

import (
	"testing"

	"github.com/RelevanceAI/harvest/account"
	"github.com/RelevanceAI/harvest/store/memory"
	"github.com/RelevanceAI/harvest/store/storetest"
)

func TestKeys(t *testing.T) {
	t.Parallel()
	storetest.RunKeys(t, func(*testing.T) account.Store { return new(memory.Keys) })
	storetest.RunReplays(t, func(*testing.T) account.ReplayStore { return new(memory.Replays) })
}

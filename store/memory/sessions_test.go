package memory_test

import (
	"testing"

	"github.com/RelevanceAI/harvest/session/records"
	"github.com/RelevanceAI/harvest/store/memory"
	"github.com/RelevanceAI/harvest/store/storetest"
)

func TestSessions(t *testing.T) {
	t.Parallel()
	storetest.RunSessions(t, func(*testing.T) records.Store { return new(memory.Sessions) })
}

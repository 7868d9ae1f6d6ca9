package memory_test

import (
	"testing"

	"github.com/RelevanceAI/harvest/sandbox/record"
	"github.com/RelevanceAI/harvest/store/memory"
	"github.com/RelevanceAI/harvest/store/storetest"
)

func TestStore(t *testing.T) {
	t.Parallel()
	storetest.Run(t, func(*testing.T) record.Store { return new(memory.Sandboxes) })
}

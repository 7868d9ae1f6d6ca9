package memory_test

import (
	"testing"

	"github.com/RelevanceAI/harvest/modalapi/dicts"
	"github.com/RelevanceAI/harvest/store/memory"
	"github.com/RelevanceAI/harvest/store/storetest"
)

func TestDicts(t *testing.T) {
	t.Parallel()
	storetest.RunDicts(t, func(*testing.T) dicts.Store { return new(memory.Dicts) })
}

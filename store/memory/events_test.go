package memory_test

import (
	"testing"

	"github.com/RelevanceAI/harvest/event"
	"github.com/RelevanceAI/harvest/store/memory"
	"github.com/RelevanceAI/harvest/store/storetest"
)

func TestEvents(t *testing.T) {
	t.Parallel()
	storetest.RunEvents(t, func(*testing.T) event.Store { return new(memory.Events) })
}

package memory_test

import (
	"testing"

	"github.com/RelevanceAI/harvest/schedule"
	"github.com/RelevanceAI/harvest/store/memory"
	"github.com/RelevanceAI/harvest/store/storetest"
)

func TestSchedules(t *testing.T) {
	t.Parallel()
	storetest.RunSchedules(t, func(*testing.T) schedule.Store { return new(memory.Schedules) })
}

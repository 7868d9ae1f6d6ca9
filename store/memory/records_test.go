package memory_test

import (
	"testing"

	"github.com/RelevanceAI/harvest/modalapi/records"
	"github.com/RelevanceAI/harvest/store/memory"
	"github.com/RelevanceAI/harvest/store/storetest"
)

func TestRecords(t *testing.T) {
	t.Parallel()
	storetest.RunRecords(t, func(*testing.T) records.Store { return new(memory.Records) })
}

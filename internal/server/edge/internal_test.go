package edge

import (
	"testing"

	"github.com/RelevanceAI/harvest/client/errors"
)

func TestTables(t *testing.T) {
	t.Parallel()
	for _, kind := range errors.Kinds {
		if statuses[kind] == 0 {
			t.Errorf("%s has no status", kind)
		}
	}
}

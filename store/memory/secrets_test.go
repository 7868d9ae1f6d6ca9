package memory_test

import (
	"testing"

	"github.com/RelevanceAI/harvest/secret"
	"github.com/RelevanceAI/harvest/store/memory"
	"github.com/RelevanceAI/harvest/store/storetest"
)

func TestSecrets(t *testing.T) {
	t.Parallel()
	storetest.RunSecrets(t, func(*testing.T) secret.Store { return new(memory.Secrets) })
}

package python_test

import (
	"os"
	"testing"

	"github.com/RelevanceAI/harvest/internal/engine/fake"
)

func TestMain(m *testing.M) {
	fake.Main()
	os.Exit(m.Run())
}

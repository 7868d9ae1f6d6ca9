package fake_test

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/RelevanceAI/harvest/engine"
	"github.com/RelevanceAI/harvest/engine/enginetest"
	"github.com/RelevanceAI/harvest/engine/fake"
)

func TestMain(m *testing.M) {
	fake.Main()
	os.Exit(m.Run())
}

// mission: A1, A3, A4, A11, C1
func TestConformance(t *testing.T) {
	enginetest.Run(t, enginetest.Harness{Open: open, DataDir: dataDir, LeakCheck: noLeaks})
}

// dataDir returns a directory that commands of other users can reach, unlike t.TempDir.
func dataDir(t *testing.T) string {
	t.Helper()
	dir, err := os.MkdirTemp("", "harvest-fake-")
	if err == nil {
		err = os.Chmod(dir, 0o755)
	}
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := os.RemoveAll(dir); err != nil {
			t.Error(err)
		}
	})
	return dir
}

func open(t *testing.T, dir string) engine.Engine {
	t.Helper()
	e, err := fake.Open(dir, fake.Options{})
	if err != nil {
		t.Fatal(err)
	}
	return e
}

// noLeaks fails t if destroyed sandboxes have left files or keepers.
func noLeaks(t *testing.T, dir string) {
	t.Helper()
	for _, sub := range []string{"sandboxes", "new", "trash"} {
		entries, err := os.ReadDir(filepath.Join(dir, sub))
		if err != nil || len(entries) != 0 {
			t.Errorf("%s has %v, %v", sub, entries, err)
		}
	}
}

package bridge

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/RelevanceAI/harvest/client/errors"
	"github.com/RelevanceAI/harvest/internal/base/testenv"
)

// TestFurnish checks that an agent finds Harvest's file in its home directory, also after another version of Harvest,
// that the user's files stay, and that agents without such files get none.
func TestFurnish(t *testing.T) {
	home := t.TempDir()
	t.Setenv("HOME", home)
	t.Setenv("PATH", home+":/usr/bin:/bin")
	own, file := home+"/.pi/agent/models.json", home+"/.pi/agent/extensions/harvest.js"
	command := []string{"sh"} // is in PATH: not installed
	for _, lock := range []string{"", "gemini", "unknown"} {
		if _, err := installed(t.Context(), command, lock, "", nil); err != nil {
			t.Errorf("%s: %v", lock, err)
		}
	}
	if names, err := os.ReadDir(home); err != nil || len(names) > 0 {
		t.Errorf("%v, %v", names, err)
	}
	testenv.WriteFile(t, own, []byte("// the user's"))
	for _, before := range []string{"", "an older one"} {
		if before != "" {
			testenv.WriteFile(t, file, []byte(before))
		}
		if _, err := installed(t.Context(), command, "pi", "", nil); err != nil {
			t.Fatal(err)
		}
		text, err := os.ReadFile(file)
		if err != nil || !strings.Contains(string(text), "HARVEST_MODEL_URL") {
			t.Errorf("%s, %v", text, err)
		}
	}
	if text, err := os.ReadFile(own); err != nil || string(text) != "// the user's" {
		t.Errorf("%s, %v", text, err)
	}
	if err := os.RemoveAll(filepath.Dir(file)); err != nil {
		t.Fatal(err)
	}
	testenv.WriteFile(t, filepath.Dir(file), nil)
	if _, err := installed(t.Context(), command, "pi", "", nil); errors.KindOf(err) != errors.Invalid ||
		!strings.Contains(errors.Message(err), file) {
		t.Errorf("a directory that is a file: %v", err)
	}
}

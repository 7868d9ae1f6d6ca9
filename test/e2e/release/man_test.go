package release

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/RelevanceAI/harvest/internal/base/testenv"
)

// TestManualPages checks that each command has a page, and that the same date gives the same pages.
func TestManualPages(t *testing.T) {
	testenv.Long(t)
	t.Parallel()
	program := filepath.Join(t.TempDir(), "harvest")
	build := exec.CommandContext(t.Context(), "go", "build", "-tags", "clientonly,man", "-o", program, "./cmd/harvest")
	build.Dir, build.Env = "../../..", append(os.Environ(), "CGO_ENABLED=0")
	if out, err := build.CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	write := func() map[string]string {
		t.Helper()
		dir := filepath.Join(t.TempDir(), "man")
		cmd := exec.CommandContext(t.Context(), program, "man", dir)
		cmd.Env = append(testenv.CleanEnv(), "SOURCE_DATE_EPOCH=1700000000")
		if out, err := cmd.CombinedOutput(); err != nil {
			t.Fatalf("%v\n%s", err, out)
		}
		pages := map[string]string{}
		entries, err := os.ReadDir(dir)
		if err != nil {
			t.Fatal(err)
		}
		for _, e := range entries {
			text, err := os.ReadFile(filepath.Join(dir, e.Name()))
			if err != nil {
				t.Fatal(err)
			}
			pages[e.Name()] = string(text)
		}
		return pages
	}
	pages := write()
	for name, want := range map[string]string{"harvest.1": "isolated sandboxes", "harvest-run.1": `\fB--code\fP`,
		"harvest-sandbox-exec.1": "harvest-sandbox(1)"} {
		if page := pages[name]; !strings.Contains(page, want) || !strings.Contains(page, "Nov 2023") {
			t.Errorf("%s: %.400q", name, page)
		}
	}
	for name := range pages {
		if strings.Contains(name, "-man.") || strings.Contains(name, "keeper") {
			t.Errorf("there is a page %s", name)
		}
	}
	for name, text := range write() {
		if pages[name] != text {
			t.Errorf("%s differs the second time", name)
		}
	}
}

// TestProgramLacksManualPages checks that the code that writes the pages is in no ordinary build.
func TestProgramLacksManualPages(t *testing.T) {
	t.Parallel()
	for _, tags := range []string{"", "clientonly"} {
		cmd := exec.CommandContext(t.Context(), "go", "list", "-deps", "-tags", tags, "./cmd/harvest")
		cmd.Dir = "../../.."
		out, err := cmd.Output()
		if err != nil {
			t.Fatal(err)
		}
		if text := string(out); strings.Contains(text, "spf13/cobra/doc") || !strings.Contains(text, "spf13/cobra") {
			t.Errorf("with the tags %q: cobra/doc is linked, or cobra is not", tags)
		}
	}
}

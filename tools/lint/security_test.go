package lint_test

import (
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

// Each row of tools/scripts/security names tests that exist in its package.
func TestSecurityScriptNamesTests(t *testing.T) {
	t.Parallel()
	text, err := os.ReadFile("../scripts/security")
	if err != nil {
		t.Fatal(err)
	}
	group := regexp.MustCompile(`^\^Test\((.*)\)\$$`)
	rows := 0
	for line := range strings.Lines(string(text)) {
		cells := strings.SplitN(strings.TrimSpace(line), " | ", 5)
		if len(cells) != 5 || !strings.HasPrefix(cells[3], "./") || cells[4] == "." {
			continue
		}
		rows++
		var names []string
		if m := group.FindStringSubmatch(cells[4]); m != nil {
			for name := range strings.SplitSeq(m[1], "|") {
				names = append(names, "Test"+name+"(")
			}
		} else if first, _, _ := strings.Cut(cells[4], "/"); !strings.Contains(first, "(") {
			name := strings.TrimPrefix(first, "^")
			if exact, ok := strings.CutSuffix(name, "$"); ok {
				name = exact + "("
			}
			names = []string{name}
		}
		files, err := filepath.Glob(filepath.Join("../..", cells[3], "*_test.go"))
		if err != nil || len(files) == 0 {
			t.Fatalf("%s has no tests: %v", cells[3], err)
		}
		var all strings.Builder
		for _, name := range files {
			b, err := os.ReadFile(name)
			if err != nil {
				t.Fatal(err)
			}
			all.Write(b)
		}
		for _, name := range names {
			if !strings.Contains(all.String(), "func "+name) {
				t.Errorf("row %q: %s has no %s", cells[1], cells[3], name)
			}
		}
	}
	if rows < 25 {
		t.Errorf("only %d rows", rows)
	}
}

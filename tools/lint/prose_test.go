package lint

import (
	"maps"
	"os"
	"slices"
	"testing"
	"testing/fstest"

	"github.com/RelevanceAI/harvest/internal/base/testenv"
)

// TestProse checks that prose gets plainer: no area has more marked lines than its ceiling, and the ceiling of an area
// well below it must be lowered.
func TestProse(t *testing.T) {
	testenv.Long(t)
	t.Parallel()
	counts, err := countProse(os.DirFS("../.."))
	if err != nil {
		t.Fatal(err)
	}
	for _, area := range slices.Sorted(maps.Keys(counts)) {
		c, ceiling := counts[area], proseCeilings[area]
		t.Logf("%-10s %6d lines of prose, %5d with a marker: %4.1f %% (ceiling %.1f %%)", area, c.lines, c.marked,
			c.percent(), ceiling)
		switch {
		case c.percent() > ceiling:
			t.Errorf("%s: %.2f %% of the lines have a marker, the ceiling is %.1f %%: write the new lines plainly, "+
				"as CONTRIBUTING.md says", area, c.percent(), ceiling)
		case ceiling > 2 && c.percent() < ceiling-0.5:
			t.Errorf("%s: %.2f %% of the lines have a marker: lower the ceiling of %.1f %% in prose.go", area,
				c.percent(), ceiling)
		}
	}
	if len(counts) != len(proseCeilings) {
		t.Errorf("the areas are %v, the ceilings are for %v", slices.Sorted(maps.Keys(counts)),
			slices.Sorted(maps.Keys(proseCeilings)))
	}
}

func TestProseIsCounted(t *testing.T) {
	t.Parallel()
	files := fstest.MapFS{
		"README.md": {Data: []byte("It says what is told here.\n\n```\nwhat is in code\n```\n`what is` in " +
			"code too, plainly\n")},
		"docs/a.md":           {Data: []byte("nobody reads this line\nshort\n")},
		"docs/decisions/1.md": {Data: []byte("A plain line of text.\n")},
		"a/a.go": {Data: []byte("// A does what is right.\nvar a = \"nobody has asked for it\" // a b " +
			"c\n//go:embed what is\n")},
		"a/script.go": {Data: []byte("const s = `#!/bin/sh\n# nobody reads this line\n`\n")},
		"cmd/harvest/cmd.go": {Data: []byte("var c = command{Long: `Prints what is there,\n" +
			"and nobody knows why.\n`, Short: \"three plain words\"} // the end\n\nvar d = 1 // what is code\nvar e " +
			"= `one line of text`\n")},
		"a/a_test.go":     {Data: []byte("// A test of what is.\nvar b = \"what is it for\"\n")},
		"web/a.js":        {Data: []byte("// a plain comment here\n")},
		"a/testdata/b.md": {Data: []byte("nobody reads this line\n")},
	}
	counts, err := countProse(files)
	if err != nil {
		t.Fatal(err)
	}
	want := map[string]proseCount{
		"readme": {2, 1}, "docs": {1, 1}, "decisions": {1, 0}, "comments": {1, 1}, "strings": {5, 3}, "tests": {1, 1},
		"web": {1, 0},
	}
	if !maps.Equal(counts, want) {
		t.Errorf("counted %v, want %v", counts, want)
	}
}

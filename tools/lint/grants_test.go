package lint

import (
	"os"
	"testing"
	"testing/fstest"

	"github.com/RelevanceAI/harvest/internal/base/testenv"
)

// TestGrantsAreUsed checks that the layers allow no import that does not exist.
func TestGrantsAreUsed(t *testing.T) {
	testenv.Long(t)
	t.Parallel()
	tree, err := load(os.DirFS("../.."))
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range unusedGrants(tree, rows) {
		t.Error(f)
	}
}

func TestUnusedGrants(t *testing.T) {
	t.Parallel()
	file := func(pkg, imports string) *fstest.MapFile {
		return &fstest.MapFile{Data: []byte("// Package x is.\npackage " + pkg +
			"\n\nimport _ \"" + modulePath + "/" + imports + "\"\n")}
	}
	tree, err := load(fstest.MapFS{"internal/engine/volume/volume.go": file("volume", "internal/base/secret"),
		"internal/engine/volume/volume_test.go": file("volume", "internal/base/event"),
		"internal/engine/volume/more.go":        file("volume", "internal/base/ids")})
	if err != nil {
		t.Fatal(err)
	}
	for name, c := range map[string]struct {
		grant string
		want  int
	}{"used": {"base/secret", 0}, "of a test": {"base/event", 1}, "of none": {"base/account", 1},
		"above": {"base/ids", 1},
		"all":   {"...", 0}} {
		if got := unusedGrants(tree, []row{{"engine/volume", []string{c.grant}, ""}}); len(got) != c.want {
			t.Errorf("%s: %v", name, got)
		}
	}
}

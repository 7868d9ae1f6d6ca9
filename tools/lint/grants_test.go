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
	tree, err := load(fstest.MapFS{"internal/engine/volume/volume.go": file("volume", "secret"),
		"volume/volume_test.go": file("volume", "event"), "volume/more.go": file("volume", "internal/base/ids")})
	if err != nil {
		t.Fatal(err)
	}
	for name, c := range map[string]struct {
		grant string
		want  int
	}{"used": {"secret", 0}, "of a test": {"event", 1}, "of none": {"account", 1}, "above": {"internal/...", 1},
		"all": {"...", 0}} {
		if got := unusedGrants(tree, []row{{"volume", []string{c.grant}, ""}}); len(got) != c.want {
			t.Errorf("%s: %v", name, got)
		}
	}
}

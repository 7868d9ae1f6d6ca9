package lint

import (
	"os"
	"strings"
	"testing"
	"testing/fstest"

	"github.com/RelevanceAI/harvest/internal/base/testenv"
)

// TestCatalog checks that docs/packages.md is what the comments of the packages say. HARVEST_TEST_UPDATE=1 writes it.
func TestCatalog(t *testing.T) {
	testenv.Long(t)
	t.Parallel()
	tree, err := load(os.DirFS("../.."))
	if err != nil {
		t.Fatal(err)
	}
	want, err := catalog(tree)
	if err != nil {
		t.Fatal(err)
	}
	if os.Getenv("HARVEST_TEST_UPDATE") == "1" {
		testenv.WriteFile(t, "../../"+catalogPage, []byte(want))
		return
	}
	if tree.docs[catalogPage] != want {
		t.Errorf("%s is not what the comments of the packages say; write it with HARVEST_TEST_UPDATE=1", catalogPage)
	}
}

func TestCatalogOfFiles(t *testing.T) {
	t.Parallel()
	files := fstest.MapFS{}
	for p, text := range map[string]string{
		"internal/fleet/a.go":        "package fleet\n",
		"internal/fleet/fleet.go":    "// Package fleet runs sandboxes. It is large.\npackage fleet\n",
		"internal/fleet/x_test.go":   "// Package fleet is another one.\npackage fleet\n",
		"internal/fleet/pool/p.go":   "// Package pool is a|b.\npackage pool\n",
		"cmd/harvest/keeper/main.go": "// Command keeper keeps: a sandbox.\npackage main\n",
	} {
		files[p] = &fstest.MapFile{Data: []byte(text)}
	}
	tree, err := load(files)
	if err != nil {
		t.Fatal(err)
	}
	page, err := catalog(tree)
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{
		"\n## internal/fleet: sandboxes\n\n| package | summary |\n|---|---|\n" +
			"| `internal/fleet` | runs sandboxes |\n| `internal/fleet/pool` | a\\|b |\n\n",
		"| `cmd/harvest/keeper` | Command keeper keeps: a sandbox |\n",
	} {
		if !strings.Contains(page, want) {
			t.Errorf("the page lacks %q:\n%s", want, page)
		}
	}
	files["strange/x.go"] = &fstest.MapFile{Data: []byte("// Package strange is.\npackage strange\n")}
	if tree, err = load(files); err != nil {
		t.Fatal(err)
	}
	if _, err := catalog(tree); err == nil || !strings.Contains(err.Error(), "1 of 4 packages have no subject") {
		t.Errorf("a package without a subject: %v", err)
	}
}

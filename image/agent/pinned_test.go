package agent

import (
	"encoding/json"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

// TestDownloadsOfImagesAreVerified checks that programs that builds of images download by name have a version and a
// digest, which is checked before the program runs. apt verifies Debian's packages with Debian's keys.
func TestDownloadsOfImagesAreVerified(t *testing.T) {
	t.Parallel()
	checks := map[*regexp.Regexp]string{
		regexp.MustCompile(`\bcurl --`):        "sha256sum --check",
		regexp.MustCompile(`\bwget `):          "sha256sum --check",
		regexp.MustCompile(`\bpip install\b`):  "--require-hashes",
		regexp.MustCompile(`\burlopen\(`):      "package-lock.json says",
		regexp.MustCompile(`npm-cli.js" ci\b`): "package-lock.json",
	}
	found := 0
	look := func(name string) {
		text, err := os.ReadFile(name)
		if err != nil {
			t.Fatal(err)
		}
		for download, check := range checks {
			if download.Match(text) {
				found++
				if !strings.Contains(string(text), check) {
					t.Errorf("%s downloads with %s, and does not verify with %q", name, download, check)
				}
			}
		}
		if regexp.MustCompile(`npm (install|i) |npx (-y|--yes)`).Match(text) && filepath.Base(name) == "Dockerfile" {
			t.Errorf("%s installs what no lock file names", name)
		}
	}
	for _, dir := range []string{"files", "../debian"} {
		err := filepath.WalkDir(dir, func(name string, d fs.DirEntry, err error) error {
			if err == nil && !d.IsDir() && (filepath.Ext(name) == ".sh" && filepath.Base(name) != "tool.sh" ||
				filepath.Ext(name) == ".py" || d.Name() == "Dockerfile") {
				look(name)
			}
			return err
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	if found < 4 {
		t.Errorf("only %d downloads are found", found)
	}
	text, err := os.ReadFile("files/package-lock.json")
	if err != nil {
		t.Fatal(err)
	}
	var lock struct {
		Packages map[string]struct {
			Version, Integrity string
			InBundle           bool // within the archive of another package
		}
	}
	if err := json.Unmarshal(text, &lock); err != nil {
		t.Fatal(err)
	}
	for name, p := range lock.Packages {
		if name != "" && !p.InBundle && (p.Version == "" || !strings.HasPrefix(p.Integrity, "sha512-")) {
			t.Errorf("%s has no version and digest", name)
		}
	}
}

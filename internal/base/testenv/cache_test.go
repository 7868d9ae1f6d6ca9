package testenv

import (
	"os"
	"path/filepath"
	"testing"
	"time"
)

func TestCacheFollowsItsSources(t *testing.T) {
	t.Parallel()
	module := t.TempDir()
	write := func(name, text string) {
		path := filepath.Join(module, name)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	sum := func() string {
		s, err := checksum(module, []string{"a", "b/file"})
		if err != nil {
			t.Fatal(err)
		}
		return s
	}
	write("a/x.go", "1")
	write("b/file", "1")
	before := sum()
	write("a/x_test.go", "1")
	write("b/other", "1")
	if sum() != before {
		t.Error("a test, or a file that is no source, changes the sum")
	}
	write("a/x.go", "2")
	changed := sum()
	write("a/y.go", "")
	if changed == before || sum() == changed {
		t.Error("a changed or new source does not change the sum")
	}
	if _, err := checksum(module, []string{"missing"}); err == nil {
		t.Error("a source that does not exist is accepted")
	}
}

func TestCacheRemovesStaleDirectories(t *testing.T) {
	t.Parallel()
	parent := t.TempDir()
	const old, other = "0000000000000000", "1111111111111111"
	for _, sum := range []string{old, other} {
		if _, err := cacheIn(parent, "images", sum); err != nil {
			t.Fatal(err)
		}
	}
	past := time.Now().Add(-2 * stale)
	if err := os.Chtimes(filepath.Join(parent, "images-"+old), past, past); err != nil {
		t.Fatal(err)
	}
	dir, err := cacheIn(parent, "images", "2222222222222222")
	if err != nil {
		t.Fatal(err)
	}
	for path, want := range map[string]bool{dir: true, filepath.Join(parent, "images-"+other): true,
		filepath.Join(parent, "images-"+old): false} {
		if _, err := os.Stat(path); (err == nil) != want {
			t.Errorf("%s: %v", path, err)
		}
	}
}

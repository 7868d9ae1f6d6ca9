package trees_test

import (
	"context"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/RelevanceAI/harvest/client/errors"
	"github.com/RelevanceAI/harvest/internal/modal/trees"
)

// TestWalk checks that a walk visits links and not their targets, skips files and directories that are removed
// meanwhile, and obeys fs.SkipDir and the context.
func TestWalk(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	outside := t.TempDir()
	for _, name := range []string{"a/1", "a/2", "b/skipped", "c/removed", "d", "e/3"} {
		file := filepath.Join(dir, name)
		if err := errors.Join(os.MkdirAll(filepath.Dir(file), 0o700), os.WriteFile(file, nil, 0o600)); err != nil {
			t.Fatal(err)
		}
	}
	if err := errors.Join(os.WriteFile(filepath.Join(outside, "secret"), nil, 0o600),
		os.Symlink(outside, filepath.Join(dir, "link"))); err != nil {
		t.Fatal(err)
	}
	root, err := os.OpenRoot(dir)
	if err != nil {
		t.Fatal(err)
	}
	defer root.Close()
	var seen []string
	visit := func(name string, info fs.FileInfo) error {
		seen = append(seen, name)
		switch name {
		case "a":
			return os.RemoveAll(filepath.Join(dir, "d")) // after the list of the root was read
		case "b":
			return fs.SkipDir
		case "c":
			return os.RemoveAll(filepath.Join(dir, "c"))
		case "link":
			if info.Mode().Type() != fs.ModeSymlink {
				t.Errorf("a link is shown as %v", info.Mode())
			}
		}
		return nil
	}
	if err := trees.Walk(t.Context(), root, visit); err != nil {
		t.Fatal(err)
	}
	if got := strings.Join(seen, " "); got != "a a/1 a/2 b c e e/3 link" {
		t.Errorf("visited %s", got)
	}
	ctx, cancel := context.WithCancel(t.Context())
	seen = nil
	err = trees.Walk(ctx, root, func(name string, _ fs.FileInfo) error {
		seen = append(seen, name)
		cancel()
		return nil
	})
	if !errors.Is(err, context.Canceled) || len(seen) != 1 {
		t.Errorf("a walk that is canceled: %v, visited %v", err, seen)
	}
}

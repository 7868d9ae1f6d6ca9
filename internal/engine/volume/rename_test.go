package volume_test

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/RelevanceAI/harvest/client/errors"
	"github.com/RelevanceAI/harvest/internal/engine/volume"
)

func TestRename(t *testing.T) {
	t.Parallel()
	all, err := volume.OpenDir(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := all.Close(); err != nil {
			t.Error(err)
		}
	})
	mine, other := volume.Of(all, "acme"), volume.Of(all, "")
	for _, name := range []string{"a", "taken"} {
		if _, err := mine.Create(t.Context(), name); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.WriteFile(filepath.Join(all.Path("acme~a"), "f"), []byte("x"), 0o600); err != nil {
		t.Fatal(err)
	}
	rename := func(p volume.Provider, old, name string) errors.Kind {
		return errors.KindOf(p.(volume.Renamer).Rename(t.Context(), old, name))
	}
	for what, c := range map[string]struct {
		got, want errors.Kind
	}{
		"a name that is taken":       {rename(mine, "a", "taken"), errors.Conflict},
		"a bad name":                 {rename(mine, "a", "../b"), errors.Invalid},
		"an owner's name":            {rename(mine, "a", "b~c"), errors.Invalid},
		"a volume that is not there": {rename(mine, "none", "b"), errors.NotFound},
		"a volume of another owner":  {rename(other, "a", "b"), errors.NotFound},
	} {
		if c.got != c.want {
			t.Errorf("%s: %s, want %s", what, c.got, c.want)
		}
	}
	release, err := all.Use("acme~a", "a test")
	if err != nil {
		t.Fatal(err)
	}
	if got := rename(mine, "a", "b"); got != errors.Conflict {
		t.Errorf("a volume in use: %s", got)
	}
	release()
	if err := mine.(volume.Renamer).Rename(t.Context(), "a", "b"); err != nil {
		t.Fatal(err)
	}
	if _, err := mine.Open(t.Context(), "a"); errors.KindOf(err) != errors.NotFound {
		t.Errorf("the earlier name: %v", err)
	}
	if text, err := os.ReadFile(filepath.Join(all.Path("acme~b"), "f")); err != nil || string(text) != "x" {
		t.Errorf("the files: %q, %v", text, err)
	}
}

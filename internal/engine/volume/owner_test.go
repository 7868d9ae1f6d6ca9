package volume_test

import (
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/RelevanceAI/harvest/client/errors"
	"github.com/RelevanceAI/harvest/internal/engine/volume"
)

// TestVolumeQuota checks that the number of volumes is limited for each owner, and that a deletion makes room.
func TestVolumeQuota(t *testing.T) {
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
	all.SetQuota(3)
	mine, theirs := volume.Of(all, "acme"), volume.Of(all, "acme2")
	var created, refused atomic.Int32
	var wait sync.WaitGroup
	for i := range 10 {
		wait.Go(func() {
			switch _, err := mine.Create(t.Context(), fmt.Sprintf("v%d", i)); {
			case err == nil:
				created.Add(1)
			case errors.KindOf(err) == errors.Exhausted && !strings.Contains(errors.Message(err), "~"):
				refused.Add(1)
			default:
				t.Error(err)
			}
		})
	}
	wait.Wait()
	if created.Load() != 3 || refused.Load() != 7 {
		t.Errorf("%d created, %d refused", created.Load(), refused.Load())
	}
	list, err := mine.List(t.Context())
	if err != nil || len(list) != 3 {
		t.Fatalf("%v, %v", list, err)
	}
	if _, err := mine.Create(t.Context(), list[0].Name); err != nil {
		t.Errorf("an existing one: %v", err)
	}
	if _, err := theirs.Create(t.Context(), "data"); err != nil {
		t.Errorf("another owner: %v", err)
	}
	if err := mine.Delete(t.Context(), list[0].Name); err != nil {
		t.Fatal(err)
	}
	if _, err := mine.Create(t.Context(), "again"); err != nil {
		t.Errorf("after a deletion: %v", err)
	}
}

// mission: A7
func TestOwnersAreApart(t *testing.T) {
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
	mine, theirs := volume.Of(all, ""), volume.Of(all, "acme")
	for _, p := range []volume.Provider{mine, theirs} {
		v, err := p.Create(t.Context(), "data")
		if err != nil || v.Name() != "data" {
			t.Fatalf("%v, %v", v, err)
		}
	}
	if _, err := theirs.Create(t.Context(), "other"); err != nil {
		t.Fatal(err)
	}
	if list, err := mine.List(t.Context()); err != nil || len(list) != 1 || list[0].Name != "data" {
		t.Errorf("mine: %v, %v", list, err)
	}
	if list, err := theirs.List(t.Context()); err != nil || len(list) != 2 {
		t.Errorf("theirs: %v, %v", list, err)
	}
	for _, name := range []string{"other", "acme~other", "acme~data", "~", "a/b"} {
		if _, err := mine.Open(t.Context(), name); err == nil {
			t.Errorf("%s was opened", name)
		}
		if err := mine.Delete(t.Context(), name); err == nil {
			t.Errorf("%s was deleted", name)
		}
	}
	release, err := all.Use(volume.Stored("acme", "data"), "somebody")
	if err != nil {
		t.Fatal(err)
	}
	err = theirs.Delete(t.Context(), "data")
	if errors.KindOf(err) != errors.Conflict || strings.Contains(errors.Message(err), "~") {
		t.Errorf("in use: %v", err)
	}
	release()
	if err := theirs.Delete(t.Context(), "data"); err != nil {
		t.Error(err)
	}
	if _, err := mine.Open(t.Context(), "data"); err != nil {
		t.Errorf("mine is gone, too: %v", err)
	}
}

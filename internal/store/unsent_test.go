package store

import (
	"path/filepath"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/RelevanceAI/harvest/internal/base/places"
	"github.com/RelevanceAI/harvest/internal/fleet/storage"
)

// TestUnsent checks that an unsent record is kept until it is deleted.
func TestUnsent(t *testing.T) {
	t.Parallel()
	db := open(t, filepath.Join(t.TempDir(), "db"))
	s := db.Unsent()
	want := func(all ...storage.Unsent) {
		t.Helper()
		got, err := s.List(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(all, got); diff != "" {
			t.Errorf("unsent (-want +got):\n%s", diff)
		}
	}
	put := func(u storage.Unsent) {
		t.Helper()
		if err := s.Put(t.Context(), u); err != nil {
			t.Fatal(err)
		}
	}
	want()
	at := time.Date(2026, 1, 2, 3, 4, 5, 6000, time.UTC)
	a := storage.Unsent{Job: storage.Job{Sandbox: "sbx_a", Account: "acme", Volume: "data",
		Place: places.Place{Bucket: "b", Prefix: "p", Secret: "s"}}, Since: at, Next: at.Add(time.Second)}
	b := storage.Unsent{Job: storage.Job{Sandbox: "sbx_b", Account: "other", Volume: "data"}, Since: at, Next: at}
	put(b)
	put(a)
	want(a, b)
	a.Attempts, a.Error, a.Next = 3, "S3 is away", at.Add(time.Hour)
	put(a)
	want(a, b)
	for _, id := range []string{"sbx_a", "sbx_a", "none"} {
		if err := s.Delete(t.Context(), id); err != nil {
			t.Fatal(err)
		}
	}
	want(b)
	if err := db.Close(); err != nil {
		t.Fatal(err)
	}
	_, list := s.List(t.Context())
	for what, err := range map[string]error{"Put": s.Put(t.Context(), a), "List": list,
		"Delete": s.Delete(t.Context(), "sbx_a")} {
		if err == nil {
			t.Errorf("%s on a closed database succeeded", what)
		}
	}
}

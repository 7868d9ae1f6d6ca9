// Package testdb opens databases for tests of other packages.
package testdb

import (
	"path/filepath"
	"testing"

	"github.com/RelevanceAI/harvest/internal/store"
)

// Open opens a new database, which is closed at the end of the test.
func Open(t testing.TB) *store.DB {
	t.Helper()
	db, err := store.Open(t.Context(), filepath.Join(t.TempDir(), "harvest.db"))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := db.Close(); err != nil {
			t.Error(err)
		}
	})
	return db
}

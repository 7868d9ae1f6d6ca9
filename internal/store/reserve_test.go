package store

import (
	"fmt"
	"os"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/RelevanceAI/harvest/client/errors"
	"github.com/RelevanceAI/harvest/internal/base/testenv"
	"github.com/RelevanceAI/harvest/internal/fleet/record"
	"github.com/RelevanceAI/harvest/internal/store/storetest"
)

// TestReserve checks that records can be written on a full disk, as far as the reserve goes, and again after a restart.
func TestReserve(t *testing.T) {
	t.Parallel()
	dir := testenv.SmallDisk(t, "size=48m")
	put := func(db *DB, from int) error {
		for n := range 1000 {
			if err := db.Sandboxes().Put(t.Context(), storetest.Full(fmt.Sprintf("sbx_%06d", from+n))); err != nil {
				return err
			}
		}
		return nil
	}
	db := open(t, filepath.Join(dir, "db"))
	if err := errors.Join(db.Reserve(), db.Reserve()); err != nil {
		t.Fatal(err)
	}
	filler := filepath.Join(dir, "filler")
	if err := os.WriteFile(filler, make([]byte, 64<<20), 0o600); !errors.Is(err, unix.ENOSPC) {
		t.Fatalf("the disk is not full: %v", err)
	}
	if err := put(db, 0); err != nil {
		t.Fatalf("with a reserve: %v", err)
	}
	if err := db.Reserve(); !errors.Is(err, errors.Exhausted) {
		t.Errorf("the reserve of a full disk is renewed: %v", err)
	}
	if err := put(db, 1000); err != nil {
		t.Errorf("after a reserve that failed: %v", err)
	}
	if err := os.Remove(filler); err != nil {
		t.Fatal(err)
	}
	if err := db.Reserve(); err != nil {
		t.Errorf("with space again: %v", err)
	}
	if all, err := db.Sandboxes().List(t.Context(), "", record.Filter{All: true}); err != nil || len(all) != 2000 {
		t.Errorf("%d records, %v", len(all), err)
	}
	if err := db.Close(); err != nil {
		t.Fatal(err)
	}
	again := open(t, filepath.Join(dir, "db")) // it checks the database
	if err := put(again, 2000); err != nil {
		t.Error(err)
	}
}

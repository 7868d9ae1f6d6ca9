//go:build unix

package filelock

import (
	"os"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/RelevanceAI/harvest/client/errors"
)

func open(t *testing.T, name string) *os.File {
	t.Helper()
	f, err := os.OpenFile(name, os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { f.Close() })
	return f
}

func TestLocksExclude(t *testing.T) {
	t.Parallel()
	name := filepath.Join(t.TempDir(), "lock")
	one, err := Shared(open(t, name))
	if err != nil {
		t.Fatal(err)
	}
	two, err := Shared(open(t, name))
	if err != nil {
		t.Fatalf("a second shared lock: %v", err)
	}
	if _, err := Exclusive(open(t, name)); !errors.Is(err, unix.EWOULDBLOCK) {
		t.Errorf("an exclusive lock beside shared ones: %v", err)
	}
	if err := errors.Join(one.Close(), two.Close()); err != nil {
		t.Fatal(err)
	}
	if _, err := Exclusive(open(t, name)); err != nil {
		t.Fatalf("an exclusive lock alone: %v", err)
	}
	if _, err := Shared(open(t, name)); !errors.Is(err, unix.EWOULDBLOCK) {
		t.Errorf("a shared lock beside an exclusive one: %v", err)
	}
}

// TestCloseUnlocks closes a lock whose open file another process shares, as a child does before it executes its
// program.
func TestCloseUnlocks(t *testing.T) {
	t.Parallel()
	name := filepath.Join(t.TempDir(), "lock")
	lock, err := Exclusive(open(t, name))
	if err != nil {
		t.Fatal(err)
	}
	child, err := unix.Dup(int(lock.Fd()))
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(child)
	if err := lock.Close(); err != nil {
		t.Fatal(err)
	}
	if _, err := Exclusive(open(t, name)); err != nil {
		t.Errorf("it stays locked: %v", err)
	}
	if err := lock.Close(); err == nil {
		t.Error("a second Close succeeded")
	}
}

package mount

import (
	"net/http"
	"path/filepath"
	"syscall"
	"testing"
	"time"

	"github.com/RelevanceAI/harvest/client/errors"
	"github.com/RelevanceAI/harvest/internal/s3/tree"
)

// begin is a file that a program creates.
func (m *live) begin(t *testing.T, path string) *spool {
	t.Helper()
	s, err := m.newSpool(m.newEntry(t.Context(), path, tree.File, 0o644), false)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { s.file.Close() })
	return m.publish(s)
}

// TestTriedAgain checks that a file that cannot be stored is retried after a delay, and reported once, and that it is
// removed when it is stored and unused.
// mission: D5
func TestTriedAgain(t *testing.T) {
	t.Parallel()
	m, a, file := within(t, nil)
	told := 0
	m.failed = func(string, error) { told++ }
	a.answers(func(w http.ResponseWriter, _ *http.Request) bool { w.WriteHeader(http.StatusForbidden); return true })
	s := m.begin(t, "g")
	if err := s.pwrite([]byte("content"), 0); err != nil {
		t.Fatal(err)
	}
	before := time.Now()
	if _, err := s.store(t.Context()); !errors.Is(err, errors.Denied) {
		t.Errorf("store: %v", err)
	}
	for i, c := range []struct {
		after time.Duration
		asked int
	}{{0, 1}, {retryAfter, 1}, {time.Hour, 2}, {2 * time.Hour, 3}} {
		m.tend(before.Add(c.after))
		if got := len(a.of("PUT", "/g")); got != c.asked || told != 1 {
			t.Errorf("%d: it is asked for %d times, want %d, and told of %d times", i, got, c.asked, told)
		}
	}
	a.answers(nil)
	m.tend(time.Now().Add(time.Hour))
	if got := read(t, filepath.Join(filepath.Dir(file), "g")); got != "content" {
		t.Errorf("stored %q", got)
	}
	if got := names(t, m.spoolDir); got != `["1"]` {
		t.Errorf("what was just stored is kept here as %s", got)
	}
	m.tend(time.Now().Add(idleSpool + time.Second))
	if got := names(t, m.spoolDir); got != "[]" || m.spool("g") != nil {
		t.Errorf("what is not used is kept here: %s", got)
	}
}

// All files that are written and not stored yet have one limit.
func TestLimitOfAll(t *testing.T) {
	t.Parallel()
	m, _, _ := within(t, nil)
	m.limit = 1 << 20
	one, two := m.begin(t, "one"), m.begin(t, "two")
	part := make([]byte, 600<<10)
	if err := one.pwrite(part, 0); err != nil {
		t.Fatal(err)
	}
	is(t, two.pwrite(part, 0), syscall.ENOSPC)
	if err := one.pwrite(part, 0); err != nil {
		t.Errorf("what is there is written again: %v", err)
	}
	if _, err := one.store(t.Context()); err != nil {
		t.Fatal(err)
	}
	m.tend(time.Now().Add(idleSpool + time.Second))
	if err := m.begin(t, "three").pwrite(part, 0); err != nil {
		t.Errorf("after the first was stored and let go: %v", err)
	}
}

package mount

import (
	"net/http"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/RelevanceAI/harvest/internal/s3/tree"
)

// TestSeenInTime checks that changes by others are visible after 3 seconds, however the mount learned the earlier
// state: the kernel's entries from a list are no older than the list.
// mission: D5
func TestSeenInTime(t *testing.T) {
	t.Parallel()
	p := newPlace(t)
	other, a := p.mounted(about("sbx_intime2")), p.asked()
	dir := p.mounted(about("sbx_intime1"))
	write(t, filepath.Join(other, "f"), "old")
	write(t, filepath.Join(other, "g"), "old")
	if got := listed(t, dir); got != `["f" "g"]` {
		t.Errorf("list %s", got)
	}
	if got := read(t, filepath.Join(dir, "f")); got != "old" {
		t.Errorf("read %q", got)
	}
	eventually(t, "it asks for one name only", func() bool { return len(a.of(http.MethodHead, keyPath("g"))) > 0 })
	write(t, filepath.Join(other, "g"), "newer")
	write(t, filepath.Join(other, "h"), "new")
	stored := time.Now()
	time.Sleep(2 * time.Second)
	_, _ = os.Stat(filepath.Join(dir, "g"))
	_, _ = os.Stat(filepath.Join(dir, "h"))
	time.Sleep(time.Until(stored.Add(remember + 200*time.Millisecond)))
	if st, err := os.Stat(filepath.Join(dir, "g")); err != nil || st.Size() != int64(len("newer")) {
		t.Errorf("another content: %v, %v", st, err)
	}
	if _, err := os.Stat(filepath.Join(dir, "h")); err != nil {
		t.Errorf("another file: %v", err)
	}
}

// TestChangedMetadata checks that metadata that is changed through a mount stays changed there, also if the object's
// time and content match an earlier list.
// mission: D5
func TestChangedMetadata(t *testing.T) {
	t.Parallel()
	p := newPlace(t)
	dir, other := p.mounted(about("sbx_changed1")), p.mounted(about("sbx_changed2"))
	write(t, filepath.Join(other, "f"), "content")
	modes := func() (mode os.FileMode) {
		list, err := os.ReadDir(dir)
		if err != nil || len(list) != 1 {
			t.Fatalf("list %v, %v", list, err)
		}
		st, err := list[0].Info()
		if err != nil {
			t.Fatal(err)
		}
		return st.Mode()
	}
	if got := modes(); got != 0o644 {
		t.Errorf("at first %v", got)
	}
	if err := os.Chmod(filepath.Join(dir, "f"), 0o600); err != nil {
		t.Error(err)
	}
	if got := modes(); got != 0o600 {
		t.Errorf("afterwards %v", got)
	}
	time.Sleep(remember + time.Second)
	if got := modes(); got != 0o600 {
		t.Errorf("when it is listed again %v", got)
	}
}

// TestDescribedAgain checks that objects that a list shows as unchanged are not requested again for a while: changes of
// their metadata by others are visible after that.
// mission: D5
func TestDescribedAgain(t *testing.T) {
	t.Parallel()
	m, _, _ := within(t, []byte("content"))
	root := m.root()
	listed := func() kid {
		t.Helper()
		if err := root.list(); err != nil {
			t.Fatal(err)
		}
		root.mu.Lock()
		defer root.mu.Unlock()
		return *root.kids["f"]
	}
	listed()
	before, _, err := root.find("f", "f")
	if err != nil {
		t.Fatal(err)
	}
	eventually(t, "nobody asks what the names are", func() bool {
		root.mu.Lock()
		defer root.mu.Unlock()
		return root.kids["f"].full() && !root.asking
	})
	after := *before
	after.Mode = 0o600
	if err := m.b.CopyObject(t.Context(), before, &after); err != nil {
		t.Fatal(err)
	}
	older := func(by time.Duration) {
		root.mu.Lock()
		defer root.mu.Unlock()
		root.listed = time.Time{}
		root.kids["f"].at = time.Now().Add(-by)
	}
	older(0)
	if got := listed(); !got.full() {
		t.Error("it asks again of what a list shows as it was")
	}
	older(30 * time.Second)
	if got := listed(); got.full() {
		t.Error("it believes for ever what it knows of an object that a list shows as it was")
	}
	if e, _, err := root.find("f", "f"); err != nil || e.Mode != 0o600 {
		t.Errorf("it is %+v, %v", e, err)
	}
}

// A name that changes while its directory is listed is not forgotten by that.
func TestChangedWhileListed(t *testing.T) {
	t.Parallel()
	m, a, _ := within(t, nil)
	root := m.root()
	a.answers(func(_ http.ResponseWriter, r *http.Request) bool {
		if r.URL.Query().Has("list-type") {
			defer root.forget() // before S3 answers
		}
		return false
	})
	if err := root.list(); err != nil {
		t.Fatal(err)
	}
	a.answers(nil)
	e := m.newEntry(t.Context(), "d", tree.Dir, 0o755)
	if err := m.b.WriteObject(t.Context(), &e, nil); err != nil {
		t.Fatal(err)
	}
	if _, _, err := root.find("d", "d"); err != nil {
		t.Errorf("it believes an older list: %v", err)
	}
}

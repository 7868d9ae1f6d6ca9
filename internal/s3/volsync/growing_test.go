package volsync

import (
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/RelevanceAI/harvest/client/errors"
	"github.com/RelevanceAI/harvest/internal/s3/volsync/plan"
)

// TestGrowing checks that a file that a program writes all the time is not stored in a torn state.
func TestGrowing(t *testing.T) {
	dir, b := t.TempDir(), openBucket(t, location(t))
	write(t, dir, "other", "o")
	f, err := os.Create(filepath.Join(dir, "log"))
	must(t, err)
	defer f.Close()
	stop, ended := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(ended)
		for {
			select {
			case <-stop:
				return
			default:
				_, _ = f.WriteString("0123456789\n")
			}
		}
	}()
	stats, err := Sync(t.Context(), openTree(t, dir), b, Options{Direction: plan.Up})
	close(stop)
	<-ended
	must(t, err)
	for _, fail := range stats.Failures {
		if fail.Path != "log" || !strings.Contains(fail.Reason, "changed") {
			t.Errorf("%s: %s", fail.Path, fail.Reason)
		}
	}
	if stats.Files < 1 {
		t.Errorf("the other file was not stored: %s", stats)
	}
	// It was reported, or stored as it once was.
	stored, err := b.Describe(t.Context(), "log")
	if stats.Failed > 0 != errors.Is(err, errors.NotFound) {
		t.Errorf("%d failed, and S3 has %+v, %v", stats.Failed, stored, err)
	}
	if err == nil {
		buf := make([]byte, stored.Size)
		must(t, b.ReadObject(t.Context(), stored, buf, 0))
		if stored.Size%11 != 0 || string(buf) != strings.Repeat("0123456789\n", int(stored.Size/11)) {
			t.Errorf("%d bytes were stored that the file never had", stored.Size)
		}
	}
	if stats := mustSync(t, dir, b, Options{Direction: plan.Up}); stats.Files > 1 {
		t.Errorf("afterwards: %s", stats)
	}
	back := t.TempDir()
	mustSync(t, back, b, Options{Direction: plan.Down, Owners: true})
	sameTrees(t, dir, back)
}

// TestGrowingWithoutEnd checks that a large file that grows with each of its parts is given up: it is reported, S3 has
// no part of it, and the other files are stored.
func TestGrowingWithoutEnd(t *testing.T) {
	dir, loc := t.TempDir(), location(t)
	write(t, dir, "other", "o")
	write(t, dir, "log", strings.Repeat("0123456789abcdef", 3<<20)) // 48 MiB: 3 parts
	f, err := os.OpenFile(filepath.Join(dir, "log"), os.O_WRONLY|os.O_APPEND, 0)
	must(t, err)
	defer f.Close()
	a := between(t, &loc)
	b := openBucket(t, loc)
	a.reset(func(_ int, _ http.ResponseWriter, r *http.Request) bool {
		if r.URL.Query().Has("partNumber") {
			_, _ = f.WriteString("more")
		}
		return false
	})
	stats, err := Sync(t.Context(), openTree(t, dir), b, Options{Direction: plan.Up, State: t.TempDir()})
	must(t, err)
	a.reset(nil)
	if stats.Failed != 1 || stats.Failures[0].Path != "log" || !strings.Contains(stats.Failures[0].Reason, "changed") ||
		stats.Files != 1 {
		t.Errorf("it did %s with %+v", stats, stats.Failures)
	}
	if _, err := b.Describe(t.Context(), "log"); !errors.Is(err, errors.NotFound) {
		t.Errorf("S3 has the file: %v", err)
	}
	for u, err := range b.UploadsBegun(t.Context()) {
		t.Errorf("parts of %v are still there, %v", u.Key, err)
	}
	mustSync(t, dir, b, Options{Direction: plan.Up})
	back := t.TempDir()
	mustSync(t, back, b, Options{Direction: plan.Down, Owners: true})
	sameTrees(t, dir, back)
}

package volsync

import (
	"context"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/minio/crc64nvme"

	"github.com/RelevanceAI/harvest/internal/s3/manifest"
	"github.com/RelevanceAI/harvest/internal/s3/volsync/plan"
)

// TestDirectoryIsStoredAgain ends a sync that deletes directories before it stores its manifest. Then another program
// stores the object of each directory again, which has the ETag of all empty objects. The next sync finds that nobody
// deleted these objects. The directories come back, as directories: one is beneath the other.
// mission: A8, D1
func TestDirectoryIsStoredAgain(t *testing.T) {
	t.Parallel()
	for name, list := range map[string]bool{"manifest": false, "listed": true} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			server := &strictServer{}
			loc := strictLocation(t, server)
			a := between(t, &loc)
			b := openBucket(t, loc)
			first, second := twoAt(t, b)
			must(t, os.MkdirAll(filepath.Join(first.dir, "d/e"), 0o755))
			write(t, first.dir, "other", "other")
			settle(t, first, second)
			must(t, os.RemoveAll(filepath.Join(first.dir, "d")))
			ctx, cancel := context.WithCancel(t.Context())
			a.reset(func(_ int, _ http.ResponseWriter, r *http.Request) bool {
				if r.Method != http.MethodPut || !strings.HasSuffix(r.URL.Path, manifest.Key) {
					return false
				}
				cancel()
				panic(http.ErrAbortHandler)
			})
			o := Options{Direction: plan.Both, State: first.state, Owners: true, List: list}
			if _, err := Sync(ctx, openTree(t, first.dir), b, o); err == nil {
				t.Fatal("the sync was not canceled")
			}
			a.reset(nil)
			server.later(2 * time.Second)
			for _, key := range []string{"d/", "d/e/"} {
				_, err := b.Put(t.Context(), key, nil, crc64nvme.Checksum(nil), nil)
				must(t, err)
			}
			mustSync(t, first.dir, b, o)
			settle(t, first, second)
			if info, err := os.Lstat(filepath.Join(second.dir, "d/e")); err != nil || !info.IsDir() {
				t.Errorf("the directory beneath: %v, %v", info, err)
			}
			if got := filesOf(t, second.dir); len(got) != 1 {
				t.Errorf("the files: %q", got)
			}
		})
	}
}

// TestDirectoryMadeTwice makes a directory on two machines, whose syncs overlap: the slower one finds the object of the
// other. It is one directory, and none of the syncs fails.
// mission: A8, D1
func TestDirectoryMadeTwice(t *testing.T) {
	t.Parallel()
	loc := strictLocation(t, &strictServer{})
	a := between(t, &loc)
	b := openBucket(t, loc)
	first, second := twoAt(t, b)
	write(t, first.dir, "other", "other")
	settle(t, first, second)
	must(t, os.Mkdir(filepath.Join(first.dir, "d"), 0o755))
	must(t, os.Mkdir(filepath.Join(second.dir, "d"), 0o700))
	var seen atomic.Bool
	asks(a, http.MethodPut, "/d/", func() { seen.Store(true); second.both(t) })
	first.both(t)
	a.reset(nil)
	if !seen.Load() {
		t.Fatalf("no object for the directory: %s", strings.Join(a.seen(), ", "))
	}
	settle(t, first, second)
}

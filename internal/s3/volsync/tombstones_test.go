package volsync

import (
	"context"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/minio/crc64nvme"

	"github.com/RelevanceAI/harvest/client/errors"
	"github.com/RelevanceAI/harvest/internal/s3/object"
	"github.com/RelevanceAI/harvest/internal/s3/tree"
	"github.com/RelevanceAI/harvest/internal/s3/volsync/plan"
	"github.com/RelevanceAI/harvest/internal/s3/volsync/state"
)

// TestDeletionsCutShortAreSeenByOthers checks that an interrupted deletion between the manifest and the objects does
// not bring the files back on any machine, listed or not. Another machine finishes it. An object that another program
// stores at the path meanwhile is a new file.
// mission: A8, D1
func TestDeletionsCutShortAreSeenByOthers(t *testing.T) {
	for name, o := range map[string]Options{"mirror": {Direction: plan.Up, Mirror: true},
		"both": {Direction: plan.Both}} {
		t.Run(name, func(t *testing.T) {
			loc := location(t)
			a := between(t, &loc)
			newMachine := func() *machine { return &machine{t.TempDir(), t.TempDir(), nil} }
			first, second, third := newMachine(), newMachine(), newMachine()
			b := openBucket(t, loc)
			for _, name := range []string{"gone", "dir/gone", "anew", "stays"} {
				write(t, first.dir, name, "of "+name)
			}
			both := Options{Direction: plan.Both, List: true}
			sync := func(m *machine, o Options) {
				t.Helper()
				o.State = m.state
				if s := mustSync(t, m.dir, b, o); s.Failed > 0 {
					t.Errorf("%+v", s.Failures)
				}
			}
			sync(first, both)
			sync(second, both)
			must(t, os.Remove(filepath.Join(first.dir, "gone")))
			must(t, os.RemoveAll(filepath.Join(first.dir, "dir")))
			must(t, os.Remove(filepath.Join(first.dir, "anew")))
			ctx, cancel := context.WithCancel(t.Context())
			a.reset(func(_ int, w http.ResponseWriter, r *http.Request) bool {
				if !isDeletion(r) {
					return false
				}
				cancel()
				return xmlFault(w, 500, "InternalError")
			})
			o.State = first.state
			if _, err := Sync(ctx, openTree(t, first.dir), b, o); err == nil {
				t.Fatal("the sync was not cut short")
			}
			if _, err := b.Stat(t.Context(), "gone"); err != nil {
				t.Fatalf("the object is not there any more: %v", err)
			}
			nextSecond(t, b)
			a.reset(nil)                 // now no deletion of the sync that was cut short is on its way
			put(t, b, "anew", "of anew") // by another program, with the earlier content
			sync(third, Options{Direction: plan.Down, List: true})
			sync(second, both)
			sync(third, both)
			sync(first, both)
			for _, m := range []*machine{first, second, third} {
				for _, name := range []string{"gone", "dir"} {
					if _, err := os.Lstat(filepath.Join(m.dir, name)); !errors.IsNotExist(err) {
						t.Errorf("%s came back: %v", name, err)
					}
				}
				for _, name := range []string{"anew", "stays"} {
					if raw, err := os.ReadFile(filepath.Join(m.dir, name)); err != nil || string(raw) != "of "+name {
						t.Errorf("%s has %q, %v", name, raw, err)
					}
				}
			}
			for o, err := range b.All(t.Context(), object.AnyOrder) {
				if must(t, err); strings.HasSuffix(o.Key, "gone") || strings.HasPrefix(o.Key, state.TombstonesDir) {
					t.Errorf("%s is left", o.Key)
				}
			}
		})
	}
}

// put stores an object as another program does.
func put(t *testing.T, b *object.Bucket, key, content string) {
	t.Helper()
	_, err := b.Put(t.Context(), key, []byte(content), crc64nvme.Checksum([]byte(content)), nil)
	must(t, err)
}

// nextSecond waits until new objects get times of the next second, by the server's clock.
func nextSecond(t *testing.T, b *object.Bucket) {
	t.Helper()
	last := func() string {
		put(t, b, tree.Reserved+"/clock", "tick")
		res, err := b.Head(t.Context(), tree.Reserved+"/clock")
		must(t, err)
		return res.Header.Get("Last-Modified")
	}
	for began := last(); last() == began; {
		time.Sleep(20 * time.Millisecond)
	}
}

// TestFileBesideDirectoryOfItsName checks that keys a and a/b, which no directory can have, end with both contents: the
// file gets the name of a conflict.
// mission: 3.2, A8
func TestFileBesideDirectoryOfItsName(t *testing.T) {
	b := strictBucket(t)
	put(t, b, "a", "of the file")
	put(t, b, "a/b", "beneath it")
	one, two := twoAt(t, b)
	s, err := Sync(t.Context(), openTree(t, one.dir), b, Options{Direction: plan.Both, State: one.state, Owners: true})
	must(t, err)
	if s.Conflicts+s.Failed == 0 {
		t.Errorf("nothing is named: %s", s)
	}
	settle(t, one, two)
	for path, want := range map[string]string{"a copy": "of the file",
		"a/b": "beneath it"} { // the former is a conflict
		if got := filesOf(t, two.dir)[path]; len(got) != 1 || got[0] != want {
			t.Errorf("%s has %q; all: %q", path, got, filesOf(t, two.dir))
		}
	}
	if info, err := os.Lstat(filepath.Join(two.dir, "a")); err != nil || !info.IsDir() {
		t.Errorf("a is no directory: %v", err)
	}
}

// A sparse file keeps its holes from 64 MiB on; a smaller one comes back as it reads.
func TestSparseFilesBySize(t *testing.T) {
	b := strictBucket(t)
	one, two := twoAt(t, b)
	for name, size := range map[string]int64{"small": 1 << 20, "large": tree.MinSparse} {
		write(t, one.dir, name, "data")
		must(t, os.Truncate(filepath.Join(one.dir, name), size))
	}
	settle(t, one, two)
	for name, sparse := range map[string]bool{"small": false, "large": true} {
		info, err := os.Stat(filepath.Join(two.dir, name))
		must(t, err)
		if st := info.Sys().(*syscall.Stat_t); (st.Blocks*512 < info.Size()) != sparse {
			t.Errorf("%s has %d bytes on the disk, of %d", name, st.Blocks*512, info.Size())
		}
	}
}

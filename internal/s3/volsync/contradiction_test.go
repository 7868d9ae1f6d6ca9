package volsync

import (
	"fmt"
	"maps"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/minio/crc64nvme"

	"github.com/RelevanceAI/harvest/internal/s3/volsync/plan"
)

// TestFileWhereBucketHasDirectory stores a file where another program stored the object of a directory, or an object
// beneath it, on a server that cannot have both. The directory stays and the file becomes a copy, in one sync. A sync
// up says what to do, and that heals it.
// mission: 3.2, D2
func TestFileWhereBucketHasDirectory(t *testing.T) {
	t.Parallel()
	for _, key := range []string{"dir/", "dir/beneath"} {
		for _, list := range []bool{false, true} {
			t.Run(fmt.Sprintf("%s, list %v", key, list), func(t *testing.T) {
				t.Parallel()
				all, b, _ := machines(t, 2)
				x, y := all[0], all[1]
				write(t, x.dir, "other", "other")
				settle(t, x, y)
				_, err := b.Put(t.Context(), key, nil, crc64nvme.Checksum(nil), nil)
				must(t, err)
				write(t, y.dir, "dir", "text")
				s, err := Sync(t.Context(), openTree(t, y.dir), b, Options{Direction: plan.Up, State: y.state})
				must(t, err)
				if len(s.Failures) != 1 || !strings.Contains(s.Failures[0].Remedy, "--both --list") {
					t.Errorf("a sync up: %+v", s.Failures)
				}
				o := Options{Direction: plan.Both, Owners: true, State: y.state, List: list}
				if s := mustSync(t, y.dir, b, o); s.Conflicts == 0 {
					t.Errorf("no conflict is reported: %s", s)
				}
				for range 2 {
					for _, m := range []*machine{x, y} {
						mustSync(t, m.dir, b, Options{Direction: plan.Both, Owners: true, State: m.state, List: true})
					}
				}
				settle(t, x, y)
				want := map[string][]string{"other": {"other"}, "dir copy": {"text"}}
				if key != "dir/" {
					want[key] = []string{""}
				}
				if got := filesOf(t, x.dir); !maps.EqualFunc(got, want, slices.Equal) {
					t.Errorf("the volume has %q, want %q", got, want)
				}
			})
		}
	}
}

// TestListLagsBehindManifest syncs with a list that shows nothing of the manifest that was just read, or only a part.
// Nothing is deleted on either side.
// mission: A8, D2
func TestListLagsBehindManifest(t *testing.T) {
	t.Parallel()
	for _, o := range []Options{{Direction: plan.Both}, {Direction: plan.Down, Mirror: true}, {Direction: plan.Down}} {
		t.Run(fmt.Sprintf("%s, mirror %v", o.Direction, o.Mirror), func(t *testing.T) {
			t.Parallel()
			loc := strictLocation(t, &strictServer{})
			a := between(t, &loc)
			x, y := twoAt(t, openBucket(t, loc))
			for _, path := range []string{"a", "d/e", "d/f", "z"} {
				write(t, x.dir, path, "content of "+path)
			}
			must(t, os.Mkdir(filepath.Join(x.dir, "empty"), 0o700))
			settle(t, x, y)
			a.reset(func(_ int, w http.ResponseWriter, r *http.Request) bool {
				if r.Method != http.MethodGet || !r.URL.Query().Has("list-type") {
					return false
				}
				answerXML(w, struct {
					XMLName struct{} `xml:"ListBucketResult"`
				}{})
				return true
			})
			o.Owners, o.List, o.State = true, true, y.state
			for range 2 {
				if s := mustSync(t, y.dir, y.b, o); s.Deleted > 0 {
					t.Errorf("the sync deletes: %s", s)
				}
				sameTrees(t, x.dir, y.dir)
			}
			a.reset(nil)
			settle(t, x, y)
		})
	}
}

// TestTouchTransfersNothing changes only the time of a large file. The other machine sets the time, in each direction,
// and transfers no content.
// mission: D2
func TestTouchTransfersNothing(t *testing.T) {
	t.Parallel()
	for _, direction := range []plan.Direction{plan.Both, plan.Down} {
		t.Run(string(direction), func(t *testing.T) {
			t.Parallel()
			loc := strictLocation(t, &strictServer{})
			a := between(t, &loc)
			x, y := twoAt(t, openBucket(t, loc))
			write(t, x.dir, "big", strings.Repeat("20 MiB..", 20<<20/8))
			write(t, x.dir, "small", "content")
			sync := func(m *machine, d plan.Direction) Stats {
				return mustSync(t, m.dir, m.b, Options{Direction: d, Owners: true, State: m.state})
			}
			sync(x, plan.Both)
			sync(y, direction)
			for i, at := range []time.Time{time.Unix(1, 0), someTime} {
				a.reset(nil)
				for _, path := range []string{"big", "small"} {
					must(t, os.Chtimes(filepath.Join(x.dir, path), at, at))
				}
				if s := sync(x, plan.Both); s.Bytes > 0 || s.Updated != 2 {
					t.Errorf("change %d, up: %s", i, s)
				}
				if s := sync(y, direction); s.Bytes > 0 || s.Updated != 2 {
					t.Errorf("change %d, %s: %s", i, direction, s)
				}
				for _, request := range a.seen() {
					if strings.HasSuffix(request, "/big") || strings.HasSuffix(request, "/small") {
						t.Errorf("change %d: %s", i, request)
					}
				}
				sameTrees(t, x.dir, y.dir)
			}
			// The same time and size prove nothing: the content is another one.
			write(t, x.dir, "small", "CONTENT")
			must(t, os.Chtimes(filepath.Join(x.dir, "small"), someTime, someTime))
			sync(x, plan.Both)
			sync(y, direction)
			sameTrees(t, x.dir, y.dir)
		})
	}
}

// TestDirectoryObjectWithoutMetadata stores the object of a directory without metadata behind the manifest. A machine
// that then stores it too does not take over the mode of a file.
// mission: 3.2, D2
func TestDirectoryObjectWithoutMetadata(t *testing.T) {
	t.Parallel()
	for place, machines := range places {
		t.Run(place, func(t *testing.T) {
			t.Parallel()
			x, y := machines(t)
			write(t, x.dir, "d/f", "content")
			write(t, x.dir, "other", "other")
			settle(t, x, y)
			_, err := x.b.Put(t.Context(), "d/", nil, crc64nvme.Checksum(nil), nil)
			must(t, err)
			must(t, os.Remove(filepath.Join(y.dir, "d/f")))
			y.both(t)
			settle(t, y, x)
			for _, m := range []*machine{x, y} {
				if info, err := os.Stat(filepath.Join(m.dir, "d")); err != nil || info.Mode().Perm() != 0o755 {
					t.Errorf("the directory: %v, %v", info, err)
				}
			}
		})
	}
}

package volsync

import (
	"context"
	"fmt"
	"math/rand/v2"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/fxamacker/cbor/v2"
	"github.com/minio/crc64nvme"
	"golang.org/x/sync/errgroup"
	"golang.org/x/sync/semaphore"

	"github.com/RelevanceAI/harvest/client/errors"
	"github.com/RelevanceAI/harvest/internal/base/testenv"
	"github.com/RelevanceAI/harvest/internal/s3"
	"github.com/RelevanceAI/harvest/internal/s3/buffer"
	"github.com/RelevanceAI/harvest/internal/s3/manifest"
	"github.com/RelevanceAI/harvest/internal/s3/object"
	"github.com/RelevanceAI/harvest/internal/s3/volsync/pack"
	"github.com/RelevanceAI/harvest/internal/s3/volsync/plan"
)

// packedTree has one of everything, and small files for several packs.
func packedTree(t *testing.T) string {
	dir := richTree(t)
	plantMany(t, dir)
	return dir
}

// plainTree has the small files only.
func plainTree(t *testing.T) string {
	dir := t.TempDir()
	plantMany(t, dir)
	return dir
}

// plantMany makes small files for several packs. Half of them cannot be compressed.
func plantMany(t *testing.T, dir string) {
	t.Helper()
	random := rand.NewChaCha8([32]byte{1})
	body := make([]byte, 200<<10)
	for i := range 45 {
		if _, err := random.Read(body[:len(body)*(i%2)]); err != nil {
			t.Fatal(err)
		}
		write(t, dir, fmt.Sprintf("many/%02d/file", i), string(body[:len(body)-i]))
		for k := range 4 {
			write(t, dir, fmt.Sprintf("many/%02d/small-%d", i, k), fmt.Sprint("content ", i, k))
		}
	}
	age(t, dir)
}

// fill fills an empty volume from the bucket, compares it with the tree, and returns the small objects that were
// requested singly.
func fill(t *testing.T, dir string, loc s3.Location, o Options) (singly []string) {
	t.Helper()
	proxy := between(t, &loc)
	back := t.TempDir()
	o.Direction, o.Owners, o.SetID = plan.Down, true, true
	mustSync(t, back, openBucket(t, loc), o)
	sameTrees(t, dir, back)
	for _, call := range proxy.seen() {
		if method, key, _ := strings.Cut(call, " "); method == http.MethodGet &&
			!strings.Contains(key, "/"+pack.Prefix) && !strings.HasSuffix(key, manifest.Key) &&
			strings.Count(key, "/") > 1 &&
			!strings.HasSuffix(key, "/big.bin") && !strings.Contains(key, "/sparse/") {
			singly = append(singly, key)
		}
	}
	return singly
}

// packsOf returns the names of the packs in a bucket, and of those in its index.
func packsOf(t *testing.T, b *object.Bucket) (stored, indexed []string) {
	t.Helper()
	at := b.Below(b.Prefix() + pack.Prefix)
	for o, err := range at.All(t.Context(), object.AnyOrder) {
		must(t, err)
		stored = append(stored, o.Key)
	}
	x, _, err := pack.ReadIndex(t.Context(), b)
	must(t, err)
	if x != nil {
		for _, row := range x.Packs {
			if row.ID != "" {
				indexed = append(indexed, row.ID)
			}
		}
	}
	slices.Sort(stored)
	slices.Sort(indexed)
	return stored, indexed
}

// mission: D2
func TestPacksFillEmptyVolumes(t *testing.T) {
	t.Parallel()
	testenv.Long(t)
	dir, loc := packedTree(t), location(t)
	b := openBucket(t, loc)
	mustSync(t, dir, b, Options{Direction: plan.Up, State: t.TempDir(), Packs: true})
	stored, indexed := packsOf(t, b)
	if len(stored) < 3 || !slices.Equal(stored, indexed) {
		t.Fatalf("there are the packs %v, and the index has %v", stored, indexed)
	}
	for _, o := range []Options{{State: t.TempDir()}, {List: true}} {
		if got := fill(t, dir, loc, o); len(got) > 0 {
			t.Errorf("these were fetched by themselves: %v", got)
		}
	}
	// Not into a volume that has files.
	half := t.TempDir()
	write(t, half, "many/00/small-1", "mine")
	mustSync(t, half, b, Options{Direction: plan.Down, Owners: true, SetID: true, Mirror: true})
	sameTrees(t, dir, half)
}

func TestPacksFollowChanges(t *testing.T) {
	testenv.Long(t)
	t.Parallel()
	dir, loc, state := plainTree(t), location(t), t.TempDir()
	b := openBucket(t, loc)
	up := Options{Direction: plan.Up, State: state, Packs: true, Mirror: true, DeleteMany: true}
	mustSync(t, dir, b, up)
	first, _ := packsOf(t, b)
	write(t, dir, "many/03/small-3", "changed")
	mustSync(t, dir, b, up)
	if now, _ := packsOf(t, b); !slices.Equal(now, first) {
		t.Errorf("one small change made packs anew: %v, before %v", now, first)
	}
	if got := fill(t, dir, loc, Options{}); !slices.ContainsFunc(got,
		func(key string) bool { return strings.HasSuffix(key, "/many/03/small-3") }) {
		t.Errorf("the changed file did not come from its object, but these did: %v", got)
	}
	random := rand.New(rand.NewPCG(1, 2))
	for round := range 5 {
		for range 60 {
			path := fmt.Sprintf("many/%02d/small-%d", random.IntN(50), random.IntN(12))
			if random.IntN(3) == 0 {
				must(t, os.RemoveAll(filepath.Join(dir, path)))
			} else {
				write(t, dir, path, strings.Repeat(path, random.IntN(2000)))
			}
		}
		if round == 4 {
			must(t, os.RemoveAll(filepath.Join(dir, "many")))
		}
		if round%2 == 1 {
			up.State = t.TempDir() // another machine
		}
		mustSync(t, dir, b, up)
		stored, indexed := packsOf(t, b)
		if !slices.Equal(stored, indexed) {
			t.Errorf("there are the packs %v, and the index has %v", stored, indexed)
		}
		fill(t, dir, loc, Options{})
	}
	if now, _ := packsOf(t, b); slices.Equal(now, first) {
		t.Error("no change made a pack anew")
	}
}

// TestPacksAskNothing checks that an unchanged tree causes no requests for packs.
func TestPacksAskNothing(t *testing.T) {
	t.Parallel()
	dir, loc, state := richTree(t), location(t), t.TempDir()
	proxy := between(t, &loc)
	b := openBucket(t, loc)
	mustSync(t, dir, b, Options{Direction: plan.Up, State: state})
	mustSync(t, dir, b, Options{Direction: plan.Up, State: state, Packs: true}) // switched on later
	if stored, _ := packsOf(t, b); len(stored) != 1 {
		t.Fatalf("there are the packs %v", stored)
	}
	proxy.reset(nil)
	mustSync(t, dir, b, Options{Direction: plan.Up, State: state, Packs: true})
	if got := proxy.seen(); len(got) != 1 {
		t.Errorf("an unchanged tree was asked about: %v", got)
	}
}

// TestBadPacks checks that bad packs cost time, and lose no file.
func TestBadPacks(t *testing.T) {
	t.Parallel()
	dir := plainTree(t)
	for name, spoil := range map[string]func(t *testing.T, b *object.Bucket, x *pack.Index){
		"a pack is gone": func(t *testing.T, b *object.Bucket, x *pack.Index) { remove(t, b, x.Packs[1].Key()) },
		"a pack is damaged": func(t *testing.T, b *object.Bucket, x *pack.Index) {
			overwrite(t, b, x.Packs[0].Key(),
				[]byte("no pack"))
		},
		"a pack lies": func(t *testing.T, b *object.Bucket, x *pack.Index) {
			raw, err := pack.Encode([]pack.Member{{Place: []byte("a0"), Size: 9, CRC: 1},
				{Place: []byte("many/00/small-1"), Size: 4}}, []byte("otherwise and"), nil)
			must(t, err)
			overwrite(t, b, x.Packs[0].Key(), raw)
			x.Packs[0].ETag, x.Packs[0].Size, x.Packs[0].CRC = "", int64(len(raw)), crc64nvme.Checksum(raw)
			putIndex(t, b, x)
		},
		"the index is damaged": func(t *testing.T, b *object.Bucket, _ *pack.Index) {
			overwrite(t, b, pack.IndexKey,
				[]byte("no index"))
		},
		"the index is newer": func(t *testing.T, b *object.Bucket, x *pack.Index) {
			x.Version++
			putIndex(t, b, x)
		},
		"packs are exchanged": func(t *testing.T, b *object.Bucket, x *pack.Index) {
			x.Packs[0].ID, x.Packs[1].ID = x.Packs[1].ID, x.Packs[0].ID
			x.Packs[0].ETag, x.Packs[1].ETag = x.Packs[1].ETag, x.Packs[0].ETag
			x.Packs[0].Size, x.Packs[1].Size = x.Packs[1].Size, x.Packs[0].Size
			x.Packs[0].CRC, x.Packs[1].CRC = x.Packs[1].CRC, x.Packs[0].CRC
			putIndex(t, b, x)
		},
		"the index leads out": func(t *testing.T, b *object.Bucket, x *pack.Index) {
			x.Packs[0].ID = "../../x"
			putIndex(t, b, x)
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			loc, state := location(t), t.TempDir()
			b := openBucket(t, loc)
			mustSync(t, dir, b, Options{Direction: plan.Up, State: state, Packs: true})
			x, _, err := pack.ReadIndex(t.Context(), b)
			must(t, err)
			spoil(t, b, x)
			if got := fill(t, dir, loc, Options{}); len(got) < 5 {
				t.Errorf("only these came by themselves: %v", got)
			}
			// A machine that never had the packs makes them anew if the index is unreadable, but does not replace those
			// of a newer Harvest.
			stats, err := Sync(t.Context(), openTree(t, dir), b,
				Options{Direction: plan.Up, State: t.TempDir(), Packs: true})
			if newer := strings.Contains(name, "newer"); err != nil || newer != (stats.Failed == 1) || newer &&
				stats.Failures[0].Remedy != "use a newer Harvest" {
				t.Errorf("the next sync up ended with %+v, %v", stats, err)
			}
			if name == "the index is damaged" || name == "the index leads out" {
				if got := fill(t, dir, loc, Options{}); len(got) > 0 {
					t.Errorf("afterwards these came by themselves: %v", got)
				}
			}
		})
	}
}

// TestPacksAreOlderThanObjects checks that an object that a list shows as replaced is used instead of the content in
// packs.
func TestPacksAreOlderThanObjects(t *testing.T) {
	t.Parallel()
	dir, loc := plainTree(t), location(t)
	b := openBucket(t, loc)
	mustSync(t, dir, b, Options{Direction: plan.Up, State: t.TempDir(), Packs: true})
	overwrite(t, b, "many/07/small-2", []byte("another's"))
	back := t.TempDir()
	mustSync(t, back, b, Options{Direction: plan.Down, List: true})
	if got, err := os.ReadFile(filepath.Join(back, "many/07/small-2")); err != nil || string(got) != "another's" {
		t.Errorf("the file is %q, %v", got, err)
	}
}

// TestPacksThatCannotBeMade checks that a sync whose packs fail has sent all files and reports the failures, and that
// the next one makes the packs.
func TestPacksThatCannotBeMade(t *testing.T) {
	t.Parallel()
	dir := plainTree(t)
	for name, hit := range map[string]string{"a pack": "/" + pack.Prefix + "/", "the index": "/" + pack.IndexKey} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			loc, state := location(t), t.TempDir()
			proxy := between(t, &loc)
			b := openBucket(t, loc)
			proxy.reset(func(_ int, w http.ResponseWriter, r *http.Request) bool {
				return r.Method == http.MethodPut && strings.Contains(r.URL.Path, hit) &&
					xmlFault(w, http.StatusForbidden, "AccessDenied")
			})
			stats, err := Sync(t.Context(), openTree(t, dir), b, Options{Direction: plan.Up, State: state, Packs: true})
			if err != nil || stats.Failed != 1 || stats.Failures[0].Path != pack.Prefix ||
				!strings.Contains(stats.Failures[0].Reason, "cannot make packs") {
				t.Fatalf("it ended with %+v, %v", stats, err)
			}
			if len(stats.Refused) > 0 {
				t.Errorf("files are said to be missing, though all are there: %+v", stats.Refused)
			}
			proxy.reset(nil)
			if stored, _ := packsOf(t, b); len(stored) > 0 {
				t.Errorf("packs that no index has are left: %v", stored)
			}
			fill(t, dir, loc, Options{})
			mustSync(t, dir, b, Options{Direction: plan.Up, State: state, Packs: true})
			if got := fill(t, dir, loc, Options{}); len(got) > 0 {
				t.Errorf("afterwards these came by themselves: %v", got)
			}
		})
	}
}

// TestPacksThatFellBehind checks that the next sync that keeps packs finds changes that packs have not followed, for
// any reason, although it has nothing to send.
func TestPacksThatFellBehind(t *testing.T) {
	t.Parallel()
	for name, behind := range map[string]func(t *testing.T, dir string, proxy *asked, b *object.Bucket, up Options){
		"they could not be stored": func(t *testing.T, dir string, proxy *asked, b *object.Bucket, up Options) {
			proxy.reset(func(_ int, w http.ResponseWriter, r *http.Request) bool {
				return r.Method == http.MethodPut && strings.Contains(r.URL.Path, "/"+pack.Prefix+"/") &&
					xmlFault(w, http.StatusForbidden, "AccessDenied")
			})
			stats, err := Sync(t.Context(), openTree(t, dir), b, up)
			if err != nil || stats.Failed != 1 {
				t.Errorf("without packs: %+v, %v", stats, err)
			}
			proxy.reset(nil)
		},
		"they were switched off": func(t *testing.T, dir string, _ *asked, b *object.Bucket, up Options) {
			up.Packs = false
			mustSync(t, dir, b, up)
		},
		"another sync ended first": func(t *testing.T, dir string, proxy *asked, b *object.Bucket, up Options) {
			proxy.reset(func(_ int, w http.ResponseWriter, r *http.Request) bool {
				return r.Method == http.MethodPut && strings.HasSuffix(r.URL.Path, "/"+pack.IndexKey) &&
					xmlFault(w, http.StatusPreconditionFailed, "PreconditionFailed")
			})
			mustSync(t, dir, b, up)
			proxy.reset(nil)
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			dir, loc := plainTree(t), location(t)
			proxy := between(t, &loc)
			b, up := openBucket(t, loc), Options{Direction: plan.Up, State: t.TempDir(), Packs: true}
			mustSync(t, dir, b, up)
			first, _ := packsOf(t, b)
			for i := range 45 {
				write(t, dir, fmt.Sprintf("many/%02d/file", i), fmt.Sprint("anew ", i))
			}
			behind(t, dir, proxy, b, up)
			mustSync(t, dir, b, up)
			stored, indexed := packsOf(t, b)
			if !slices.Equal(stored, indexed) ||
				slices.ContainsFunc(stored, func(id string) bool { return slices.Contains(first, id) }) {
				t.Errorf("there are the packs %v, the index has %v, and before there were %v", stored, indexed, first)
			}
			if got := fill(t, dir, loc, Options{}); len(got) > 0 {
				t.Errorf("these came by themselves: %v", got)
			}
			proxy.reset(nil)
			mustSync(t, dir, b, up)
			if got := proxy.seen(); len(got) != 1 {
				t.Errorf("once they have caught up, an unchanged tree was asked about: %v", got)
			}
		})
	}
}

// TestPacksInterrupted checks that a fill that is cancelled while packs arrive ends at once, and that the next one
// fetches the missing files.
func TestPacksInterrupted(t *testing.T) {
	t.Parallel()
	dir, loc := plainTree(t), location(t)
	mustSync(t, dir, openBucket(t, loc), Options{Direction: plan.Up, State: t.TempDir(), Packs: true})
	through := loc
	proxy := between(t, &through)
	ctx, cancel := context.WithCancelCause(t.Context())
	defer cancel(nil)
	var packs atomic.Int32
	proxy.reset(func(_ int, w http.ResponseWriter, r *http.Request) bool {
		if strings.Contains(r.URL.Path, "/"+pack.Prefix+"/") && packs.Add(1) == 3 {
			cancel(errors.Newf(errors.Canceled, "enough"))
			return xmlFault(w, http.StatusServiceUnavailable, "SlowDown")
		}
		return false
	})
	back, state := t.TempDir(), t.TempDir()
	down := Options{Direction: plan.Down, State: state, Owners: true, SetID: true}
	if _, err := Sync(ctx, openTree(t, back), openBucket(t, through), down); errors.KindOf(err) != errors.Canceled {
		t.Errorf("it ended with %v", err)
	}
	mustSync(t, back, openBucket(t, loc), down)
	sameTrees(t, dir, back)
}

// mission: D4
func TestPacksOfVersions(t *testing.T) {
	t.Parallel()
	dir, loc := plainTree(t), location(t)
	proxy := between(t, &loc)
	b, o := openBucket(t, loc), Options{State: t.TempDir(), Packs: true}
	one, _, err := Save(t.Context(), openTree(t, dir), b, o)
	must(t, err)
	old := t.TempDir()
	write(t, dir, "many/40/small-3", "of the second")
	proxy.reset(nil)
	two, _, err := Save(t.Context(), openTree(t, dir), b, o)
	must(t, err)
	copied := 0
	for _, call := range proxy.seen() {
		if strings.HasPrefix(call, http.MethodPut) && strings.Contains(call, "/"+pack.Prefix+"/") {
			copied++
		}
	}
	at, err := b.Version(two)
	must(t, err)
	stored, indexed := packsOf(t, at)
	if !slices.Equal(stored, indexed) || len(stored) < 3 || copied != len(stored) {
		t.Errorf("the second version has the packs %v, its index %v; %d were made or copied", stored, indexed, copied)
	}
	first, err := b.Version(one)
	must(t, err)
	if before, _ := packsOf(t, first); !slices.Equal(before, stored) {
		t.Errorf("the packs %v were made anew as %v for one changed file", before, stored)
	}
	back := t.TempDir()
	proxy.reset(nil)
	restored := Options{Owners: true, SetID: true}
	_, _, err = Restore(t.Context(), openTree(t, back), b, two, restored)
	must(t, err)
	sameTrees(t, dir, back)
	if n := len(proxy.seen()); n > 60 {
		t.Errorf("%d requests restored a version", n)
	}
	_, _, err = Restore(t.Context(), openTree(t, old), b, one, restored)
	must(t, err)
	if got, err := os.ReadFile(filepath.Join(old, "many/40/small-3")); err != nil || string(got) != "content 40 3" {
		t.Errorf("the first version's file is %q, %v", got, err)
	}
	if _, err := b.Prune(t.Context(), 1); err != nil {
		t.Fatal(err)
	}
	if stored, _ := packsOf(t, first); len(stored) > 0 {
		t.Errorf("a deleted version left the packs %v", stored)
	}
}

func remove(t *testing.T, b *object.Bucket, key string) {
	t.Helper()
	must(t, b.Delete(t.Context(), []string{key}, func(_ string, err error) { t.Error(err) }))
}

func overwrite(t *testing.T, b *object.Bucket, key string, body []byte) {
	t.Helper()
	_, err := b.Put(t.Context(), key, body, crc64nvme.Checksum(body), nil)
	must(t, err)
}

func putIndex(t *testing.T, b *object.Bucket, x *pack.Index) {
	t.Helper()
	raw, err := cbor.Marshal(x)
	must(t, err)
	overwrite(t, b, pack.IndexKey, raw)
}

// TestPacksLeaveRoom checks that a part of a file may exceed the memory for bodies that packs leave.
func TestPacksLeaveRoom(t *testing.T) {
	t.Parallel()
	loc := location(t)
	b := openBucket(t, loc)
	mustSync(t, richTree(t), b, Options{Direction: plan.Up, Packs: true})
	r := &run{b: b, t: openTree(t, t.TempDir()), o: Options{Direction: plan.Down},
		sem:  semaphore.NewWeighted(buffer.MaxInFlight),
		room: buffer.MaxInFlight}
	g, ctx := errgroup.WithContext(t.Context())
	ps, err := r.openPacks(ctx, g)
	if err != nil || ps == nil {
		t.Fatalf("there are no packs: %v", err)
	}
	defer ps.Close()
	_, release, err := r.buffer(ctx, buffer.MaxInFlight)
	must(t, err)
	release()
	must(t, g.Wait())
	r.buffers.Close()
}

package volsync

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"maps"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	sdk "github.com/aws/aws-sdk-go-v2/service/s3"
	"github.com/minio/crc64nvme"
	"golang.org/x/sys/unix"

	"github.com/RelevanceAI/harvest/client/errors"
	"github.com/RelevanceAI/harvest/internal/base/testenv"
	"github.com/RelevanceAI/harvest/internal/s3/manifest"
	"github.com/RelevanceAI/harvest/internal/s3/object"
	"github.com/RelevanceAI/harvest/internal/s3/object/wire"
	"github.com/RelevanceAI/harvest/internal/s3/tree"
	"github.com/RelevanceAI/harvest/internal/s3/volsync/plan"
	"github.com/RelevanceAI/harvest/test/stubs/s3test"
)

// forbid answers as S3 does to a client that lacks one permission. A client that may not list gets the same answer for
// missing objects as for those that it may not see.
func forbid(what string) func(int, http.ResponseWriter, *http.Request) bool {
	return func(_ int, w http.ResponseWriter, r *http.Request) bool {
		list := r.Method == http.MethodGet && r.URL.Query().Has("list-type")
		is := map[string]bool{"list": list, "read": !list &&
			(r.Method == http.MethodGet || r.Method == http.MethodHead),
			"write":  r.Method == http.MethodPut || r.Method == http.MethodPost && !r.URL.Query().Has("delete"),
			"delete": isDeletion(r)}
		return is[what] && xmlFault(w, http.StatusForbidden, "AccessDenied")
	}
}

// mission: 2.5, 3.4
func TestNotAllowed(t *testing.T) {
	for _, c := range []struct {
		lacks string
		dir   plan.Direction
		known bool // the bucket has a manifest
		want  string
	}{
		{"list", plan.Up, false, "denied"}, {"list", plan.Down, true, "fine"}, {"list", plan.Up, true, "fine"},
		{"read", plan.Down, true, "denied"}, {"read", plan.Up, true, "denied"},
		{"write", plan.Up, false, "all"}, {"write", plan.Up, true, "denied"}, {"write", plan.Down, true, "fine"},
		{"delete", plan.Up, true, "one"},
	} {
		t.Run(fmt.Sprintf("%s %s %t", c.lacks, c.dir, c.known), func(t *testing.T) {
			loc, dir := location(t), t.TempDir()
			write(t, dir, "a", "a")
			a := between(t, &loc)
			b := openBucket(t, loc)
			if c.known {
				write(t, dir, "gone", "gone")
				mustSync(t, dir, b, Options{Direction: plan.Up})
				must(t, os.Remove(filepath.Join(dir, "gone")))
			}
			write(t, dir, "b", "new")
			a.reset(forbid(c.lacks))
			from := dir
			if c.dir == plan.Down {
				from = t.TempDir()
			}
			stats, err := Sync(t.Context(), openTree(t, from), b, Options{Direction: c.dir, Mirror: c.dir == plan.Up})
			switch c.want {
			case "fine":
				if err != nil || stats.Failed > 0 {
					t.Errorf("%s, %+v, %v", stats, stats.Failures, err)
				}
			case "all": // no upload was possible, so nothing needs to be recorded
				if err != nil || stats.Failed != 2 || !strings.Contains(stats.Failures[0].Reason, "does not allow") ||
					stats.Failures[0].Remedy == "" {
					t.Errorf("%s, %+v, %v", stats, stats.Failures, err)
				}
			case "one": // a forbidden deletion is reported, the others are done
				if err != nil || stats.Failed != 1 || stats.Failures[0].Path != "gone" ||
					!strings.Contains(stats.Failures[0].Reason, "does not allow") {
					t.Errorf("%s, %+v, %v", stats, stats.Failures, err)
				}
			default:
				if errors.KindOf(err) != errors.Denied ||
					!strings.Contains(errors.Message(err), "does not allow it on s3://"+loc.Bucket) ||
					!strings.Contains(errors.RemedyOf(err), "s3:PutObject") {
					t.Errorf("%s, %+v, %v; remedy %q", stats, stats.Failures, err, errors.RemedyOf(err))
				}
			}
			if raw, _ := os.ReadFile(filepath.Join(from, "a")); string(raw) != "a" && c.want == "fine" {
				t.Errorf("the file has %q", raw)
			}
			// With the permission, all is done that was not.
			a.reset(nil)
			mustSync(t, dir, b, Options{Direction: plan.Up, Mirror: true, List: true})
			back := t.TempDir()
			mustSync(t, back, b, Options{Direction: plan.Down, List: true, Owners: true})
			sameTrees(t, dir, back)
		})
	}
}

// The server compares the region that requests are signed for with its own.
// mission: 3.4
func TestWrongRegion(t *testing.T) {
	loc := location(t)
	loc.Region = "eu-north-1"
	_, err := Sync(t.Context(), openTree(t, t.TempDir()), openBucket(t, loc), Options{Direction: plan.Up})
	if errors.KindOf(err) != errors.Invalid || !strings.Contains(errors.Message(err), "region eu-north-1") ||
		errors.RemedyOf(err) == "" {
		t.Errorf("another region: %v; remedy %q", err, errors.RemedyOf(err))
	}
}

// TestDamagedOnTheWay checks that damage to connections halfway through a body, in either direction, only costs time.
// mission: 2.5, 3.5
func TestDamagedOnTheWay(t *testing.T) {
	testenv.Long(t)
	dir := t.TempDir()
	for i := range 20 {
		write(t, dir, fmt.Sprintf("f%d", i), strings.Repeat("0123456789", 100*i+1))
	}
	write(t, dir, "large", strings.Repeat("0123456789abcdef", 40<<16)) // 40 MiB
	age(t, dir)
	object := func(r *http.Request) bool { return !strings.Contains(r.URL.Path, tree.Reserved) }
	flip := func(w http.ResponseWriter, r *http.Request) bool {
		proxyOf(r).ServeHTTP(&flipping{ResponseWriter: w}, r)
		return true
	}
	for name, fault := range map[string]struct {
		hits func(r *http.Request) bool
		do   func(w http.ResponseWriter, r *http.Request) bool // true if it answered
		bare bool                                              // the bucket has no manifest when the files come back
	}{
		"a part that is cut": {
			hits: func(r *http.Request) bool { return r.Method == http.MethodPut && r.URL.Query().Has("partNumber") },
			do: func(w http.ResponseWriter, r *http.Request) bool {
				_, _ = io.CopyN(io.Discard, r.Body, r.ContentLength/2)
				if c, _, err := http.NewResponseController(w).Hijack(); err == nil {
					c.Close()
				}
				return true
			},
		},
		"another byte up": {
			hits: func(r *http.Request) bool { return r.Method == http.MethodPut && object(r) && r.ContentLength > 0 },
			do: func(_ http.ResponseWriter, r *http.Request) bool {
				raw, _ := io.ReadAll(r.Body)
				raw[len(raw)/2] ^= 1
				r.Body = io.NopCloser(bytes.NewReader(raw))
				return false
			},
		},
		"another byte down": {hits: func(r *http.Request) bool {
			return gets(r) && object(r) &&
				r.Header.Get("Range") == ""
		}, do: flip},
		"another byte of a part down": {hits: func(r *http.Request) bool {
			return gets(r) && object(r) &&
				r.Header.Get("Range") != ""
		}, do: flip},
		"another byte of others' part down": {hits: func(r *http.Request) bool {
			return gets(r) && object(r) &&
				r.Header.Get("Range") != ""
		}, do: flip, bare: true},
		"another byte of others' files down": {hits: func(r *http.Request) bool {
			return gets(r) && object(r) &&
				r.Header.Get("Range") == ""
		}, do: flip, bare: true},
	} {
		t.Run(name, func(t *testing.T) {
			loc := location(t)
			a := between(t, &loc)
			b := openBucket(t, loc)
			var hits atomic.Int32
			a.reset(func(_ int, w http.ResponseWriter, r *http.Request) bool {
				// Only twice: all hits may be for the same object, which is requested three times.
				return fault.hits(r) && hits.Add(1) <= 2 && fault.do(w, r)
			})
			mustSync(t, dir, b, Options{Direction: plan.Up})
			if fault.bare {
				must(t, b.Delete(t.Context(), []string{manifest.Key}, func(_ string, err error) { t.Error(err) }))
			}
			back := t.TempDir()
			mustSync(t, back, b, Options{Direction: plan.Down, Owners: true})
			if !fault.bare {
				sameTrees(t, dir, back)
			} else if got, want := contentsOf(t, back), contentsOf(t, dir); !maps.Equal(got, want) {
				t.Errorf("there is %v, want %v", got, want)
			}
			if hits.Load() < 2 {
				t.Errorf("what should go wrong did so %d times", hits.Load())
			}
		})
	}
}

// gets reports whether r requests an object.
func gets(r *http.Request) bool {
	return r.Method == http.MethodGet && !r.URL.Query().Has("list-type") && !r.URL.Query().Has("uploads") &&
		!r.URL.Query().Has("uploadId")
}

// contentsOf has the checksums of a tree's files.
func contentsOf(t *testing.T, dir string) map[string]uint64 {
	t.Helper()
	all := map[string]uint64{}
	for _, path := range regularFiles(t, dir) {
		raw, err := os.ReadFile(filepath.Join(dir, path))
		must(t, err)
		all[path] = crc64nvme.Checksum(raw)
	}
	return all
}

// flipping changes a bit of the first piece of a body.
type flipping struct {
	http.ResponseWriter
	done bool
}

func (f *flipping) Write(p []byte) (int, error) {
	if !f.done && len(p) > 0 {
		f.done = true
		p = bytes.Clone(p)
		p[0] ^= 1
	}
	return f.ResponseWriter.Write(p)
}

// TestSlowAndOverloaded checks that a sync waits for a slow S3, ends if S3 is overloaded for longer than its timeout,
// and resumes in the next run.
// mission: 2.5, 3.4
func TestSlowAndOverloaded(t *testing.T) {
	dir, state, loc := t.TempDir(), t.TempDir(), location(t)
	for i := range 60 {
		write(t, dir, fmt.Sprintf("f%02d", i), fmt.Sprint(i))
	}
	age(t, dir)
	loc.Patience = 300 * time.Millisecond
	a := between(t, &loc)
	b := openBucket(t, loc)
	var stored atomic.Int32
	a.reset(func(_ int, w http.ResponseWriter, r *http.Request) bool {
		if r.Method != http.MethodPut {
			return false
		}
		if stored.Add(1) > 30 {
			return xmlFault(w, http.StatusServiceUnavailable, "SlowDown")
		}
		return false
	})
	_, err := Sync(t.Context(), openTree(t, dir), b, Options{Direction: plan.Up, State: state})
	if errors.KindOf(err) != errors.Unavailable || !strings.Contains(errors.Message(err), "overloaded") ||
		errors.RemedyOf(err) == "" {
		t.Errorf("overloaded for long: %v", err)
	}
	a.reset(func(_ int, w http.ResponseWriter, r *http.Request) bool {
		time.Sleep(50 * time.Millisecond)
		return false
	})
	mustSync(t, dir, b, Options{Direction: plan.Up, State: state})
	back := t.TempDir()
	mustSync(t, back, b, Options{Direction: plan.Down, Owners: true})
	sameTrees(t, dir, back)
}

// awayFor names the variable with the duration of S3's outage in TestAwayForLong, such as 10m.
const awayFor = "HARVEST_TEST_AWAY"

// TestAwayForLong checks that a server that answers 503 for less than the timeout only costs time: nothing is lost, and
// requests back off.
// mission: 2.5, 3.4
func TestAwayForLong(t *testing.T) {
	testenv.Long(t)
	away := 2 * time.Second
	if text := os.Getenv(awayFor); text != "" {
		var err error
		away, err = time.ParseDuration(text)
		must(t, err)
	}
	dir, loc := t.TempDir(), location(t)
	for i := range 300 {
		write(t, dir, fmt.Sprintf("f%03d", i), fmt.Sprint(i))
	}
	write(t, dir, "large", strings.Repeat("0123456789abcdef", 40<<16))
	age(t, dir)
	loc.Patience = away + 5*time.Minute
	a := between(t, &loc)
	b := openBucket(t, loc)
	back := t.TempDir()
	for _, c := range []struct {
		dir string
		o   Options
	}{{dir, Options{Direction: plan.Up, State: t.TempDir()}},
		{back, Options{Direction: plan.Down, State: t.TempDir(), Owners: true}}} {
		var until atomic.Int64
		var refused atomic.Int32
		a.reset(func(n int, w http.ResponseWriter, _ *http.Request) bool {
			if n < 100 {
				return false
			}
			until.CompareAndSwap(0, time.Now().Add(away).UnixNano())
			if time.Now().UnixNano() > until.Load() {
				return false
			}
			refused.Add(1)
			return xmlFault(w, http.StatusServiceUnavailable, "SlowDown")
		})
		t.Log(mustSync(t, c.dir, b, c.o))
		// Each worker backs off, up to ten seconds on average.
		if got, most := refused.Load(), int32(object.Workers*(8+away/(3*time.Second))); got == 0 || got > most {
			t.Errorf("%s: S3 refused %d requests, want 1 to %d", c.o.Direction, got, most)
		}
	}
	a.reset(nil)
	sameTrees(t, dir, back)
}

// TestLostAnswersAreNoConflicts loses the answers to the first request that stores each file and link, after the server
// has stored it. The repeated requests are refused, since there is an object now: that is the sync's own, and no
// conflict.
// mission: A8, D1, D2
func TestLostAnswersAreNoConflicts(t *testing.T) {
	t.Parallel()
	for name, o := range map[string]Options{"up": {Direction: plan.Up}, "both": {Direction: plan.Both},
		"both, listed": {Direction: plan.Both, List: true}} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			loc := location(t)
			direct := openBucket(t, loc)
			a := between(t, &loc)
			b := openBucket(t, loc)
			m := &machine{t.TempDir(), t.TempDir(), b}
			o.State, o.Owners = m.state, true
			write(t, m.dir, "edited", "before")
			mustSync(t, m.dir, b, o)
			write(t, m.dir, "edited", "another content")
			write(t, m.dir, "empty", "")
			write(t, m.dir, "large", strings.Repeat("0123456789abcdef", wire.MaxBody/16+1))
			must(t, os.Symlink("edited", filepath.Join(m.dir, "link")))
			var lost sync.Map
			a.reset(func(_ int, _ http.ResponseWriter, r *http.Request) bool {
				if r.Method != http.MethodPut || strings.Contains(r.URL.Path, tree.Reserved) {
					return false
				}
				if _, again := lost.LoadOrStore(r.URL.Path, true); again {
					return false
				}
				proxyOf(r).ServeHTTP(httptest.NewRecorder(), r)
				panic(http.ErrAbortHandler)
			})
			if s := mustSync(t, m.dir, b, o); s.Conflicts > 0 {
				t.Errorf("%s; %+v", s, s.Decided)
			}
			a.reset(nil)
			for _, key := range []string{"edited", "empty", "large", "link"} {
				if _, lost := lost.Load("/" + loc.Bucket + "/" + direct.Prefix() + key); !lost {
					t.Errorf("no answer about %s was lost", key)
				}
			}
			other := &machine{t.TempDir(), t.TempDir(), direct}
			settle(t, m, other)
		})
	}
}

// TestExpiresHalfway checks that credentials that expire halfway end a sync, which resumes with new ones.
func TestExpiresHalfway(t *testing.T) {
	dir, state, loc := t.TempDir(), t.TempDir(), location(t)
	for i := range 300 {
		write(t, dir, fmt.Sprintf("f%03d", i), fmt.Sprint(i))
	}
	age(t, dir)
	a := between(t, &loc)
	b := openBucket(t, loc)
	a.reset(func(n int, w http.ResponseWriter, _ *http.Request) bool {
		return n > 250 && xmlFault(w, http.StatusBadRequest, "ExpiredToken")
	})
	if _, err := Sync(t.Context(), openTree(t, dir), b,
		Options{Direction: plan.Up, State: state}); errors.KindOf(err) != errors.Unauthenticated ||
		!strings.Contains(errors.Message(err), "expired") {
		t.Errorf("expired: %v", err)
	}
	a.reset(nil)
	if stats := mustSync(t, dir, openBucket(t, loc), Options{Direction: plan.Up, State: state}); stats.Skipped == 0 {
		t.Errorf("nothing of what was sent was used: %s", stats)
	}
	back := t.TempDir()
	mustSync(t, back, b, Options{Direction: plan.Down, Owners: true})
	sameTrees(t, dir, back)
}

// TestETagIsNoMD5 checks that an ETag that looks like an MD5 and is not one, as with customer-provided keys, proves
// nothing.
func TestETagIsNoMD5(t *testing.T) {
	loc, dir := location(t), t.TempDir()
	b := openBucket(t, loc)
	const mine, others = "mine is another", "same size, else"
	object := filepath.Join(s3test.Dir(loc.Bucket), filepath.FromSlash(loc.Prefix), "f")
	must(t, os.MkdirAll(filepath.Dir(object), 0o755))
	must(t, os.WriteFile(object, []byte(others), 0o644))
	must(t, unix.Setxattr(object, "user.etag", []byte(strings.Repeat("ab", 16)), 0))
	write(t, dir, "f", mine)
	info, err := os.Stat(object)
	must(t, err)
	must(t, os.Chtimes(filepath.Join(dir, "f"), info.ModTime(), info.ModTime().Truncate(time.Second)))
	back := t.TempDir()
	mustSync(t, back, b, Options{Direction: plan.Down})
	if raw, _ := os.ReadFile(filepath.Join(back, "f")); string(raw) != others {
		t.Errorf("restored %q", raw)
	}
	mustSync(t, dir, b, Options{Direction: plan.Up, Contents: true})
	if raw, _ := os.ReadFile(object); string(raw) != mine {
		t.Errorf("the bucket has %q", raw)
	}
}

// TestManifestLiesAboutSizes checks that a manifest with wrong sizes is ignored in favour of the objects.
func TestManifestLiesAboutSizes(t *testing.T) {
	for name, lie := range map[string]int64{"smaller": -3, "larger": 5, "much larger": 100 << 20} {
		t.Run(name, func(t *testing.T) {
			b := openBucket(t, location(t))
			body := []byte("the content")
			etag, err := b.Put(t.Context(), "f", body, crc64nvme.Checksum(body), nil)
			must(t, err)
			raw := entriesOf(t, false, &tree.Entry{Path: "f", Kind: tree.File, Mode: 0o644,
				Size: int64(len(body)) + lie, ETag: etag})
			_, err = b.Put(t.Context(), manifest.Key, raw, crc64nvme.Checksum(raw), nil)
			must(t, err)
			back := t.TempDir()
			mustSync(t, back, b, Options{Direction: plan.Down})
			if got, err := os.ReadFile(filepath.Join(back, "f")); string(got) != string(body) {
				t.Errorf("restored %q, %v", got, err)
			}
			if names := snapshot(t, back); len(names) != 1 {
				t.Errorf("there is %v", names)
			}
		})
	}
}

// TestReplacedByLink checks that a directory that is replaced by a link to the outside while the tree is read is not
// followed, neither to list it nor to open its files.
func TestReplacedByLink(t *testing.T) {
	outside := t.TempDir()
	write(t, outside, "f", "a secret of the host")
	for _, trigger := range []string{"a", "d/f"} { // before the directory is opened, and when its file is about to be
		t.Run(strings.ReplaceAll(trigger, "/", " "), func(t *testing.T) {
			loc, dir := location(t), t.TempDir()
			write(t, dir, "a", "a")
			write(t, dir, "d/f", "inside")
			write(t, dir, "z", "z")
			stats, err := Sync(t.Context(), openTree(t, dir), openBucket(t, loc),
				Options{Direction: plan.Up, Plan: func(a plan.Action) {
					if a.Path == trigger {
						must(t, os.Rename(filepath.Join(dir, "d"), filepath.Join(dir, "was")))
						must(t, os.Symlink(outside, filepath.Join(dir, "d")))
					}
				}})
			must(t, err)
			if stats.Failed == 0 {
				t.Errorf("nothing was said: %s", stats)
			}
			back := t.TempDir()
			mustSync(t, back, openBucket(t, loc), Options{Direction: plan.Down, List: true})
			for path := range snapshot(t, back) {
				if raw, _ := os.ReadFile(filepath.Join(back, path)); strings.Contains(string(raw), "secret") {
					t.Errorf("%s has what is outside", path)
				}
			}
			if raw, _ := os.ReadFile(filepath.Join(back, "z")); string(raw) != "z" {
				t.Error("the rest was not sent")
			}
		})
	}
}

// TestSparseTebibyte checks that the cost of a sparse file of a tebibyte depends only on its data.
func TestSparseTebibyte(t *testing.T) {
	loc, dir := location(t), t.TempDir()
	f, err := os.Create(filepath.Join(dir, "disk.img"))
	must(t, err)
	must(t, f.Truncate(1<<40))
	for i := range 3 {
		_, err := fmt.Fprintf(io.NewOffsetWriter(f, int64(i)<<38), "data %d", i)
		must(t, err)
	}
	must(t, f.Close())
	age(t, dir)
	b := openBucket(t, loc)
	if stats := mustSync(t, dir, b, Options{Direction: plan.Up}); stats.Bytes > 1<<20 {
		t.Errorf("%d bytes were sent", stats.Bytes)
	}
	back := t.TempDir()
	mustSync(t, back, b, Options{Direction: plan.Down})
	var st unix.Stat_t
	must(t, unix.Stat(filepath.Join(back, "disk.img"), &st))
	if st.Size != 1<<40 || st.Blocks*512 > 1<<20 {
		t.Errorf("it came with %d bytes in %d blocks", st.Size, st.Blocks)
	}
	g, err := os.Open(filepath.Join(back, "disk.img"))
	must(t, err)
	defer g.Close()
	buf := make([]byte, 7)
	for i := range 3 {
		if _, err := g.ReadAt(buf, int64(i)<<38); string(buf[:6]) != fmt.Sprintf("data %d", i) {
			t.Errorf("piece %d is %q, %v", i, buf, err)
		}
	}
}

// TestPassingObjects checks that temporary objects that versitygw lists for a moment during a replacement are ignored,
// unless they stay.
// mission: 3.4
func TestPassingObjects(t *testing.T) {
	const name = ".f.sgwtmp.1700000000000000000"
	for _, stays := range []bool{false, true} {
		dir, back, loc := t.TempDir(), t.TempDir(), location(t)
		write(t, dir, "d/f", "x")
		write(t, dir, "d/"+name, "y")
		a := between(t, &loc)
		b := openBucket(t, loc)
		mustSync(t, dir, b, Options{Direction: plan.Up})
		a.reset(func(_ int, w http.ResponseWriter, r *http.Request) bool {
			return gets(r) && strings.Contains(r.URL.Path, ".sgwtmp.") && !stays &&
				xmlFault(w, http.StatusNotFound, "NoSuchKey")
		})
		for _, direction := range []plan.Direction{plan.Down, plan.Both} {
			stats := mustSync(t, back, b, Options{Direction: direction, List: true, State: t.TempDir()})
			if _, err := os.Stat(filepath.Join(back, "d", name)); (err == nil) != stays || stats.Failed > 0 {
				t.Errorf("%s, stays=%t: %v; %s", direction, stays, err, stats)
			}
		}
		a.reset(func(_ int, w http.ResponseWriter, r *http.Request) bool {
			return gets(r) && strings.HasSuffix(r.URL.Path, "/d/f") && xmlFault(w, http.StatusNotFound, "NoSuchKey")
		})
		if stats, err := Sync(t.Context(), openTree(t, t.TempDir()), b,
			Options{Direction: plan.Down, List: true}); err != nil || stats.Failed != 1 {
			t.Errorf("another object that is gone: %s, %v", stats, err)
		}
	}
}

// TestServerThatIsSilent checks that a server that accepts a request and never answers counts as down, and gets only
// one request.
// mission: 2.5
func TestServerThatIsSilent(t *testing.T) {
	testenv.Long(t)
	t.Parallel()
	loc := location(t)
	loc.Patience = time.Second
	a := between(t, &loc)
	a.reset(func(_ int, _ http.ResponseWriter, r *http.Request) bool {
		<-r.Context().Done()
		return true
	})
	b := openBucket(t, loc)
	b.Tune(object.Tuning{Silence: 5 * time.Second})
	_, err := Sync(t.Context(), openTree(t, t.TempDir()), b, Options{Direction: plan.Up})
	short, cancel := context.WithTimeout(t.Context(), 5*time.Second)
	defer cancel()
	_, list := sdkOf(b).ListObjectsV2(short, &sdk.ListObjectsV2Input{Bucket: &loc.Bucket})
	for what, err := range map[string]error{"a sync": err, "a list": b.Explain(list)} {
		if !errors.Is(err, errors.Unavailable) || !strings.Contains(errors.Message(err), "S3 does not answer") ||
			errors.RemedyOf(err) == "" {
			t.Errorf("%s: %v; remedy %q", what, err, errors.RemedyOf(err))
		}
	}
	for deadline := time.Now().Add(time.Minute); len(a.seen()) < 2 &&
		time.Now().Before(deadline); { // an abandoned request may arrive late
		time.Sleep(10 * time.Millisecond)
	}
	if calls := a.seen(); len(calls) != 2 {
		t.Errorf("asked %q", calls)
	}
}

package volsync

import (
	"context"
	"fmt"
	"io"
	"maps"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/minio/crc64nvme"
	"golang.org/x/sys/unix"

	"github.com/RelevanceAI/harvest/client/errors"
	"github.com/RelevanceAI/harvest/internal/s3"
	"github.com/RelevanceAI/harvest/internal/s3/buffer"
	"github.com/RelevanceAI/harvest/internal/s3/manifest"
	"github.com/RelevanceAI/harvest/internal/s3/object"
	"github.com/RelevanceAI/harvest/internal/s3/tree"
	"github.com/RelevanceAI/harvest/internal/s3/volsync/plan"
)

// mission: 2.1, 2.2, 2.3, 2.6, 3.1, 3.2, D1, D2
func TestRoundTrip(t *testing.T) {
	dir := richTree(t)
	b := openBucket(t, location(t))
	up := mustSync(t, dir, b, Options{Direction: plan.Up, State: t.TempDir()})
	t.Log(up)
	back := t.TempDir()
	down := mustSync(t, back, b, Options{Direction: plan.Down, State: t.TempDir(), Owners: true, SetID: true})
	t.Log(down)
	sameTrees(t, dir, back)
	if up.Files != down.Files || up.Files < 20 {
		t.Errorf("%d files went up, %d came back", up.Files, down.Files)
	}
}

// mission: 2.1
func TestNothingChanged(t *testing.T) {
	dir := richTree(t)
	loc := location(t)
	a := between(t, &loc)
	b := openBucket(t, loc)
	state := t.TempDir()
	mustSync(t, dir, b, Options{Direction: plan.Up, State: state})
	a.reset(nil)
	stats := mustSync(t, dir, b, Options{Direction: plan.Up, State: state})
	if calls := a.seen(); len(calls) != 1 || stats.Files+stats.Updated+stats.Deleted != 0 || stats.Skipped < 30 {
		t.Errorf("nothing changed, and a sync asked %q and did %s", calls, stats)
	}
	// Another machine has no inodes recorded: it requests the manifest, and sends nothing.
	a.reset(nil)
	stats = mustSync(t, dir, b, Options{Direction: plan.Up, State: t.TempDir()})
	for _, call := range a.seen() {
		if strings.HasPrefix(call, "PUT") || strings.HasPrefix(call, "POST") || strings.HasPrefix(call, "DELETE") {
			t.Errorf("nothing changed, and a sync without a state did %s", call)
		}
	}
	if stats.Files+stats.Updated != 0 {
		t.Errorf("nothing changed, and a sync without a state did %s", stats)
	}
	// With a list it sees each object, and still sends nothing.
	if stats = mustSync(t, dir, b, Options{Direction: plan.Up, State: state,
		List: true}); stats.Files+stats.Updated+stats.Deleted != 0 {
		t.Errorf("nothing changed, and a sync with a list did %s", stats)
	}
	if stats = mustSync(t, dir, b, Options{Direction: plan.Down, State: state, Owners: true,
		SetID: true}); stats.Files+stats.Updated+stats.Deleted != 0 {
		t.Errorf("nothing changed, and a restore did %s", stats)
	}
	// Contents are compared on request, and are equal.
	if stats = mustSync(t, dir, b, Options{Direction: plan.Up, State: state,
		Contents: true}); stats.Files+stats.Deleted != 0 {
		t.Errorf("nothing changed, and a sync of contents did %s", stats)
	}
}

func TestChanges(t *testing.T) {
	for _, list := range []bool{false, true} {
		t.Run(fmt.Sprintf("list=%v", list), func(t *testing.T) {
			dir, b, state := t.TempDir(), openBucket(t, location(t)), t.TempDir()
			other, otherState := t.TempDir(), t.TempDir()
			for _, name := range []string{"keep", "rewrite", "touch", "chmod", "remove", "dir/remove",
				"to-dir", "xattr"} {
				write(t, dir, name, "one "+name)
			}
			write(t, dir, "to-file/x", "x")
			age(t, dir)
			up := Options{Direction: plan.Up, Mirror: true, State: state, List: list}
			down := Options{Direction: plan.Down, Mirror: true, State: otherState, List: list, Owners: true}
			mustSync(t, dir, b, up)
			mustSync(t, other, b, down)
			sameTrees(t, dir, other)

			write(t, dir, "rewrite", "two rewrite") // the same size
			must(t, os.Chtimes(filepath.Join(dir, "touch"), someTime, someTime))
			must(t, os.Chmod(filepath.Join(dir, "chmod"), 0o600))
			must(t, os.Remove(filepath.Join(dir, "remove")))
			must(t, os.RemoveAll(filepath.Join(dir, "dir")))
			must(t, os.Remove(filepath.Join(dir, "to-dir")))
			write(t, dir, "to-dir/within", "new")
			must(t, os.RemoveAll(filepath.Join(dir, "to-file")))
			must(t, unix.Setxattr(filepath.Join(dir, "xattr"), "user.new", []byte("v"), 0))
			write(t, dir, "new/er", "new")
			stats, err := Sync(t.Context(), openTree(t, dir), b, up)
			must(t, err)
			write(t, dir, "to-file", "a file now")
			again := mustSync(t, dir, b, up)
			t.Log(stats, again)
			if stats.Files != 3 || stats.Deleted < 4 || stats.Updated < 3 {
				t.Errorf("a sync of changes did %s", stats)
			}
			mustSync(t, other, b, down)
			sameTrees(t, dir, other)
			if stats := mustSync(t, dir, b, up); stats.Files+stats.Deleted != 0 {
				t.Errorf("after a sync, another did %s", stats)
			}
		})
	}
}

// TestDisguised checks that a changed content with the same size and time is noticed by the changed inode.
func TestDisguised(t *testing.T) {
	dir, b, state := t.TempDir(), openBucket(t, location(t)), t.TempDir()
	write(t, dir, "f", "aaaa")
	age(t, dir)
	mustSync(t, dir, b, Options{Direction: plan.Up, State: state})
	info, err := os.Stat(filepath.Join(dir, "f"))
	must(t, err)
	write(t, dir, "f", "bbbb")
	must(t, os.Chtimes(filepath.Join(dir, "f"), info.ModTime(), info.ModTime()))
	if stats := mustSync(t, dir, b, Options{Direction: plan.Up, State: state}); stats.Files != 1 {
		t.Errorf("a file with another content, the same size and time, was not sent: %s", stats)
	}
}

// A copy deletes nothing.
// mission: 2.1
func TestCopyDeletesNothing(t *testing.T) {
	dir, b := t.TempDir(), openBucket(t, location(t))
	write(t, dir, "a", "a")
	write(t, dir, "b", "b")
	state := t.TempDir()
	mustSync(t, dir, b, Options{Direction: plan.Up, State: state})
	must(t, os.Remove(filepath.Join(dir, "a")))
	if stats := mustSync(t, dir, b, Options{Direction: plan.Up, State: state}); stats.Deleted != 0 {
		t.Errorf("a copy deleted: %s", stats)
	}
	back := t.TempDir()
	write(t, back, "mine", "mine")
	mustSync(t, back, b, Options{Direction: plan.Down})
	for _, name := range []string{"a", "b", "mine"} {
		if _, err := os.Stat(filepath.Join(back, name)); err != nil {
			t.Error(err)
		}
	}
}

func TestTwoWays(t *testing.T) {
	for policy, want := range map[plan.Conflicts]map[string]string{
		plan.KeepBoth:   {"conflict": "one", "conflict.conflict-*": "two"},
		plan.KeepLocal:  {"conflict": "one"},
		plan.KeepRemote: {"conflict": "two"},
		plan.KeepNewer:  {"conflict": "two"},
	} {
		t.Run(string(policy), func(t *testing.T) {
			b := openBucket(t, location(t))
			one, two, s1, s2 := t.TempDir(), t.TempDir(), t.TempDir(), t.TempDir()
			o1 := Options{Direction: plan.Both, Conflicts: policy, State: s1}
			o2 := Options{Direction: plan.Both, Conflicts: policy, State: s2}
			for _, name := range []string{"conflict", "gone-here", "gone-there", "edited-there", "edited-here",
				"gone-and-edited"} {
				write(t, one, name, "zero")
			}
			mustSync(t, one, b, o1)
			mustSync(t, two, b, o2)
			if got, err := os.ReadFile(filepath.Join(two, "conflict")); err != nil || string(got) != "zero" {
				t.Fatalf("the second has %q, %v", got, err)
			}
			write(t, two, "conflict", "two")
			must(t, os.Chtimes(filepath.Join(two, "conflict"), time.Time{}, time.Now().Add(time.Minute)))
			must(t, os.Remove(filepath.Join(two, "gone-there")))
			must(t, os.Remove(filepath.Join(two, "gone-and-edited")))
			write(t, two, "edited-there", "there")
			write(t, two, "new-there/x", "x")
			mustSync(t, two, b, o2)
			write(t, one, "conflict", "one")
			must(t, os.Remove(filepath.Join(one, "gone-here")))
			write(t, one, "edited-here", "here")
			write(t, one, "gone-and-edited", "kept")
			write(t, one, "new-here", "y")
			// A dry run shows the decisions and changes neither side.
			before, objects := snapshot(t, one), keysOf(t, b)
			var shown []Failure
			look := o1
			look.DryRun, look.Plan = true, func(a plan.Action) {
				if a.Conflict != "" {
					shown = append(shown, Failure{Path: a.Path, Reason: a.Conflict, Copy: a.Copy})
				}
			}
			mustSync(t, one, b, look)
			if !maps.Equal(snapshot(t, one), before) || !maps.Equal(keysOf(t, b), objects) {
				t.Error("a dry run changed something")
			}
			stats := mustSync(t, one, b, o1)
			if stats.Conflicts != 2 || len(shown) != 2 {
				t.Errorf("%d conflicts, want 2: %+v; shown before: %+v", stats.Conflicts, stats.Decided, shown)
			}
			unstamped := func(f Failure) Failure { // the copy has another time
				f.Reason, _, _ = strings.Cut(f.Reason, ".conflict-")
				f.Copy, _, _ = strings.Cut(f.Copy, ".conflict-")
				return f
			}
			for i, f := range shown {
				shown[i] = unstamped(f)
			}
			for i, f := range stats.Decided {
				f = unstamped(f)
				if i < len(shown) && f != shown[i] {
					t.Errorf("decided: %+v, shown before: %+v", f, shown[i])
				}
			}
			mustSync(t, one, b, o1)
			mustSync(t, two, b, o2)
			got := map[string]string{}
			for path := range snapshot(t, two) {
				if raw, err := os.ReadFile(filepath.Join(two, path)); err == nil {
					if i := strings.Index(path, ".conflict-"); i > 0 {
						path = path[:i] + ".conflict-*"
					}
					got[path] = string(raw)
				}
			}
			all := map[string]string{"edited-there": "there", "new-there/x": "x", "edited-here": "here",
				"new-here": "y", "gone-and-edited": "kept"}
			maps.Copy(all, want)
			if !maps.Equal(got, all) {
				t.Errorf("have %q, want %q", got, all)
			}
			sameTrees(t, one, two)
		})
	}
}

// keysOf returns the keys in a bucket with their ETags.
func keysOf(t *testing.T, b *object.Bucket) map[string]string {
	t.Helper()
	all := map[string]string{}
	for o, err := range b.All(t.Context(), object.AnyOrder) {
		must(t, err)
		all[o.Key] = o.ETag
	}
	return all
}

func TestDryRun(t *testing.T) {
	dir, loc := t.TempDir(), location(t)
	a := between(t, &loc)
	b := openBucket(t, loc)
	write(t, dir, "a/b", "1")
	must(t, unix.Mkfifo(filepath.Join(dir, "pipe"), 0o644))
	var actions []string
	stats, err := Sync(t.Context(), openTree(t, dir), b,
		Options{Direction: plan.Up, DryRun: true, Plan: func(a plan.Action) {
			actions = append(actions,
				string(a.Op)+" "+a.Path)
		}})
	must(t, err)
	if want := []string{"upload a", "upload a/b", "skip pipe"}; !slices.Equal(actions, want) || stats.Files != 1 ||
		stats.Failed != 0 || len(stats.Ignored) != 1 {
		t.Errorf("the plan is %q with %s, want %q", actions, stats, want)
	}
	for _, call := range a.seen() {
		if strings.HasPrefix(call, "PUT") {
			t.Errorf("a dry run did %s", call)
		}
	}
}

// mission: 2.5
func TestOddFiles(t *testing.T) {
	dir, b := t.TempDir(), openBucket(t, location(t))
	write(t, dir, "aaa", "a")
	write(t, dir, "zzz", "z")
	must(t, unix.Mkfifo(filepath.Join(dir, "fifo"), 0o644))
	l, err := net.Listen("unix", filepath.Join(dir, "socket"))
	must(t, err)
	defer l.Close()
	want := map[string]string{"fifo": "a FIFO", "socket": "a socket"}
	if err := unix.Mknod(filepath.Join(dir, "null"), unix.S_IFCHR|0o666, int(unix.Mkdev(1, 3))); err == nil {
		want["null"] = "a device"
	} else {
		t.Logf("without a device, which cannot be made here (%v): run the tests as root", err)
	}
	stats, err := Sync(t.Context(), openTree(t, dir), b, Options{Direction: plan.Up})
	must(t, err)
	if stats.Failed != 0 || len(stats.Ignored) != len(want) || stats.Files != 2 {
		t.Errorf("did %s with %+v and %+v", stats, stats.Ignored, stats.Failures)
	}
	for _, f := range stats.Ignored {
		if !strings.Contains(f.Reason, want[f.Path]) {
			t.Errorf("%s: %s", f.Path, f.Reason)
		}
	}
}

// mission: 3.3
func TestOnly(t *testing.T) {
	dir, b := richTree(t), openBucket(t, location(t))
	mustSync(t, dir, b, Options{Direction: plan.Up})
	back := t.TempDir()
	write(t, back, "mine", "stays")
	mustSync(t, back, b, Options{Direction: plan.Down, Mirror: true, Only: "src/deep"})
	got := slices.Sorted(maps.Keys(snapshot(t, back)))
	if want := []string{"mine", "src", "src/deep", "src/deep/er", "src/deep/er/file"}; !slices.Equal(got, want) {
		t.Errorf("restored %q, want %q", got, want)
	}
}

// mission: 3.6
func TestEmptyBucket(t *testing.T) {
	back := t.TempDir()
	if stats := mustSync(t, back, openBucket(t, location(t)), Options{Direction: plan.Down}); stats.Files != 0 {
		t.Errorf("an empty bucket gave %s", stats)
	}
}

// TestForeign checks that a sync handles a bucket that others filled and that has no manifest. It understands their
// metadata, and no key leaves the volume.
func TestForeign(t *testing.T) {
	loc := location(t)
	b := openBucket(t, loc)
	crc := func(s string) uint64 { return crc64nvme.Checksum([]byte(s)) }
	put := func(key, body string, meta map[string]string) {
		h := http.Header{}
		for k, v := range meta {
			h.Set("X-Amz-Meta-"+k, v)
		}
		if _, err := b.Put(t.Context(), key, []byte(body), crc(body), h); err != nil {
			t.Fatalf("put %q: %v", key, err)
		}
	}
	put("plain", "p", nil)
	put("rclone", "r", map[string]string{"mtime": "1709210096.123456789", "mode": "100755"})
	put("s3fs", "s", map[string]string{"mtime": "1709210096.000000001", "mode": "33261"})
	put("aws", "a", map[string]string{"file-permissions": "0100640", "file-mtime": "1709210096123456789ns"})
	put("awslink", "plain", map[string]string{"file-permissions": "0120777"})
	put("dir/sub/file", "d", nil)
	put("void/", "", nil)
	back := t.TempDir()
	mustSync(t, back, b, Options{Direction: plan.Down})
	want := map[string]string{"plain": "-rw-r--r--", "rclone": "-rwxr-xr-x", "s3fs": "-rwxr-xr-x", "aws": "-rw-r-----",
		"awslink": "Lrwxrwxrwx",
		"dir":     "drwxr-xr-x", "dir/sub": "drwxr-xr-x", "dir/sub/file": "-rw-r--r--", "void": "drwxr-xr-x"}
	for path, line := range snapshot(t, back) {
		if mode, _, _ := strings.Cut(line, " "); mode != want[path] {
			t.Errorf("%s came as %s, want %s", path, mode, want[path])
		}
		delete(want, path)
	}
	if len(want) > 0 {
		t.Errorf("missing: %v", want)
	}
	info, err := os.Stat(filepath.Join(back, "rclone"))
	must(t, err)
	if info.ModTime().UnixNano() != 1709210096123456789 {
		t.Errorf("rclone's time came as %v", info.ModTime())
	}
	// Equal files are not sent again when the volume goes up: the bucket gets its manifest.
	if stats := mustSync(t, back, b, Options{Direction: plan.Up}); stats.Files > 1 {
		t.Errorf("a volume that was just restored went up again: %s", stats)
	}
}

// TestHostileManifest checks that a manifest that leads outside, or that Harvest would not write, is ignored in favour
// of the list of objects.
// mission: 3.2
func TestHostileManifest(t *testing.T) {
	for name, entries := range map[string][]*tree.Entry{
		"outside":   {{Path: "../escape", Kind: tree.File, Size: 1, ETag: "x"}},
		"absolute":  {{Path: "/etc/cron.d/x", Kind: tree.File, Size: 1, ETag: "x"}},
		"wrong key": {{Path: "a", Kind: tree.File, Size: 1, Key: "other/secret", ETag: "x"}},
		"negative":  {{Path: "a", Kind: tree.File, Size: -1}},
		"order":     {{Path: "b", Kind: tree.File}, {Path: "a", Kind: tree.File}},
		"extents":   {{Path: "a", Kind: tree.File, Size: 10, Extents: []tree.Extent{{Offset: 5, Length: 20}}}},
		"mode":      {{Path: "a", Kind: tree.File, Mode: 0o100000}},
	} {
		t.Run(name, func(t *testing.T) {
			loc := location(t)
			b := openBucket(t, loc)
			body := "good"
			_, err := b.Put(t.Context(), "good", []byte(body), crc64nvme.Checksum([]byte(body)), nil)
			must(t, err)
			raw := entriesFile(t, 1, entries...)
			_, err = b.Put(t.Context(), manifest.Key, raw, crc64nvme.Checksum(raw), nil)
			must(t, err)
			above := t.TempDir()
			back := filepath.Join(above, "volume")
			must(t, os.Mkdir(back, 0o755))
			mustSync(t, back, b, Options{Direction: plan.Down})
			if got := slices.Sorted(maps.Keys(snapshot(t, above))); !slices.Equal(got,
				[]string{"volume", "volume/good"}) {
				t.Errorf("restored %q", got)
			}
		})
	}
}

// TestPlantedLinks checks that links that were planted in a volume are not followed.
func TestPlantedLinks(t *testing.T) {
	b := openBucket(t, location(t))
	dir := t.TempDir()
	write(t, dir, "lnk/pwn", "bad")
	write(t, dir, "file", "bad")
	mustSync(t, dir, b, Options{Direction: plan.Up})
	outside, back := t.TempDir(), t.TempDir()
	write(t, outside, "target", "good")
	must(t, os.Symlink(outside, filepath.Join(back, "lnk")))
	must(t, os.Symlink(filepath.Join(outside, "target"), filepath.Join(back, "file")))
	stats, err := Sync(t.Context(), openTree(t, back), b, Options{Direction: plan.Down})
	must(t, err)
	if got := snapshot(t, outside); len(got) != 1 {
		t.Errorf("files left the volume: %v", got)
	}
	if raw, _ := os.ReadFile(filepath.Join(outside, "target")); string(raw) != "good" {
		t.Error("a file outside was written through a link")
	}
	if stats.Failed == 0 {
		t.Errorf("nothing was said of what is in the way: %s", stats)
	}
}

func TestFaults(t *testing.T) {
	dir := t.TempDir()
	for i := range 50 {
		write(t, dir, fmt.Sprintf("d%d/f%d", i%7, i), strings.Repeat("x", i*100))
	}
	write(t, dir, "large", strings.Repeat("0123456789abcdef", 40<<16)) // 40 MiB
	for name, fault := range map[string]func(n int, w http.ResponseWriter, r *http.Request) bool{
		"503": func(n int, w http.ResponseWriter, r *http.Request) bool {
			return n%3 == 0 && xmlFault(w, 503, "SlowDown")
		},
		"429": func(n int, w http.ResponseWriter, r *http.Request) bool {
			return n%3 == 0 && xmlFault(w, 429, "TooManyRequests")
		},
		"500": func(n int, w http.ResponseWriter, r *http.Request) bool {
			return n%4 == 0 && xmlFault(w, 500, "InternalError")
		},
		"cut": func(n int, w http.ResponseWriter, r *http.Request) bool {
			if n%5 != 0 {
				return false
			}
			c, _, err := http.NewResponseController(w).Hijack()
			if err == nil {
				c.Close()
			}
			return true
		},
		"half": func(n int, w http.ResponseWriter, r *http.Request) bool {
			if n%5 != 0 || r.Method != http.MethodGet {
				return false
			}
			rec := httptest.NewRecorder()
			proxyOf(r).ServeHTTP(rec, r)
			maps.Copy(w.Header(), rec.Header())
			w.WriteHeader(rec.Code)
			_, _ = w.Write(rec.Body.Bytes()[:rec.Body.Len()/2])
			panic(http.ErrAbortHandler)
		},
	} {
		t.Run(name, func(t *testing.T) {
			loc := location(t)
			loc.Patience = 2 * time.Minute
			a := between(t, &loc)
			b := openBucket(t, loc)
			b.Tune(object.Tuning{Backoff: 20 * time.Millisecond})
			a.reset(fault)
			mustSync(t, dir, b, Options{Direction: plan.Up, State: t.TempDir()})
			back := t.TempDir()
			mustSync(t, back, b, Options{Direction: plan.Down, State: t.TempDir(), Owners: true})
			sameTrees(t, dir, back)
		})
	}
}

// TestRefusals checks that refusals of S3 are reported in a sentence, with their own kind, without the secret.
// mission: 2.5, 3.4, 9.3
func TestRefusals(t *testing.T) {
	dir := t.TempDir()
	write(t, dir, "f", "x")
	for name, c := range map[string]struct {
		change func(*s3.Location)
		status int
		code   string
		kind   errors.Kind
		text   string
	}{
		"no bucket": {change: func(l *s3.Location) { l.Bucket = "no-such-bucket-here" }, kind: errors.NotFound,
			text: "no bucket"},
		"wrong key": {change: func(l *s3.Location) { l.AccessKeyID = "AKIANOBODY" }, kind: errors.Unauthenticated,
			text: "access key"},
		"wrong secret": {change: func(l *s3.Location) { l.SecretAccessKey = "nobody-has-this-one" },
			kind: errors.Unauthenticated, text: "secret access key is wrong"},
		"no server": {change: func(l *s3.Location) { l.Endpoint, l.Patience = "http://127.0.0.1:1", time.Second },
			kind: errors.Unavailable, text: "cannot be reached"},
		"expired":        {status: 400, code: "ExpiredToken", kind: errors.Unauthenticated, text: "expired"},
		"not allowed":    {status: 403, code: "AccessDenied", kind: errors.Denied, text: "does not allow"},
		"another region": {status: 301, code: "PermanentRedirect", kind: errors.Invalid, text: "region"},
		"full":           {status: 507, code: "InsufficientStorage", kind: errors.Exhausted, text: "no space"},
		"away for long": {status: 503, code: "ServiceUnavailable", kind: errors.Unavailable,
			text: "away or overloaded"},
	} {
		t.Run(name, func(t *testing.T) {
			loc := location(t)
			loc.Patience = time.Second
			a := between(t, &loc)
			if c.change != nil {
				c.change(&loc)
			}
			if c.status != 0 {
				a.reset(func(_ int, w http.ResponseWriter, r *http.Request) bool {
					return xmlFault(w,
						c.status, c.code)
				})
			}
			_, err := Sync(t.Context(), openTree(t, dir), openBucket(t, loc), Options{Direction: plan.Up})
			t.Logf("%v", err)
			if errors.KindOf(err) != c.kind || !strings.Contains(errors.Message(err), c.text) {
				t.Errorf("got %v: %q, want %v with %q", errors.KindOf(err), errors.Message(err), c.kind, c.text)
			}
			if strings.Contains(fmt.Sprintf("%+v", err), loc.SecretAccessKey) {
				t.Error("the secret is in the error")
			}
		})
	}
}

// TestInterrupted checks that an interrupted sync resumes where it stopped.
// mission: 2.4, D1
func TestInterrupted(t *testing.T) {
	dir := t.TempDir()
	for i := range 300 {
		write(t, dir, fmt.Sprintf("f%03d", i), fmt.Sprint(i))
	}
	write(t, dir, "large", strings.Repeat("0123456789abcdef", 100<<16)) // 100 MiB: 7 parts
	loc, state := location(t), t.TempDir()
	a := between(t, &loc)
	b := openBucket(t, loc)
	for _, stop := range []int{40, 150} {
		ctx, cancel := context.WithCancel(t.Context())
		a.reset(func(n int, _ http.ResponseWriter, r *http.Request) bool {
			// Files are recorded in order, so the first ones must arrive while the others wait. A resumed sync requests
			// each file that was in progress and lists the bucket, so only writes wait.
			if n >= stop && (r.Method == http.MethodPut || r.Method == http.MethodPost) &&
				!strings.Contains(r.URL.Path, "/f00") {
				<-ctx.Done()
			}
			return false
		})
		o := Options{Direction: plan.Up, State: state, Progress: func(st Stats) {
			if st.Files+st.Skipped >= 10 {
				cancel()
			}
		}}
		if _, err := Sync(ctx, openTree(t, dir), b, o); errors.KindOf(err) != errors.Canceled {
			t.Fatalf("an interrupted sync returned %v", err)
		}
		cancel()
	}
	a.reset(nil)
	stats := mustSync(t, dir, b, Options{Direction: plan.Up, State: state})
	if stats.Skipped == 0 {
		t.Errorf("nothing of the interrupted sync was used: %s", stats)
	}
	back := t.TempDir()
	mustSync(t, back, b, Options{Direction: plan.Down, Owners: true})
	sameTrees(t, dir, back)
}

// Two syncs to one place: the later one notices, and starts again.
func TestOvertaken(t *testing.T) {
	loc := location(t)
	a := between(t, &loc)
	b := openBucket(t, loc)
	one, two := t.TempDir(), t.TempDir()
	write(t, one, "one", "1")
	write(t, two, "two", "2")
	var begun atomic.Bool
	a.reset(func(_ int, _ http.ResponseWriter, r *http.Request) bool {
		if r.Method == http.MethodPut && strings.HasSuffix(r.URL.Path, manifest.Key) {
			if begun.CompareAndSwap(false, true) {
				if _, err := Sync(t.Context(), openTree(t, two), b, Options{Direction: plan.Up}); err != nil {
					t.Error(err)
				}
			}
		}
		return false
	})
	mustSync(t, one, b, Options{Direction: plan.Up})
	back := t.TempDir()
	mustSync(t, back, b, Options{Direction: plan.Down})
	if got := slices.Sorted(maps.Keys(snapshot(t, back))); !slices.Equal(got, []string{"one", "two"}) {
		t.Errorf("the bucket has %q", got)
	}
}

// TestDamagedObject checks that a damaged download does not get the file's name.
// mission: 3.5
func TestDamagedObject(t *testing.T) {
	dir, loc := t.TempDir(), location(t)
	a := between(t, &loc)
	b := openBucket(t, loc)
	write(t, dir, "good", "good content")
	write(t, dir, "hurt", "hurt content")
	mustSync(t, dir, b, Options{Direction: plan.Up})
	a.reset(func(_ int, w http.ResponseWriter, r *http.Request) bool {
		if r.Method != http.MethodGet || !strings.HasSuffix(r.URL.Path, "/hurt") {
			return false
		}
		_, _ = io.WriteString(w, "hurt CONTENT")
		return true
	})
	back := t.TempDir()
	stats, err := Sync(t.Context(), openTree(t, back), b, Options{Direction: plan.Down})
	if err != nil || stats.Failed != 1 || stats.Failures[0].Path != "hurt" ||
		!strings.Contains(stats.Failures[0].Reason, "differs from the stored content") {
		t.Errorf("a damaged object: %s, %+v, %v", stats, stats.Failures, err)
	}
	if raw, _ := os.ReadFile(filepath.Join(back, "good")); string(raw) != "good content" {
		t.Errorf("the rest did not come: %q", raw)
	}
	if _, err := os.Stat(filepath.Join(back, "hurt")); err == nil {
		t.Error("the damaged file got its name")
	}
	for path := range snapshot(t, back) {
		if strings.HasPrefix(path, tree.TempPrefix) {
			t.Errorf("%s was left behind", path)
		}
	}
}

// mission: D4
func TestVersions(t *testing.T) {
	loc := location(t)
	loc.Prefix = "account"
	a := between(t, &loc)
	b := openBucket(t, loc)
	dir, state := richTree(t), t.TempDir()
	if _, err := b.Latest(t.Context()); errors.KindOf(err) != errors.NotFound {
		t.Errorf("no version: %v", err)
	}
	o := Options{State: state}
	first, stats, err := Save(t.Context(), openTree(t, dir), b, o)
	must(t, err)
	if stats.Failed > 0 || stats.Files < 20 {
		t.Fatalf("the first version: %s", stats)
	}
	before := snapshot(t, dir)
	same, stats, err := Save(t.Context(), openTree(t, dir), b, o)
	if err != nil || same != first || stats.Files > 0 {
		t.Errorf("nothing changed, and there is the version %s: %s, %v", same.Name(), stats, err)
	}
	write(t, dir, "readme.md", "changed")
	must(t, os.Remove(filepath.Join(dir, "a0")))
	must(t, os.Chmod(filepath.Join(dir, "a-b"), 0o600))
	a.reset(nil)
	second, stats, err := Save(t.Context(), openTree(t, dir), b, o)
	must(t, err)
	if stats.Failed > 0 || stats.Files < 1 || stats.Files > 3 || !second.Time.After(first.Time) {
		t.Errorf("the second version %s did %s: %+v", second.Name(), stats, stats.Failures)
	}
	back := t.TempDir()
	got, _, err := Restore(t.Context(), openTree(t, back), b, object.Version{}, Options{Owners: true, SetID: true})
	if err != nil || got.Name() != second.Name() {
		t.Errorf("the latest is %s, %v", got.Name(), err)
	}
	sameTrees(t, dir, back)
	old := t.TempDir()
	if _, _, err := Restore(t.Context(), openTree(t, old), b, first, Options{Owners: true, SetID: true}); err != nil {
		t.Error(err)
	}
	if got := snapshot(t, old); !maps.Equal(got, before) {
		t.Error("the first version is not what it was")
	}
	if _, _, err := Restore(t.Context(), openTree(t, old), b, object.Version{Time: time.Unix(5, 0)},
		Options{}); errors.KindOf(err) != errors.NotFound {
		t.Errorf("a version that is not there: %v", err)
	}
	if _, err := b.Prune(t.Context(), 0); errors.KindOf(err) != errors.Invalid {
		t.Errorf("keep none: %v", err)
	}
	deleted, err := b.Prune(t.Context(), 1)
	if err != nil || len(deleted) != 1 || deleted[0].Name() != first.Name() {
		t.Errorf("pruned %v, %v", deleted, err)
	}
	all, err := b.Versions(t.Context())
	if err != nil || len(all) != 1 || all[0].Name() != second.Name() {
		t.Errorf("left: %v, %v", all, err)
	}
	if _, err := b.Sweep(t.Context(), object.Stale); err != nil {
		t.Error(err)
	}
}

// TestProgress checks that progress reports give the total work and the current position, also within a large file.
// mission: 2.6
func TestProgress(t *testing.T) {
	dir, back, loc := t.TempDir(), t.TempDir(), location(t)
	sizes := int64(0)
	for i := range 30 {
		content := strings.Repeat("x", i*100)
		sizes += int64(len(content))
		write(t, dir, fmt.Sprintf("f%02d", i), content)
	}
	large := strings.Repeat("0123456789abcdef", 40<<16) // 40 MiB: 3 parts
	sizes += int64(len(large))
	write(t, dir, "large", large)
	age(t, dir)
	a := between(t, &loc)
	b := openBucket(t, loc)
	for _, c := range []struct {
		dir string
		o   Options
	}{{dir, Options{Direction: plan.Up}}, {back, Options{Direction: plan.Down, Owners: true}}} {
		t.Run(string(c.o.Direction), func(t *testing.T) {
			known, within := make(chan struct{}), make(chan struct{})
			var parts atomic.Int32
			// The last part waits until both reports have been seen.
			a.reset(func(_ int, _ http.ResponseWriter, r *http.Request) bool {
				if strings.HasSuffix(r.URL.Path, "/large") &&
					(r.URL.Query().Has("partNumber") || r.Header.Get("Range") != "") && parts.Add(1) == 3 {
					for what, seen := range map[string]chan struct{}{"the total": known, "the parts": within} {
						select {
						case <-seen:
						case <-time.After(time.Minute):
							t.Errorf("%s is missing", what)
						}
					}
				}
				return false
			})
			var last Stats
			c.o.Progress = func(s Stats) {
				last = s
				if s.Total == 0 || s.Seen > s.Total {
					if s.Total != 0 {
						t.Errorf("%d of %d bytes", s.Seen, s.Total)
					}
					return
				}
				if s.Files < 30 {
					return
				}
				select {
				case <-known:
				default:
					close(known)
				}
				if s.Seen >= sizes-int64(buffer.PartSize) && s.Seen < sizes {
					select {
					case <-within:
					default:
						close(within)
					}
				}
			}
			stats := mustSync(t, c.dir, b, c.o)
			if last.Seen != sizes || last.Total != sizes {
				t.Errorf("at the end %d of %d bytes, want %d", last.Seen, last.Total, sizes)
			}
			if stats.Files != 31 || stats.Bytes != sizes || stats.Duration <= 0 || stats.Rate() <= 0 ||
				last.Files != stats.Files || last.Bytes != stats.Bytes {
				t.Errorf("it did %s, shown %s, want 31 files of %d bytes", stats, last, sizes)
			}
		})
	}
	sameTrees(t, dir, back)
}

// TestWhenAllIsThere checks that a restore reports two times: when all files exist, and when they are on the disk.
func TestWhenAllIsThere(t *testing.T) {
	dir, loc := t.TempDir(), location(t)
	write(t, dir, "d/f", "x")
	b := openBucket(t, loc)
	if stats := mustSync(t, dir, b, Options{Direction: plan.Up}); stats.There != 0 {
		t.Errorf("what went up was there after %s", stats.There)
	}
	if stats := mustSync(t, t.TempDir(), b, Options{Direction: plan.Down}); stats.There <= 0 ||
		stats.There > stats.Duration {
		t.Errorf("all was there after %s, and on the disk after %s", stats.There, stats.Duration)
	}
}

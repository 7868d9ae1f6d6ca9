package volsync

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/minio/crc64nvme"
	"golang.org/x/sync/semaphore"
	"golang.org/x/sys/unix"

	"github.com/RelevanceAI/harvest/client/errors"
	"github.com/RelevanceAI/harvest/internal/base/testenv"
	"github.com/RelevanceAI/harvest/internal/s3"
	"github.com/RelevanceAI/harvest/internal/s3/buffer"
	"github.com/RelevanceAI/harvest/internal/s3/object"
	"github.com/RelevanceAI/harvest/internal/s3/tree"
	"github.com/RelevanceAI/harvest/internal/s3/volsync/plan"
	"github.com/RelevanceAI/harvest/internal/s3/volsync/state"
	"github.com/RelevanceAI/harvest/test/stubs/s3test"
)

// childSpec describes the sync of a child process of the test binary.
type childSpec struct {
	Dir, State string
	Direction  plan.Direction
	Location   s3.Location
	Peak       string // a file for the child's peak memory in bytes; "" for no measurement
}

// modelSpec is a childSpec of the model test.
type modelSpec struct {
	childSpec
	Tag  string // names the sync in each request
	List bool
}

func syncOnce(spec string) int {
	var c modelSpec
	if err := json.Unmarshal([]byte(spec), &c); err != nil {
		return 2
	}
	ctx := context.Background()
	b, err := object.Open(ctx, c.Location)
	if err != nil {
		return 2
	}
	t, err := tree.Open(c.Dir)
	if err != nil {
		return 2
	}
	o := Options{Direction: c.Direction, State: c.State, Owners: true, Mirror: true}
	if c.Tag != "" {
		b.Tune(object.Tuning{Transport: func(next http.RoundTripper) http.RoundTripper { return tagged{next, c.Tag} }})
		t.Syncfs = func(int) error { return nil }
		o.Mirror, o.List, o.DeleteMany = false, c.List, true
	}
	stats, err := Sync(ctx, t, b, o)
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	if err := json.NewEncoder(os.Stdout).Encode(stats); err != nil {
		return 2
	}
	if c.Peak != "" {
		status, _ := os.ReadFile("/proc/self/status")
		_, rest, _ := strings.Cut(string(status), "VmHWM:")
		var kib int64
		_, _ = fmt.Sscan(rest, &kib)
		if err := os.WriteFile(c.Peak, fmt.Append(nil, kib<<10), 0o600); err != nil {
			return 2
		}
	}
	return 0
}

// TestKilled checks that a sync that is killed at any moment and then repeated converges: no file is lost or
// incomplete.
// mission: A8, D1, D2
func TestKilled(t *testing.T) {
	dir := t.TempDir()
	for i := range 400 {
		write(t, dir, fmt.Sprintf("d%02d/f%03d", i%20, i), strings.Repeat(fmt.Sprint(i), i))
	}
	write(t, dir, "large", strings.Repeat("0123456789abcdef", 50<<16)) // 50 MiB
	must(t, os.Symlink("d00", filepath.Join(dir, "link")))
	age(t, dir)
	back := t.TempDir()
	loc, up, down := location(t), t.TempDir(), t.TempDir()
	plain := loc
	a := between(t, &loc)
	for i, after := range []int{1, 3, 50, 120, 200, 300, 390, 400, 405, 410} {
		for _, c := range []childSpec{{dir, up, plan.Up, loc, ""}, {back, down, plan.Down, loc, ""}} {
			runUntil(t, a, c, after)
		}
		// Something changes between the attempts.
		write(t, dir, fmt.Sprintf("d%02d/new%d", i, i), "new")
	}
	b := openBucket(t, plain)
	mustSync(t, dir, b, Options{Direction: plan.Up, State: up, Mirror: true})
	mustSync(t, back, b, Options{Direction: plan.Down, State: down, Owners: true, Mirror: true})
	sameTrees(t, dir, back)
}

// TestLeftFiles checks that the next sync that changes the volume removes the remains of a killed restore, and no other
// files with such names.
func TestLeftFiles(t *testing.T) {
	dir, back, b := t.TempDir(), t.TempDir(), openBucket(t, location(t))
	write(t, dir, "d/f", "x")
	age(t, dir)
	mustSync(t, dir, b, Options{Direction: plan.Up})
	down := Options{Direction: plan.Down, Mirror: true, Owners: true}
	mustSync(t, back, b, down)
	before := snapshot(t, back)
	left := []string{tree.NewTempName(), "d/" + tree.NewTempName(), "gone/sub/" + tree.NewTempName()}
	plant := func() {
		at, err := os.Stat(filepath.Join(back, "d"))
		must(t, err)
		for _, path := range left {
			write(t, back, path, "half")
		}
		must(t, os.Chtimes(filepath.Join(back, "d"), time.Time{},
			at.ModTime())) // as of a restore that was killed at its very end
	}
	there := func(why string) {
		for _, path := range left {
			if _, err := os.Lstat(filepath.Join(back, path)); err != nil {
				t.Errorf("%s: %v", why, err)
			}
		}
	}
	plant()
	dry := down
	dry.DryRun = true
	mustSync(t, back, b, dry)
	there("a dry run")
	mustSync(t, back, openBucket(t, location(t)), Options{Direction: plan.Up})
	there("up")
	mustSync(t, back, b, down) // which removes gone, too
	if got := snapshot(t, back); !maps.Equal(got, before) {
		t.Errorf("there is %v, want %v", got, before)
	}
	plant()
	write(t, back, "d/"+tree.TempPrefix+"notes", "somebody's own")
	mustSync(t, back, b, Options{Direction: plan.Both, State: t.TempDir()})
	for path := range snapshot(t, back) {
		if tree.Temporary(path) && path != "d/"+tree.TempPrefix+"notes" {
			t.Errorf("%s is still there", path)
		}
	}
	if raw, _ := os.ReadFile(filepath.Join(back, "d", tree.TempPrefix+"notes")); string(raw) != "somebody's own" {
		t.Errorf("a file of another name: %q", raw)
	}
}

// The parts of a large file that arrived are not sent again.
// mission: 2.4
func TestLargeContinues(t *testing.T) {
	testenv.Long(t)
	dir, loc, state := t.TempDir(), location(t), t.TempDir()
	write(t, dir, "large", strings.Repeat("0123456789abcdef", 112<<16)) // 112 MiB: 7 parts
	a := between(t, &loc)
	b := openBucket(t, loc)
	var parts atomic.Int32
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	a.reset(func(_ int, _ http.ResponseWriter, r *http.Request) bool {
		if r.URL.Query().Get("partNumber") != "" && parts.Add(1) == 6 {
			cancel()
		}
		return false
	})
	if _, err := Sync(ctx, openTree(t, dir), b,
		Options{Direction: plan.Up, State: state}); errors.KindOf(err) != errors.Canceled {
		t.Fatalf("an interrupted sync returned %v", err)
	}
	parts.Store(0)
	a.reset(func(_ int, _ http.ResponseWriter, r *http.Request) bool {
		if r.URL.Query().Get("partNumber") != "" {
			parts.Add(1)
		}
		return false
	})
	mustSync(t, dir, b, Options{Direction: plan.Up, State: state})
	if n := parts.Load(); n == 0 || n > 5 {
		t.Errorf("%d of 7 parts were sent after the interruption", n)
	}
	back := t.TempDir()
	mustSync(t, back, b, Options{Direction: plan.Down, Owners: true})
	sameTrees(t, dir, back)
	// One bit differs: the parts are compared, and the file is sent.
	must(t, os.Chtimes(filepath.Join(dir, "large"), someTime, someTime))
	if stats := mustSync(t, dir, b, Options{Direction: plan.Up, State: state}); stats.Files != 0 || stats.Updated != 1 {
		t.Errorf("a large file that was only touched: %s", stats)
	}
	f, err := os.OpenFile(filepath.Join(dir, "large"), os.O_WRONLY, 0)
	must(t, err)
	_, err = f.WriteAt([]byte("X"), 99<<20)
	must(t, errors.Join(err, f.Close()))
	if stats := mustSync(t, dir, b, Options{Direction: plan.Up, State: state}); stats.Files != 1 {
		t.Errorf("a large file with another byte: %s", stats)
	}
}

// A large file that changes each time it is sent is reported, and S3 keeps no parts of it.
func TestLargeChanges(t *testing.T) {
	testenv.Long(t)
	dir, loc := t.TempDir(), location(t)
	path := filepath.Join(dir, "large")
	write(t, dir, "large", strings.Repeat("0123456789abcdef", 40<<16))
	a := between(t, &loc)
	b := openBucket(t, loc)
	a.reset(func(_ int, _ http.ResponseWriter, r *http.Request) bool {
		if r.URL.Query().Get("partNumber") == "2" {
			_ = os.Chtimes(path, time.Now(), time.Now())
		}
		return false
	})
	stats, err := Sync(t.Context(), openTree(t, dir), b, Options{Direction: plan.Up})
	if err != nil || stats.Failed != 1 || !strings.Contains(stats.Failures[0].Reason, "changed") {
		t.Errorf("did %s with %+v, %v", stats, stats.Failures, err)
	}
	a.reset(nil)
	if id := begun(t.Context(), b, b.Prefix()+"large"); id != "" {
		t.Error("parts of the file are still there")
	}
}

// TestLargeChangesOnce checks that a large file that changes once during its upload is read again from the beginning:
// S3 gets the new content, and no parts of the old one.
// mission: 2.5
func TestLargeChangesOnce(t *testing.T) {
	for name, change := range map[string]func(f *os.File) error{
		"other bytes": func(f *os.File) error {
			_, err := f.WriteAt([]byte("CHANGED"), 5)
			_, last := f.WriteAt([]byte("CHANGED"), 39<<20)
			return errors.Join(err, last)
		},
		"longer":  func(f *os.File) error { _, err := f.WriteAt([]byte("more"), 40<<20); return err },
		"shorter": func(f *os.File) error { return f.Truncate(17 << 20) },
		"touched": func(*os.File) error { return nil },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			dir, back, loc := t.TempDir(), t.TempDir(), location(t)
			path := filepath.Join(dir, "large")
			write(t, dir, "large", strings.Repeat("0123456789abcdef", 40<<16)) // 40 MiB: 3 parts
			f, err := os.OpenFile(path, os.O_RDWR, 0)
			must(t, err)
			defer f.Close()
			var begun, second atomic.Int32
			a := between(t, &loc)
			a.reset(func(_ int, _ http.ResponseWriter, r *http.Request) bool {
				if r.Method == http.MethodPost && r.URL.Query().Has("uploads") {
					begun.Add(1)
				}
				if r.URL.Query().Get("partNumber") == "2" && second.Add(1) == 1 {
					// The new mtime shows the change, whatever the clock's resolution.
					if err := errors.Join(change(f), os.Chtimes(path, someTime, someTime)); err != nil {
						t.Error(err)
					}
				}
				return false
			})
			b := openBucket(t, loc)
			if stats := mustSync(t, dir, b, Options{Direction: plan.Up, State: t.TempDir()}); stats.Files != 1 ||
				begun.Load() != 2 {
				t.Errorf("%s, with %d uploads", stats, begun.Load())
			}
			for u, err := range b.UploadsBegun(t.Context()) {
				t.Errorf("parts of %v are still there, %v", u.Key, err)
			}
			mustSync(t, back, b, Options{Direction: plan.Down, Owners: true})
			sameTrees(t, dir, back)
		})
	}
}

// hooked does something when it is first waited for.
type hooked struct {
	context.Context
	once sync.Once
	do   func()
}

func (h *hooked) Done() <-chan struct{} {
	h.once.Do(h.do)
	return h.Context.Done()
}

// So is a small one, whether it changes before it is opened or after.
// mission: 2.5
func TestSmallChangesOnce(t *testing.T) {
	t.Parallel()
	dir, back, b := t.TempDir(), t.TempDir(), openBucket(t, location(t))
	write(t, dir, "f", "as it was")
	stats := mustSync(t, dir, b, Options{Direction: plan.Up, Plan: func(a plan.Action) {
		write(t, dir, a.Path, "changed after it was listed")
		must(t, os.Chtimes(filepath.Join(dir, a.Path), someTime, someTime))
	}})
	if stats.Files != 1 || stats.Bytes != int64(len("changed after it was listed")) {
		t.Errorf("listed: %s", stats)
	}
	mustSync(t, back, b, Options{Direction: plan.Down, Owners: true})
	sameTrees(t, dir, back)
	// Memory for its content is the first that is waited for once it is open.
	opened := openTree(t, dir)
	local, err := opened.Lstat("f")
	must(t, err)
	r := &run{b: b, t: opened, o: Options{Direction: plan.Up}, sem: semaphore.NewWeighted(buffer.MaxInFlight),
		room: buffer.MaxInFlight}
	defer r.buffers.Close()
	changed := false
	ctx := &hooked{Context: t.Context(), do: func() {
		changed = true
		write(t, dir, "f", "CHANGED after it was opened")
		must(t, os.Chtimes(filepath.Join(dir, "f"), someTime, someTime.Add(time.Hour)))
	}}
	there, err := b.Stat(t.Context(), "f")
	must(t, err)
	e, err := r.upload(ctx, &plan.Action{Op: plan.Upload, Path: "f", Kind: tree.File, Local: local, Remote: there})
	must(t, err)
	if got, err := os.ReadFile(filepath.Join(dir, "f")); err != nil || !changed || e.CRC != crc64nvme.Checksum(got) ||
		e.ModTime != tree.At(someTime.Add(time.Hour)) {
		t.Errorf("opened: %+v, %v", e, err)
	}
	now, err := b.Stat(t.Context(), "f")
	if err != nil || now.CRC != e.CRC || now.ModTime != e.ModTime || now.ETag != e.ETag {
		t.Errorf("S3 has %+v, %v, want %+v", now, err, e)
	}
}

// TestSkewedClock checks that a wrong clock is corrected by that of S3.
func TestSkewedClock(t *testing.T) {
	dir, loc := t.TempDir(), location(t)
	write(t, dir, "f", "x")
	a := between(t, &loc)
	b := openBucket(t, loc)
	b.Tune(object.Tuning{Skew: -3 * time.Hour})
	a.reset(func(_ int, w http.ResponseWriter, r *http.Request) bool {
		at, err := time.Parse("20060102T150405Z", r.Header.Get("X-Amz-Date"))
		return err == nil && time.Since(at).Abs() > 15*time.Minute && xmlFault(w, 403, "RequestTimeTooSkewed")
	})
	mustSync(t, dir, b, Options{Direction: plan.Up})
	if skew := b.Skew(); skew.Abs() > time.Minute {
		t.Errorf("the clock is still taken to be off by %s", skew)
	}
}

// TestOvertakenObjects checks that an object that another program wrote after the manifest is restored in its current
// state.
func TestOvertakenObjects(t *testing.T) {
	dir, b := t.TempDir(), openBucket(t, location(t))
	write(t, dir, "f", "old")
	write(t, dir, "gone", "gone")
	write(t, dir, "stays", "stays")
	mustSync(t, dir, b, Options{Direction: plan.Up})
	body := []byte("somebody else's, and longer")
	_, err := b.Put(t.Context(), "f", body, crc64nvme.Checksum(body), http.Header{"X-Amz-Meta-Mode": {"0100600"}})
	must(t, err)
	must(t, b.Delete(t.Context(), []string{"gone"}, func(string, error) {}))
	back := t.TempDir()
	stats, err := Sync(t.Context(), openTree(t, back), b, Options{Direction: plan.Down})
	must(t, err)
	if raw, err := os.ReadFile(filepath.Join(back, "f")); err != nil || string(raw) != string(body) {
		t.Errorf("restored %q, %v", raw, err)
	}
	if stats.Failed != 1 || stats.Failures[0].Path != "gone" {
		t.Errorf("what is gone: %+v", stats.Failures)
	}
	// A list sees the actual objects, and a sync up restores the missing ones.
	if stats := mustSync(t, back, b, Options{Direction: plan.Down, List: true}); stats.Failed != 0 {
		t.Errorf("with a list: %s", stats)
	}
	if stats := mustSync(t, dir, b, Options{Direction: plan.Up, List: true}); stats.Files != 2 {
		t.Errorf("up again: %s", stats)
	}
}

// TestMetadataComesDown checks that changed metadata in the bucket's manifest reaches files whose content is unchanged.
func TestMetadataComesDown(t *testing.T) {
	one, two, b := t.TempDir(), t.TempDir(), openBucket(t, location(t))
	s1, s2 := t.TempDir(), t.TempDir()
	write(t, one, "f", "content")
	write(t, one, "d/g", "content")
	must(t, unix.Setxattr(filepath.Join(one, "f"), "user.a", []byte("1"), 0))
	must(t, unix.Setxattr(filepath.Join(one, "f"), "user.b", []byte("2"), 0))
	must(t, os.Symlink("f", filepath.Join(one, "l")))
	up, down := Options{Direction: plan.Up, State: s1}, Options{Direction: plan.Down, State: s2, Owners: true}
	mustSync(t, one, b, up)
	mustSync(t, two, b, down)
	must(t, os.Chmod(filepath.Join(one, "f"), 0o600))
	must(t, unix.Removexattr(filepath.Join(one, "f"), "user.a"))
	must(t, unix.Setxattr(filepath.Join(one, "f"), "user.b", []byte("3"), 0))
	must(t, os.Chmod(filepath.Join(one, "d"), 0o700))
	at := unix.NsecToTimespec(someTime.UnixNano())
	must(t, unix.UtimesNanoAt(unix.AT_FDCWD, filepath.Join(one, "l"), []unix.Timespec{at, at},
		unix.AT_SYMLINK_NOFOLLOW))
	if stats := mustSync(t, one, b, up); stats.Updated < 2 {
		t.Errorf("up: %s", stats)
	}
	var last Stats
	down.Progress = func(s Stats) { last = s }
	stats := mustSync(t, two, b, down)
	sameTrees(t, one, two)
	if last.Updated != stats.Updated || stats.Updated < 2 || stats.Rate() != 0 ||
		!strings.Contains(stats.String(), "updated") {
		t.Errorf("down: %s, last shown %s", stats, last)
	}
	// Contents are compared on request.
	info, err := os.Stat(filepath.Join(two, "f"))
	must(t, err)
	write(t, two, "f", "CONTENT")
	must(t, os.Chtimes(filepath.Join(two, "f"), info.ModTime(), info.ModTime()))
	down.Contents = true
	mustSync(t, two, b, down)
	sameTrees(t, one, two)
}

// TestInTheWay checks that an obstacle in place of a directory, a file or a link is reported.
func TestInTheWay(t *testing.T) {
	dir, back, b := t.TempDir(), t.TempDir(), openBucket(t, location(t))
	write(t, dir, "a/b", "x")
	write(t, dir, "f", "x")
	write(t, dir, "g", "x")
	must(t, os.Link(filepath.Join(dir, "g"), filepath.Join(dir, "h")))
	mustSync(t, dir, b, Options{Direction: plan.Up})
	write(t, back, "a", "a file where a directory should be")
	write(t, back, "f/x", "a directory where a file should be")
	must(t, unix.Mkfifo(filepath.Join(back, "g"), 0o644))
	stats, err := Sync(t.Context(), openTree(t, back), b, Options{Direction: plan.Down})
	must(t, err)
	var failed []string
	for _, f := range stats.Failures {
		failed = append(failed, f.Path)
		if f.Reason == "" {
			t.Errorf("%s failed for no reason", f.Path)
		}
	}
	slices.Sort(failed)
	if want := []string{"a", "a/b", "f", "g"}; !slices.Equal(slices.Compact(failed), want) {
		t.Errorf("failed: %+v, want %q", stats.Failures, want)
	}
	if raw, _ := os.ReadFile(filepath.Join(back, "h")); string(raw) != "x" {
		t.Error("the other name of a file that could not be restored is missing")
	}
	// A mirror clears the way.
	must(t, os.Remove(filepath.Join(back, "g")))
	mustSync(t, back, b, Options{Direction: plan.Down, Mirror: true, Owners: true})
	mustSync(t, back, b, Options{Direction: plan.Down, Mirror: true, Owners: true})
	if raw, _ := os.ReadFile(filepath.Join(back, "a/b")); string(raw) != "x" {
		t.Error("a mirror did not clear the way")
	}
}

// TestFullDisk checks that a restore on a full disk reports it and leaves no partial file.
// mission: 3.4
func TestFullDisk(t *testing.T) {
	small := testenv.SmallDisk(t, "size=4m")
	dir, b := t.TempDir(), openBucket(t, location(t))
	write(t, dir, "a", "fits")
	write(t, dir, "b", strings.Repeat("x", 8<<20))
	write(t, dir, "c", strings.Repeat("0123456789abcdef", 20<<16))
	mustSync(t, dir, b, Options{Direction: plan.Up})
	stats, err := Sync(t.Context(), openTree(t, small), b, Options{Direction: plan.Down})
	must(t, err)
	named := map[string]bool{}
	for _, f := range stats.Failures {
		named[f.Path] = strings.Contains(f.Reason, "space")
	}
	if stats.Failed != 2 || len(named) != 2 || !named["b"] || !named["c"] {
		t.Errorf("%s: %+v", stats, stats.Failures)
	}
	got := snapshot(t, small)
	if len(got) != 1 || got["a"] == "" {
		t.Errorf("there is %v", got)
	}
	// With room, the next one brings the rest.
	must(t, unix.Mount("", small, "", unix.MS_REMOUNT, "size=64m"))
	mustSync(t, small, b, Options{Direction: plan.Down, Owners: true})
	sameTrees(t, dir, small)
}

// A damaged state on this machine is forgotten; nothing is lost.
func TestDamagedState(t *testing.T) {
	dir, b, stateDir := t.TempDir(), openBucket(t, location(t)), t.TempDir()
	for i := range 50 {
		write(t, dir, fmt.Sprintf("f%d", i), fmt.Sprint(i))
	}
	mustSync(t, dir, b, Options{Direction: plan.Up, State: stateDir})
	found, err := filepath.Glob(filepath.Join(stateDir, "*", state.Entries))
	if err != nil || len(found) != 1 {
		t.Fatal(found, err)
	}
	raw, err := os.ReadFile(found[0])
	must(t, err)
	for name, damaged := range map[string][]byte{"cut": raw[:len(raw)/2],
		"changed": append(slices.Clone(raw[:len(raw)-20]), make([]byte, 20)...), "empty": nil} {
		must(t, os.WriteFile(found[0], damaged, 0o600))
		if stats := mustSync(t, dir, b, Options{Direction: plan.Up, Mirror: true,
			State: stateDir}); stats.Deleted != 0 {
			t.Errorf("%s: %s", name, stats)
		}
		back := t.TempDir()
		mustSync(t, back, b, Options{Direction: plan.Down, Owners: true})
		sameTrees(t, dir, back)
	}
}

// An object that is too large for one copy is copied in parts.
func TestCopyInParts(t *testing.T) {
	dir, b := t.TempDir(), openBucket(t, location(t))
	write(t, dir, "f", strings.Repeat("0123456789abcdef", 12<<16))
	mustSync(t, dir, b, Options{Direction: plan.Up})
	e, err := b.Stat(t.Context(), "f")
	must(t, err)
	source := b.Location().Bucket + "/" + b.Prefix() + "f"
	if _, err := b.CopyParts(t.Context(), source, b.Prefix()+"g", e, 5<<20); err != nil {
		t.Fatal(err)
	}
	if got, err := b.Stat(t.Context(), "g"); err != nil || got.Size != e.Size {
		t.Errorf("the copy is %+v, %v", got, err)
	}
	e.ETag = "another"
	if _, err := b.CopyParts(t.Context(), source, b.Prefix()+"h", e, 5<<20); errors.KindOf(err) != errors.Conflict {
		t.Errorf("a copy of what changed: %v", err)
	}
	if id := begun(t.Context(), b, b.Prefix()+"h"); id != "" {
		t.Error("parts of a failed copy are still there")
	}
}

// TestRefusedObjects checks that a refusal for a single object is reported for that object.
func TestRefusedObjects(t *testing.T) {
	dir, loc, state := t.TempDir(), location(t), t.TempDir()
	a := between(t, &loc)
	b := openBucket(t, loc)
	for _, name := range []string{"a", "b", "c"} {
		write(t, dir, name, name)
	}
	a.reset(func(_ int, w http.ResponseWriter, r *http.Request) bool {
		return r.Method == http.MethodPut && strings.HasSuffix(r.URL.Path, "/b") && xmlFault(w, 403, "AccessDenied")
	})
	stats, err := Sync(t.Context(), openTree(t, dir), b, Options{Direction: plan.Up, State: state})
	if err != nil || stats.Failed != 1 || stats.Failures[0].Path != "b" || stats.Failures[0].Remedy == "" ||
		stats.Files != 2 {
		t.Errorf("%s %+v, %v", stats, stats.Failures, err)
	}
	a.reset(nil)
	if stats := mustSync(t, dir, b, Options{Direction: plan.Up, State: state}); stats.Files != 1 {
		t.Errorf("afterwards: %s", stats)
	}
	must(t, os.Remove(filepath.Join(dir, "a")))
	a.reset(func(_ int, w http.ResponseWriter, r *http.Request) bool {
		return r.Method == http.MethodDelete && xmlFault(w, 403, "AccessDenied")
	})
	stats, err = Sync(t.Context(), openTree(t, dir), b, Options{Direction: plan.Up, Mirror: true, State: state})
	if err != nil || stats.Failed != 1 || stats.Failures[0].Path != "a" {
		t.Errorf("a refused deletion: %s %+v, %v", stats, stats.Failures, err)
	}
}

// TestSilent checks that a server that accepts a request and never answers counts as down.
func TestSilent(t *testing.T) {
	loc := location(t)
	ctx, cancel := context.WithCancel(t.Context())
	a := between(t, &loc)
	b2 := openBucket(t, loc)
	a.reset(func(_ int, _ http.ResponseWriter, r *http.Request) bool {
		cancel()
		<-r.Context().Done()
		return true
	})
	if _, err := b2.Head(ctx, "x"); errors.KindOf(err) != errors.Canceled {
		t.Errorf("a caller who gave up got %v", err)
	}
}

func TestAmbient(t *testing.T) {
	loc := location(t)
	loc.Credentials = s3.Credentials{Ambient: true}
	loc.Region = ""
	t.Setenv("AWS_ACCESS_KEY_ID", s3test.AccessKey)
	t.Setenv("AWS_SECRET_ACCESS_KEY", s3test.SecretKey)
	t.Setenv("AWS_REGION", "us-east-1")
	mustSync(t, t.TempDir(), openBucket(t, loc), Options{Direction: plan.Up})
	t.Setenv("AWS_ACCESS_KEY_ID", "")
	t.Setenv("AWS_SECRET_ACCESS_KEY", "")
	t.Setenv("AWS_CONFIG_FILE", "/nonexistent")
	t.Setenv("AWS_SHARED_CREDENTIALS_FILE", "/nonexistent")
	t.Setenv("AWS_EC2_METADATA_DISABLED", "true")
	_, err := Sync(t.Context(), openTree(t, t.TempDir()), openBucket(t, loc), Options{Direction: plan.Up})
	if errors.KindOf(err) != errors.Unauthenticated || errors.RemedyOf(err) == "" {
		t.Errorf("no credentials: %v", err)
	}
}

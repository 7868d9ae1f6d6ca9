package volsync

import (
	"math"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/RelevanceAI/harvest/internal/s3/manifest"
	"github.com/RelevanceAI/harvest/internal/s3/object"
	"github.com/RelevanceAI/harvest/internal/s3/tree"
	"github.com/RelevanceAI/harvest/internal/s3/volsync/plan"
)

// TestTimes checks that times are written and read exactly, also before 1970 and after 2262.
// mission: 3.2, D2
func TestTimes(t *testing.T) {
	for text, want := range map[string]tree.Time{"1.5": {Sec: 1, Nsec: 5e8}, "1": {Sec: 1, Nsec: 0},
		"0.000000001": {Sec: 0, Nsec: 1}, "7ns": {Sec: 0, Nsec: 7}, "-1": {Sec: -1, Nsec: 0},
		"981173106.123456789": {Sec: 981173106, Nsec: 123456789},
		"-0.5":                {Sec: -1, Nsec: 5e8}, "-1.5": {Sec: -2, Nsec: 5e8}, "-1.000000000": {Sec: -1, Nsec: 0},
		"-1ns": {Sec: -1, Nsec: 999999999}, "-1500000000ns": {Sec: -2, Nsec: 5e8}, "0ns": {Sec: 0, Nsec: 0},
		"1.1234567891":           {Sec: 1, Nsec: 123456789},
		"99999999999000000001ns": {Sec: 99999999999, Nsec: 1}, "-99999999999000000001ns": {Sec: -100000000000,
			Nsec: 999999999}, "99999999999.5": {Sec: 99999999999, Nsec: 5e8}} {
		if got, ok := tree.ParseTime(text); !ok || got != want {
			t.Errorf("parseTime(%q) = %v, %v", text, got, ok)
		}
	}
	for _, text := range []string{"", "x", "1.x", "99999999999999999999", "9223372036854775807", "xns", "ns", "-",
		"--1", "-ns", "1.-5", "+1", "9999999999999999999999999999999999999ns"} {
		if got, ok := tree.ParseTime(text); ok {
			t.Errorf("parseTime(%q) = %v", text, got)
		}
	}
	for at, want := range map[tree.Time][2]string{{Sec: 0, Nsec: 0}: {"0.000000000", "0"},
		{Sec: -1, Nsec: 999999999}: {"-0.000000001", "-1"}, {Sec: 1, Nsec: 5e8}: {"1.500000000", "1500000000"},
		{Sec: -2, Nsec: 5e8}: {"-1.500000000", "-1500000000"}, {Sec: -2, Nsec: 0}: {"-2.000000000", "-2000000000"},
		{Sec: 1 << 40, Nsec: 7}: {"1099511627776.000000007", "1099511627776000000007"}} {
		if got := [2]string{at.Decimal(), at.Nanoseconds()}; got != want {
			t.Errorf("%v is written as %q", at, got)
		}
		for _, text := range []string{at.Decimal(), at.Nanoseconds() + "ns"} {
			if got, ok := tree.ParseTime(text); !ok || got != at {
				t.Errorf("%v comes back from %q as %v, %v", at, text, got, ok)
			}
		}
		var e tree.Entry
		object.Describe(&e, object.MetaHeader(&tree.Entry{Kind: tree.File, ModTime: at}))
		if e.ModTime != at {
			t.Errorf("%v comes back from headers as %v", at, e.ModTime)
		}
	}
	for at, want := range map[tree.Time]int64{{Sec: math.MaxInt64 / 1_000_000_000, Nsec: 0}: math.MaxInt64,
		{Sec: math.MinInt64/1_000_000_000 - 1, Nsec: 0}: math.MinInt64} {
		if got, fits := at.UnixNano(); fits || got != want {
			t.Errorf("%v has %d nanoseconds, %v", at, got, fits)
		}
	}
	for _, ns := range []int64{0, 1, -1, 1e9, -1e9, -1e9 - 1, math.MaxInt64 - 1e9, math.MinInt64 + 1e9} {
		if got, fits := tree.Nano(ns).UnixNano(); !fits || got != ns {
			t.Errorf("%d ns are %v, which are %d ns, %v", ns, tree.Nano(ns), got, fits)
		}
	}
}

// TestTimesOfRclone checks that rclone and Harvest read each other's times. rclone writes times before 1970 with the
// sign of the whole number and without trailing zeros (seen with 1.60, and in the source that 1.75 uses). rclone reads
// Harvest's form as the same time.
// mission: 3.2
func TestTimesOfRclone(t *testing.T) {
	for text, at := range map[string]tree.Time{"0": {Sec: 0, Nsec: 0}, "-1": {Sec: -1, Nsec: 0},
		"-0.5": {Sec: -1, Nsec: 5e8}, "-1.5": {Sec: -2, Nsec: 5e8},
		"-0.000000001": {Sec: -1, Nsec: 999999999}, "-2145916799.25": {Sec: -2145916800, Nsec: 75e7},
		"981173106.123456789": {Sec: 981173106, Nsec: 123456789}} {
		var e tree.Entry
		object.Describe(&e, http.Header{"X-Amz-Meta-Mtime": {text}})
		if e.ModTime != at {
			t.Errorf("%q of rclone is %v, want %v", text, e.ModTime, at)
		}
		ours := at.Decimal()
		if whole, frac, _ := strings.Cut(ours, "."); strings.TrimSuffix(whole+"."+strings.TrimRight(frac, "0"),
			".") != text {
			t.Errorf("%v is written as %q, and by rclone as %q", at, ours, text)
		}
	}
}

// farTimes are times that do not fit into 64 bits of nanoseconds, and others before 1970.
var farTimes = map[string]tree.Time{"1969": {Sec: -1, Nsec: 5e8}, "1930": {Sec: -1_262_304_000, Nsec: 1},
	"2262": {Sec: 9_223_372_037, Nsec: 1}, "2400": {Sec: 13_569_465_600, Nsec: 999_999_999},
	"1000": {Sec: -30_610_224_000, Nsec: 1}, "9999": {Sec: 253_402_300_799, Nsec: 999_999_999}}

// TestFarTimesAreExact checks that times survive a sync in both directions: in the manifest, in the headers of objects,
// and on a file system that stores them.
// mission: 3.2, D2
func TestFarTimesAreExact(t *testing.T) {
	b := openBucket(t, location(t))
	first, second := &machine{shmDir(t), t.TempDir(), b}, &machine{shmDir(t), t.TempDir(), b}
	for name, at := range farTimes {
		write(t, first.dir, name, "of "+name)
		must(t, os.Mkdir(filepath.Join(first.dir, "d"+name), 0o755))
		must(t, os.Symlink("target", filepath.Join(first.dir, "l"+name)))
		for _, kind := range []string{"", "d", "l"} {
			setTime(t, filepath.Join(first.dir, kind+name), at)
		}
	}
	check := func(dir string) {
		t.Helper()
		for name, at := range farTimes {
			for _, kind := range []string{"", "d", "l"} {
				if got := timeOf(t, filepath.Join(dir, kind+name)); got != at {
					t.Errorf("%s%s has %v, want %v", kind, name, got, at)
				}
			}
		}
	}
	check(first.dir) // the file system keeps them
	settle(t, first, second)
	check(first.dir)
	check(second.dir)
	// A change of the other side, and headers without a manifest.
	setTime(t, filepath.Join(second.dir, "9999"), farTimes["1000"])
	settle(t, second, first)
	if got := timeOf(t, filepath.Join(first.dir, "9999")); got != farTimes["1000"] {
		t.Errorf("the changed one has %v", got)
	}
	res, err := b.Head(t.Context(), "2400")
	must(t, err)
	if got := res.Header.Get("X-Amz-Meta-Mtime"); got != "13569465600.999999999" {
		t.Errorf("other tools read %q", got)
	}
	must(t, b.Delete(t.Context(), []string{manifest.Key}, func(string, error) {}))
	listed := shmDir(t)
	mustSync(t, listed, b, Options{Direction: plan.Down})
	for name, at := range farTimes {
		if got := timeOf(t, filepath.Join(listed, name)); got != at && name != "9999" {
			t.Errorf("without a manifest %s has %v, want %v", name, got, at)
		}
	}
}

// A time that the volume's file system cannot hold is named, and does not go back to the bucket.
// mission: 3.2, D2
func TestTimesThatAFileSystemCannotHold(t *testing.T) {
	b := openBucket(t, location(t))
	first, second := &machine{shmDir(t), t.TempDir(), b}, &machine{t.TempDir(), t.TempDir(), b}
	write(t, second.dir, "probe", "")
	setTime(t, filepath.Join(second.dir, "probe"), farTimes["9999"])
	if timeOf(t, filepath.Join(second.dir, "probe")) == farTimes["9999"] {
		t.Skip("the file system holds all times")
	}
	must(t, os.Remove(filepath.Join(second.dir, "probe")))
	write(t, first.dir, "f", "content")
	must(t, os.Mkdir(filepath.Join(first.dir, "d"), 0o755))
	for _, name := range []string{"f", "d"} {
		setTime(t, filepath.Join(first.dir, name), farTimes["9999"])
	}
	o := Options{Direction: plan.Both, Owners: true}
	sync := func(m *machine) Stats {
		t.Helper()
		o := o
		o.State = m.state
		s, err := Sync(t.Context(), openTree(t, m.dir), b, o)
		must(t, err)
		return s
	}
	sync(first)
	if s := sync(second); s.Files != 1 || s.Failed != 2 || s.Failures[0].Reason == "" {
		t.Errorf("it does not name them: %s %+v", s, s.Failures)
	}
	for i := range 4 {
		m := []*machine{second, first}[i%2]
		if s := sync(m); s.Files+s.Updated+s.Deleted+s.Conflicts > 0 {
			t.Errorf("another sync is not quiet: %s %+v %+v", s, s.Decided, s.Failures)
		}
	}
	// An edit there is uploaded with its own time, a change of mode with the bucket's time.
	must(t, os.Chmod(filepath.Join(second.dir, "f"), 0o600))
	sync(second)
	sync(first)
	if info, err := os.Stat(filepath.Join(first.dir, "f")); err != nil || info.Mode() != 0o600 ||
		timeOf(t, filepath.Join(first.dir, "f")) != farTimes["9999"] {
		t.Errorf("after a change of mode there, it is %v of %v, %v", info.Mode(),
			timeOf(t, filepath.Join(first.dir, "f")), err)
	}
	if got := timeOf(t, filepath.Join(first.dir, "d")); got != farTimes["9999"] {
		t.Errorf("the directory has %v", got)
	}
	write(t, second.dir, "f", "edited")
	sync(second)
	sync(first)
	if raw, err := os.ReadFile(filepath.Join(first.dir, "f")); err != nil || string(raw) != "edited" ||
		timeOf(t, filepath.Join(first.dir, "f")) != timeOf(t, filepath.Join(second.dir, "f")) {
		t.Errorf("after an edit there it has %q, %v", raw, err)
	}
}

func setTime(t *testing.T, path string, at tree.Time) {
	t.Helper()
	must(t, unix.UtimesNanoAt(unix.AT_FDCWD, path, []unix.Timespec{at.Timespec(), at.Timespec()},
		unix.AT_SYMLINK_NOFOLLOW))
}

func timeOf(t *testing.T, path string) tree.Time {
	t.Helper()
	var st unix.Stat_t
	must(t, unix.Lstat(path, &st))
	return tree.FromStat(path, &st).ModTime
}

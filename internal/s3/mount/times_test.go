package mount

import (
	"os"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/RelevanceAI/harvest/internal/s3/object"
	"github.com/RelevanceAI/harvest/internal/s3/tree"
)

// TestFarTimes checks that times before 1970 and after 2262 are exact: set in one mount, for a file being written, a
// stored file or a directory, and seen in another mount and by a sync.
// mission: 3.2, D5
func TestFarTimes(t *testing.T) {
	t.Parallel()
	p := newPlace(t)
	dir, other := p.mounted(about("sbx_times")), p.mounted(about("sbx_times2"))
	far := map[string]tree.Time{"1969": {Sec: -1, Nsec: 5e8}, "1000": {Sec: -30_610_224_000, Nsec: 1},
		"2400": {Sec: 13_569_465_600, Nsec: 999_999_999}}
	set := func(path string, at tree.Time) {
		t.Helper()
		ts := unix.Timespec{Sec: at.Sec, Nsec: int64(at.Nsec)}
		if err := unix.UtimesNanoAt(unix.AT_FDCWD, path, []unix.Timespec{ts, ts},
			unix.AT_SYMLINK_NOFOLLOW); err != nil {
			t.Error(err)
		}
	}
	is := func(path string, want tree.Time) {
		t.Helper()
		var st unix.Stat_t
		if err := unix.Lstat(path, &st); err != nil || st.Mtim.Sec != want.Sec || st.Mtim.Nsec != int64(want.Nsec) {
			t.Errorf("%s has %v, want %v: %v", path, st.Mtim, want, err)
		}
	}
	for name, at := range far {
		path := filepath.Join(dir, name)
		f, err := os.Create(path)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := f.WriteString("content"); err != nil {
			t.Error(err)
		}
		set(path, at) // while it is being written
		is(path, at)
		if err := f.Close(); err != nil {
			t.Error(err)
		}
		write(t, path+".stored", "content")
		set(path+".stored", at)
		if err := os.Mkdir(path+".dir", 0o755); err != nil {
			t.Error(err)
		}
		set(path+".dir", at)
	}
	b, err := object.Open(t.Context(), p.loc)
	if err != nil {
		t.Fatal(err)
	}
	defer b.Close()
	for name, at := range far {
		for _, suffix := range []string{"", ".stored", ".dir"} {
			is(filepath.Join(dir, name+suffix), at)
			is(filepath.Join(other, name+suffix), at)
			if e, err := b.Describe(t.Context(), name+suffix); err != nil || e.ModTime != at {
				t.Errorf("%s%s is stored as %+v, want %v: %v", name, suffix, e, at, err)
			}
		}
	}
}

// The note of a file that is not stored keeps its time, also in the form of earlier versions.
func TestTimeOfNotes(t *testing.T) {
	for text, want := range map[string]tree.Time{
		`{"path":"a","modified_ns":5}`:                            {Nsec: 5},
		`{"path":"a","modified_ns":-1}`:                           {Sec: -1, Nsec: 999_999_999},
		`{"path":"a","modified_ns":7,"modified_s":-30610224000}`:  {Sec: -30_610_224_000, Nsec: 7},
		`{"path":"a","modified_ns":1709210096123456789,"mode":1}`: {Sec: 1709210096, Nsec: 123456789},
	} {
		if n, err := parseNote([]byte(text)); err != nil || n.time() != want {
			t.Errorf("%s is %v, %v", text, n.time(), err)
		}
	}
}

package state

import (
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/RelevanceAI/harvest/internal/s3/manifest"
	"github.com/RelevanceAI/harvest/internal/s3/tree"
)

// writeState writes a state's file: paths and ETags, "path=etag", in order.
func writeState(t *testing.T, path string, all ...string) {
	t.Helper()
	f, err := os.Create(path)
	must(t, err)
	out, err := manifest.NewWriter(f, 0, true)
	must(t, err)
	for _, text := range all {
		name, etag, _ := strings.Cut(text, "=")
		must(t, out.Add(&tree.Entry{Path: name, Kind: tree.File, ETag: etag, Inode: 7}))
	}
	must(t, errors.Join(out.Close(), f.Close()))
}

func readState(t *testing.T, path string) (all []string) {
	t.Helper()
	for e, err := range manifest.ReadFile(path) {
		must(t, err)
		all = append(all, e.Path+"="+e.ETag)
	}
	return all
}

// Of two interrupted syncs the later counts as far as it got, and the earlier beyond that.
// mission: A8
func TestPartialStatesMerge(t *testing.T) {
	for name, c := range map[string]struct{ before, partial, want string }{
		"the later ended early":      {"a=1 b=1 c=1 d=1", "a=2 b=2", "a=2 b=2 c=1 d=1"},
		"the later got further":      {"a=1", "a=2 b=2", "a=2 b=2"},
		"what the later removed":     {"a=1 b=1 c=1 d=1", "a=2 c=2", "a=2 c=2 d=1"},
		"larger, and not as far":     {"z=1", "a=2 b=2 c=2 d=2", "a=2 b=2 c=2 d=2 z=1"},
		"the later had not begun":    {"a=1", "", "a=1"},
		"the earlier has nothing":    {"", "a=2", "a=2"},
		"in the order of a manifest": {"a-b=1 a/x=1", "a-b=2", "a-b=2 a/x=1"},
	} {
		t.Run(name, func(t *testing.T) {
			st := &State{dir: t.TempDir()}
			writeState(t, st.File(Before), strings.Fields(c.before)...)
			writeState(t, st.File(Partial), strings.Fields(c.partial)...)
			must(t, st.keepPartial())
			if got := readState(t, st.File(Before)); strings.Join(got, " ") != c.want {
				t.Errorf("it has %v, want %v", got, c.want)
			}
			if _, err := os.Stat(st.File(Partial)); !os.IsNotExist(err) {
				t.Errorf("the partial state is still there: %v", err)
			}
		})
	}
}

// TestDamagedPartialState checks that the unreadable part of a partial state does not affect the previous state.
func TestDamagedPartialState(t *testing.T) {
	st := &State{dir: t.TempDir()}
	writeState(t, st.File(Before), "a=1", "b=1")
	must(t, os.WriteFile(st.File(Partial), make([]byte, 10), 0o600))
	must(t, st.keepPartial())
	if got := readState(t, st.File(Before)); !slices.Equal(got, []string{"a=1", "b=1"}) {
		t.Errorf("it has %v", got)
	}
	writeState(t, st.File(Partial), "a=2")
	must(t, os.Mkdir(st.File(Before+".next"), 0o700))
	must(t, os.WriteFile(filepath.Join(st.File(Before+".next"), "x"), nil, 0o600))
	if err := st.keepPartial(); err == nil {
		t.Error("no error where the merged state cannot be written")
	}
}

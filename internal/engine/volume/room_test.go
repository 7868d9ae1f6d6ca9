package volume_test

import (
	"archive/tar"
	"bytes"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/RelevanceAI/harvest/client/errors"
	"github.com/RelevanceAI/harvest/internal/engine/volume"
)

// emptyFiles returns an archive of empty files, and of directories with names that end with a slash.
func emptyFiles(t *testing.T, names ...string) *bytes.Buffer {
	t.Helper()
	var b bytes.Buffer
	w := tar.NewWriter(&b)
	for _, name := range names {
		kind := byte(tar.TypeReg)
		if strings.HasSuffix(name, "/") {
			kind = tar.TypeDir
		}
		if err := w.WriteHeader(&tar.Header{Name: name, Typeflag: kind, Mode: 0o755}); err != nil {
			t.Fatal(err)
		}
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	return &b
}

// TestUploadsHaveTheFileLimit checks that an archive cannot create more files and directories in a volume than it may
// have: neither as entries, nor as directories above them, nor in several archives. Existing files can be replaced.
//
// mission: A6
func TestUploadsHaveTheFileLimit(t *testing.T) {
	t.Parallel()
	const most = 6
	for name, c := range map[string]struct {
		dir      string
		archives [][]string
		fits     bool
	}{
		"as many as it may have":       {"/", [][]string{{"a", "b", "c", "d", "e", "f"}}, true},
		"one more":                     {"/", [][]string{{"a", "b", "c", "d", "e", "f", "g"}}, false},
		"the same again":               {"/", [][]string{{"a", "b", "d/e", "d/f", "g"}, {"a", "b", "d/", "d/e"}}, true},
		"two archives":                 {"/", [][]string{{"a", "b", "c", "d"}, {"e", "f", "g"}}, false},
		"a directory with files":       {"/", [][]string{{"d/a", "d/b", "d/c"}, {"e", "f", "g"}}, false},
		"directories":                  {"/", [][]string{{"a/", "b/", "c/", "d/", "e/", "f/", "g/"}}, false},
		"directories above a file":     {"/", [][]string{{"1/2/3/4/5/6"}}, true},
		"more directories above one":   {"/", [][]string{{"1/2/3/4/5/6/7"}}, false},
		"directories above an archive": {"1/2/3", [][]string{{"a", "b", "c"}}, true},
		"more above an archive":        {"/1/2/3/4", [][]string{{"a", "b", "c"}}, false},
		"many above an archive":        {"1/2/3/4/5/6/7", [][]string{{}}, false},
	} {
		l := open(t, t.TempDir())
		l.SetFileLimit(most)
		if _, err := l.Create(t.Context(), volume.Stored("acme", "data")); err != nil {
			t.Fatal(err)
		}
		v, err := volume.Of(l, "acme").Open(t.Context(), "data")
		if err != nil {
			t.Fatal(err)
		}
		for i, archive := range c.archives {
			err := v.CopyIn(t.Context(), c.dir, emptyFiles(t, archive...))
			if refused := !c.fits && i == len(c.archives)-1; !refused && err != nil {
				t.Errorf("%s: %v", name, err)
			} else if refused && (!errors.Is(err, errors.Exhausted) || !strings.Contains(errors.Message(err),
				`volume "data": more than 6`) || !strings.Contains(errors.RemedyOf(err), "limits.volume_files")) {
				t.Errorf("%s: %v, remedy %q", name, err, errors.RemedyOf(err))
			}
		}
		files := -1 // without the root
		err = filepath.WalkDir(l.Path(volume.Stored("acme", "data")),
			func(string, os.DirEntry, error) error { files++; return nil })
		if err != nil || files > most {
			t.Errorf("%s: the volume has %d files and directories, %v", name, files, err)
		}
	}
	l := open(t, t.TempDir())
	if err := create(t, l, "data").CopyIn(t.Context(), "/", emptyFiles(t, "a", "b/c", "d")); err != nil {
		t.Errorf("without a limit: %v", err)
	}
}

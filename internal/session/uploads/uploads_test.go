package uploads

import (
	"bytes"
	"context"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/iotest"
	"time"

	"github.com/RelevanceAI/harvest/client/errors"
	"github.com/RelevanceAI/harvest/internal/base/testenv"
)

// files returns the number of files below a directory.
func files(t *testing.T, dir string) (n int) {
	t.Helper()
	err := filepath.WalkDir(dir, func(_ string, e fs.DirEntry, err error) error {
		if err == nil && !e.IsDir() {
			n++
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return n
}

func opened(t *testing.T, dir string, limit int64, life time.Duration) *Store {
	t.Helper()
	s, err := open(dir, limit, life)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(s.Close)
	return s
}

// TestUploadIsClaimed checks that several sessions can use an upload, that their files outlive it and the Store, and
// that other accounts cannot use it.
// mission: E3
func TestUploadIsClaimed(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	s := opened(t, dir, 0, Life)
	u, err := s.Add(t.Context(), "one", strings.NewReader("commits"))
	if err != nil || u.Size != 7 || time.Until(u.Expires) < Life/2 {
		t.Fatalf("%+v, %v", u, err)
	}
	for _, id := range []string{u.ID, "../" + u.ID, "", "upl_" + strings.Repeat("x", 100)} {
		if _, err := s.Claim("two", id, "ses_1", "bundle"); errors.KindOf(err) != errors.NotFound {
			t.Errorf("%q of another account: %v", id, err)
		}
	}
	for _, session := range []string{"ses_1", "ses_2", "ses_1"} { // a repeated claim is no error
		if _, err := s.Claim("one", u.ID, session, "bundle"); err != nil {
			t.Fatal(err)
		}
	}
	s.Close()
	s = opened(t, dir, 0, Life)
	if err := s.Check("one", u.ID); err != nil {
		t.Errorf("after a restart: %v", err)
	}
	if err := s.Remove("one", u.ID); err != nil {
		t.Fatal(err)
	}
	if err := s.Remove("one", u.ID); errors.KindOf(err) != errors.NotFound {
		t.Errorf("removed twice: %v", err)
	}
	if err := s.Retain(map[string]bool{"ses_2": true}); err != nil {
		t.Fatal(err)
	}
	if text, err := os.ReadFile(s.Path("ses_2", "bundle")); string(text) != "commits" {
		t.Errorf("%q, %v", text, err)
	}
	if err := s.Release("ses_2"); err != nil {
		t.Fatal(err)
	}
	if n := files(t, dir); n != 0 || len(s.used) != 0 {
		t.Errorf("%d files are left, %v", n, s.used)
	}
}

// TestAbandonedUploadsGo checks that nothing stays of uploads that break off, that a crash cut off, or that are not
// used.
// mission: E3
func TestAbandonedUploadsGo(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	s := opened(t, dir, 0, Life)
	broken := io.MultiReader(strings.NewReader("half"), iotest.ErrReader(errors.Newf(errors.Canceled, "cut off")))
	if _, err := s.Add(t.Context(), "one", broken); errors.KindOf(err) != errors.Canceled {
		t.Errorf("broken off: %v", err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := s.Add(ctx, "one", strings.NewReader("x")); errors.KindOf(err) != errors.Canceled {
		t.Errorf("cancelled: %v", err)
	}
	if _, err := s.Add(t.Context(), "one", strings.NewReader("")); errors.KindOf(err) != errors.Invalid {
		t.Errorf("empty: %v", err)
	}
	if n := files(t, dir); n != 0 || len(s.used) != 0 {
		t.Errorf("%d files are left, %v", n, s.used)
	}
	if _, err := s.Add(t.Context(), "one", strings.NewReader("unused")); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(s.of("one"), "upl_1"+partial), []byte("half"), 0o600); err != nil {
		t.Fatal(err)
	}
	s.Close()
	opened(t, dir, 0, time.Nanosecond)
	testenv.Eventually(t, "the upload expires", func() bool { return files(t, dir) == 0 })
}

// TestUploadLimits checks the limits of one upload and of all uploads of an account.
// mission: E3
func TestUploadLimits(t *testing.T) {
	t.Parallel()
	s := opened(t, t.TempDir(), 1<<20, Life)
	full := bytes.Repeat([]byte("x"), 1<<20)
	if _, err := s.Add(t.Context(), "one", bytes.NewReader(append(full, 'y'))); errors.KindOf(err) != errors.Invalid {
		t.Errorf("too large: %v", err)
	}
	for range together {
		if _, err := s.Add(t.Context(), "one", bytes.NewReader(full)); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := s.Add(t.Context(), "one", strings.NewReader("x")); errors.KindOf(err) != errors.Exhausted {
		t.Errorf("too many: %v", err)
	}
	if _, err := s.Add(t.Context(), "two", strings.NewReader("x")); err != nil {
		t.Errorf("another account: %v", err)
	}
}

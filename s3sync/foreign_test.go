package s3sync

import (
	"net/http"
	"os"
	"path/filepath"
	"syscall"
	"testing"
	"time"
)

// Directories that another tool stored come with what it says of them; those that only show in keys keep what they have.
// mission: 3.2, D2
func TestForeignDirectories(t *testing.T) {
	b := openBucket(t, location(t))
	// As rclone writes them with --metadata --s3-directory-markers, and s3fs.
	for key, header := range map[string]http.Header{
		"rclone/":     {"X-Amz-Meta-Mode": {"40750"}, "X-Amz-Meta-Uid": {"1234"}, "X-Amz-Meta-Gid": {"567"}, "X-Amz-Meta-Mtime": {"1234567890.5"}},
		"s3fs/":       {"X-Amz-Meta-Mode": {"16832"}, "X-Amz-Meta-Uid": {"1234"}, "X-Amz-Meta-Gid": {"567"}, "X-Amz-Meta-Mtime": {"1234567890"}},
		"bare/":       {},
		"rclone/f":    {},
		"shown/sub/f": {},
	} {
		_, err := b.put(t.Context(), key, []byte{}, 0, header)
		must(t, err)
	}
	back := t.TempDir()
	must(t, os.MkdirAll(filepath.Join(back, "shown"), 0o700))
	must(t, os.Chmod(filepath.Join(back, "shown"), 0o700))
	begin := time.Now().Add(-time.Minute)
	mustSync(t, back, b, Options{Direction: Down, Owners: true, State: t.TempDir()})
	for name, want := range map[string]struct {
		mode os.FileMode
		uid  uint32
		at   time.Time // zero: of the moment
	}{
		"rclone":    {0o750, 1234, time.Unix(1234567890, 5e8)},
		"s3fs":      {0o700, 1234, time.Unix(1234567890, 0)},
		"shown":     {0o700, 0, time.Time{}},
		"shown/sub": {0o755, 0, time.Time{}},
	} {
		info, err := os.Stat(filepath.Join(back, name))
		must(t, err)
		if info.Mode().Perm() != want.mode || info.Sys().(*syscall.Stat_t).Uid != want.uid || want.at.IsZero() && info.ModTime().Before(begin) || !want.at.IsZero() && !info.ModTime().Equal(want.at) {
			t.Errorf("%s: %s, uid %d, %s", name, info.Mode(), info.Sys().(*syscall.Stat_t).Uid, info.ModTime())
		}
	}
	if info, err := os.Stat(filepath.Join(back, "bare")); err != nil || info.Mode().Perm() != 0o755 {
		t.Errorf("bare: %v", err)
	}
}

package mount

import (
	"fmt"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"
)

// version is the state from which the file API makes ETags, without the inode, which stays when a file is
// overwritten.
func version(t *testing.T, path string) string {
	t.Helper()
	var st unix.Stat_t
	if err := unix.Lstat(path, &st); err != nil {
		t.Fatal(err)
	}
	return fmt.Sprint(st.Ctim, st.Mtim, st.Size)
}

// TestVersions checks that a change of a file's content changes its ctime, also if its size and mtime stay: in the
// mount that writes it, and in another one. Once the file is stored, both have the same ctime.
// mission: E10, D5
func TestVersions(t *testing.T) {
	t.Parallel()
	p := newPlace(t)
	dir, other := p.mounted(about("sbx_version1")), p.mounted(about("sbx_version2"))
	path, there := filepath.Join(dir, "f"), filepath.Join(other, "f")
	at := []unix.Timespec{{Sec: 1_600_000_000}, {Sec: 1_600_000_000}}
	seen, seenThere := map[string]string{}, map[string]string{}
	for _, content := range []string{"one", "two", "333"} {
		write(t, path, content)
		if err := unix.UtimesNanoAt(unix.AT_FDCWD, path, at, 0); err != nil {
			t.Fatal(err)
		}
		v := version(t, path)
		if before, found := seen[v]; found {
			t.Errorf("%s has the version of %s: %s", content, before, v)
		}
		seen[v] = content
		eventually(t, "it is stored", func() bool { return p.object("f") == content })
		eventually(t, "the other mount has it", func() bool { return read(t, there) == content })
		v = version(t, there)
		if before, found := seenThere[v]; found {
			t.Errorf("in the other mount, %s has the version of %s: %s", content, before, v)
		}
		seenThere[v] = content
	}
	eventually(t, "both mounts have the same version", func() bool { return version(t, path) == version(t, there) })
}

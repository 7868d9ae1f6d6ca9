//go:build linux

package tarfs

import (
	"archive/tar"
	"bytes"
	"encoding/json"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// mission: A4
func TestProcSelfIsTheFirstProcess(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	link := filepath.Join(dir, "link")
	if err := os.Symlink("/proc/self", link); err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"/proc/self/stat", "/proc/thread-self/stat", "//proc/../proc/./self/stat",
		link + "/stat"} {
		var b bytes.Buffer
		if err := PackAt(name, &b); err != nil {
			t.Fatal(err)
		}
		in := tar.NewReader(&b)
		if _, err := in.Next(); err != nil {
			t.Fatal(err)
		}
		if got, err := io.ReadAll(in); err != nil || !strings.HasPrefix(string(got), "1 (") {
			t.Errorf("%s: %q, %v; want the first process", name, got, err)
		}
		answer, err := do(t, Host{}, Request{Op: OpStat, Path: name, Follow: true})
		var e Entry
		if err != nil || json.Unmarshal([]byte(answer), &e) != nil || !strings.HasPrefix(e.Path, "/proc/1/") {
			t.Errorf("stat of %s: %s, %v; want a path below /proc/1", name, answer, err)
		}
	}
	if answer, err := do(t, Host{}, Request{Op: OpList, Path: "/proc/self/task"}); err != nil ||
		!strings.Contains(answer, `"name":"1"`) {
		t.Errorf("list: %s, %v; want the thread 1", answer, err)
	}
	for name, want := range map[string]string{
		"/proc/mounts": "/proc/1/mounts", "/proc/net/dev": "/proc/1/net/dev", "/proc/self": "/proc/1",
		"/proc/self/": "/proc/1/", "/proc/self/cwd/../x": "/proc/1/cwd/../x",
		"/dev/fd/0": "/proc/1/fd/0", "/dev/stdin": "/proc/1/fd/0", "/proc/2/status": "/proc/2/status",
		dir + "/proc/self": dir + "/proc/self", "": "",
	} {
		if got := ofFirst(name, true); got != want {
			t.Errorf("%q: got %q, want %q", name, got, want)
		}
	}
	if got := ofFirst("/dev/stdin", false); got != "/dev/stdin" {
		t.Errorf("the link /dev/stdin itself: got %q", got)
	}
}

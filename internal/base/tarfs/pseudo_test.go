//go:build linux

package tarfs

import (
	"archive/tar"
	"bytes"
	"context"
	"encoding/json"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// TestPackReadsPseudoFilesToTheirEnd checks that files whose size does not match their content are packed with all of
// the content, and nothing else.
func TestPackReadsPseudoFilesToTheirEnd(t *testing.T) {
	t.Parallel()
	for _, name := range []string{"/proc/1/status", "/proc/version", "/sys/kernel/mm/transparent_hugepage/enabled"} {
		want, err := os.ReadFile(name)
		if err != nil {
			t.Logf("not on this machine: %v", err)
			continue
		}
		var b bytes.Buffer
		if err := PackAt(name, &b); err != nil {
			t.Fatal(err)
		}
		in := tar.NewReader(&b)
		hdr, err := in.Next()
		if err != nil {
			t.Fatal(err)
		}
		got, err := io.ReadAll(in)
		line, _, _ := strings.Cut(string(want), "\n")
		if err != nil || len(got) == 0 || hdr.Size != int64(len(got)) || !strings.HasPrefix(string(got), line+"\n") ||
			bytes.IndexByte(got, 0) >= 0 {
			t.Errorf("%s: %q, %v; want something like %q", name, got, err, want)
		}
	}
}

// watching collects the changes below dir until the file "end" is created in it.
func watching(t *testing.T, dir string, change func()) []string {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	r, w := io.Pipe()
	go func() { w.CloseWithError(Do(ctx, Host{}, Request{Op: OpWatch, Path: dir, Recursive: true}, w)) }()
	defer r.Close()
	var all []string
	for changes := json.NewDecoder(r); ; {
		var c Change
		if err := changes.Decode(&c); err != nil {
			t.Fatalf("%v after %q", err, all)
		}
		if c.Kind == Ready {
			change()
			if err := os.WriteFile(filepath.Join(dir, "end"), nil, 0o600); err != nil {
				t.Fatal(err)
			}
			continue
		}
		rel, _ := filepath.Rel(dir, c.Path)
		if rel == "end" {
			return all
		}
		text := string(c.Kind) + " " + rel
		if c.Cookie != 0 {
			text += " moved"
		}
		all = append(all, text)
	}
}

// mission: E10
func TestWatchReportsEachCreationOnce(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	all := watching(t, dir, func() {
		for i := range 20 {
			deep := filepath.Join(dir, string(rune('a'+i)), "b", "c")
			if err := os.MkdirAll(deep, 0o700); err != nil {
				t.Fatal(err)
			}
			if err := os.WriteFile(filepath.Join(deep, "file"), []byte("x"), 0o600); err != nil {
				t.Fatal(err)
			}
		}
	})
	// The test does not wait for entries after "end", so the last ones may be missing.
	seen := map[string]int{}
	for _, c := range all {
		if strings.HasPrefix(c, "created") {
			seen[c]++
		}
	}
	for c, n := range seen {
		if n != 1 {
			t.Errorf("%q was reported %d times", c, n)
		}
	}
	for i := range 10 {
		top := "created " + string(rune('a'+i))
		for _, below := range []string{"", "/b", "/b/c", "/b/c/file"} {
			if seen[top+below] == 0 {
				t.Errorf("%q was not reported: %q", top+below, all)
			}
		}
	}
}

// mission: E10
func TestWatchHidesTemporaryNames(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	all := watching(t, dir, func() {
		temp := filepath.Join(dir, TemporaryName())
		if err := os.WriteFile(temp, []byte("x"), 0o600); err != nil {
			t.Fatal(err)
		}
		if err := os.Rename(temp, filepath.Join(dir, "file")); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(dir, ".harvest-rc"), nil, 0o600); err != nil {
			t.Fatal(err)
		}
	})
	if !slices.Contains(all, "created file") || !slices.Contains(all, "created .harvest-rc") {
		t.Errorf("changes: %q", all)
	}
	for _, c := range all {
		if strings.Contains(c, ".harvest-") && !strings.Contains(c, ".harvest-rc") || strings.Contains(c, "moved") {
			t.Errorf("reported: %q", c)
		}
	}
}

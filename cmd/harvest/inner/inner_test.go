package inner

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/klauspost/compress/zstd"
)

func compress(t *testing.T, text string) []byte {
	t.Helper()
	w, err := zstd.NewWriter(nil)
	if err != nil {
		t.Fatal(err)
	}
	return w.EncodeAll([]byte(text), nil)
}

func TestUnpack(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "bin")
	if path, err := unpack(dir, nil); path != "" || err != nil {
		t.Fatalf("nothing inside: %q, %v", path, err)
	}
	first, err := unpack(dir, compress(t, "#!/bin/sh\necho one\n"))
	if err != nil {
		t.Fatal(err)
	}
	if data, err := os.ReadFile(first); err != nil || string(data) != "#!/bin/sh\necho one\n" {
		t.Errorf("unpacked %q, %v", data, err)
	}
	if info, err := os.Stat(first); err != nil || info.Mode().Perm() != 0o755 {
		t.Errorf("it is %v, %v", info, err)
	}
	before, _ := os.Stat(first)
	again, err := unpack(dir, compress(t, "#!/bin/sh\necho one\n"))
	after, _ := os.Stat(first)
	if err != nil || again != first || !os.SameFile(before, after) {
		t.Errorf("the second time: %q, %v", again, err)
	}
	second, err := unpack(dir, compress(t, "two"))
	if err != nil || second == first {
		t.Fatalf("another version: %q, %v", second, err)
	}
	entries, err := os.ReadDir(dir)
	if err != nil || len(entries) != 1 || entries[0].Name() != filepath.Base(second) {
		t.Errorf("there are %v, %v", entries, err)
	}
}

func TestUnpackDamaged(t *testing.T) {
	dir := t.TempDir()
	if path, err := unpack(dir, []byte("this is not compressed")); err == nil || !strings.Contains(err.Error(), "unpack the keeper") {
		t.Errorf("%q, %v", path, err)
	}
	if entries, err := os.ReadDir(dir); err != nil || len(entries) != 0 {
		t.Errorf("there are %v, %v", entries, err)
	}
	if _, err := unpack("/proc/no/such", compress(t, "x")); err == nil {
		t.Error("a directory that cannot be made was")
	}
}

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
	sentry := compress(t, "the sentry")
	for _, half := range [][2][]byte{{nil, nil}, {sentry, nil}, {nil, sentry}} {
		if p, err := unpack(dir, half[0], half[1]); p != (Programs{}) || err != nil {
			t.Fatalf("nothing inside, or a half: %q, %v", p, err)
		}
	}
	first, err := unpack(dir, compress(t, "#!/bin/sh\necho one\n"), sentry)
	if err != nil {
		t.Fatal(err)
	}
	for path, want := range map[string]string{first.Keeper: "#!/bin/sh\necho one\n", first.Sentry: "the sentry"} {
		if data, err := os.ReadFile(path); err != nil || string(data) != want {
			t.Errorf("unpacked %q, %v", data, err)
		}
		if info, err := os.Stat(path); err != nil || info.Mode().Perm() != 0o755 {
			t.Errorf("it is %v, %v", info, err)
		}
	}
	before, _ := os.Stat(first.Keeper)
	again, err := unpack(dir, compress(t, "#!/bin/sh\necho one\n"), sentry)
	after, _ := os.Stat(first.Keeper)
	if err != nil || again != first || !os.SameFile(before, after) {
		t.Errorf("the second time: %q, %v", again, err)
	}
	second, err := unpack(dir, compress(t, "two"), sentry)
	if err != nil || second.Keeper == first.Keeper || second.Sentry != first.Sentry {
		t.Fatalf("another version: %q, %v", second, err)
	}
	entries, err := os.ReadDir(dir)
	if err != nil || len(entries) != 2 || entries[0].Name() != filepath.Base(second.Keeper) || entries[1].Name() != filepath.Base(second.Sentry) {
		t.Errorf("there are %v, %v", entries, err)
	}
}

func TestUnpackDamaged(t *testing.T) {
	dir := t.TempDir()
	if path, err := unpack(dir, []byte("this is not compressed"), []byte("nor this")); err == nil || !strings.Contains(err.Error(), "unpack a program") {
		t.Errorf("%q, %v", path, err)
	}
	if entries, err := os.ReadDir(dir); err != nil || len(entries) != 0 {
		t.Errorf("there are %v, %v", entries, err)
	}
	if _, err := unpack("/proc/no/such", compress(t, "x"), compress(t, "y")); err == nil {
		t.Error("a directory that cannot be made was")
	}
}

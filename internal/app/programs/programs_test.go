package programs

import (
	"maps"
	"os"
	"path/filepath"
	"slices"
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
	sentry, other := compress(t, "the sentry"), compress(t, "another one's")
	for _, half := range []map[string][]byte{{keeperPrefix: nil, sentryPrefix: nil},
		{keeperPrefix: sentry, sentryPrefix: nil}, {keeperPrefix: nil, sentryPrefix: sentry}} {
		if p, err := unpack(dir, half); len(p) != 0 || err != nil {
			t.Fatalf("nothing inside, or a half: %q, %v", p, err)
		}
	}
	s3, err := unpack(dir, map[string][]byte{s3Prefix: other})
	if err != nil {
		t.Fatal(err)
	}
	one := map[string][]byte{keeperPrefix: compress(t, "#!/bin/sh\necho one\n"), sentryPrefix: sentry}
	first, err := unpack(dir, one)
	if err != nil {
		t.Fatal(err)
	}
	for path, want := range map[string]string{first[keeperPrefix]: "#!/bin/sh\necho one\n",
		first[sentryPrefix]: "the sentry", s3[s3Prefix]: "another one's"} {
		if data, err := os.ReadFile(path); err != nil || string(data) != want {
			t.Errorf("unpacked %q, %v", data, err)
		}
		if info, err := os.Stat(path); err != nil || info.Mode().Perm() != 0o755 {
			t.Errorf("it is %v, %v", info, err)
		}
	}
	before, _ := os.Stat(first[keeperPrefix])
	again, err := unpack(dir, one)
	after, _ := os.Stat(first[keeperPrefix])
	if err != nil || !maps.Equal(again, first) || !os.SameFile(before, after) {
		t.Errorf("the second time: %q, %v", again, err)
	}
	second, err := unpack(dir, map[string][]byte{keeperPrefix: compress(t, "two"), sentryPrefix: sentry})
	if err != nil || second[keeperPrefix] == first[keeperPrefix] || second[sentryPrefix] != first[sentryPrefix] {
		t.Fatalf("another version: %q, %v", second, err)
	}
	var names []string
	entries, err := os.ReadDir(dir)
	for _, e := range entries {
		names = append(names, filepath.Join(dir, e.Name()))
	}
	if want := []string{second[keeperPrefix], s3[s3Prefix], second[sentryPrefix]}; err != nil ||
		!slices.Equal(names, want) {
		t.Errorf("there are %v, %v, want %v", names, err, want)
	}
}

func TestUnpackDamaged(t *testing.T) {
	dir := t.TempDir()
	if path, err := unpack(dir, map[string][]byte{keeperPrefix: []byte("this is not compressed"),
		sentryPrefix: []byte("nor this")}); err == nil || !strings.Contains(err.Error(), "unpack a program") {
		t.Errorf("%q, %v", path, err)
	}
	if entries, err := os.ReadDir(dir); err != nil || len(entries) != 0 {
		t.Errorf("there are %v, %v", entries, err)
	}
	if _, err := unpack("/proc/no/such", map[string][]byte{s3Prefix: compress(t, "x")}); err == nil {
		t.Error("a directory that cannot be made was")
	}
}

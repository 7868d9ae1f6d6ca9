package agent

import (
	"archive/tar"
	"bytes"
	"encoding/binary"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/RelevanceAI/harvest/internal/engine/ocilayer"
)

// words are numbers as gVisor's list has them.
func words(numbers ...uint64) []byte {
	var b []byte
	for _, n := range numbers {
		b = binary.LittleEndian.AppendUint64(b, n)
	}
	return b
}

func archived(t testing.TB, entries ...tar.Header) []byte {
	t.Helper()
	var b bytes.Buffer
	w := tar.NewWriter(&b)
	for _, hdr := range entries {
		content := []byte(hdr.Uname)
		hdr.Uname, hdr.Size = "", int64(len(content))
		if err := w.WriteHeader(&hdr); err != nil {
			t.Fatal(err)
		}
		if _, err := w.Write(content); err != nil {
			t.Fatal(err)
		}
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	return b.Bytes()
}

func regular(name string, numbers ...uint64) tar.Header {
	return tar.Header{Typeflag: tar.TypeReg, Name: name, Uname: string(words(numbers...))}
}

// mission: A10
func TestParse(t *testing.T) {
	t.Parallel()
	got, err := parse(bytes.NewReader(archived(t,
		tar.Header{Typeflag: tar.TypeDir, Name: "./"},
		tar.Header{Typeflag: tar.TypeDir, Name: "./new/", PAXRecords: map[string]string{ocilayer.OpaqueXattr: "y"}},
		regular("./new/file", 10000, 0, 4096, 77, 4096, 8192, 99, 9000, 12288, 5),
		tar.Header{Typeflag: tar.TypeLink, Name: "./a", Linkname: "./new/file"},
		tar.Header{Typeflag: tar.TypeChar, Name: "./gone"},
		tar.Header{Typeflag: tar.TypeSymlink, Name: "./way", Linkname: "../there"},
	)))
	if err != nil {
		t.Fatal(err)
	}
	want := []ocilayer.Entry{
		{Name: ".", Kind: tar.TypeDir},
		{Name: "new", Kind: tar.TypeDir, Hides: true},
		{Name: "new/file", Kind: tar.TypeReg, Size: 10000,
			Data: []ocilayer.Segment{{Start: 0, End: 8192}, {Start: 9000, End: 10000}}},
		{Name: "a", Kind: tar.TypeLink, Link: "new/file"},
		{Name: "gone", Kind: tar.TypeChar},
		{Name: "way", Kind: tar.TypeSymlink, Link: "../there"},
	}
	if d := cmp.Diff(want, got); d != "" {
		t.Error(d)
	}
	for _, bad := range [][]byte{[]byte("no archive, and long enough to be taken for a header of one" +
		strings.Repeat("x", 512)), archived(t, regular("./x")), archived(t, regular("./x", 5, 0))} {
		if _, err := parse(bytes.NewReader(bad)); err == nil {
			t.Errorf("%.20q is taken", bad)
		}
	}
}

func FuzzParse(f *testing.F) {
	f.Add(archived(f, tar.Header{Typeflag: tar.TypeDir, Name: "./"}, regular("./x", 10, 0, 10, 1),
		tar.Header{Typeflag: tar.TypeLink, Name: "./y", Linkname: "./x"}))
	f.Add(archived(f, regular("./x", 1<<63, 1<<63, 5, 1)))
	f.Add(archived(f, tar.Header{Typeflag: tar.TypeLink, Name: "./a", Linkname: "./a"}))
	f.Fuzz(func(t *testing.T, data []byte) {
		all, err := parse(bytes.NewReader(data))
		if err != nil {
			return
		}
		ocilayer.Settle(all)
		for _, e := range all {
			for _, s := range e.Data {
				if s.Start >= s.End || s.End > e.Size {
					t.Errorf("%+v reaches beyond %d", s, e.Size)
				}
			}
		}
	})
}

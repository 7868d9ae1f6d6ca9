package agent

import (
	"archive/tar"
	"bufio"
	"bytes"
	"encoding/binary"
	"io"
	"reflect"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/RelevanceAI/harvest/client/errors"
)

// words are numbers as gVisor's list has them.
func words(numbers ...uint64) []byte {
	var b []byte
	for _, n := range numbers {
		b = binary.LittleEndian.AppendUint64(b, n)
	}
	return b
}

func archive(t testing.TB, entries ...tar.Header) []byte {
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
	got, err := parse(bytes.NewReader(archive(t,
		tar.Header{Typeflag: tar.TypeDir, Name: "./"},
		tar.Header{Typeflag: tar.TypeDir, Name: "./new/", PAXRecords: map[string]string{opaqueXattr: "y"}},
		regular("./new/file", 10000, 0, 4096, 77, 4096, 8192, 99, 9000, 12288, 5),
		tar.Header{Typeflag: tar.TypeLink, Name: "./a", Linkname: "./new/file"},
		tar.Header{Typeflag: tar.TypeChar, Name: "./gone"},
		tar.Header{Typeflag: tar.TypeSymlink, Name: "./way", Linkname: "../there"},
	)))
	if err != nil {
		t.Fatal(err)
	}
	want := []entry{
		{name: ".", kind: tar.TypeDir},
		{name: "new", kind: tar.TypeDir, hides: true},
		{name: "new/file", kind: tar.TypeReg, size: 10000, data: []segment{{0, 8192}, {9000, 10000}}},
		{name: "a", kind: tar.TypeLink, link: "new/file"},
		{name: "gone", kind: tar.TypeChar},
		{name: "way", kind: tar.TypeSymlink, link: "../there"},
	}
	if d := cmp.Diff(want, got, cmp.AllowUnexported(entry{}, segment{})); d != "" {
		t.Error(d)
	}
	for _, bad := range [][]byte{[]byte("no archive, and long enough to be taken for a header of one" +
		strings.Repeat("x", 512)), archive(t, regular("./x")), archive(t, regular("./x", 5, 0))} {
		if _, err := parse(bytes.NewReader(bad)); err == nil {
			t.Errorf("%.20q is taken", bad)
		}
	}
}

// TestSettle checks that the first name of a file with several names has the content, whichever had it in gVisor's
// list, and that whiteouts are not links.
func TestSettle(t *testing.T) {
	t.Parallel()
	all := []entry{
		{name: "a", kind: tar.TypeLink, link: "c"},
		{name: "b", kind: tar.TypeLink, link: "c"},
		{name: "c", kind: tar.TypeReg, size: 7, data: []segment{{0, 7}}},
		{name: "d", kind: tar.TypeLink, link: "c"},
		{name: "dir", kind: tar.TypeDir},
		{name: "u", kind: tar.TypeLink, link: "w"},
		{name: "v", kind: tar.TypeLink, link: "w"},
		{name: "w", kind: tar.TypeChar},
		{name: "x", kind: tar.TypeLink, link: "w"},
	}
	settle(all)
	for i, want := range []entry{
		{name: "a", kind: tar.TypeReg, size: 7, data: []segment{{0, 7}}},
		{name: "b", kind: tar.TypeLink, link: "a"},
		{name: "c", kind: tar.TypeLink, link: "a"},
		{name: "d", kind: tar.TypeLink, link: "a"},
		{name: "dir", kind: tar.TypeDir},
	} {
		if got := all[i]; got.name != want.name || got.kind != want.kind || got.kind == tar.TypeLink &&
			got.link != want.link || got.kind == tar.TypeReg && !reflect.DeepEqual(got.data, want.data) {
			t.Errorf("%+v, want %+v", got, want)
		}
	}
	for _, e := range all[5:] {
		if !e.gone() {
			t.Errorf("%+v is no whiteout", e)
		}
	}
}

func TestOrderAndWithin(t *testing.T) {
	t.Parallel()
	names := []string{".", "-", "a", "a/-", "a/b", "a/b/c", "a-b", "ab", "b"}
	for i := range names[1:] {
		if order(names[i], names[i+1]) >= 0 || order(names[i+1], names[i]) <= 0 || order(names[i], names[i]) != 0 {
			t.Errorf("%s comes after %s", names[i], names[i+1])
		}
	}
	for name, want := range map[string]bool{".": true, "a": true, "a/b": true, "a/b/c": true, "a/bc": false,
		"a/x": false, "b": false} {
		if got := within(entry{name: name, kind: tar.TypeDir}, "a/b"); got != want {
			t.Errorf("%s within a/b: %t", name, got)
		}
	}
	if within(entry{name: "a", kind: tar.TypeReg}, "a/b") || !within(entry{name: "x"}, ".") {
		t.Error("files on the way, or not all of the root")
	}
}

// TestSparse checks that Go's library reads the form of sparse files.
func TestSparse(t *testing.T) {
	t.Parallel()
	const size = 3 << 20
	data := []segment{{1 << 20, 1<<20 + 5}, {size - 3, size}}
	for name, e := range map[string]entry{
		"with data":      {size: size, data: data},
		"hole at end":    {size: size, data: data[:1]},
		"nothing but it": {size: size},
	} {
		if !sparse(e) {
			t.Errorf("%s: not sparse", name)
		}
		var b bytes.Buffer
		out := bufio.NewWriter(&b)
		w := &writer{out: out, tw: tar.NewWriter(out)}
		e.name = "dir/" + strings.Repeat("long-\xff", 40)
		hdr := &tar.Header{Name: e.name, Size: e.size, Mode: 0o4711, Uid: 1 << 30, Gid: 7,
			ModTime: time.Unix(1234567890, 123456789), PAXRecords: map[string]string{attribute + "user.x": "v\x00\xff"}}
		w.copy = func(to io.Writer, _ opened, ranges []segment) error {
			for _, s := range ranges {
				if _, err := to.Write(bytes.Repeat([]byte("d"), int(s.end-s.start))); err != nil {
					return err
				}
			}
			return nil
		}
		if err := w.sparse(hdr, e, opened{}); err != nil {
			t.Fatal(err)
		}
		if err := w.tw.WriteHeader(&tar.Header{Name: "next", Typeflag: tar.TypeReg}); err != nil {
			t.Fatal(err)
		}
		if err := errors.Join(w.tw.Close(), out.Flush()); err != nil {
			t.Fatal(err)
		}
		if b.Len() > 16<<10 {
			t.Errorf("%s: the archive has %d bytes", name, b.Len())
		}
		tr := tar.NewReader(&b)
		got, err := tr.Next()
		if err != nil {
			t.Fatal(err)
		}
		content, err := io.ReadAll(tr)
		if err != nil {
			t.Fatal(err)
		}
		want := make([]byte, size)
		for _, s := range e.data {
			copy(want[s.start:s.end], bytes.Repeat([]byte("d"), int(s.end-s.start)))
		}
		if got.Name != hdr.Name || got.Size != size || got.Mode != hdr.Mode || got.Uid != hdr.Uid || got.Gid != 7 ||
			!got.ModTime.Equal(hdr.ModTime) ||
			got.PAXRecords[attribute+"user.x"] != "v\x00\xff" || !bytes.Equal(content, want) {
			t.Errorf("%s: %+v, %d bytes", name, got, len(content))
		}
		if next, err := tr.Next(); err != nil || next.Name != "next" {
			t.Errorf("%s: what follows is %+v, %v", name, next, err)
		}
	}
	if sparse(entry{size: 100000, data: []segment{{0, 90000}}}) || sparse(entry{}) {
		t.Error("small holes make a file sparse")
	}
}

func TestRecordCountsItself(t *testing.T) {
	t.Parallel()
	for n := range 2000 {
		r := record("k", strings.Repeat("v", n))
		length, rest, _ := strings.Cut(r, " ")
		if length != strconv.Itoa(len(r)) || !strings.HasSuffix(rest, "\n") {
			t.Fatalf("%q has %d bytes", r, len(r))
		}
	}
}

func FuzzParse(f *testing.F) {
	f.Add(archive(f, tar.Header{Typeflag: tar.TypeDir, Name: "./"}, regular("./x", 10, 0, 10, 1),
		tar.Header{Typeflag: tar.TypeLink, Name: "./y", Linkname: "./x"}))
	f.Add(archive(f, regular("./x", 1<<63, 1<<63, 5, 1)))
	f.Add(archive(f, tar.Header{Typeflag: tar.TypeLink, Name: "./a", Linkname: "./a"}))
	f.Fuzz(func(t *testing.T, data []byte) {
		all, err := parse(bytes.NewReader(data))
		if err != nil {
			return
		}
		settle(all)
		for _, e := range all {
			for _, s := range e.data {
				if s.start >= s.end || s.end > e.size {
					t.Errorf("%+v reaches beyond %d", s, e.size)
				}
			}
		}
	})
}

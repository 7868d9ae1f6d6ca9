package ocilayer

import (
	"archive/tar"
	"bufio"
	"bytes"
	"io"
	"math/rand/v2"
	"reflect"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/RelevanceAI/harvest/client/errors"
)

// TestSettle checks that the first name of a file with several names has the content, whichever had it in gVisor's
// list, and that whiteouts are not links.
func TestSettle(t *testing.T) {
	t.Parallel()
	all := []Entry{
		{Name: "a", Kind: tar.TypeLink, Link: "c"},
		{Name: "b", Kind: tar.TypeLink, Link: "c"},
		{Name: "c", Kind: tar.TypeReg, Size: 7, Data: []Segment{{0, 7}}},
		{Name: "d", Kind: tar.TypeLink, Link: "c"},
		{Name: "dir", Kind: tar.TypeDir},
		{Name: "u", Kind: tar.TypeLink, Link: "w"},
		{Name: "v", Kind: tar.TypeLink, Link: "w"},
		{Name: "w", Kind: tar.TypeChar},
		{Name: "x", Kind: tar.TypeLink, Link: "w"},
	}
	Settle(all)
	for i, want := range []Entry{
		{Name: "a", Kind: tar.TypeReg, Size: 7, Data: []Segment{{0, 7}}},
		{Name: "b", Kind: tar.TypeLink, Link: "a"},
		{Name: "c", Kind: tar.TypeLink, Link: "a"},
		{Name: "d", Kind: tar.TypeLink, Link: "a"},
		{Name: "dir", Kind: tar.TypeDir},
	} {
		if got := all[i]; got.Name != want.Name || got.Kind != want.Kind || got.Kind == tar.TypeLink &&
			got.Link != want.Link || got.Kind == tar.TypeReg && !reflect.DeepEqual(got.Data, want.Data) {
			t.Errorf("%+v, want %+v", got, want)
		}
	}
	for _, e := range all[5:] {
		if !e.Gone() {
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
		if got := within(Entry{Name: name, Kind: tar.TypeDir}, "a/b"); got != want {
			t.Errorf("%s within a/b: %t", name, got)
		}
	}
	if within(Entry{Name: "a", Kind: tar.TypeReg}, "a/b") || !within(Entry{Name: "x"}, ".") {
		t.Error("files on the way, or not all of the root")
	}
}

// TestSparse checks that Go's library reads the form of sparse files.
func TestSparse(t *testing.T) {
	t.Parallel()
	const size = 3 << 20
	data := []Segment{{1 << 20, 1<<20 + 5}, {size - 3, size}}
	for name, e := range map[string]Entry{
		"with data":      {Size: size, Data: data},
		"hole at end":    {Size: size, Data: data[:1]},
		"nothing but it": {Size: size},
	} {
		if !sparse(e) {
			t.Errorf("%s: not sparse", name)
		}
		var b bytes.Buffer
		out := bufio.NewWriter(&b)
		w := &writer{out: out, tw: tar.NewWriter(out)}
		e.Name = "dir/" + strings.Repeat("long-\xff", 40)
		hdr := &tar.Header{Name: e.Name, Size: e.Size, Mode: 0o4711, Uid: 1 << 30, Gid: 7,
			ModTime: time.Unix(1234567890, 123456789), PAXRecords: map[string]string{Attribute + "user.x": "v\x00\xff"}}
		if err := w.sparse(hdr, e, filled{}); err != nil {
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
		for _, s := range e.Data {
			copy(want[s.Start:s.End], bytes.Repeat([]byte("d"), int(s.End-s.Start)))
		}
		if got.Name != hdr.Name || got.Size != size || got.Mode != hdr.Mode || got.Uid != hdr.Uid || got.Gid != 7 ||
			!got.ModTime.Equal(hdr.ModTime) ||
			got.PAXRecords[Attribute+"user.x"] != "v\x00\xff" || !bytes.Equal(content, want) {
			t.Errorf("%s: %+v, %d bytes", name, got, len(content))
		}
		if next, err := tr.Next(); err != nil || next.Name != "next" {
			t.Errorf("%s: what follows is %+v, %v", name, next, err)
		}
	}
	if sparse(Entry{Size: 100000, Data: []Segment{{0, 90000}}}) || sparse(Entry{}) {
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

// TestFilesOfSeveralNames checks that the result does not depend on which of several names gVisor lists first: removed
// files are removed, and a file's content is at the name that sorts first.
func TestFilesOfSeveralNames(t *testing.T) {
	t.Parallel()
	names := []string{"etc/.#a", "etc/.#b", "etc/.#c", "etc/d"}
	for _, original := range names {
		for range 20 {
			var all []Entry
			for _, name := range names {
				gone := Entry{Name: name, Kind: tar.TypeChar}
				file := Entry{Name: "opt/" + name, Kind: tar.TypeReg, Size: 7, Data: []Segment{{0, 7}}}
				if name != original {
					gone = Entry{Name: name, Kind: tar.TypeLink, Link: original}
					file = Entry{Name: "opt/" + name, Kind: tar.TypeLink, Link: "opt/" + original}
				}
				all = append(all, gone, file)
			}
			all = append(all, Entry{Name: ".", Kind: tar.TypeDir}, Entry{Name: "etc", Kind: tar.TypeDir},
				Entry{Name: "opt", Kind: tar.TypeDir})
			rand.Shuffle(len(all), func(i, j int) { all[i], all[j] = all[j], all[i] })
			Settle(all)
			for _, e := range all {
				switch {
				case e.Kind == tar.TypeDir:
				case e.Name[:3] == "etc":
					if !e.Gone() {
						t.Errorf("of %s: %s is still there: %+v", original, e.Name, e)
					}
				case e.Name == "opt/etc/.#a":
					if e.Kind != tar.TypeReg || e.Size != 7 || len(e.Data) != 1 {
						t.Errorf("of %s: %+v has no content", original, e)
					}
				case e.Kind != tar.TypeLink || e.Link != "opt/etc/.#a":
					t.Errorf("of %s: %+v is no link to the first", original, e)
				}
			}
		}
	}
}

// filled is a file whose content is the letter d.
type filled struct{ File }

func (filled) Content(to io.Writer, ranges []Segment, _ []byte) error {
	for _, s := range ranges {
		if _, err := to.Write(bytes.Repeat([]byte("d"), int(s.End-s.Start))); err != nil {
			return err
		}
	}
	return nil
}

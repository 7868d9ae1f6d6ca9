package manifest

import (
	"bytes"
	"strings"
	"testing"

	"github.com/RelevanceAI/harvest/client/errors"
	"github.com/RelevanceAI/harvest/internal/s3/tree"
)

func someEntries() []*tree.Entry {
	return []*tree.Entry{
		{Path: "a", Kind: tree.File, Mode: 0o644, UID: 1, GID: 2, ModTime: tree.Nano(-5), Size: 7, ETag: "e", CRC: 0,
			HasCRC: true, Inode: 9, Change: 10},
		{Path: "a-b", Kind: tree.Symlink, Mode: 0o777, Target: "../x"},
		{Path: "a", Kind: tree.Dir, Mode: 0o700},
		{Path: "a/b\xff", Kind: tree.File, Link: "a/a", Xattrs: map[string]string{"user.x": "\x00\x01"}},
		{Path: "s", Kind: tree.File, Size: 1 << 40, Extents: []tree.Extent{{Offset: 5, Length: 6},
			{Offset: 100, Length: 1}}, Key: tree.Hidden("sparse", "s")},
		{Path: "t", Kind: tree.File, Size: 1 << 30, Extents: []tree.Extent{}},
	}
}

func manifestOf(t testing.TB, local bool, entries ...*tree.Entry) []byte {
	var b bytes.Buffer
	w, err := NewWriter(&b, 1, local)
	for i := 0; err == nil && i < len(entries); i++ {
		err = w.Add(entries[i])
	}
	if err == nil {
		err = w.Close()
	}
	if err != nil {
		t.Fatal(err)
	}
	return b.Bytes()
}

func readAll(raw []byte) (all []*tree.Entry, last error) {
	for e, err := range Read(bytes.NewReader(raw)) {
		if err != nil {
			return all, err
		}
		all = append(all, e)
	}
	return all, nil
}

func TestManifest(t *testing.T) {
	want := someEntries()
	for _, local := range []bool{false, true} {
		raw := manifestOf(t, local, want...)
		got, err := readAll(raw)
		if err != nil || len(got) != len(want) {
			t.Fatalf("%d entries, %v", len(got), err)
		}
		for i, e := range got {
			if !e.SameRecord(want[i]) || e.Path != want[i].Path || e.Target != want[i].Target ||
				(e.Extents == nil) != (want[i].Extents == nil) {
				t.Errorf("%+v came back as %+v", want[i], e)
			}
			if inode := e.Inode != 0; inode != (local && want[i].Inode != 0) {
				t.Errorf("local %v: the inode is %d", local, e.Inode)
			}
		}
		for cut := range len(raw) - 1 {
			if _, err := readAll(raw[:cut]); err == nil {
				t.Fatalf("a manifest of %d bytes was whole after %d", len(raw), cut)
			}
		}
	}
	var b bytes.Buffer
	w, err := NewWriter(&b, 1, false)
	if err != nil || w.Add(want[0]) != nil || w.Flush() != nil {
		t.Fatal(err)
	}
	if got, err := readAll(b.Bytes()); len(got) != 1 || !errors.Is(err, ErrTorn) {
		t.Errorf("a torn manifest gave %d entries and %v", len(got), err)
	}
	if err := w.Add(want[0]); err == nil {
		t.Error("an entry was written twice")
	}
}

func TestManifestOfOthers(t *testing.T) {
	if _, err := readAll([]byte("something else")); errors.KindOf(err) != errors.Invalid {
		t.Errorf("something else: %v", err)
	}
	var b bytes.Buffer
	w, err := NewWriter(&b, 1, false)
	if err != nil {
		t.Fatal(err)
	}
	b.Reset()
	w.z.Reset(&b)
	w.b.Reset(w.z)
	if err := errors.Join(w.enc.Encode(header{format, version + 1, 0}), w.Close()); err != nil {
		t.Fatal(err)
	}
	if _, err := readAll(b.Bytes()); errors.KindOf(err) != errors.Unsupported || errors.RemedyOf(err) == "" {
		t.Errorf("a newer version: %v", err)
	}
	// A small manifest that claims a large size does not cause a large allocation.
	b.Reset()
	w.z.Reset(&b)
	w.b.Reset(w.z)
	_ = w.enc.Encode(header{format, version, 0})
	_, _ = w.b.Write([]byte{0xa1, 0x01, 0x5b, 0, 0, 0, 1, 0, 0, 0, 0}) // a path of 4 GiB
	for range 100 {
		_, _ = w.b.Write(make([]byte, 1<<20))
	}
	_ = w.Close()
	if _, err := readAll(b.Bytes()); err == nil {
		t.Error("an entry of 4 GiB was read")
	}
}

func FuzzManifest(f *testing.F) {
	f.Add(manifestOf(f, true, someEntries()...))
	f.Add(manifestOf(f, false))
	f.Add([]byte("x"))
	f.Fuzz(func(t *testing.T, raw []byte) {
		last := ""
		n := 0
		for e, err := range Read(bytes.NewReader(raw)) {
			if err != nil {
				return
			}
			if !tree.ValidPath(e.Path) && e.Path != "" {
				t.Fatalf("%q came out of a manifest", e.Path)
			}
			if n > 0 && tree.CompareKeys(last, e.Order()) >= 0 {
				t.Fatalf("%q after %q", e.Order(), last)
			}
			if e.Key != "" && !strings.HasPrefix(e.Key, tree.Reserved+"/") {
				t.Fatalf("%q has the key %q", e.Path, e.Key)
			}
			last = e.Order()
			n++
		}
	})
}

// An older Harvest reads the nearest time that its nanoseconds hold, and manifests of older ones are read.
func TestFarTimesInManifests(t *testing.T) {
	r := Record{Path: []byte("f"), Kind: tree.File, ModTime: -5}
	if e, err := r.Entry(); err != nil || e.ModTime != (tree.Time{Sec: -1, Nsec: 999_999_995}) {
		t.Errorf("an older one is %+v, %v", e, err)
	}
	for _, bad := range []tree.Time{{Sec: tree.Farthest, Nsec: 0}, {Sec: 5, Nsec: -1}, {Sec: 5, Nsec: 1e9}} {
		r := Record{Path: []byte("f"), Kind: tree.File, Sec: bad.Sec, Nsec: bad.Nsec}
		if e, err := r.Entry(); err == nil {
			t.Errorf("%v is read as %+v", bad, e)
		}
	}
}

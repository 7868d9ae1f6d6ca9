package files

import (
	"archive/tar"
	"bytes"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// stateOf returns the entries of a tree, by name.
func stateOf(t *testing.T, tr *Tree) map[string]string {
	t.Helper()
	all := map[string]string{}
	if err := tr.Root.Walk("/", func(name string, f *File) error {
		sum, err := f.ContentDigest()
		all[name] = fmt.Sprintf("%c %o %s %s", f.Type, f.Mode, f.Link, sum)
		return err
	}); err != nil {
		t.Fatal(err)
	}
	return all
}

// change makes a random layer over a tree, as an instruction would.
func change(r *rand.Rand, over *Tree, w *bytes.Buffer) {
	tw := tar.NewWriter(w)
	defer tw.Close()
	names := []string{"a", "b", "a/x", "a/y", "b/x", "a/x/p", "a/x/q"}
	for range 1 + r.IntN(5) {
		name := names[r.IntN(len(names))]
		if dir, _, err := over.Lookup(filepath.Dir("/"+name), false); err != nil || dir == nil || !dir.IsDir() {
			continue
		}
		old, _, _ := over.Lookup("/"+name, false)
		var hdr tar.Header
		data := ""
		switch kind := r.IntN(5); {
		case kind == 0 && old != nil:
			hdr = tar.Header{Typeflag: tar.TypeReg,
				Name: filepath.Join(filepath.Dir(name), Whiteout+filepath.Base(name))}
			over.remove("/" + name)
		case kind == 1 && (old == nil || old.IsDir()):
			hdr = tar.Header{Typeflag: tar.TypeDir, Name: name + "/", Mode: int64(0o700 + r.IntN(8))}
			_ = over.put("/"+name, fromHeader(&hdr, nil))
		case kind == 2 && old != nil && old.IsDir():
			hdr = tar.Header{Typeflag: tar.TypeReg, Name: name + "/" + Opaque}
			clear(old.children)
		default:
			data = fmt.Sprint(r.IntN(1000))
			hdr = tar.Header{Typeflag: tar.TypeReg, Name: name, Mode: 0o600, Size: int64(len(data))}
			over.remove("/" + name)
			_ = over.put("/"+name, &File{Type: tar.TypeReg, Mode: 0o600, Size: hdr.Size, content: text([]byte(data))})
		}
		_ = tw.WriteHeader(&hdr)
		_, _ = tw.Write([]byte(data))
	}
}

// TestConcat checks that one layer has the same effect on any base as the layers one after
// the other.
func TestConcat(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	for seed := range uint64(300) {
		r := rand.New(rand.NewPCG(seed, 1))
		var base bytes.Buffer
		tw := tar.NewWriter(&base)
		dirEntry(tw, "a", 0o755)
		fileEntry(tw, "a/x", "base", 0o644)
		dirEntry(tw, "b", 0o755)
		fileEntry(tw, "b/x", "base", 0o644)
		if err := tw.Close(); err != nil {
			t.Fatal(err)
		}
		baseFile := filepath.Join(dir, "base.tar")
		if err := os.WriteFile(baseFile, base.Bytes(), 0o600); err != nil {
			t.Fatal(err)
		}
		want := NewTree()
		if err := want.AddTar(baseFile); err != nil {
			t.Fatal(err)
		}
		var layers []string
		for i := range 4 {
			var b bytes.Buffer
			change(r, want, &b)
			name := filepath.Join(dir, fmt.Sprint(i))
			if err := os.WriteFile(name, b.Bytes(), 0o600); err != nil {
				t.Fatal(err)
			}
			layers = append(layers, name)
		}
		var b bytes.Buffer
		if err := Concat(&b, layers); err != nil {
			t.Fatalf("seed %d: %v", seed, err)
		}
		merged := filepath.Join(dir, "merged")
		if err := os.WriteFile(merged, b.Bytes(), 0o600); err != nil {
			t.Fatal(err)
		}
		got := NewTree()
		for _, name := range []string{baseFile, merged} {
			if err := got.AddTar(name); err != nil {
				t.Fatal(err)
			}
		}
		if a, b := fmt.Sprint(stateOf(t, want)), fmt.Sprint(stateOf(t, got)); a != b {
			t.Fatalf("seed %d: merged\n%s, want\n%s", seed, b, a)
		}
		_ = want.Close()
		_ = got.Close()
	}
}

// TestConcatKeepsHardLinks checks that another name of a file keeps the content when a later layer replaces the file.
func TestConcatKeepsHardLinks(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	layer := func(name string, fill func(tw *tar.Writer)) string {
		var b bytes.Buffer
		tw := tar.NewWriter(&b)
		fill(tw)
		_ = tw.Close()
		full := filepath.Join(dir, name)
		if err := os.WriteFile(full, b.Bytes(), 0o600); err != nil {
			t.Fatal(err)
		}
		return full
	}
	layers := []string{layer("linked", func(tw *tar.Writer) {
		fileEntry(tw, "f", "one", 0o644)
		_ = tw.WriteHeader(&tar.Header{Typeflag: tar.TypeLink, Name: "g", Linkname: "f"})
	}), layer("replaced", func(tw *tar.Writer) { fileEntry(tw, "f", "two", 0o644) })}
	both := filepath.Join(dir, "both")
	f, err := os.Create(both)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if err := Concat(f, layers); err != nil {
		t.Fatal(err)
	}
	tree := NewTree()
	defer tree.Close()
	if err := tree.AddTar(both); err != nil || tree.Read("f") != "two" || tree.Read("g") != "one" {
		t.Errorf("got %q and %q: %v", tree.Read("f"), tree.Read("g"), err)
	}
	if err := Concat(f, []string{filepath.Join(dir, "none")}); err == nil {
		t.Error("a missing layer was merged")
	}
}

// TestDeltaFollowsSnapshots checks which differences of two snapshots make a layer.
func TestDeltaFollowsSnapshots(t *testing.T) {
	t.Parallel()
	snapshot := func(fill func(tw *tar.Writer)) *bytes.Buffer {
		var b bytes.Buffer
		tw := tar.NewWriter(&b)
		fill(tw)
		_ = tw.Close()
		return &b
	}
	out, err := os.CreateTemp(t.TempDir(), "layer")
	if err != nil {
		t.Fatal(err)
	}
	defer out.Close()
	first := snapshot(func(tw *tar.Writer) {
		dirEntry(tw, "d", 0o755)
		fileEntry(tw, "d/same", "same", 0o644)
		fileEntry(tw, "d/changed", "old", 0o644)
		fileEntry(tw, "d/gone", "x", 0o644)
		dirEntry(tw, "tree", 0o755)
		fileEntry(tw, "tree/below", "x", 0o644)
		fileEntry(tw, "f", "content", 0o644)
		_ = tw.WriteHeader(&tar.Header{Typeflag: tar.TypeLink, Name: "g", Linkname: "f"})
		fileEntry(tw, "secret", "canary", 0o400)
	})
	hidden := func(name string) bool { return name == "/secret" }
	before, err := (&Delta{Before: Index{}, Hidden: hidden}).Run(first)
	if err != nil {
		t.Fatal(err)
	}
	_, err = (&Delta{Out: out, Before: before, Hidden: hidden}).Run(snapshot(func(tw *tar.Writer) {
		dirEntry(tw, "d", 0o755)
		fileEntry(tw, "d/same", "same", 0o644)
		fileEntry(tw, "d/changed", "new", 0o644)
		fileEntry(tw, "f", "CONTENT", 0o644)
		_ = tw.WriteHeader(&tar.Header{Typeflag: tar.TypeLink, Name: "g", Linkname: "f"})
		fileEntry(tw, ".wh.fromimage", "", 0o600)
		fileEntry(tw, "secret", "canary2", 0o400)
	}))
	if err != nil {
		t.Fatal(err)
	}
	data, err := os.ReadFile(out.Name())
	if err != nil {
		t.Fatal(err)
	}
	if bytes.Contains(data, []byte("canary")) {
		t.Error("what is hidden is in the layer")
	}
	if names := strings.Join(tarNames(t, bytes.NewBuffer(data)),
		" "); names != "d/changed f g .wh.fromimage d/.wh.gone .wh.tree" {
		t.Errorf("got %s", names)
	}
	if _, err := (&Delta{Before: Index{}}).Run(strings.NewReader("no archive")); err == nil {
		t.Error("a broken snapshot was taken")
	}
}

// TestDeltaOfADirectoryInPlaceOfAnother checks that a layer whose directory hides the files of earlier layers has all
// files in it, also those that are as they were; and that a known mark is not written again.
func TestDeltaOfADirectoryInPlaceOfAnother(t *testing.T) {
	t.Parallel()
	snapshot := func(fill func(tw *tar.Writer)) *bytes.Reader { return bytes.NewReader(tarred(fill)) }
	before, err := (&Delta{Before: Index{}}).Run(snapshot(func(tw *tar.Writer) {
		dirEntry(tw, "known", 0o755)
		fileEntry(tw, "known/"+Opaque, "", 0o644)
		fileEntry(tw, "known/same", "same", 0o644)
		dirEntry(tw, "new", 0o755)
		dirEntry(tw, "new/below", 0o755)
		fileEntry(tw, "new/below/same", "same", 0o644)
		_ = tw.WriteHeader(&tar.Header{Typeflag: tar.TypeSymlink, Name: "new/link", Linkname: "below"})
	}))
	if err != nil {
		t.Fatal(err)
	}
	out, err := os.CreateTemp(t.TempDir(), "layer")
	if err != nil {
		t.Fatal(err)
	}
	defer out.Close()
	if _, err := (&Delta{Out: out, Before: before}).Run(snapshot(func(tw *tar.Writer) {
		dirEntry(tw, "known", 0o755)
		fileEntry(tw, "known/"+Opaque, "", 0o644)
		fileEntry(tw, "known/same", "same", 0o644)
		dirEntry(tw, "new", 0o755)
		fileEntry(tw, "new/"+Opaque, "", 0o644)
		dirEntry(tw, "new/below", 0o755)
		fileEntry(tw, "new/below/same", "same", 0o644)
		_ = tw.WriteHeader(&tar.Header{Typeflag: tar.TypeSymlink, Name: "new/link", Linkname: "below"})
	})); err != nil {
		t.Fatal(err)
	}
	data, err := os.ReadFile(out.Name())
	if err != nil {
		t.Fatal(err)
	}
	want := "new/.wh..wh..opq new/below/ new/below/same new/link"
	if got := strings.Join(tarNames(t, bytes.NewBuffer(data)), " "); got != want {
		t.Errorf("got %q, want %q", got, want)
	}
}

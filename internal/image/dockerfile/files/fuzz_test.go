package files

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/RelevanceAI/harvest/client/errors"
)

// tarred is an archive written by fill.
func tarred(fill func(tw *tar.Writer)) []byte {
	var b bytes.Buffer
	tw := tar.NewWriter(&b)
	fill(tw)
	_ = tw.Close()
	return b.Bytes()
}

// hostile is an archive with all kinds of entries.
func hostile() []byte {
	return tarred(func(tw *tar.Writer) {
		dirEntry(tw, "d", 0o755)
		fileEntry(tw, "d/x", "content", 0o644)
		fileEntry(tw, ignoreName, "# comment\n*.o\n!d/**\n[a\n", 0o644)
		_ = tw.WriteHeader(&tar.Header{Typeflag: tar.TypeSymlink, Name: "l", Linkname: "d/../l"})
		_ = tw.WriteHeader(&tar.Header{Typeflag: tar.TypeLink, Name: "h", Linkname: "d/x"})
		fileEntry(tw, "l/y", "through a link", 0o600)
		fileEntry(tw, "../up", "", 0o600)
	})
}

// noInternal fails on an error that blames Harvest rather than the input.
func noInternal(t *testing.T, err error) {
	t.Helper()
	if err != nil && errors.KindOf(err) == errors.Internal {
		t.Errorf("an internal error: %v", err)
	}
}

// FuzzContext reads a build context from a client, and the part that its .dockerignore leaves.
func FuzzContext(f *testing.F) {
	f.Add(hostile())
	f.Add([]byte("no archive"))
	dir := f.TempDir()
	f.Fuzz(func(t *testing.T, data []byte) {
		name := filepath.Join(dir, "context.tar")
		if err := os.WriteFile(name, data, 0o600); err != nil {
			t.Fatal(err)
		}
		tr, err := OpenContext(t.Context(), name, Limits{Bytes: 1 << 20, Files: 100})
		if err != nil {
			noInternal(t, err)
			return
		}
		defer tr.Close()
		_ = tr.Root.Walk("/", func(name string, f *File) error {
			if strings.Contains(name, "..") && filepath.Clean(name) != name {
				t.Errorf("the context has %q", name)
			}
			_, err := f.ContentDigest()
			return err
		})
	})
}

// FuzzUnpack has ADD unpack an archive over a tree.
func FuzzUnpack(f *testing.F) {
	f.Add(hostile())
	var b bytes.Buffer
	z := gzip.NewWriter(&b)
	_, _ = z.Write(hostile())
	_ = z.Close()
	f.Add(b.Bytes())
	f.Add([]byte("BZh91AY&SY"))
	f.Add([]byte("\xfd7zXZ\x00\x00\x04"))
	f.Add([]byte("\x28\xb5\x2f\xfd\x04\x00"))
	dir := f.TempDir()
	f.Fuzz(func(t *testing.T, data []byte) {
		out, err := os.CreateTemp(dir, "layer-")
		if err != nil {
			t.Fatal(err)
		}
		defer os.Remove(out.Name())
		defer out.Close()
		over := NewTree()
		defer over.Close()
		l := NewLayer(over, dir)
		c := &copier{l: l, inodes: map[*File]*File{}}
		if _, err = c.unpack(&File{Type: tar.TypeReg, Size: int64(len(data)), content: text(data)}, "/to"); err != nil {
			noInternal(t, err)
			return
		}
		if err := l.Write(out); err != nil {
			t.Fatal(err)
		}
		if _, err := out.Seek(0, io.SeekStart); err != nil {
			t.Fatal(err)
		}
		for tr := tar.NewReader(out); ; {
			hdr, err := tr.Next()
			if err == io.EOF {
				break
			}
			if err != nil {
				t.Fatalf("the layer cannot be read: %v", err)
			}
			if name := filepath.Clean("/" + hdr.Name); name != "/to" && !strings.HasPrefix(name, "/to/") {
				t.Errorf("the archive has put %q outside of its directory", hdr.Name)
			}
		}
	})
}

// FuzzDelta makes a layer of two snapshots that a compromised sandbox could send, appends it to itself and lays it
// over a tree.
func FuzzDelta(f *testing.F) {
	f.Add(hostile(), hostile())
	f.Add(tarred(func(tw *tar.Writer) { fileEntry(tw, "a", "1", 0o644); fileEntry(tw, "d/b", "2", 0o644) }),
		tarred(func(tw *tar.Writer) { fileEntry(tw, ".wh.a", "", 0o644); fileEntry(tw, "d/.wh..wh..opq", "", 0o644) }))
	dir := f.TempDir()
	f.Fuzz(func(t *testing.T, first, second []byte) {
		before, err := (&Delta{Before: Index{}}).Run(bytes.NewReader(first))
		if err != nil {
			noInternal(t, err)
			return
		}
		out, err := os.CreateTemp(dir, "layer-")
		if err != nil {
			t.Fatal(err)
		}
		defer os.Remove(out.Name())
		defer out.Close()
		if _, err := (&Delta{Out: out, Before: before}).Run(bytes.NewReader(second)); err != nil {
			return
		}
		var b bytes.Buffer
		if err := Concat(&b, []string{out.Name(), out.Name()}); err != nil {
			t.Errorf("a layer of our own cannot be concatenated: %v", err)
		}
		tr := NewTree()
		_ = tr.AddTar(out.Name())
		_ = tr.Close()
	})
}

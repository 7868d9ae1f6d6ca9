package rootfs_test

import (
	"archive/tar"
	"bytes"
	"encoding/binary"
	"io"
	"testing"

	"github.com/RelevanceAI/harvest/client/errors"
	"github.com/RelevanceAI/harvest/internal/base/testenv"
	"github.com/RelevanceAI/harvest/internal/image/rootfs"
)

// expectKind fails unless the error is nil or of a kind that bad input may cause.
func expectKind(t testing.TB, err error) {
	t.Helper()
	if kind := errors.KindOf(err); kind != "" && kind != errors.Invalid && kind != errors.Exhausted {
		t.Errorf("got %v", err)
	}
}

func small(t testing.TB) []byte {
	f, _, err := build(t, rootfs.Options{}, archive(t, file{name: "d/a", content: "1"},
		file{name: "link", kind: tar.TypeSymlink, link: "d/a"},
		file{name: "hard", kind: tar.TypeLink, link: "d/a"}, file{name: "pipe", kind: tar.TypeFifo},
		file{name: "more", content: string(make([]byte, 5000))}))
	if err != nil {
		t.Fatal(err)
	}
	return bytesOf(t, f)
}

func withAttributes(t testing.TB) []byte {
	f := inMemory(t)
	w := rootfs.NewWriter(f, rootfs.Options{})
	if err := w.Add(&tar.Header{Typeflag: tar.TypeFifo, Name: "a",
		PAXRecords: map[string]string{"SCHILY.xattr.user.x": "y"}}, nil); err != nil {
		t.Fatal(err)
	}
	if _, err := w.Close(); err != nil {
		t.Fatal(err)
	}
	return bytesOf(t, f)
}

// readAll reads everything of an image, and makes another one of it.
func readAll(t testing.TB, data []byte) {
	r, err := rootfs.NewReader(bytes.NewReader(data), int64(len(data)))
	if err != nil {
		expectKind(t, err)
		return
	}
	if err := r.WriteTar(t.Context(), io.Discard, nil); err != nil {
		t.Errorf("an image that opens cannot be read: %v", err)
	}
	f, _, err := layers(t, rootfs.Options{}, r)
	expectKind(t, err)
	if err != nil {
		return
	}
	again := reader(t, f)
	if a, b := len(names(t, r)), len(names(t, again)); a != b {
		t.Errorf("a copy has %d names instead of %d", b, a)
	}
	f.Close()
}

// Every byte of an image, changed: it is refused, or something else is read, but nothing breaks.
func TestDamagedImages(t *testing.T) {
	t.Parallel()
	testenv.Long(t)
	for _, image := range [][]byte{small(t), withAttributes(t)} {
		meta := int(binary.LittleEndian.Uint32(image[1024+40:])) << 12
		for i := range image {
			if i < 1024 || i >= 1024+128 && i < meta || i > meta+1500 && i < len(image)-100 {
				continue
			}
			for _, change := range []byte{0xff, 0x01} {
				damaged := bytes.Clone(image)
				damaged[i] ^= change
				readAll(t, damaged)
			}
		}
		for n := 0; n < len(image); n += 100 {
			_, err := rootfs.NewReader(bytes.NewReader(image[:n]), int64(n))
			if errors.KindOf(err) != errors.Invalid {
				t.Errorf("the first %d bytes: got %v", n, err)
			}
		}
		_, err := rootfs.NewReader(bytes.NewReader(image[:len(image)/2]), int64(len(image)))
		if err == nil {
			t.Error("a file that is shorter than it was opens")
		}
	}
}

func FuzzReader(f *testing.F) {
	f.Add(small(f))
	f.Add(withAttributes(f))
	f.Add([]byte{})
	f.Fuzz(func(t *testing.T, data []byte) { readAll(t, data) })
}

func FuzzAddLayer(f *testing.F) {
	f.Add(archive(f, file{name: "d/.wh.a"}, file{name: "d/.wh..wh..opq"}, file{name: "../x", content: "y"},
		file{name: "h", kind: tar.TypeLink, link: "d/a"}))
	f.Add(archive(f, file{name: ".wh.d"}, file{name: "d/n", content: "n"}, file{name: "link/", kind: tar.TypeDir}))
	f.Add(archive(f, file{name: "s", kind: tar.TypeSymlink, link: "../d"}, file{name: "s/../s/x", content: "x"},
		file{name: "c", kind: tar.TypeChar}))
	base := small(f)
	f.Fuzz(func(t *testing.T, data []byte) {
		under, err := rootfs.NewReader(bytes.NewReader(base), int64(len(base)))
		if err != nil {
			t.Fatal(err)
		}
		out, _, err := layers(t, rootfs.Options{MaxBytes: 1 << 20, MaxFiles: 1000}, under, data)
		expectKind(t, err)
		if err == nil {
			readAll(t, bytesOf(t, out))
		}
		out.Close()
	})
}

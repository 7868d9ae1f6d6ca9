package rootfs_test

import (
	"bytes"
	"os"
	"path/filepath"
	"testing"

	"github.com/RelevanceAI/harvest/internal/image/rootfs"
)

// BenchmarkAddImage puts a small layer on the image that HARVEST_BENCH_IMAGE names.
func BenchmarkAddImage(b *testing.B) {
	name := os.Getenv("HARVEST_BENCH_IMAGE")
	if name == "" {
		b.Skip("set HARVEST_BENCH_IMAGE to the path of an image's root.erofs")
	}
	in, err := os.Open(name)
	if err != nil {
		b.Fatal(err)
	}
	defer in.Close()
	layer := archive(b, file{name: "etc/motd", content: "hello"}, file{name: "usr/.wh.games"})
	for b.Loop() {
		under, err := rootfs.OpenReader(in)
		if err != nil {
			b.Fatal(err)
		}
		f, err := os.Create(filepath.Join(b.TempDir(), "root"))
		if err != nil {
			b.Fatal(err)
		}
		w := rootfs.NewWriter(f, rootfs.Options{})
		if err := w.AddImage(under); err != nil {
			b.Fatal(err)
		}
		if err := w.AddLayer(bytes.NewReader(layer), nil); err != nil {
			b.Fatal(err)
		}
		stats, err := w.Close()
		if err != nil {
			b.Fatal(err)
		}
		b.SetBytes(stats.Size)
		f.Close()
		os.Remove(f.Name())
	}
}

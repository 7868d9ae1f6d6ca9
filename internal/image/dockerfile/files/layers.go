package files

import (
	"archive/tar"
	"context"
	"io"
	"os"

	"github.com/RelevanceAI/harvest/client/errors"
	"github.com/RelevanceAI/harvest/internal/image/rootfs"
)

// AddTar adds the entries of a tar file over the tree. The content is read from the file, which
// stays open until the tree is closed.
func (t *Tree) AddTar(name string) error {
	f, err := os.Open(name)
	if err != nil {
		return errors.Wrapf(err, "open a layer")
	}
	t.close = append(t.close, f)
	return t.apply(tar.NewReader(f), func(hdr *tar.Header) (content, error) { return at(f, hdr.Size) })
}

// AddImage adds a whole image to an empty tree.
func (t *Tree) AddImage(name string) error {
	f, err := os.Open(name)
	if err != nil {
		return errors.Wrapf(err, "open an image")
	}
	t.close = append(t.close, f)
	r, err := rootfs.OpenReader(f)
	if err != nil {
		return err
	}
	return r.Walk(".", func(hdr *tar.Header, from io.Reader) error {
		var c content
		if s, ok := from.(*io.SectionReader); ok {
			c = section(s.Outer())
		}
		return t.add(hdr, c)
	})
}

// Flatten writes an image with layers over it into root, which is empty. base is "" without an
// image.
func Flatten(ctx context.Context, root *os.File, base string, layers []string) error {
	w := rootfs.NewWriter(root, rootfs.Options{})
	if base != "" {
		f, err := os.Open(base)
		if err != nil {
			return errors.Wrapf(err, "open the base")
		}
		defer f.Close()
		r, err := rootfs.OpenReader(f)
		if err != nil {
			return err
		}
		if err := w.AddImage(r); err != nil {
			return err
		}
	}
	for _, name := range layers {
		if err := context.Cause(ctx); err != nil {
			return err
		}
		if err := addLayer(w, name); err != nil {
			return err
		}
	}
	_, err := w.Close()
	return err
}

func addLayer(w *rootfs.Writer, name string) error {
	f, err := os.Open(name)
	if err != nil {
		return errors.Wrapf(err, "open a layer")
	}
	defer f.Close()
	return w.AddLayer(f, nil)
}

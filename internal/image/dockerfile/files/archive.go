package files

import (
	"archive/tar"
	"bufio"
	"bytes"
	"compress/bzip2"
	"compress/gzip"
	"io"
	"maps"
	"os"
	"path"
	"slices"

	"github.com/klauspost/compress/zstd"
	"github.com/ulikunitz/xz"

	"github.com/RelevanceAI/harvest/client/errors"
	"github.com/RelevanceAI/harvest/internal/base/tarfs"
)

// maxUnpacked limits the unpacked size of an archive in ADD, against archive bombs.
const maxUnpacked = 16 << 30

// decompress returns a reader for the content of a file that may be compressed, by its first bytes.
func decompress(r *bufio.Reader) (plain io.Reader, err error) {
	head, _ := r.Peek(6)
	switch {
	case bytes.HasPrefix(head, []byte{0x1f, 0x8b}):
		return gzip.NewReader(r)
	case bytes.HasPrefix(head, []byte("BZh")):
		return bzip2.NewReader(r), nil
	case bytes.HasPrefix(head, []byte{0xfd, '7', 'z', 'X', 'Z', 0}):
		return xz.NewReader(r)
	case bytes.HasPrefix(head, []byte{0x28, 0xb5, 0x2f, 0xfd}):
		d, err := zstd.NewReader(r, zstd.WithDecoderConcurrency(1), zstd.WithDecoderMaxMemory(256<<20))
		if err != nil {
			return nil, err
		}
		return d.IOReadCloser(), nil
	}
	return r, nil
}

// unpacked calls use with the content of a file, without its compression.
func (f *File) unpacked(use func(r io.Reader) error) error {
	r, err := f.open()
	if err != nil {
		return err
	}
	defer r.Close()
	plain, err := decompress(bufio.NewReaderSize(r, 64<<10))
	if err != nil {
		return err
	}
	if c, isCloser := plain.(io.Closer); isCloser {
		defer c.Close()
	}
	return use(plain)
}

// isArchive reports whether a file is a tar archive, compressed or not.
func (f *File) isArchive() bool {
	return f.Type == tar.TypeReg && f.unpacked(func(r io.Reader) error {
		_, err := tar.NewReader(r).Next()
		return err
	}) == nil
}

// unpack unpacks f below a directory if it is an archive, and reports whether it is one.
func (c *copier) unpack(f *File, dest string) (bool, error) {
	if !f.isArchive() {
		return false, nil
	}
	if err := c.l.mkdir(dest, defaultMode, c.own, c.mtime, true); err != nil {
		return true, err
	}
	_, real, err := c.l.over.Lookup(dest, true)
	if err != nil {
		return true, err
	}
	// The content is read later, when the layer is written, so keep it in a file.
	temp, err := os.CreateTemp(c.l.temp, "add-*")
	if err != nil {
		return true, tarfs.Explain(err, "an archive")
	}
	c.l.over.close = append(c.l.over.close, temp)
	if err := os.Remove(temp.Name()); err != nil {
		return true, errors.Wrapf(err, "unpack an archive")
	}
	n := int64(0)
	err = f.unpacked(func(r io.Reader) (err error) {
		n, err = io.Copy(temp, io.LimitReader(r, maxUnpacked+1))
		return err
	})
	switch {
	case n > maxUnpacked:
		return true, errors.Newf(errors.Exhausted, "the archive has more than %d bytes", int64(maxUnpacked))
	case err != nil && errors.KindOf(tarfs.Explain(err, "x")) == errors.Exhausted:
		return true, tarfs.Explain(err, "an archive")
	case err != nil:
		return true, errors.Explainf(err, errors.Invalid, "the archive is damaged")
	}
	if _, err := temp.Seek(0, io.SeekStart); err != nil {
		return true, errors.Wrapf(err, "unpack an archive")
	}
	t := NewTree()
	if err := t.addArchive(temp, func(*tar.Header) error { return nil }); err != nil {
		return true, err
	}
	return true, c.extract(t.Root, real)
}

// extract puts the files of an archive below a directory. They replace existing ones. Directories without an entry of
// their own follow symbolic links, and existing ones stay unchanged.
func (c *copier) extract(dir *File, at string) error {
	for _, name := range slices.Sorted(maps.Keys(dir.children)) {
		f, to := dir.children[name], path.Join(at, name)
		if !f.IsDir() {
			twin := c.inodes[f]
			if twin == nil {
				twin = f.twin()
				c.own.give(twin)
				c.inodes[f] = twin
			}
			if err := c.l.Put(to, twin); err != nil {
				return err
			}
			continue
		}
		if implicit := f.ModTime.IsZero(); implicit {
			if err := c.l.mkdir(to, defaultMode, nil, f.ModTime, true); err != nil { // root's, also with --chown
				return err
			}
			var err error
			if _, to, err = c.l.over.Lookup(to, true); err != nil {
				return err
			}
		} else {
			twin := f.twin()
			twin.children = map[string]*File{}
			c.own.give(twin)
			if err := c.l.Put(to, twin); err != nil {
				return err
			}
		}
		if err := c.extract(f, to); err != nil {
			return err
		}
	}
	return nil
}

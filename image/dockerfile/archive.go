package dockerfile

import (
	"archive/tar"
	"bufio"
	"bytes"
	"compress/bzip2"
	"compress/gzip"
	"io"
	"os"
	"path"

	"github.com/klauspost/compress/zstd"
	"github.com/ulikunitz/xz"

	"github.com/RelevanceAI/harvest/errors"
	"github.com/RelevanceAI/harvest/internal/tarfs"
)

// maxUnpacked limits the unpacked size of an archive in ADD, against archive bombs.
const maxUnpacked = 16 << 30

// decompress returns a reader for an archive, selected by its first bytes. ok is false if they
// match no format.
func decompress(r *bufio.Reader) (plain io.Reader, ok bool, err error) {
	head, _ := r.Peek(512)
	switch {
	case bytes.HasPrefix(head, []byte{0x1f, 0x8b}):
		plain, err = gzip.NewReader(r)
	case bytes.HasPrefix(head, []byte("BZh")):
		plain = bzip2.NewReader(r)
	case bytes.HasPrefix(head, []byte{0xfd, '7', 'z', 'X', 'Z', 0}):
		plain, err = xz.NewReader(r)
	case bytes.HasPrefix(head, []byte{0x28, 0xb5, 0x2f, 0xfd}):
		var d *zstd.Decoder
		if d, err = zstd.NewReader(r, zstd.WithDecoderConcurrency(1), zstd.WithDecoderMaxMemory(256<<20)); err == nil {
			plain = d.IOReadCloser()
		}
	case len(head) == 512 && string(head[257:262]) == "ustar":
		return r, true, nil
	default:
		return nil, false, nil
	}
	return plain, err == nil, nil
}

// unpack unpacks f below a directory if it is an archive, and reports whether it is one.
func (l *layer) unpack(dir string, f *file) (bool, error) {
	if f.typ != tar.TypeReg || f.size == 0 {
		return false, nil
	}
	r, err := f.open()
	if err != nil {
		return false, err
	}
	defer r.Close()
	plain, ok, err := decompress(bufio.NewReader(r))
	if err != nil || !ok {
		return false, err
	}
	if c, isCloser := plain.(io.Closer); isCloser {
		defer c.Close()
	}
	buffered := bufio.NewReaderSize(plain, 64<<10)
	if head, _ := buffered.Peek(512); len(head) < 512 || string(head[257:262]) != "ustar" {
		return false, nil // compressed, but not an archive: ADD copies it unchanged
	}
	// The content is read later, when the layer is written, so keep it in a file.
	temp, err := os.CreateTemp(l.temp, "add-*")
	if err != nil {
		return true, tarfs.Explain(err, "an archive")
	}
	l.over.close = append(l.over.close, temp)
	if err := os.Remove(temp.Name()); err != nil {
		return true, errors.Wrapf(err, "unpack an archive")
	}
	n, err := io.Copy(temp, io.LimitReader(buffered, maxUnpacked+1))
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
	return true, l.extract(dir, temp)
}

// extract adds the entries of an archive below a directory, with the owners in the archive.
func (l *layer) extract(dir string, f *os.File) error {
	t := newTree()
	tr := tarfs.NewReader(f)
	for {
		hdr, err := tr.Next()
		if err == io.EOF {
			break
		}
		if err != nil {
			return err
		}
		if err := t.addEntry(hdr, func() (content, error) { return at(f, hdr.Size) }); err != nil {
			return err
		}
	}
	if err := l.mkdir(path.Clean(dir), newDir(0o755)); err != nil {
		return err
	}
	return l.copy(path.Clean(dir), t.root)
}

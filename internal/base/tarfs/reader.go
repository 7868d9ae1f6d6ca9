package tarfs

import (
	"archive/tar"
	"io"

	"github.com/RelevanceAI/harvest/client/errors"
)

// maxPadding is how much is read after the end of an archive, so that its writer does not get EPIPE.
const maxPadding = 1 << 20

// block is the unit of archives.
const block = 512

// Reader reads an archive as archive/tar does, but treats an archive without an end mark as damaged: its sender
// may have died.
type Reader struct {
	in      *endReader
	tr      *tar.Reader
	endless bool // an archive without an end mark is complete if it ends after an entry, or has none
}

// NewLayerReader returns a Reader of a stream whose completeness a digest proves. Some tools write layers
// without the final blocks of an archive.
func NewLayerReader(r io.Reader) *Reader {
	all := NewReader(r)
	all.endless = true
	return all
}

// NewReader returns a Reader of the tar stream r.
func NewReader(r io.Reader) *Reader {
	in := &endReader{r: r}
	return &Reader{in: in, tr: tar.NewReader(in)}
}

// Next returns the next entry, or io.EOF after the last one and the padding behind the archive. A damaged
// archive is Invalid. Other errors are those of the underlying reader.
func (r *Reader) Next() (*tar.Header, error) {
	hdr, err := r.tr.Next()
	switch {
	case err == nil:
		return hdr, nil
	case err != io.EOF:
		return nil, archiveError(err)
	case r.in.ended && r.endless && r.in.read%block == 0:
		return nil, io.EOF
	case r.in.ended:
		return nil, archiveError(io.ErrUnexpectedEOF)
	}
	if _, err := io.CopyN(io.Discard, r.in, maxPadding); err != nil && err != io.EOF {
		return nil, errors.Wrapf(err, "read the end of the archive")
	}
	return nil, io.EOF
}

// Read reads the content of the current entry. Its errors are those of Next.
func (r *Reader) Read(p []byte) (int, error) {
	n, err := r.tr.Read(p)
	if err != nil && err != io.EOF {
		err = archiveError(err)
	}
	return n, err
}

// archiveError distinguishes a damaged archive from a failed reader.
func archiveError(err error) error {
	switch {
	case errors.Is(err, io.ErrUnexpectedEOF):
		return errors.Explainf(err, errors.Invalid, "the tar archive ends too early")
	case errors.Is(err, tar.ErrHeader) || errors.Is(err, tar.ErrFieldTooLong) || errors.Is(err, tar.ErrInsecurePath):
		return errors.Explainf(err, errors.Invalid, "this is not a readable tar archive")
	}
	return errors.Wrapf(err, "read the archive")
}

// endReader records whether its reader has reached the end.
type endReader struct {
	r     io.Reader
	read  int64
	ended bool
}

func (e *endReader) Read(p []byte) (int, error) {
	n, err := e.r.Read(p)
	e.read += int64(n)
	if err == io.EOF && n > 0 {
		return n, nil
	}
	e.ended = e.ended || err == io.EOF
	return n, err
}

package agent

import (
	"archive/tar"
	"bufio"
	"cmp"
	"encoding/binary"
	"io"
	"path"

	"gvisor.dev/gvisor/pkg/abi/linux"
	"gvisor.dev/gvisor/pkg/sentry/fsimpl/tmpfs"
	"gvisor.dev/gvisor/pkg/sentry/vfs"
	"gvisor.dev/gvisor/pkg/usermem"

	"github.com/RelevanceAI/harvest/client/errors"
	"github.com/RelevanceAI/harvest/internal/engine/ocilayer"
)

// list returns the files of the writable layer, by name, parents first. The sandbox must be paused.
func (v *view) list() ([]ocilayer.Entry, error) {
	upper, err := v.upper()
	if err != nil {
		return nil, err
	}
	defer upper.DecRef(v.ctx)
	r, w := io.Pipe()
	go func() {
		buf := bufio.NewWriterSize(w, 256<<10)
		err := tmpfs.FSCheckpointWrite(v.ctx, upper, buf)
		if err == nil {
			err = buf.Flush()
		}
		_ = w.CloseWithError(err)
	}()
	all, err := parse(r)
	_ = r.CloseWithError(err)
	if err != nil {
		return nil, err
	}
	ocilayer.Settle(all)
	return all, nil
}

// parse reads gVisor's list of a tmpfs. It is a tar stream in which regular files have, instead of their
// content, their size and the ranges with content.
func parse(r io.Reader) ([]ocilayer.Entry, error) {
	var all []ocilayer.Entry
	tr := tar.NewReader(r)
	for {
		hdr, err := tr.Next()
		if err == io.EOF {
			return all, nil
		}
		if err != nil {
			return nil, errors.Wrapf(err, "list the writable layer")
		}
		e := ocilayer.Entry{Name: path.Clean(hdr.Name), Kind: hdr.Typeflag, Link: hdr.Linkname,
			Device: [2]int64{hdr.Devmajor, hdr.Devminor}}
		switch hdr.Typeflag {
		case tar.TypeReg:
			if e.Size, e.Data, err = segments(tr, hdr.Size); err != nil {
				return nil, err
			}
		case tar.TypeLink:
			e.Link = path.Clean(hdr.Linkname)
		case tar.TypeDir:
			e.Hides = hdr.PAXRecords[ocilayer.OpaqueXattr] == "y"
		}
		all = append(all, e)
	}
}

// segments reads a regular file of gVisor's list: its size, then three numbers for each range. The third one is
// the range's position in memory.
func segments(r io.Reader, length int64) (int64, []ocilayer.Segment, error) {
	const word = 8
	if length < word || (length-word)%(3*word) != 0 {
		return 0, nil, errors.Errorf("a file of gVisor's list has %d bytes", length)
	}
	b := make([]byte, length)
	if _, err := io.ReadFull(r, b); err != nil {
		return 0, nil, errors.Wrapf(err, "list the writable layer")
	}
	size := int64(binary.LittleEndian.Uint64(b))
	var data []ocilayer.Segment
	for b = b[word:]; len(b) > 0; b = b[3*word:] {
		s := ocilayer.Segment{Start: int64(binary.LittleEndian.Uint64(b)),
			End: min(size, int64(binary.LittleEndian.Uint64(b[word:])))}
		switch last := len(data) - 1; {
		case s.Start >= s.End:
		case last >= 0 && data[last].End == s.Start:
			data[last].End = s.End
		default:
			data = append(data, s)
		}
	}
	return size, data, nil
}

// write writes the layer as a tar stream. The sandbox must be paused.
func (v *view) write(dir string, file io.Writer) error {
	below := "."
	if dir != "" {
		var err error
		if below, err = v.resolve(dir); err != nil {
			return err
		}
	}
	all, err := v.list()
	if err != nil {
		return err
	}
	return ocilayer.Write(all, below, file, func(name string) (ocilayer.File, error) { return v.open(name) })
}

// Content implements ocilayer.File.
func (o opened) Content(to io.Writer, ranges []ocilayer.Segment, buf []byte) error {
	if len(ranges) == 0 || ranges[len(ranges)-1].End == 0 {
		return nil
	}
	v := o.v
	f, err := v.k.VFS().OpenAt(v.ctx, v.creds, o.path(), &vfs.OpenOptions{Flags: linux.O_RDONLY | linux.O_NOFOLLOW})
	if err != nil {
		return errors.Wrapf(err, "open")
	}
	defer f.DecRef(v.ctx)
	for _, s := range ranges {
		for at := s.Start; at < s.End; {
			part := buf[:min(int64(len(buf)), s.End-at)]
			n, err := f.PRead(v.ctx, usermem.BytesIOSequence(part), at, vfs.ReadOptions{})
			if n == 0 {
				return errors.Wrapf(cmp.Or(err, io.ErrUnexpectedEOF), "read at %d of %d", at, s.End)
			}
			if _, err := to.Write(part[:n]); err != nil {
				return err
			}
			at += n
		}
	}
	return nil
}

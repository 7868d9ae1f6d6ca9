package ocilayer

import (
	"archive/tar"
	"bytes"
	"fmt"
	"maps"
	"slices"
	"strconv"

	"github.com/RelevanceAI/harvest/client/errors"
)

// minHole is the number of bytes without content from which on a file is written as a sparse one.
const minHole = 64 << 10

const block = 512 // of an archive

// sparse reports whether at least minHole bytes of a file have no content.
func sparse(e Entry) bool {
	size := e.Size
	for _, s := range e.Data {
		size -= s.End - s.Start
	}
	return size >= minHole
}

// sparse writes a file without its holes, in GNU tar's format (version 1.0), which Go's library reads but does
// not write (https://www.gnu.org/software/tar/manual/html_section/Sparse-Formats.html).
func (w *writer) sparse(hdr *tar.Header, e Entry, o File) error {
	ranges := e.Data
	if len(ranges) == 0 || ranges[len(ranges)-1].End < e.Size {
		ranges = append(slices.Clone(ranges), Segment{e.Size, e.Size}) // as in GNU tar, so that readers know the size
	}
	var table bytes.Buffer
	fmt.Fprintf(&table, "%d\n", len(ranges))
	stored := int64(0)
	for _, s := range ranges {
		fmt.Fprintf(&table, "%d\n%d\n", s.Start, s.End-s.Start)
		stored += s.End - s.Start
	}
	pad(&table)
	stored += int64(table.Len())

	records := maps.Clone(hdr.PAXRecords)
	maps.Copy(records, map[string]string{
		"GNU.sparse.major": "1", "GNU.sparse.minor": "0", "GNU.sparse.name": hdr.Name,
		"GNU.sparse.realsize": strconv.FormatInt(hdr.Size, 10),
		"mtime":               fmt.Sprintf("%d.%09d", hdr.ModTime.Unix(), hdr.ModTime.Nanosecond()),
		"size":                strconv.FormatInt(stored, 10),
		"uid":                 strconv.Itoa(hdr.Uid), "gid": strconv.Itoa(hdr.Gid)})
	if hdr.ModTime.Unix() < 0 { // negative times have fractions that count backwards, so use whole seconds
		records["mtime"] = strconv.FormatInt(hdr.ModTime.Unix(), 10)
	}
	var extended bytes.Buffer
	for _, key := range slices.Sorted(maps.Keys(records)) {
		extended.WriteString(record(key, records[key]))
	}
	length := int64(extended.Len())
	pad(&extended)
	if err := w.tw.Flush(); err != nil {
		return err
	}
	for _, part := range [][]byte{header(tar.TypeXHeader, 0o644, length), extended.Bytes(),
		header(tar.TypeReg, hdr.Mode, stored), table.Bytes()} {
		if _, err := w.out.Write(part); err != nil {
			return errors.Wrapf(err, "write header")
		}
	}
	if err := o.Content(w.out, e.Data, w.buf); err != nil {
		return err
	}
	_, err := w.out.Write(make([]byte, (block-stored%block)%block))
	return errors.Wrapf(err, "write content")
}

func pad(b *bytes.Buffer) { b.Write(make([]byte, (block-b.Len()%block)%block)) }

// record returns "length key=value\n", where the length includes its own digits.
func record(key, value string) string {
	const other = 3 // space, equal sign, newline
	n := len(key) + len(value) + other
	n += len(strconv.Itoa(n))
	text := fmt.Sprintf("%d %s=%s\n", n, key, value)
	if len(text) != n {
		text = fmt.Sprintf("%d %s=%s\n", len(text), key, value)
	}
	return text
}

// header returns a plain header block. Values that do not fit are in the extended header, including the name.
func header(kind byte, mode, size int64) []byte {
	b := make([]byte, block)
	field := func(at, length int, value int64) {
		text := fmt.Sprintf("%0*o", length-1, value)
		if len(text) < length {
			copy(b[at:], text)
		}
	}
	copy(b, "GNUSparseFile.0/file")
	field(100, 8, mode)
	field(108, 8, 0)
	field(116, 8, 0)
	field(124, 12, size)
	field(136, 12, 0)
	copy(b[148:], "        ")
	b[156] = kind
	copy(b[257:], "ustar\x0000")
	sum := int64(0)
	for _, c := range b {
		sum += int64(c)
	}
	copy(b[148:], fmt.Sprintf("%06o\x00 ", sum))
	return b
}

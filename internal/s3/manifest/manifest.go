// Package manifest reads and writes manifests: files with the entries of a tree in the order of their
// keys. A bucket has one, and so has the state of a sync.
package manifest

import (
	"bufio"
	"io"
	"iter"
	"os"
	"path/filepath"

	"github.com/fxamacker/cbor/v2"
	"github.com/klauspost/compress/zstd"

	"github.com/RelevanceAI/harvest/client/errors"
	"github.com/RelevanceAI/harvest/internal/s3/tree"
)

// Key is the key of the manifest below a prefix. The manifest is a stream of CBOR items
// (RFC 8949), compressed with zstd: a header, then the entries in the order of their keys, then a
// trailer with their number.
const Key = tree.Reserved + "/manifest-v1"

// version is the version that this package writes. It reads this and older versions.
const version = 1

const format = "harvest-manifest"

// Limits for manifests, since others can write into buckets.
const (
	MaxEntries = 50_000_000
	MaxWindow  = 8 << 20 // memory for decompressing
)

// header is the first item.
type header struct {
	Format  string `cbor:"1,keyasint"`
	Version int    `cbor:"2,keyasint"`
	Created int64  `cbor:"3,keyasint"` // seconds since 1970
}

// Record is an encoded entry. A zero Kind marks the trailer.
type Record struct {
	Path    []byte            `cbor:"1,keyasint,omitempty"`
	Kind    tree.Kind         `cbor:"2,keyasint,omitempty"`
	Mode    uint32            `cbor:"3,keyasint,omitempty"`
	UID     uint32            `cbor:"4,keyasint,omitempty"`
	GID     uint32            `cbor:"5,keyasint,omitempty"`
	ModTime int64             `cbor:"6,keyasint,omitempty"` // nanoseconds since 1970; nearest value if Sec is set
	Size    int64             `cbor:"7,keyasint,omitempty"`
	Target  []byte            `cbor:"8,keyasint,omitempty"`
	Link    []byte            `cbor:"9,keyasint,omitempty"`
	Xattrs  map[string][]byte `cbor:"10,keyasint,omitempty"`
	Extents []tree.Extent     `cbor:"11,keyasint,omitempty"`
	Sparse  bool              `cbor:"12,keyasint,omitempty"` // a sparse file may have no extent at all
	Key     string            `cbor:"13,keyasint,omitempty"`
	ETag    string            `cbor:"14,keyasint,omitempty"`
	CRC     *uint64           `cbor:"15,keyasint,omitempty"`
	Count   int64             `cbor:"16,keyasint,omitempty"` // of the trailer
	// Sec and Nsec are the time of an entry if ModTime cannot hold it: before 1678 and after 2262.
	Sec  int64 `cbor:"17,keyasint,omitempty"`
	Nsec int32 `cbor:"18,keyasint,omitempty"`
	// Unknown is the metadata that is only assumed. Older versions take it for known.
	Unknown tree.Facts `cbor:"19,keyasint,omitempty"`
	// For the state on this machine only.
	Unsent    bool   `cbor:"22,keyasint,omitempty"`
	Unset     bool   `cbor:"23,keyasint,omitempty"`
	Contested bool   `cbor:"24,keyasint,omitempty"`
	Inode     uint64 `cbor:"20,keyasint,omitempty"`
	Change    int64  `cbor:"21,keyasint,omitempty"`
}

// Writer writes a manifest. The caller adds entries in order.
type Writer struct {
	z     *zstd.Encoder
	b     *bufio.Writer
	enc   *cbor.Encoder
	local bool // keep the fields for this machine only
	last  string
	count int64
}

// NewWriter begins a manifest on w, which the caller closes.
func NewWriter(w io.Writer, created int64, local bool) (*Writer, error) {
	z, err := zstd.NewWriter(w, zstd.WithEncoderConcurrency(1), zstd.WithWindowSize(1<<20),
		zstd.WithEncoderLevel(zstd.SpeedFastest))
	if err != nil {
		return nil, errors.Wrapf(err, "begin a manifest")
	}
	b := bufio.NewWriterSize(z, 64<<10)
	m := &Writer{z: z, b: b, enc: cbor.NewEncoder(b), local: local}
	return m, errors.Wrapf(m.enc.Encode(header{format, version, created}), "write a manifest")
}

// Add appends an entry. Entries come in the order of their keys.
func (m *Writer) Add(e *tree.Entry) error {
	place := e.Order()
	if m.count > 0 && tree.CompareKeys(m.last, place) >= 0 {
		return errors.Errorf("a manifest's entries are out of order: %q after %q", place, m.last)
	}
	m.last = place
	m.count++
	r := NewRecord(e, m.local)
	return errors.Wrapf(m.enc.Encode(r), "write a manifest")
}

// NewRecord encodes e. local keeps the fields for this machine only.
func NewRecord(e *tree.Entry, local bool) Record {
	r := Record{Path: []byte(e.Path), Kind: e.Kind, Mode: e.Mode, UID: e.UID, GID: e.GID, Size: e.Size,
		Target: []byte(e.Target), Link: []byte(e.Link), Extents: e.Extents, Sparse: e.Extents != nil,
		Key: e.Key, ETag: e.ETag, Unknown: e.Unknown}
	var fits bool
	if r.ModTime, fits = e.ModTime.UnixNano(); !fits {
		r.Sec, r.Nsec = e.ModTime.Sec, e.ModTime.Nsec
	}
	if e.HasCRC {
		r.CRC = &e.CRC
	}
	if len(e.Xattrs) > 0 {
		r.Xattrs = make(map[string][]byte, len(e.Xattrs))
		for k, v := range e.Xattrs {
			r.Xattrs[k] = []byte(v)
		}
	}
	if local {
		r.Inode, r.Change, r.Unsent, r.Unset, r.Contested = e.Inode, e.Change, e.Unsent, e.Unset, e.Contested
	}
	return r
}

// Flush makes the entries added so far readable, in case the process ends.
func (m *Writer) Flush() error {
	if err := m.b.Flush(); err != nil {
		return errors.Wrapf(err, "write a manifest")
	}
	return errors.Wrapf(m.z.Flush(), "write a manifest")
}

// Close writes the trailer. A manifest without one is incomplete.
func (m *Writer) Close() error {
	if err := m.enc.Encode(Record{Count: m.count}); err != nil {
		return errors.Wrapf(err, "write a manifest")
	}
	if err := m.b.Flush(); err != nil {
		return errors.Wrapf(err, "write a manifest")
	}
	return errors.Wrapf(m.z.Close(), "write a manifest")
}

// ErrTorn reports a manifest that ends before its trailer. The entries before the end are valid.
var ErrTorn = errors.Newf(errors.Invalid, "the manifest is cut off")

// Read yields the entries of a manifest in order. An error ends the sequence: ErrTorn, or
// Invalid for a file that is not a Harvest manifest, or a damaged or inconsistent one. The content
// is not trusted: each path must be below the root, and each place must occur once and in order.
func Read(r io.Reader) iter.Seq2[*tree.Entry, error] {
	return func(yield func(*tree.Entry, error) bool) {
		z, err := zstd.NewReader(r, zstd.WithDecoderConcurrency(1), zstd.WithDecoderMaxWindow(MaxWindow),
			zstd.WithDecoderLowmem(true))
		if err != nil {
			yield(nil, torn(err))
			return
		}
		defer z.Close()
		in := &itemReader{r: z}
		dec, err := decoder(in)
		if err != nil {
			yield(nil, err)
			return
		}
		in.next()
		var h header
		if err := dec.Decode(&h); err != nil {
			yield(nil, torn(err))
			return
		}
		if h.Format != format {
			yield(nil, errors.Newf(errors.Invalid, "not a Harvest manifest"))
			return
		}
		if h.Version < 1 || h.Version > version {
			yield(nil, errors.Remedy(errors.Newf(errors.Unsupported,
				"the manifest has version %d; this Harvest reads up to %d", h.Version, version),
				"use a newer Harvest"))
			return
		}
		last, count := "", int64(0)
		for {
			var rec Record
			in.next()
			if err := dec.Decode(&rec); err != nil {
				yield(nil, torn(err))
				return
			}
			if rec.Kind == 0 {
				if rec.Count != count {
					yield(nil, errors.Newf(errors.Invalid, "the manifest announces %d entries, and has %d",
						rec.Count, count))
				}
				return
			}
			e, err := rec.Entry()
			if err == nil && count > 0 && tree.CompareKeys(last, e.Order()) >= 0 {
				err = errors.Newf(errors.Invalid, "the manifest has %.200q after %.200q", e.Path, last)
			}
			if err == nil && count >= MaxEntries {
				err = errors.Newf(errors.Exhausted, "the manifest has more than %d entries", MaxEntries)
			}
			if err != nil {
				yield(nil, err)
				return
			}
			last = e.Order()
			count++
			if !yield(e, nil) {
				return
			}
		}
	}
}

// decoder returns a CBOR decoder limited to the memory that an entry of Harvest needs.
func decoder(r io.Reader) (*cbor.Decoder, error) {
	mode, err := cbor.DecOptions{MaxArrayElements: tree.MaxExtents, MaxMapPairs: 1024, MaxNestedLevels: 8,
		DupMapKey:   cbor.DupMapKeyEnforcedAPF,
		IndefLength: cbor.IndefLengthForbidden, TagsMd: cbor.TagsForbidden}.DecMode()
	if err != nil {
		return nil, errors.Wrapf(err, "decode manifests")
	}
	return mode.NewDecoder(r), nil
}

// DecodeItems calls decode for each item of a file with entries, until it returns an error. Each
// item may take as much memory as an entry.
func DecodeItems(r io.Reader, decode func(*cbor.Decoder) error) error {
	in := &itemReader{r: r}
	dec, err := decoder(in)
	for err == nil {
		in.next()
		err = decode(dec)
	}
	return err
}

// itemReader limits the size of one item to that of an entry, so that a small manifest cannot
// expand to much memory.
type itemReader struct {
	r    io.Reader
	left int
}

func (i *itemReader) next() { i.left = 32 << 20 }

func (i *itemReader) Read(p []byte) (int, error) {
	if i.left <= 0 {
		return 0, errors.Newf(errors.Exhausted, "an entry is too large")
	}
	n, err := i.r.Read(p[:min(len(p), i.left)])
	i.left -= n
	return n, err
}

// torn distinguishes a manifest that ends too early from a damaged one.
func torn(err error) error {
	if errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) {
		return errors.Join(ErrTorn, err)
	}
	return errors.Explainf(err, errors.Invalid, "the manifest is damaged")
}

// Entry validates a record and returns its entry.
func (r *Record) Entry() (*tree.Entry, error) {
	e := &tree.Entry{Path: string(r.Path), Kind: r.Kind, Mode: r.Mode, UID: r.UID, GID: r.GID,
		ModTime: tree.Nano(r.ModTime), Size: r.Size, Target: string(r.Target),
		Link: string(r.Link), Key: r.Key, ETag: r.ETag, Inode: r.Inode, Change: r.Change,
		Unsent: r.Unsent, Unset: r.Unset, Contested: r.Contested,
		Unknown: r.Unknown & tree.AllFacts}
	if r.Sec != 0 {
		e.ModTime = tree.Time{Sec: r.Sec, Nsec: r.Nsec}
	}
	bad := func(what string) (*tree.Entry, error) {
		return nil, errors.Newf(errors.Invalid, "the manifest's entry %.200q has %s", e.Path, what)
	}
	switch {
	case !tree.ValidPath(e.Path) && !(e.Kind == tree.Dir && e.Path == ""):
		return bad("a path that leaves the volume or names nothing")
	case e.Kind > tree.Symlink:
		return bad("an unknown kind")
	case e.Mode > 0o7777:
		return bad("an invalid mode")
	case e.Size < 0 || e.Kind != tree.File && e.Size != 0:
		return bad("an invalid size")
	case e.Kind == tree.Symlink && (e.Target == "" || len(e.Target) > 4096):
		return bad("an invalid target")
	case !e.ModTime.Valid():
		return bad("an invalid time")
	case e.Link != "" && (!tree.ValidPath(e.Link) || e.Kind != tree.File):
		return bad("an invalid link")
	case len(e.Key) > tree.MaxKey || len(e.ETag) > 256 || len(r.Xattrs) > tree.MaxXattrs:
		return bad("more than an entry may have")
	case e.Key != "" && e.Key != tree.Hidden("long", e.Path) && e.Key != tree.Hidden("sparse", e.Path):
		return bad("a key that belongs to another")
	}
	if r.CRC != nil {
		e.CRC, e.HasCRC = *r.CRC, true
	}
	if len(r.Xattrs) > 0 {
		e.Xattrs = make(map[string]string, len(r.Xattrs))
		for k, v := range r.Xattrs {
			if len(k) > 255 || len(v) > 64<<10 || len(k) < 6 || k[:5] != "user." {
				return bad("an invalid attribute")
			}
			e.Xattrs[k] = string(v)
		}
	}
	if r.Sparse {
		e.Extents = make([]tree.Extent, 0, len(r.Extents))
		end := int64(0)
		for _, x := range r.Extents {
			if x.Offset < end || x.Length <= 0 || x.Length > e.Size-x.Offset {
				return bad("invalid extents")
			}
			end = x.Offset + x.Length
			e.Extents = append(e.Extents, x)
		}
	}
	return e, nil
}

// ReadFile yields the entries of a manifest on disk.
func ReadFile(path string) iter.Seq2[*tree.Entry, error] {
	return func(yield func(*tree.Entry, error) bool) {
		f, err := os.Open(path)
		if err != nil {
			if !errors.IsNotExist(err) {
				yield(nil, errors.Wrapf(err, "read %s", filepath.Base(path)))
			}
			return
		}
		defer f.Close()
		for e, err := range Read(bufio.NewReaderSize(f, 64<<10)) {
			if !yield(e, err) {
				return
			}
		}
	}
}

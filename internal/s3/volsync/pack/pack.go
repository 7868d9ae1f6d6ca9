// Package pack keeps copies of small files in packs, many in one object, and fills empty volumes from
// them.
package pack

import (
	"bytes"
	"context"
	"encoding/binary"
	"slices"

	"github.com/fxamacker/cbor/v2"
	"github.com/klauspost/compress/zstd"
	"github.com/minio/crc64nvme"

	"github.com/RelevanceAI/harvest/client/errors"
	"github.com/RelevanceAI/harvest/internal/s3/manifest"
	"github.com/RelevanceAI/harvest/internal/s3/object"
	"github.com/RelevanceAI/harvest/internal/s3/tree"
)

// Packs are objects with copies of many small files. An empty volume is filled from them with a few
// large requests instead of thousands of small ones. They do not replace the objects of the files:
// a file that is missing in its pack, or differs from the manifest there, comes from its object.
//
// Each pack holds the files of one range of keys; packsKey is the index. A pack ages as files of
// its range change, and is rebuilt when many have changed.
const (
	IndexKey = tree.Reserved + "/packs-v1" // the index: a packIndex in CBOR
	Prefix   = tree.Reserved + "/packs"    // the directory of the packs
)

const (
	format  = "harvest-packs"
	version = 1

	packFile    = 256 << 10            // the largest file in a pack, in bytes
	Size        = 4<<20 - 64<<10       // of a pack: compressed or not, it fits in one buffer of 4 MiB
	maxMembers  = 16 << 10             // files in a pack
	maxPacks    = 128 << 10            // of an index
	packAges    = 16                   // a pack is rebuilt when more than one file in so many has changed
	maxIndex    = 16 << 20             // bytes of an index
	maxPackID   = 64                   // bytes of a pack's name
	packsAtOnce = 2                    // built at a time
	packsAhead  = 4                    // fetched at a time, including those in use
	Memory      = packsAhead * 8 << 20 // their share of MaxInFlight, compressed and not
)

// Index lists the packs in the order of their ranges.
type Index struct {
	Format  string `cbor:"1,keyasint"`
	Version int    `cbor:"2,keyasint"`
	Packs   []Row  `cbor:"3,keyasint"`
}

// Row is a range of keys and the pack of its files. A range ends where the next begins; the
// first begins with "".
type Row struct {
	First []byte `cbor:"1,keyasint"`
	ID    string `cbor:"2,keyasint"` // the pack's name below packPrefix; "" if the range has no small file
	ETag  string `cbor:"3,keyasint"`
	Size  int64  `cbor:"4,keyasint"` // of the object, in bytes
	CRC   uint64 `cbor:"5,keyasint"` // of the object, CRC-64/NVME
	Count int64  `cbor:"6,keyasint"` // files in it
	Stale int64  `cbor:"7,keyasint"` // files of the range added, changed or removed since
	Sum   uint64 `cbor:"8,keyasint"` // exclusive or of the marks of all small files in Count and Stale
}

// Key returns the key of the pack, below the prefix of the bucket.
func (p *Row) Key() string { return Prefix + "/" + p.ID }

// aged reports whether so much of a range has changed that its pack must be rebuilt.
func (p *Row) aged() bool { return p.Stale*packAges > p.Count }

// Member is a file in a pack. A pack is compressed with zstd. It begins with its members, in
// order; their contents follow in the same order.
type Member struct {
	_     struct{} `cbor:",toarray"`
	Place []byte   // the entry's order
	Size  int64
	CRC   uint64
}

// packable reports whether a file belongs in a pack: it is small and its checksum is known.
func packable(e *tree.Entry) bool {
	return e != nil && e.Kind == tree.File && e.Link == "" && e.Extents == nil && e.HasCRC && e.Size <= packFile
}

// mark returns a hash of the file's place and content.
func mark(e *tree.Entry) uint64 {
	sum := crc64nvme.New()
	var known [16]byte
	binary.LittleEndian.PutUint64(known[:8], e.CRC)
	binary.LittleEndian.PutUint64(known[8:], uint64(e.Size))
	_, _ = sum.Write(known[:])
	_, _ = sum.Write([]byte(e.Order()))
	return sum.Sum64()
}

// packMode returns a decoder for an index or for the members of a pack, with at most most elements.
// It limits the memory to that of a valid one.
func packMode(most int) (cbor.DecMode, error) {
	mode, err := cbor.DecOptions{MaxArrayElements: most, MaxMapPairs: 64, MaxNestedLevels: 8,
		DupMapKey:   cbor.DupMapKeyEnforcedAPF,
		IndefLength: cbor.IndefLengthForbidden, TagsMd: cbor.TagsForbidden}.DecMode()
	return mode, errors.Wrapf(err, "decode packs")
}

// decodeIndex reads an index, which is not trusted. It returns Invalid for a damaged or foreign
// one, and Unsupported for that of a newer Harvest.
func decodeIndex(raw []byte) (*Index, error) {
	mode, err := packMode(maxPacks)
	if err != nil {
		return nil, err
	}
	var x Index
	if err := mode.Unmarshal(raw, &x); err != nil {
		return nil, errors.Explainf(err, errors.Invalid, "the index of packs is damaged")
	}
	if x.Format == format && x.Version > version {
		return nil, errors.Remedy(errors.Newf(errors.Unsupported,
			"the index of packs has version %d; this Harvest knows up to %d", x.Version, version),
			"use a newer Harvest")
	}
	if x.Format != format || x.Version != version {
		return nil, errors.Newf(errors.Invalid, "not an index of packs of this version")
	}
	for i, p := range x.Packs {
		switch {
		case i == 0 && len(p.First) > 0, i > 0 && bytes.Compare(x.Packs[i-1].First, p.First) >= 0:
			return nil, errors.Newf(errors.Invalid, "the index of packs is out of order")
		case p.Size < 0 || p.Size > Size+64<<10 || p.Count < 0 || p.Count > maxMembers || p.Stale < 0 ||
			p.Stale > manifest.MaxEntries || len(p.ETag) > 256 || len(p.ID) > maxPackID || !plainID(p.ID):
			return nil, errors.Newf(errors.Invalid, "the index of packs has an invalid pack")
		}
	}
	return &x, nil
}

// plainID reports whether a name has only letters and digits.
func plainID(id string) bool {
	return !bytes.ContainsFunc([]byte(id), func(r rune) bool { return (r < 'A' || r > 'Z') && (r < '0' || r > '9') })
}

// row returns the index of the range of a place, searching from at. The caller asks in order.
func (x *Index) row(at int, place string) int {
	for at+1 < len(x.Packs) && string(x.Packs[at+1].First) <= place {
		at++
	}
	return at
}

// Encode encodes a pack of members and their contents, into out if it has room.
func Encode(members []Member, contents, out []byte) ([]byte, error) {
	head, err := cbor.Marshal(members)
	if err != nil {
		return nil, errors.Wrapf(err, "make a pack")
	}
	b := bytes.NewBuffer(out[:0])
	z, err := zstd.NewWriter(b, zstd.WithEncoderLevel(zstd.SpeedFastest), zstd.WithEncoderConcurrency(1),
		zstd.WithWindowSize(1<<20), zstd.WithLowerEncoderMem(true))
	if err != nil {
		return nil, errors.Wrapf(err, "make a pack")
	}
	_, err = z.Write(head)
	if err == nil {
		_, err = z.Write(contents)
	}
	if err = errors.Join(err, z.Close()); err != nil {
		return nil, errors.Wrapf(err, "make a pack")
	}
	return b.Bytes(), nil
}

// newReader decompresses packs into at most packSize bytes.
func newReader() (*zstd.Decoder, error) {
	z, err := zstd.NewReader(nil, zstd.WithDecoderConcurrency(2), zstd.WithDecoderMaxMemory(Size),
		zstd.WithDecoderMaxWindow(manifest.MaxWindow))
	return z, errors.Wrapf(err, "read packs")
}

// Content is a decompressed pack.
type Content struct {
	members []Member
	at      []int64 // of each member's content
	content []byte
}

// Decode decodes a pack, into buf if it has room.
func Decode(z *zstd.Decoder, raw, buf []byte) (*Content, error) {
	plain, err := z.DecodeAll(raw, buf[:0])
	if err != nil {
		return nil, errors.Explainf(err, errors.Invalid, "a pack is damaged")
	}
	mode, err := packMode(maxMembers)
	if err != nil {
		return nil, err
	}
	p := &Content{}
	if p.content, err = mode.UnmarshalFirst(plain, &p.members); err != nil {
		return nil, errors.Explainf(err, errors.Invalid, "a pack is damaged")
	}
	p.at = make([]int64, len(p.members))
	n, size := int64(0), int64(len(p.content))
	for i, m := range p.members {
		if m.Size < 0 || m.Size > size-n || i > 0 && bytes.Compare(p.members[i-1].Place, m.Place) >= 0 {
			return nil, errors.Newf(errors.Invalid, "a pack has invalid members")
		}
		p.at[i] = n
		n += m.Size
	}
	return p, nil
}

// find returns the content of e, if the pack has the content that the manifest describes.
func (p *Content) find(e *tree.Entry) ([]byte, bool) {
	i, ok := slices.BinarySearchFunc(p.members, []byte(e.Order()),
		func(m Member, place []byte) int { return bytes.Compare(m.Place, place) })
	if !ok || !e.HasCRC || p.members[i].Size != e.BodySize() || p.members[i].CRC != e.CRC {
		return nil, false
	}
	body := p.content[p.at[i] : p.at[i]+p.members[i].Size]
	return body, crc64nvme.Checksum(body) == e.CRC
}

// ReadIndex fetches the index of packs and its ETag. The index is nil if it is missing or damaged; the
// ETag is then that of the object to replace. For the index of a newer Harvest it returns
// Unsupported, and that index must not be replaced.
func ReadIndex(ctx context.Context, b *object.Bucket) (*Index, string, error) {
	res, err := b.Head(ctx, IndexKey)
	if errors.KindOf(err) == errors.NotFound {
		return nil, "", nil
	}
	if err != nil {
		return nil, "", err
	}
	etag, size := object.Unquote(res.Header.Get("ETag")), object.ContentLength(res.Header)
	if size < 0 || size > maxIndex {
		return nil, etag, nil
	}
	got, err := b.Get(ctx, IndexKey, etag, 0, size, size, make([]byte, size))
	if errors.Is(err, object.ErrDamaged) {
		return nil, etag, nil
	}
	if err != nil {
		return nil, "", err
	}
	x, err := decodeIndex(got.Body)
	if errors.KindOf(err) == errors.Unsupported {
		return nil, "", err
	}
	if err != nil {
		return nil, etag, nil //nolint:nilerr // it is rebuilt
	}
	return x, etag, nil
}

package pack

import (
	"bytes"
	"encoding/binary"
	"slices"
	"testing"

	"github.com/fxamacker/cbor/v2"
	"github.com/klauspost/compress/zstd"
	"github.com/minio/crc64nvme"

	"github.com/RelevanceAI/harvest/internal/s3/tree"
)

// FuzzPacks checks that foreign indexes and packs stay within the memory limit and give only their own bytes.
func FuzzPacks(f *testing.F) {
	raw, err := Encode([]Member{{Place: []byte("a"), Size: 2, CRC: crc64nvme.Checksum([]byte("xy"))},
		{Place: []byte("b")}}, []byte("xy"), nil)
	if err != nil {
		f.Fatal(err)
	}
	index, err := cbor.Marshal(Index{Format: format, Version: version,
		Packs: []Row{{ID: "X", Count: 2}, {First: []byte("b")}}})
	if err != nil {
		f.Fatal(err)
	}
	f.Add(raw)
	f.Add(index)
	f.Add([]byte{})
	// More members and rows than the limit, which take almost no bytes: arrays of nil.
	nothing := append(binary.BigEndian.AppendUint32([]byte{0x9a}, 1<<20), bytes.Repeat([]byte{0xf6}, 1<<20)...)
	f.Add(slices.Concat([]byte{0xa3, 0x01, 0x6d}, []byte(format), []byte{0x02, 0x01, 0x03}, nothing))
	w, err := zstd.NewWriter(nil)
	if err != nil {
		f.Fatal(err)
	}
	f.Add(w.EncodeAll(nothing, nil))
	z, err := newReader()
	if err != nil {
		f.Fatal(err)
	}
	f.Fuzz(func(t *testing.T, raw []byte) {
		if x, err := decodeIndex(raw); err == nil {
			if len(x.Packs) > maxPacks {
				t.Fatalf("an index has %d packs", len(x.Packs))
			}
			for i, row := range x.Packs {
				if x.row(0, string(row.First)) != i {
					t.Fatalf("row %d is not where it begins", i)
				}
			}
		}
		p, err := Decode(z, raw, nil)
		if err != nil {
			return
		}
		if len(p.members) > maxMembers {
			t.Fatalf("a pack has %d members", len(p.members))
		}
		for _, m := range p.members {
			path, ok := tree.DecodeKey(string(m.Place))
			if !ok {
				continue
			}
			e := &tree.Entry{Kind: tree.File, Path: path, Size: m.Size, CRC: m.CRC, HasCRC: true}
			if body, ok := p.find(e); ok && (int64(len(body)) != m.Size || crc64nvme.Checksum(body) != m.CRC ||
				!bytes.Contains(p.content, body)) {
				t.Fatalf("%q has %d bytes that are not its own", m.Place, len(body))
			}
		}
	})
}

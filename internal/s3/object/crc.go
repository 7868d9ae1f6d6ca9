package object

import (
	"encoding/base64"
	"encoding/binary"
)

// nvme is the polynomial of CRC-64/NVME, bits reversed (NVM Express NVM Command Set Specification).
const nvme = 0x9a6c9329ac4bc9b5

// CombineCRC returns the checksum of two concatenated pieces from their checksums and the length of
// the second. Appending n zero bytes is a linear map over GF(2) of the checksum, and is squared
// once for each bit of n.
func CombineCRC(crc, next uint64, n int64) uint64 {
	if n <= 0 {
		return crc
	}
	var odd, even [64]uint64
	odd[0] = nvme // one zero bit
	for i := 1; i < 64; i++ {
		odd[i] = 1 << (i - 1)
	}
	square(&even, &odd) // two zero bits
	square(&odd, &even) // four
	for from, to := &odd, &even; n > 0; n >>= 1 {
		square(to, from) // first a whole byte
		if n&1 != 0 {
			crc = times(to, crc)
		}
		from, to = to, from
	}
	return crc ^ next
}

func times(m *[64]uint64, v uint64) uint64 {
	var sum uint64
	for i := 0; v != 0; i, v = i+1, v>>1 {
		if v&1 != 0 {
			sum ^= m[i]
		}
	}
	return sum
}

func square(to, m *[64]uint64) {
	for i := range m {
		to[i] = times(m, m[i])
	}
}

func encodeCRC(crc uint64) string {
	var raw [8]byte
	binary.BigEndian.PutUint64(raw[:], crc)
	return base64.StdEncoding.EncodeToString(raw[:])
}

func decodeCRC(text string) (uint64, bool) {
	raw, err := base64.StdEncoding.DecodeString(text)
	if err != nil || len(raw) != 8 {
		return 0, false
	}
	return binary.BigEndian.Uint64(raw), true
}

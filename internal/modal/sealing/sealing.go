// Package sealing encrypts streams with a key of any length: snapshots of directories, whose clients may give a key,
// and anonymous secrets.
package sealing

import (
	"bufio"
	"crypto/aes"
	"crypto/cipher"
	"crypto/rand"
	"crypto/sha256"
	"encoding/binary"
	"io"

	"github.com/RelevanceAI/harvest/client/errors"
)

// The first byte of a stream is its format: plain, or in parts sealed by AES-256-GCM with SHA-256 of
// the key. The nonce of a part combines the file's salt and the part's number. The last part is marked
// as the last, so that no part can be left out.
const (
	asItIs   = 0
	sealed   = 1
	partSize = 1 << 20
	saltSize = 4
)

func sealer(key []byte) (cipher.AEAD, error) {
	sum := sha256.Sum256(append([]byte("harvest directory\x00"), key...))
	block, err := aes.NewCipher(sum[:])
	if err != nil {
		return nil, errors.Wrapf(err, "use a key")
	}
	aead, err := cipher.NewGCM(block)
	return aead, errors.Wrapf(err, "use a key")
}

// nonce returns the nonce of a part; last changes it.
func nonce(salt []byte, number uint64, last bool) []byte {
	n := append([]byte{}, salt...)
	if last {
		number |= 1 << 63
	}
	return binary.BigEndian.AppendUint64(n, number)
}

// Seal writes the content of from, sealed if there is a key.
func Seal(w io.Writer, key []byte, from io.Reader) error {
	if len(key) == 0 {
		if _, err := w.Write([]byte{asItIs}); err != nil {
			return errors.Wrapf(err, "seal data")
		}
		_, err := io.Copy(w, from)
		return errors.Wrapf(err, "seal data")
	}
	aead, err := sealer(key)
	if err != nil {
		return err
	}
	salt := make([]byte, saltSize)
	_, _ = rand.Read(salt) // never fails
	if _, err := w.Write(append([]byte{sealed}, salt...)); err != nil {
		return errors.Wrapf(err, "seal data")
	}
	in := bufio.NewReaderSize(from, partSize)
	buf := make([]byte, partSize)
	for number := uint64(0); ; number++ {
		n, err := io.ReadFull(in, buf)
		if err != nil && !errors.Is(err, io.EOF) && !errors.Is(err, io.ErrUnexpectedEOF) {
			return errors.Wrapf(err, "seal data")
		}
		_, more := in.Peek(1)
		last := more != nil
		if _, err := w.Write(aead.Seal(nil, nonce(salt, number, last), buf[:n], nil)); err != nil {
			return errors.Wrapf(err, "seal data")
		}
		if last {
			return nil
		}
	}
}

// Unseal reads the output of Seal. Denied if the key is wrong, or a key is missing or superfluous.
func Unseal(from io.Reader, key []byte) (io.Reader, error) {
	refused := errors.Remedy(errors.Newf(errors.Denied,
		"the encryption key differs from that of the snapshot"), "give the key of the snapshot")
	in := bufio.NewReaderSize(from, partSize+64)
	kind, err := in.ReadByte()
	if err != nil {
		return nil, errors.Wrapf(err, "read sealed data")
	}
	if kind == asItIs {
		if len(key) > 0 {
			return nil, errors.Newf(errors.Invalid, "the snapshot is not encrypted with a key of yours")
		}
		return in, nil
	}
	if len(key) == 0 {
		return nil, refused
	}
	aead, err := sealer(key)
	if err != nil {
		return nil, err
	}
	salt := make([]byte, saltSize)
	if _, err := io.ReadFull(in, salt); err != nil {
		return nil, errors.Wrapf(err, "read sealed data")
	}
	u := &unsealer{in: in, aead: aead, salt: salt, refused: refused}
	return u, u.next() // detect a wrong key at once
}

type unsealer struct {
	in      *bufio.Reader
	aead    cipher.AEAD
	salt    []byte
	refused error
	number  uint64
	plain   []byte
	last    bool
}

func (u *unsealer) next() error {
	buf := make([]byte, partSize+u.aead.Overhead())
	n, err := io.ReadFull(u.in, buf)
	if err != nil && !errors.Is(err, io.ErrUnexpectedEOF) {
		return errors.Wrapf(err, "read sealed data")
	}
	_, more := u.in.Peek(1)
	u.last = more != nil
	u.plain, err = u.aead.Open(nil, nonce(u.salt, u.number, u.last), buf[:n], nil)
	if err != nil {
		return u.refused
	}
	u.number++
	return nil
}

// Read implements io.Reader.
func (u *unsealer) Read(p []byte) (int, error) {
	for len(u.plain) == 0 {
		if u.last {
			return 0, io.EOF
		}
		if err := u.next(); err != nil {
			return 0, err
		}
	}
	n := copy(p, u.plain)
	u.plain = u.plain[n:]
	return n, nil
}

package secret

import (
	"bytes"
	"crypto/aes"
	"crypto/cipher"
	"crypto/rand"
	"crypto/sha256"
	"encoding/base64"
	"encoding/binary"
	"encoding/json"
	"io/fs"
	"os"
	"path/filepath"
	"syscall"

	"github.com/RelevanceAI/harvest/client/errors"
)

// A sealed value is format, the first bytes of the key's SHA-256, nonce, and the pairs as JSON under AES-256-GCM.
// Account and name are authenticated with it, so that no row opens in another's place. The nonce is random: a key may
// seal 2^32 times (NIST SP 800-38D, 8.3).
const (
	format   = 1
	keyIDLen = 8
	keyLen   = 32
	keyHead  = "# Harvest's key for secrets: without this file, secrets cannot be read. Keep a copy apart from the " +
		"database's.\n"
)

// key seals and opens.
type key struct {
	raw  []byte
	id   [keyIDLen]byte
	aead cipher.AEAD
}

func newKey(raw []byte) (key, error) {
	block, err := aes.NewCipher(raw)
	if err != nil {
		return key{}, errors.Wrapf(err, "the key for secrets")
	}
	aead, err := cipher.NewGCMWithRandomNonce(block)
	if err != nil {
		return key{}, errors.Wrapf(err, "the key for secrets")
	}
	sum := sha256.Sum256(raw)
	return key{raw: raw, id: [keyIDLen]byte(sum[:keyIDLen]), aead: aead}, nil
}

func randomKey() (key, error) {
	raw := make([]byte, keyLen)
	if _, err := rand.Read(raw); err != nil {
		return key{}, errors.Wrapf(err, "make a key")
	}
	return newKey(raw)
}

// bound is what a sealed value is tied to; lengths keep ("ab", "c") and ("a", "bc") apart.
func bound(account, name string) []byte {
	b := binary.BigEndian.AppendUint32([]byte{format}, uint32(len(account)))
	return append(append(b, account...), name...)
}

func (k key) seal(account, name string, p Pairs) ([]byte, error) {
	text, err := json.Marshal(map[string]string(p))
	if err != nil {
		return nil, errors.Errorf("encode a secret") // err could quote it
	}
	return k.aead.Seal(append([]byte{format}, k.id[:]...), nil, text, bound(account, name)), nil
}

// ring is the keys of a key file: the first seals, all open.
type ring []key

func (r ring) unseal(rec Record) (Pairs, error) {
	sealed, ok := bytes.CutPrefix(rec.Sealed, []byte{format})
	if !ok || len(sealed) < keyIDLen {
		return nil, damaged(rec.Name)
	}
	for _, k := range r {
		if [keyIDLen]byte(sealed[:keyIDLen]) != k.id {
			continue
		}
		text, err := k.aead.Open(nil, nil, sealed[keyIDLen:], bound(rec.Account, rec.Name))
		if err != nil {
			return nil, damaged(rec.Name)
		}
		var p map[string]string
		if err := json.Unmarshal(text, &p); err != nil {
			return nil, damaged(rec.Name)
		}
		return p, nil
	}
	return nil, errors.Remedy(errors.Newf(errors.Internal,
		"the secret %q was sealed with another key than the one in the key file", rec.Name),
		"put back the key file that belongs to this database, or set the secret again")
}

func damaged(name string) error {
	return errors.Remedy(errors.Newf(errors.Internal, "the secret %q is damaged", name),
		"set it again, or put back a backup of the database")
}

// readRing reads the key file. It returns fs.ErrNotExist if there is none.
func readRing(path string) (ring, error) {
	info, err := os.Lstat(path)
	if err != nil {
		return nil, keyError(err, path)
	}
	switch {
	case !info.Mode().IsRegular():
		return nil, errors.Remedy(errors.Newf(errors.Denied, "the key file %s is not a plain file", path),
			"put the key file itself there, not a link or a directory")
	case info.Mode().Perm()&0o077 != 0:
		return nil, errors.Remedy(errors.Newf(errors.Denied, "the key file %s is open to others (mode %04o)", path,
			info.Mode().Perm()),
			"run \"chmod 600 %s\"; if others may have read it, make a new key and change the secrets", path)
	case !owned(info):
		return nil, errors.Remedy(errors.Newf(errors.Denied, "the key file %s belongs to another user", path),
			"give it to the user that runs Harvest")
	}
	text, err := os.ReadFile(path)
	if err != nil {
		return nil, keyError(err, path)
	}
	var r ring
	for line := range bytes.Lines(text) {
		line = bytes.TrimSpace(line)
		if len(line) == 0 || line[0] == '#' {
			continue
		}
		raw, err := base64.StdEncoding.DecodeString(string(line))
		if err != nil || len(raw) != keyLen {
			return nil, damagedKey(path)
		}
		k, err := newKey(raw)
		if err != nil {
			return nil, err
		}
		r = append(r, k)
	}
	if len(r) == 0 {
		return nil, damagedKey(path)
	}
	return r, nil
}

func damagedKey(path string) error {
	return errors.Remedy(errors.Newf(errors.Internal, "the key file %s is damaged", path),
		"put back a copy of it; without one, delete the secrets and the file, and set them again")
}

func missingKey(path string) error {
	return errors.Remedy(errors.Newf(errors.Internal,
		"the key file %s is missing, without which the secrets in the database cannot be read", path),
		"put back a copy of it; without one, delete the secrets and set them again")
}

func keyError(err error, path string) error {
	switch {
	case err == nil || errors.IsNotExist(err):
		return err
	case errors.Is(err, fs.ErrPermission), errors.Is(err, syscall.EROFS):
		return errors.Remedy(errors.Explainf(err, errors.Denied, "the key file %s cannot be read or written", path),
			"give it and its directory to the user that runs Harvest")
	case errors.Is(err, syscall.ENOSPC), errors.Is(err, syscall.EDQUOT):
		return errors.Remedy(errors.Explainf(err, errors.Exhausted, "there is no space left for the key file %s", path),
			"free space on its disk")
	}
	return errors.Wrapf(err, "the key file %s", path)
}

// write puts r at path, whole or not at all, and on the disk before it returns.
func (r ring) write(path string) (err error) {
	text := []byte(keyHead)
	for _, k := range r {
		text = append(base64.StdEncoding.AppendEncode(text, k.raw), '\n')
	}
	f, err := os.CreateTemp(filepath.Dir(path), ".secret.key.*") // of mode 0600
	if err != nil {
		return keyError(err, path)
	}
	defer func() {
		f.Close()
		if err != nil { // after the rename there is none by that name
			os.Remove(f.Name())
		}
	}()
	if _, err = f.Write(text); err == nil {
		err = f.Sync()
	}
	if err == nil {
		err = os.Rename(f.Name(), path)
	}
	if err != nil {
		return keyError(err, path)
	}
	dir, err := os.Open(filepath.Dir(path))
	if err != nil {
		return keyError(err, path)
	}
	defer dir.Close()
	return keyError(dir.Sync(), path)
}

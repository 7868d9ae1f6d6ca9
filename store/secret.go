package store

import (
	"crypto/rand"
	"os"
	"path/filepath"

	"github.com/RelevanceAI/harvest/errors"
)

// SignerName is the file of SigningKey in the data directory.
const SignerName = "signing.key"

const signerSize = 32

// SigningKey returns the secret with which the server of a data directory signs what clients give back to it, made if missing. It is
// a file beside the database, so that a copy of the database is not enough to sign.
func SigningKey(dir string) ([]byte, error) {
	path := filepath.Join(dir, SignerName)
	key, err := os.ReadFile(path)
	if err == nil && len(key) == signerSize {
		return key, nil
	}
	if err != nil && !errors.IsNotExist(err) {
		return nil, fileError(err, path)
	}
	key = make([]byte, signerSize)
	_, _ = rand.Read(key) // never fails
	// What was signed with a key that is damaged is lost in any case.
	temp := path + ".new"
	if err := os.WriteFile(temp, key, 0o600); err != nil {
		return nil, fileError(err, path)
	}
	if err := os.Rename(temp, path); err != nil {
		return nil, fileError(err, path)
	}
	return key, nil
}

package store

import (
	"crypto/rand"
	"os"
	"path/filepath"

	"github.com/RelevanceAI/harvest/client/errors"
	"github.com/RelevanceAI/harvest/internal/base/atomicfile"
)

// SignerName is the name of SigningKey's file in the data directory.
const SignerName = "signing.key"

const signerSize = 32

// SigningKey returns the secret with which the server of a data directory signs tokens that clients
// return to it. It creates the secret if missing. The secret is in a file beside the database, so
// that a copy of the database is not enough to sign.
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
	// A damaged key is replaced: signatures made with it are lost in any case.
	if err := atomicfile.WriteDurable(path, key, 0o600); err != nil {
		return nil, fileError(err, path)
	}
	return key, nil
}

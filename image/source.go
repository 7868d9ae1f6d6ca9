package image

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"os"
	"strings"

	"github.com/RelevanceAI/harvest/errors"
)

// Source makes the root file systems of one base. A Library decides when, and keeps them.
type Source interface {
	// Fingerprint describes what a build takes besides the spec, such as files of the host and the version of its own recipe.
	// Equal specs with equal fingerprints are the same image. It is quick and needs no network.
	Fingerprint(ctx context.Context, spec Spec) ([]byte, error)
	// Build writes an EROFS image into root, which is empty, and returns what it is like. temp is an empty directory for
	// its own use; both are removed if it fails. progress is never nil. The kinds of its errors are those of Builder.Build.
	Build(ctx context.Context, spec Spec, root *os.File, temp string, progress func(Progress)) (Contents, error)
}

// Contents is what a Source knows of an image that it made.
type Contents struct {
	Config  Config
	Parts   []Part
	Missing []Part
}

const (
	idPrefix     = "img_"
	digestPrefix = "sha256:"
	idDigits     = 16
)

// Digest returns the digest of an image with that fingerprint of its source.
func (s Spec) Digest(fingerprint []byte) (string, error) {
	text, err := json.Marshal(s)
	if err != nil {
		return "", errors.Wrapf(err, "encode an image's spec")
	}
	h := sha256.New()
	h.Write(text) // JSON has no NUL, so that the two parts cannot be confused
	h.Write([]byte{0})
	h.Write(fingerprint)
	return digestPrefix + hex.EncodeToString(h.Sum(nil)), nil
}

// hexOf returns a digest without its prefix, which is also the name of the image's directory.
func hexOf(digest string) string { return strings.TrimPrefix(digest, digestPrefix) }

func idOf(digest string) string { return idPrefix + hexOf(digest)[:idDigits] }

// isHex reports whether name is a digest without its prefix.
func isHex(name string) bool {
	b, err := hex.DecodeString(name)
	return err == nil && len(b) == sha256.Size && strings.ToLower(name) == name
}

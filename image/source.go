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

// Source makes root file systems of one sort. A Library decides when, and keeps them.
type Source interface {
	// Resolve returns spec with nothing left open (a tag as the digest that it means now, a build context as the digest of
	// its files), and a fingerprint: what a build takes besides, such as files of the host and the version of its own recipe.
	// Equal resolved specs with equal fingerprints are the same image. It is quick, and needs the network at most to ask
	// a registry for a digest.
	Resolve(ctx context.Context, spec Spec, opts BuildOptions) (Spec, []byte, error)
	// Build makes the image of a resolved spec and returns what it is like. All that out names is removed if it fails.
	// opts.Progress and opts.Log are never nil. The kinds of its errors are those of Builder.Build.
	Build(ctx context.Context, spec Spec, opts BuildOptions, out Output) (Contents, error)
}

// Sources are the ways to make images. What is nil cannot be built.
type Sources struct {
	Named      map[string]Source // Harvest's own, by name
	Dockerfile Source            // specs with a Dockerfile or Commands
	Registry   Source            // other bases that the library does not have
}

// Output is where a Source puts an image.
type Output struct {
	Root *os.File // empty; becomes an EROFS image of package rootfs's form
	Temp string   // an empty directory for the source's own use
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

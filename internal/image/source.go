package image

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"os"
	"strings"

	"github.com/RelevanceAI/harvest/client/errors"
)

// Source makes one kind of root file system. A Library decides when, and stores the result.
type Source interface {
	// Resolve returns spec with all references resolved (a tag as its current digest, a build
	// context as the digest of its files), and a fingerprint of other input of a build, such as
	// files of the host and the version of its recipe. Equal resolved specs with equal fingerprints
	// are the same image. Resolve is fast, and uses the network at most to ask a registry for a
	// digest.
	Resolve(ctx context.Context, spec Spec, opts BuildOptions) (Spec, []byte, error)
	// Build makes the image of a resolved spec and returns its description. On failure, the caller
	// removes everything in out. opts.Progress and opts.Log are never nil. The kinds of its errors
	// are those of Builder.Build.
	Build(ctx context.Context, spec Spec, opts BuildOptions, out Output) (Contents, error)
}

// Sources are the available sources. Images of a nil one cannot be built.
type Sources struct {
	Named      map[string]Source // Harvest's own, by name
	Dockerfile Source            // specs with a Dockerfile or Commands
	Registry   Source            // other bases that are not in the library
}

// Output is the destination of a Source's image.
type Output struct {
	Root *os.File // empty; becomes an EROFS image of package rootfs's form
	Temp string   // an empty directory for the source's own use
}

// Contents is a Source's description of an image that it made.
type Contents struct {
	Config  Config
	Parts   []Part
	Missing []Part
	// Root, if set, is the name of a file in Output.Temp that takes the place of Output.Root: a hard link to a root
	// file system that this image shares. Such files are never changed.
	Root string
}

const (
	idPrefix     = "img_"
	digestPrefix = "sha256:"
	idDigits     = 16
)

// Digest returns the digest of an image with that fingerprint.
func (s Spec) Digest(fingerprint []byte) (string, error) {
	text, err := json.Marshal(s)
	if err != nil {
		return "", errors.Wrapf(err, "encode an image's spec")
	}
	h := sha256.New()
	h.Write(text) // JSON has no NUL, so the two parts are unambiguous
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

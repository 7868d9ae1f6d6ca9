package tree

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"strings"
	"unicode/utf8"

	"github.com/RelevanceAI/harvest/client/errors"
)

// Reserved is the directory below a prefix for objects of Harvest that are not files of the volume.
// A directory of the volume with that name is escaped.
const Reserved = ".harvest"

// MaxKey is S3's limit for the length of a key, in bytes.
const MaxKey = 1024

// escape introduces two hexadecimal digits for a byte that cannot be in a key. It is rare in names,
// so that the keys of nearly all files are their paths.
const escape = "%~"

const hexDigits = "0123456789ABCDEF"

// EncodePath returns the key of a slash-separated path, relative to the prefix. It changes only
// bytes that S3 or its clients cannot keep: invalid UTF-8, control characters, the characters
// U+FFFE and U+FFFF, and the reserved name. DecodeKey is the inverse.
func EncodePath(path string) string {
	if plain(path) {
		return path
	}
	var b strings.Builder
	rest := path
	if rest == Reserved || strings.HasPrefix(rest, Reserved+"/") {
		escapeByte(&b, '.')
		rest = rest[1:]
	}
	for len(rest) > 0 {
		r, n := utf8.DecodeRuneInString(rest)
		if awkward(r, n) || strings.HasPrefix(rest, escape) {
			if rest[0] == '%' {
				n = 1
			}
			for i := range n {
				escapeByte(&b, rest[i])
			}
		} else {
			b.WriteString(rest[:n])
		}
		rest = rest[n:]
	}
	return b.String()
}

// plain reports whether path needs no encoding, which is the usual case.
func plain(path string) bool {
	for i := range len(path) {
		if c := path[i]; c < 0x20 || c >= 0x7f {
			return false
		}
	}
	return !strings.Contains(path, escape) && path != Reserved && !strings.HasPrefix(path, Reserved+"/")
}

func awkward(r rune, n int) bool {
	return r < 0x20 || r == 0x7f || r == 0xfffe || r == 0xffff || r == utf8.RuneError && n <= 1
}

func escapeByte(b *strings.Builder, c byte) {
	b.WriteString(escape)
	b.WriteByte(hexDigits[c>>4])
	b.WriteByte(hexDigits[c&15])
}

// DecodeKey returns the path of a key. It returns false if there is none: keys with ".", ".." or an
// empty part between slashes, with NUL, or with escapes that EncodePath would not write. The caller
// must remove a trailing slash.
func DecodeKey(key string) (string, bool) {
	path := key
	if strings.Contains(key, escape) {
		var b strings.Builder
		for rest := key; len(rest) > 0; {
			if strings.HasPrefix(rest, escape) && len(rest) >= 4 {
				c, err := hex.DecodeString(rest[2:4])
				if err != nil {
					return "", false
				}
				b.WriteByte(c[0])
				rest = rest[4:]
				continue
			}
			b.WriteByte(rest[0])
			rest = rest[1:]
		}
		path = b.String()
	}
	if !ValidPath(path) || EncodePath(path) != key {
		return "", false
	}
	return path, true
}

// KeyProblem explains why DecodeKey refuses a key. Keys with control characters are not read: XML cannot hold most of
// them, the same path would have two keys, and lists would not be in the order of paths.
func KeyProblem(key string) error {
	problem := func(format string, args ...any) error {
		return errors.Remedy(errors.Newf(errors.Unsupported, format, args...), "give the object another key")
	}
	if strings.IndexByte(key, 0) >= 0 {
		return problem("its key has a NUL, which no file name can have")
	}
	for part := range strings.SplitSeq(key, "/") {
		switch {
		case part == "":
			return problem("its key has an empty name between slashes, so it is not a path")
		case part == "." || part == "..":
			return problem("its key has the name %s, so it is not a path below the volume", part)
		case len(part) > MaxName:
			return problem("its key has a name of %d bytes; file names have at most %d", len(part), MaxName)
		}
	}
	if len(key) > maxPath {
		return problem("its key has %d bytes, more than any path", len(key))
	}
	written := EncodePath(key)
	for rest := key; rest != ""; {
		r, n := utf8.DecodeRuneInString(rest)
		if awkward(r, n) {
			what := fmt.Sprintf("the character %U", r)
			if r == utf8.RuneError && n <= 1 {
				what = fmt.Sprintf("the byte 0x%02X, which is not UTF-8", rest[0])
			}
			return errors.Remedy(errors.Newf(errors.Unsupported,
				"its key has %s; Harvest reads and writes such characters in keys as escapes only", what),
				"give the object the key %q", written)
		}
		rest = rest[n:]
	}
	return errors.Remedy(errors.Newf(errors.Unsupported,
		"its key has an escape (%s and two digits) that Harvest does not write", escape),
		"give the object the key %q if its name is meant literally", written)
}

// ValidPath reports whether path is slash-separated, relative, and without empty, "." or ".."
// parts.
func ValidPath(path string) bool {
	if path == "" || len(path) > maxPath || strings.IndexByte(path, 0) >= 0 {
		return false
	}
	for part := range strings.SplitSeq(path, "/") {
		if part == "" || part == "." || part == ".." || len(part) > MaxName {
			return false
		}
	}
	return true
}

// MaxName is Linux's limit, maxPath that of this package: deeper trees are refused with their
// names.
const (
	MaxName = 255
	maxPath = 64 << 10
)

// Hidden returns a key in the reserved directory for a file whose own key cannot be used.
func Hidden(kind, path string) string {
	sum := sha256.Sum256([]byte(path))
	return Reserved + "/" + kind + "/" + hex.EncodeToString(sum[:])
}

// CompareKeys compares the keys of two entries in the order of a bucket's list. The key of a directory
// ends with a slash.
func CompareKeys(a, b string) int { return strings.Compare(a, b) }

package s3sync

import (
	"crypto/sha256"
	"encoding/hex"
	"strings"
	"unicode/utf8"
)

// Reserved is the directory beneath a prefix in which Harvest keeps what is no file of the volume. A volume's own directory of that name
// is escaped.
const Reserved = ".harvest"

// maxKey is how long a key may be, in bytes (S3's limit).
const maxKey = 1024

// escape introduces two hexadecimal digits: a byte that a key should not have. Few names contain it by themselves, so that the keys of
// nearly all files are their paths.
const escape = "%~"

const hexDigits = "0123456789ABCDEF"

// EncodePath returns the key of a slash-separated path, relative to the prefix. It changes only what S3 or its clients cannot keep: bytes
// that are no UTF-8, control characters, the characters U+FFFE and U+FFFF, and the reserved name. DecodeKey undoes it.
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

// plain reports whether path is its own key, as nearly all are.
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

// DecodeKey returns the path that has the key, and false if none has: keys with "." or ".." or nothing between slashes, with NUL, and
// escapes that EncodePath would not have written. A slash at the end is the caller's to take away.
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

// ValidPath reports whether path names something beneath a directory: slash-separated, relative, no part of it empty, "." or "..".
func ValidPath(path string) bool {
	if path == "" || len(path) > maxPath || strings.IndexByte(path, 0) >= 0 {
		return false
	}
	for part := range strings.SplitSeq(path, "/") {
		if part == "" || part == "." || part == ".." || len(part) > maxName {
			return false
		}
	}
	return true
}

// Linux's limits of a name, and ours of a path: deeper trees are refused by name.
const (
	maxName = 255
	maxPath = 64 << 10
)

// hidden returns the key of a file whose own key cannot be used, beneath the reserved directory.
func hidden(kind, path string) string {
	sum := sha256.Sum256([]byte(path))
	return Reserved + "/" + kind + "/" + hex.EncodeToString(sum[:])
}

// before compares the keys of two entries as a bucket lists them. The key of a directory ends with a slash.
func before(a, b string) int { return strings.Compare(a, b) }

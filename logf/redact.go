package logf

import (
	"encoding/base64"
	"encoding/json"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
)

// Hidden stands where a secret value stood.
const Hidden = "[redacted]"

// shortest is the length of the shortest value that is removed: shorter ones would match everywhere.
const shortest = 6

var secrets struct {
	mu       sync.Mutex
	forms    map[string]bool // guarded by mu: all texts to remove
	replacer atomic.Pointer[strings.Replacer]
}

// Redact registers secret values. From now on the log, and whatever passes through Redacted, shows Hidden instead of
// them, and instead of their base64 (also as part of a longer text, such as a basic authorization), URL-escaped and
// quoted forms. Of values of several lines, each line counts. Values below 6 bytes are ignored.
func Redact(values ...string) {
	secrets.mu.Lock()
	defer secrets.mu.Unlock()
	if secrets.forms == nil {
		secrets.forms = map[string]bool{}
	}
	for _, v := range values {
		for _, part := range append(strings.Split(v, "\n"), v) {
			for _, form := range forms(strings.TrimSpace(part)) {
				secrets.forms[form] = true
			}
		}
	}
	all := make([]string, 0, len(secrets.forms))
	for form := range secrets.forms {
		all = append(all, form)
	}
	// The longest first, so that a value that contains another one disappears as a whole.
	slices.SortFunc(all, func(a, b string) int {
		if len(a) != len(b) {
			return len(b) - len(a)
		}
		return strings.Compare(a, b)
	})
	pairs := make([]string, 0, 2*len(all))
	for _, form := range all {
		pairs = append(pairs, form, Hidden)
	}
	secrets.replacer.Store(strings.NewReplacer(pairs...))
}

// Redacted returns text without the registered secret values.
func Redacted(text string) string {
	r := secrets.replacer.Load()
	if r == nil {
		return text
	}
	return r.Replace(text)
}

// forms lists the texts in which value may appear.
func forms(value string) []string {
	if len(value) < shortest {
		return nil
	}
	quoted := strconv.Quote(value)
	all := []string{value, url.QueryEscape(value), url.PathEscape(value), quoted[1 : len(quoted)-1]}
	if j, err := json.Marshal(value); err == nil {
		all = append(all, string(j[1:len(j)-1]))
	}
	for offset := range 3 {
		all = append(all, base64At(base64.RawStdEncoding, value, offset), base64At(base64.RawURLEncoding, value, offset))
	}
	return all
}

// base64At returns the digits that depend on value alone when it stands offset bytes (modulo 3) into what is encoded.
func base64At(enc *base64.Encoding, value string, offset int) string {
	text := enc.EncodeToString([]byte(strings.Repeat("\x00", offset) + value))
	first := (offset*8 + 5) / 6
	last := (offset + len(value)) * 8 / 6
	return text[first:last]
}

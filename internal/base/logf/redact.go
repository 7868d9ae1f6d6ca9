package logf

import (
	"cmp"
	"encoding/base64"
	"encoding/hex"
	"encoding/json"
	"maps"
	"net/url"
	"regexp"
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
	forms    map[string]int // guarded by mu: all texts to remove, and how many registrations want each
	replacer atomic.Pointer[strings.Replacer]
}

// Redact registers secret values until release is called, which may be more than once. As long, the log, and whatever
// passes through Redacted, shows Hidden instead of them, and instead of their base64 (also as part of a longer text,
// such as a basic authorization), URL-escaped and quoted forms. Of values of several lines, each line counts. Values
// and lines below 6 bytes are ignored. A value that is registered several times is hidden until the last release.
//
// A value takes about 18 times its size in memory while it is registered; who registers bounds how many there are.
func Redact(values ...string) (release func()) {
	wanted := map[string]bool{}
	for _, v := range values {
		for _, part := range append(strings.Split(v, "\n"), v) {
			for _, form := range forms(strings.TrimSpace(part)) {
				wanted[form] = true
			}
		}
	}
	count(wanted, 1)
	return sync.OnceFunc(func() { count(wanted, -1) })
}

// count adds by to the registrations of each form.
func count(changed map[string]bool, by int) {
	secrets.mu.Lock()
	defer secrets.mu.Unlock()
	if secrets.forms == nil {
		secrets.forms = map[string]int{}
	}
	before, other := len(secrets.forms), false
	for form := range changed {
		n := secrets.forms[form] + by
		secrets.forms[form] = n
		if n <= 0 {
			delete(secrets.forms, form)
			other = true
		}
	}
	if !other && len(secrets.forms) == before {
		return // nothing that the replacer would do differently
	}
	if len(secrets.forms) == 0 {
		secrets.replacer.Store(nil)
		return
	}
	secrets.replacer.Store(Hiding(slices.Collect(maps.Keys(secrets.forms))))
}

// Hiding returns a replacer that shows Hidden instead of each of the texts. Of texts that begin at the same place, the
// longest disappears as a whole.
func Hiding(texts []string) *strings.Replacer {
	all := slices.SortedFunc(slices.Values(texts), func(a, b string) int {
		return cmp.Or(cmp.Compare(len(b), len(a)), strings.Compare(a, b))
	})
	pairs := make([]string, 0, 2*len(all))
	for _, text := range all {
		pairs = append(pairs, text, Hidden)
	}
	return strings.NewReplacer(pairs...)
}

// keys are Harvest's own, with links, sign-ins and tokens of OAuth clients. They are hidden in every text, although
// they are not registered.
var keys = regexp.MustCompile(`hv[slpar]?_[a-z2-7]{52,}`)

// Redacted returns text without the registered secret values, and without keys of Harvest.
func Redacted(text string) string {
	if strings.Contains(text, "hv") {
		text = keys.ReplaceAllString(text, Hidden)
	}
	r := secrets.replacer.Load()
	if r == nil {
		return text
	}
	return r.Replace(text)
}

// Forms lists the texts in which value may appear: as it is, quoted, and as URL, base64 and hex have it, in one line or
// wrapped. It has none of a short value, which would hide ordinary words.
func Forms(value string) []string { return forms(value) }

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
		all = append(all, base64At(base64.RawStdEncoding, value, offset),
			base64At(base64.RawURLEncoding, value, offset))
	}
	digits := hex.EncodeToString([]byte(value))
	all = append(all, digits, strings.ToUpper(digits))
	encoded := base64.StdEncoding.EncodeToString([]byte(value))
	return slices.Concat(all, wrapped(encoded, 76), wrapped(encoded, 64), wrapped(digits, 60))
}

// wrapped returns the lines in which programs such as base64, openssl and xxd print an encoded value that does not fit
// into one line. A last line of a few digits tells nothing, and would hide ordinary words.
func wrapped(encoded string, width int) []string {
	var lines []string
	for line := range slices.Chunk([]byte(encoded), width) {
		if len(line) < len(encoded) && len(line) >= 8 {
			lines = append(lines, string(line))
		}
	}
	return lines
}

// base64At returns the digits that depend on value alone when it stands offset bytes (modulo 3) into what is encoded.
func base64At(enc *base64.Encoding, value string, offset int) string {
	text := enc.EncodeToString([]byte(strings.Repeat("\x00", offset) + value))
	first := (offset*8 + 5) / 6
	last := (offset + len(value)) * 8 / 6
	return text[first:last]
}

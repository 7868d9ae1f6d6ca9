package broker

import (
	"bytes"
	"io"
	"mime"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"sync/atomic"
)

// maxReplaced is how long a body may be, in bytes, that is held because its values have another length than their
// placeholders. A longer one is sent in chunks.
const maxReplaced = 1 << 20

// digests are headers with a checksum of the body. A body that has one is not changed: the host would refuse it.
var digests = []string{"Content-Md5", "Digest", "Content-Digest", "Repr-Digest", contentHash}

// escapes returns how a text is written in a body of a type. ok is false for a body that is not text.
func escapes(contentType string) (escape func(string) string, ok bool) {
	kind, _, err := mime.ParseMediaType(contentType)
	switch {
	case err != nil:
		return nil, false
	case strings.HasSuffix(kind, "json"):
		return jsonText, true
	case kind == "application/x-www-form-urlencoded":
		return url.QueryEscape, true
	case strings.HasSuffix(kind, "xml"):
		return xmlText, true
	}
	return func(s string) string { return s }, strings.HasPrefix(kind, "text/") || strings.HasPrefix(kind, "multipart/")
}

// lendBody replaces the placeholders in the body of a request whose bindings want that.
func (e *exchange) lendBody(r *http.Request) *refusal {
	escape, ok := escapes(r.Header.Get("Content-Type"))
	if !ok || r.ContentLength == 0 || r.Header.Get("Content-Encoding") != "" ||
		slices.ContainsFunc(digests, func(name string) bool { return r.Header.Get(name) != "" }) {
		return nil
	}
	b := &lentBody{body: r.Body}
	sameLength := true
	for _, c := range e.credentials {
		if !c.Binding.Body || e.forbids(c, r) != "" || e.onlySigns(c) {
			continue
		}
		s := &swap{from: []byte(c.Placeholder), to: []byte(escape(c.Value.Reveal())), credential: c}
		sameLength = sameLength && len(s.from) == len(s.to)
		b.swaps = append(b.swaps, s)
	}
	if len(b.swaps) == 0 {
		return nil
	}
	// Of placeholders that begin at the same place, the longest counts.
	slices.SortFunc(b.swaps, func(x, y *swap) int { return len(y.from) - len(x.from) })
	e.body = b
	switch {
	case sameLength || r.ContentLength < 0:
		r.Body = b
	case r.ContentLength <= maxReplaced:
		text, refused := e.hold(r, maxReplaced)
		if refused != nil {
			refused.Credential = b.swaps[0].credential
			return refused
		}
		text, _ = b.replace(text, true)
		setBody(r, text)
	default:
		r.Body, r.ContentLength = b, -1
		r.Header.Del("Content-Length")
	}
	return nil
}

// swap is a placeholder, and the text that takes its place.
type swap struct {
	from, to   []byte
	credential Credential
	found      atomic.Bool
}

// lentBody is the body of a request with values in place of the placeholders. It holds back only the end of the part
// that has arrived, if a placeholder may begin there.
type lentBody struct {
	body  io.ReadCloser
	swaps []*swap // longer placeholders first
	in    []byte  // read, and not replaced yet
	out   []byte  // replaced
	err   error   // after in
}

// Read implements io.Reader.
func (b *lentBody) Read(p []byte) (int, error) {
	for len(b.out) == 0 && b.err == nil {
		begin := len(b.in)
		b.in = slices.Grow(b.in, maskChunk)[:begin+maskChunk]
		n, err := b.body.Read(b.in[begin:])
		b.err = err
		var rest []byte
		b.out, rest = b.replace(b.in[:begin+n], err != nil)
		b.in = append(b.in[:0], rest...)
	}
	n := copy(p, b.out)
	b.out = b.out[n:]
	if len(b.out) == 0 && b.err != nil {
		return n, b.err
	}
	return n, nil
}

// Close implements io.Closer.
func (b *lentBody) Close() error { return b.body.Close() }

// replace returns a text with values, and the rest in which a placeholder may begin, unless the text is the last one.
func (b *lentBody) replace(text []byte, last bool) (out, rest []byte) {
	next := make([]int, len(b.swaps)) // where each placeholder is found next, from at on
	at, end := 0, len(text)
	if !last {
		end = len(text) - b.begun(text)
	}
	for {
		first := -1
		for i, s := range b.swaps {
			if next[i] < at || at == 0 {
				if next[i] = bytes.Index(text[at:], s.from); next[i] < 0 {
					next[i] = len(text)
				} else {
					next[i] += at
				}
			}
			if next[i] < len(text) && (first < 0 || next[i] < next[first]) {
				first = i
			}
		}
		if first < 0 || next[first] >= end {
			return append(out, text[at:end]...), text[end:]
		}
		s := b.swaps[first]
		s.found.Store(true)
		out = append(append(out, text[at:next[first]]...), s.to...)
		at = next[first] + len(s.from)
		if end < at && !last {
			end = len(text) - b.begun(text[at:])
		}
	}
}

// begun returns how many bytes at the end of a text may be the beginning of a placeholder.
func (b *lentBody) begun(text []byte) int {
	most := 0
	for _, s := range b.swaps {
		for n := min(len(s.from)-1, len(text)); n > most; n-- {
			if bytes.HasPrefix(s.from, text[len(text)-n:]) {
				most = n
			}
		}
	}
	return most
}

// used returns the credentials whose values are in the body, but those of others.
func (b *lentBody) used(others []Credential) []Credential {
	if b == nil {
		return nil
	}
	var all []Credential
	for _, s := range b.swaps {
		c := s.credential
		if s.found.Load() && !slices.ContainsFunc(others, func(o Credential) bool {
			return o.Secret == c.Secret && o.Key == c.Key
		}) {
			all = append(all, c)
		}
	}
	return all
}

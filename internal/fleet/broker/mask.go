package broker

import (
	"bytes"
	"encoding/json"
	"encoding/xml"
	"io"
	"mime"
	"net/http"
	"slices"
	"strings"

	"github.com/RelevanceAI/harvest/internal/base/logf"
)

// mask removes the values from an answer: a host may repeat the request. The length of the body stays the same.
func (e *exchange) mask(resp *http.Response) {
	all := slices.Clone(e.encoded)
	for _, c := range e.credentials {
		if _, ok := c.Binding.Place(e.s.host.Name, e.s.port, !e.s.secure()); !ok {
			continue
		}
		value := strings.TrimSpace(c.Value.Reveal()) // a part of what the host got
		forms := logf.Forms(value)
		if len(forms) > 0 { // it is long enough
			forms = append(forms, xmlText(value))
		}
		for _, form := range forms {
			shown := strings.Repeat("*", len(form))
			if form == value && len(form) == len(c.Placeholder) {
				shown = c.Placeholder
			}
			all = append(all, maskPair{[]byte(form), []byte(shown)})
		}
	}
	if len(all) == 0 {
		return
	}
	// Of forms that begin at the same place, the longest disappears as a whole.
	slices.SortFunc(all, func(a, b maskPair) int { return len(b.form) - len(a.form) })
	for _, values := range resp.Header {
		for i := range values {
			values[i] = string(replaceAll([]byte(values[i]), all))
		}
	}
	if resp.StatusCode != http.StatusSwitchingProtocols && resp.Header.Get("Content-Encoding") == "" &&
		isText(resp.Header.Get("Content-Type")) {
		resp.Body = &masked{body: resp.Body, pairs: all}
	}
}

// maskPair is a text, and the text of the same length that is shown instead.
type maskPair struct{ form, shown []byte }

// replaceAll replaces in place.
func replaceAll(b []byte, pairs []maskPair) []byte {
	for _, p := range pairs {
		for at := 0; ; at += len(p.form) {
			i := bytes.Index(b[at:], p.form)
			if i < 0 {
				break
			}
			at += i
			copy(b[at:], p.shown)
		}
	}
	return b
}

// isText reports whether the body of an answer may repeat the text of a request.
func isText(contentType string) bool {
	if contentType == "" {
		return true
	}
	kind, _, err := mime.ParseMediaType(contentType)
	if err != nil {
		return true
	}
	return strings.HasPrefix(kind, "text/") || strings.HasSuffix(kind, "json") || strings.HasSuffix(kind, "xml") ||
		strings.HasSuffix(kind, "javascript") || strings.HasPrefix(kind, "multipart/") ||
		kind == "application/x-www-form-urlencoded"
}

// masked is the body of an answer without the values. It holds back only the end of what has arrived, if a value may
// begin there.
type masked struct {
	body  io.ReadCloser
	pairs []maskPair
	buf   []byte // read; the first clean bytes can be passed on
	clean int
	err   error // after buf
}

// maskChunk is the most that is read at once.
const maskChunk = 32 << 10

// Read implements io.Reader.
func (m *masked) Read(p []byte) (int, error) {
	for m.clean == 0 && m.err == nil {
		begin := len(m.buf)
		m.buf = slices.Grow(m.buf, maskChunk)[:begin+maskChunk]
		n, err := m.body.Read(m.buf[begin:])
		m.buf, m.err = replaceAll(m.buf[:begin+n], m.pairs), err
		m.clean = len(m.buf)
		if err == nil {
			m.clean -= m.begun()
		}
	}
	n := copy(p, m.buf[:m.clean])
	m.buf, m.clean = m.buf[n:], m.clean-n
	if m.clean == 0 && m.err != nil {
		return n, m.err
	}
	return n, nil
}

// begun returns how many bytes at the end of buf may be the beginning of a value.
func (m *masked) begun() int {
	most := 0
	for _, p := range m.pairs {
		for n := min(len(p.form)-1, len(m.buf)); n > most; n-- {
			if m.buf[len(m.buf)-n] == p.form[0] && bytes.HasPrefix(p.form, m.buf[len(m.buf)-n:]) {
				most = n
			}
		}
	}
	return most
}

// Close implements io.Closer.
func (m *masked) Close() error { return m.body.Close() }

// jsonText returns a text as it stands in a string of JSON.
func jsonText(s string) string {
	b, err := json.Marshal(s)
	if err != nil { // never: a string has JSON
		return s
	}
	return string(b[1 : len(b)-1])
}

// xmlText returns a text as it stands in XML.
func xmlText(s string) string {
	var b strings.Builder
	_ = xml.EscapeText(&b, []byte(s)) // the builder has no errors
	return b.String()
}

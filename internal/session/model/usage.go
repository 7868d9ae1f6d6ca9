package model

import (
	"bytes"
	"io"
	"mime"
	"net/http"
)

// Usage is the usage of one request.
type Usage struct {
	Model            string
	InputTokens      int64
	OutputTokens     int64
	CacheReadTokens  int64
	CacheWriteTokens int64
	Cost             float64 // list price in USD
	Unpriced         bool    // the price of the model is not known
}

// meter reads the usage and the result of a request from its answer in transit.
type meter struct {
	io.ReadCloser
	x      *exchange
	stream bool
	line   []byte // incomplete
	skip   bool   // ignore the rest of a line that is too long
	drop   bool   // an event was dropped: drop the empty line after it, too
	out    []byte // for the program, if lines are dropped
	err    error  // of the answer, after out
	events int64
	size   int64 // in bytes, so far
	length int64 // of the whole answer; -1 if it is not known
	answer answer
	noted  bool
	spent  bool
	closed bool
}

const (
	maxStreamLine = 8 << 20  // the last event of a response repeats all of it
	maxWhole      = 64 << 20 // bytes of an answer that is not a stream
)

// newMeter returns nil for answers without usage.
func newMeter(resp *http.Response, x *exchange) *meter {
	if resp.StatusCode != http.StatusOK || x.to.decode == nil || x.grant.Spend == nil && !x.to.told {
		return nil
	}
	kind, _, _ := mime.ParseMediaType(resp.Header.Get("Content-Type"))
	if kind != "text/event-stream" && kind != "application/json" {
		return nil
	}
	if x.drop {
		resp.Header.Del("Content-Length")
		resp.ContentLength = -1
	}
	return &meter{ReadCloser: resp.Body, x: x, stream: kind == "text/event-stream", length: resp.ContentLength}
}

// Read implements io.Reader.
func (m *meter) Read(b []byte) (int, error) {
	if m.stream && m.x.drop {
		return m.filter(b)
	}
	n, err := m.ReadCloser.Read(b)
	m.size += int64(n)
	if m.stream {
		m.lines(b[:n])
	} else if len(m.line)+n <= maxWhole {
		m.line = append(m.line, b[:n]...)
	}
	if !m.stream && (err == io.EOF || m.size == m.length) {
		m.whole()
	}
	return n, err
}

// filter is Read for an answer of which the program does not get all events.
func (m *meter) filter(b []byte) (int, error) {
	for len(m.out) == 0 && m.err == nil {
		buf := make([]byte, len(b))
		n, err := m.ReadCloser.Read(buf)
		m.size += int64(n)
		m.lines(buf[:n])
		if m.err = err; err != nil && !m.skip { // an incomplete line
			m.out = append(m.out, m.line...)
		}
	}
	n := copy(b, m.out)
	if m.out = m.out[n:]; len(m.out) > 0 {
		return n, nil
	}
	return n, m.err
}

// whole decodes an answer that is not a stream, once.
func (m *meter) whole() {
	if m.line != nil {
		m.decode(m.line)
	}
	m.line = nil
	m.spend()
}

// decode reads an event or a whole answer, and notes the result and the usage as soon as they are known: before the
// program can report the end.
func (m *meter) decode(data []byte) {
	m.events++
	m.x.to.decode(data, &m.answer)
	if m.answer.failed != nil || m.answer.done {
		m.note(m.answer.failed)
	}
	if m.stream && m.answer.ended {
		m.spend()
	}
}

// spend reports the usage, once.
func (m *meter) spend() {
	if !m.spent && m.x.grant.Spend != nil {
		m.x.grant.Spend(m.usage())
	}
	m.spent = true
}

// note notes the result of the request, once, except that a failure can follow a success.
func (m *meter) note(f *Failure) {
	if m.x.to.told && (!m.noted || f != nil) {
		m.x.note(f)
	}
	m.noted = true
}

// Close implements io.Closer. It reports the usage, even if the answer was aborted.
func (m *meter) Close() error {
	if m.closed {
		return m.ReadCloser.Close()
	}
	m.closed = true
	if !m.stream {
		m.whole()
	}
	m.line = nil
	if !m.noted && m.x.r.Context().Err() == nil { // the program is still there
		m.note(&Failure{Message: "the answer of the model's API broke off"})
	}
	m.spend()
	return m.ReadCloser.Close()
}

// usage returns the usage of the request. An answer that broke off has none in some APIs; it is estimated.
func (m *meter) usage() Usage {
	u := m.answer.usage
	if m.x.to.told {
		u.Model = m.x.model
	}
	if m.x.to.told && !m.answer.counted {
		u.InputTokens, u.OutputTokens = m.x.sent.n.Load()/bytesPerToken, m.size/bytesPerToken
		if m.stream { // an event for each token
			u.OutputTokens = m.events
		}
	}
	m.x.g.bill(m.x.api.provider, &u, m.answer)
	return u
}

// bytesPerToken is the usual length of a token of English text.
const bytesPerToken = 4

// lines decodes events.
func (m *meter) lines(b []byte) {
	for len(b) > 0 {
		text, after, whole := bytes.Cut(b, []byte{'\n'})
		if !m.skip {
			m.line = append(m.line, text...)
		} else if m.x.drop {
			m.out = append(m.out, text...)
		}
		if len(m.line) > maxStreamLine {
			if m.x.drop {
				m.out = append(m.out, m.line...)
			}
			m.line, m.skip = nil, true
		}
		if whole {
			m.event()
		}
		b = after
	}
}

// event ends a line.
func (m *meter) event() {
	data, ok := bytes.CutPrefix(m.line, []byte("data:"))
	if ok {
		m.decode(data)
	}
	if m.x.drop {
		empty := !m.skip && len(bytes.TrimSpace(m.line)) == 0
		dropped := ok && m.answer.extra || m.drop && empty
		if m.drop = ok && m.answer.extra; !dropped {
			m.out = append(append(m.out, m.line...), '\n')
		}
	}
	m.line, m.skip = m.line[:0], false
}

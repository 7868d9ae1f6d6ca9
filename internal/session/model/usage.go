package model

import (
	"bytes"
	"io"
	"mime"
	"net/http"
	"strings"
)

// Usage is the token usage of one request.
type Usage struct {
	Model            string
	InputTokens      int64
	OutputTokens     int64
	CacheReadTokens  int64
	CacheWriteTokens int64
}

// price is in USD per million tokens.
type price struct {
	family        string
	input, output float64
}

// prices by family. The first is the price that Claude Code 2.1.328 prints for that model. The
// others assume the usual ratio of their families and were not compared with a bill. An unknown
// model has the first price, so that a limit is reached too early rather than too late.
var prices = []price{{"opus", 4, 20}, {"sonnet", 3, 15}, {"haiku", 1, 5}}

// Prices of cached tokens, relative to an input token:
// https://docs.claude.com/en/docs/build-with-claude/prompt-caching.
const (
	cacheRead  = 0.1
	cacheWrite = 1.25
)

// Cost returns the list price of u in USD.
func (u Usage) Cost() float64 {
	p := prices[0]
	for _, known := range prices {
		if strings.Contains(u.Model, known.family) {
			p = known
		}
	}
	in := float64(u.InputTokens) + cacheRead*float64(u.CacheReadTokens) + cacheWrite*float64(u.CacheWriteTokens)
	return (in*p.input + float64(u.OutputTokens)*p.output) / 1e6
}

// meter reads the usage of a request from its answer in transit.
type meter struct {
	io.ReadCloser
	stream bool
	line   []byte // incomplete
	skip   bool   // ignore the rest of a line that is too long
	decode decode
	answer answer
	spend  func(Usage)
}

const (
	maxStreamLine = 1 << 20  // an event with usage has some hundred bytes
	maxWhole      = 16 << 20 // bytes of an answer that is not a stream
)

// newMeter returns nil for answers without usage.
func newMeter(resp *http.Response, to route, spend func(Usage)) *meter {
	if spend == nil || resp.StatusCode != http.StatusOK || to.decode == nil {
		return nil
	}
	kind, _, _ := mime.ParseMediaType(resp.Header.Get("Content-Type"))
	if kind != "text/event-stream" && kind != "application/json" {
		return nil
	}
	return &meter{ReadCloser: resp.Body, stream: kind == "text/event-stream", decode: to.decode, spend: spend}
}

// Read implements io.Reader.
func (m *meter) Read(b []byte) (int, error) {
	n, err := m.ReadCloser.Read(b)
	if m.stream {
		m.lines(b[:n])
	} else if len(m.line)+n <= maxWhole {
		m.line = append(m.line, b[:n]...)
	}
	return n, err
}

// Close implements io.Closer. It reports the usage, even if the answer was aborted.
func (m *meter) Close() error {
	if !m.stream {
		m.decode(m.line, &m.answer)
	}
	m.line = nil
	if m.spend != nil {
		m.spend(m.answer.usage)
		m.spend = nil
	}
	return m.ReadCloser.Close()
}

// lines decodes events.
func (m *meter) lines(b []byte) {
	for len(b) > 0 {
		text, after, whole := bytes.Cut(b, []byte{'\n'})
		if !m.skip {
			m.line = append(m.line, text...)
		}
		if len(m.line) > maxStreamLine {
			m.line, m.skip = nil, true
		}
		if whole {
			if data, ok := bytes.CutPrefix(m.line, []byte("data:")); ok {
				m.decode(data, &m.answer)
			}
			m.line, m.skip = m.line[:0], false
		}
		b = after
	}
}

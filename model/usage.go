package model

import (
	"bytes"
	"encoding/json"
	"io"
	"mime"
	"net/http"
	"strings"
)

// Usage is what one request has used.
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

// prices: the first is what Claude Code 2.1.328 prints for what that model has used; the others are taken to keep their families' usual
// distance, and were not compared with a bill. A model that is none of these is priced as the first: a limit is rather reached too early.
var prices = []price{{"opus", 4, 20}, {"sonnet", 3, 15}, {"haiku", 1, 5}}

// What tokens of the cache cost, in parts of a token of input: https://docs.claude.com/en/docs/build-with-claude/prompt-caching.
const (
	cacheRead  = 0.1
	cacheWrite = 1.25
)

// Cost returns what u has cost in USD, by list price.
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

// meter reads what a request has used on the answer's way.
type meter struct {
	io.ReadCloser
	stream bool
	line   []byte // begun
	skip   bool   // the rest of a line that is too long
	usage  Usage
	spend  func(Usage)
}

const (
	maxStreamLine = 1 << 20  // of an event that has usage: some hundred bytes
	maxWhole      = 16 << 20 // of an answer that is not a stream
)

// newMeter returns nil for what uses nothing.
func newMeter(resp *http.Response, spend func(Usage)) *meter {
	if spend == nil || resp.StatusCode != http.StatusOK || resp.Request.Method != http.MethodPost || strings.HasSuffix(resp.Request.URL.Path, "/count_tokens") {
		return nil
	}
	kind, _, _ := mime.ParseMediaType(resp.Header.Get("Content-Type"))
	if kind != "text/event-stream" && kind != "application/json" {
		return nil
	}
	return &meter{ReadCloser: resp.Body, stream: kind == "text/event-stream", spend: spend}
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

// Close implements io.Closer, and tells what was used, also if the answer broke off.
func (m *meter) Close() error {
	if !m.stream {
		m.note(m.line)
	}
	m.line = nil
	if m.spend != nil {
		m.spend(m.usage)
		m.spend = nil
	}
	return m.ReadCloser.Close()
}

// lines looks for events that have usage.
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
			if data, ok := bytes.CutPrefix(m.line, []byte("data:")); ok && bytes.Contains(data, []byte(`"usage"`)) {
				m.note(data)
			}
			m.line, m.skip = m.line[:0], false
		}
		b = after
	}
}

// used is the usage of a message. The last one that is told counts; a message_delta tells of what has changed only.
type used struct {
	Input      *int64 `json:"input_tokens"`
	Output     *int64 `json:"output_tokens"`
	CacheRead  *int64 `json:"cache_read_input_tokens"`
	CacheWrite *int64 `json:"cache_creation_input_tokens"`
}

// note reads message_start, message_delta, or a whole message.
func (m *meter) note(data []byte) {
	var e struct {
		Message *struct {
			Model string `json:"model"`
			Usage used   `json:"usage"`
		} `json:"message"`
		Model string `json:"model"`
		Usage used   `json:"usage"`
	}
	if json.Unmarshal(data, &e) != nil {
		return
	}
	u, model := e.Usage, e.Model
	if e.Message != nil {
		u, model = e.Message.Usage, e.Message.Model
	}
	if model != "" {
		m.usage.Model = model
	}
	for _, f := range []struct {
		to   *int64
		from *int64
	}{{&m.usage.InputTokens, u.Input}, {&m.usage.OutputTokens, u.Output}, {&m.usage.CacheReadTokens, u.CacheRead}, {&m.usage.CacheWriteTokens, u.CacheWrite}} {
		if f.from != nil && *f.from >= 0 {
			*f.to = *f.from
		}
	}
}

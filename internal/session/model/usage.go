package model

import (
	"bytes"
	"encoding/json"
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
	usage  Usage
	spend  func(Usage)
}

const (
	maxStreamLine = 1 << 20  // an event with usage has some hundred bytes
	maxWhole      = 16 << 20 // bytes of an answer that is not a stream
)

// newMeter returns nil for answers without usage.
func newMeter(resp *http.Response, spend func(Usage)) *meter {
	if spend == nil || resp.StatusCode != http.StatusOK || resp.Request.Method != http.MethodPost ||
		strings.HasSuffix(resp.Request.URL.Path, "/count_tokens") {
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

// Close implements io.Closer. It reports the usage, even if the answer was aborted.
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

// lines parses events that have usage.
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

// used is the usage in a message. The last value of each field counts; a message_delta has only
// changed fields.
type used struct {
	Input      *int64 `json:"input_tokens"`
	Output     *int64 `json:"output_tokens"`
	CacheRead  *int64 `json:"cache_read_input_tokens"`
	CacheWrite *int64 `json:"cache_creation_input_tokens"`
}

// note parses message_start, message_delta, or a whole message.
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
	}{{&m.usage.InputTokens, u.Input}, {&m.usage.OutputTokens, u.Output}, {&m.usage.CacheReadTokens, u.CacheRead},
		{&m.usage.CacheWriteTokens, u.CacheWrite}} {
		if f.from != nil && *f.from >= 0 {
			*f.to = *f.from
		}
	}
}

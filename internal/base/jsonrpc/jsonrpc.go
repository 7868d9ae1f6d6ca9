// Package jsonrpc reads and writes messages of JSON-RPC, one a line, as programs of the Agent Client Protocol do. It is
// lenient: a field of an unexpected type is empty, the others count.
package jsonrpc

import (
	"bufio"
	"bytes"
	"encoding/json"
	"io"
	"strconv"
	"strings"

	"github.com/RelevanceAI/harvest/client/errors"
)

// MaxLine is the limit of a line. The content of a longer line is lost, but nothing after it.
const MaxLine = 64 << 20

// Codes of errors (https://www.jsonrpc.org/specification, https://agentclientprotocol.com/protocol/schema).
const (
	ParseError       = -32700
	InvalidRequest   = -32600
	MethodNotFound   = -32601
	InvalidParams    = -32602
	InternalError    = -32603
	AuthRequired     = -32000
	NotFound         = -32002
	RequestCancelled = -32800
)

// Message is a message of JSON-RPC. Programs deviate from the schema, so that only the fields for dispatch have a type.
type Message struct {
	ID     json.RawMessage `json:"id"`
	Method string          `json:"method"`
	Params json.RawMessage `json:"params"`
	Result json.RawMessage `json:"result"`
	Error  json.RawMessage `json:"error"`
}

// Failure is the error of an answer. Its code may be any value: Gemini sends the status of HTTP.
type Failure struct {
	Code    json.RawMessage `json:"code"`
	Message string          `json:"message"`
	Data    json.RawMessage `json:"data"`
}

// Is reports whether the error has a code.
func (f Failure) Is(code int) bool { return f.Number() == strconv.Itoa(code) }

// Number returns the code as text.
func (f Failure) Number() string { return strings.Trim(string(f.Code), `"`) }

// Text returns the message and the details.
func (f Failure) Text() string {
	var data struct{ Details, Message string }
	Decode(f.Data, &data)
	text := f.Message
	for _, more := range []string{data.Details, data.Message} {
		if more != "" && !strings.Contains(text, more) {
			text = strings.TrimPrefix(text+": "+more, ": ")
		}
	}
	if text == "" {
		text = "error " + f.Number()
	}
	return text
}

// Failed returns the error of an answer.
func (m *Message) Failed() (Failure, bool) {
	if len(m.Error) == 0 || string(m.Error) == "null" {
		return Failure{}, false
	}
	var f Failure
	Decode(m.Error, &f)
	return f, true
}

// Decode decodes the fields that have the expected type, and leaves the others.
func Decode(data json.RawMessage, into any) bool {
	if len(data) == 0 {
		return false
	}
	err := json.Unmarshal(data, into)
	var mismatch *json.UnmarshalTypeError
	return err == nil || errors.As(err, &mismatch)
}

// Parse returns the message of a line; ok is false for a line without one.
func Parse(line []byte) (m Message, ok bool) {
	if err := json.Unmarshal(line, &m); err != nil {
		return Message{}, false
	}
	return m, m.Method != "" || len(m.ID) > 0 && string(m.ID) != "null"
}

// Line is a line of input.
type Line struct {
	Text []byte
	Cut  bool // the line was longer than the limit
}

// ReadLines passes on the lines of r until its end.
func ReadLines(r io.Reader, limit int, each func(Line)) {
	in := bufio.NewReaderSize(r, 64<<10)
	var line []byte
	cut := false
	for {
		part, err := in.ReadSlice('\n')
		if cut = cut || len(line)+len(part) > limit; !cut {
			line = append(line, part...)
		}
		if errors.Is(err, bufio.ErrBufferFull) {
			continue
		}
		if line = bytes.TrimSpace(line); len(line) > 0 || cut {
			each(Line{Text: line, Cut: cut})
		}
		line, cut = nil, false
		if err != nil {
			return
		}
	}
}

// NewRequest returns the line of a request or, with a nil id, of a notification.
func NewRequest(id any, method string, params any) []byte {
	m := map[string]any{"jsonrpc": "2.0", "method": method, "params": params}
	if id != nil {
		m["id"] = id
	}
	return Encode(m)
}

// NewAnswer returns the line of an answer.
func NewAnswer(id json.RawMessage, result any) []byte {
	return Encode(map[string]any{"jsonrpc": "2.0", "id": id, "result": result})
}

// NewError returns the line of an answer that is an error.
func NewError(id json.RawMessage, code int, text string) []byte {
	return Encode(map[string]any{"jsonrpc": "2.0", "id": id, "error": map[string]any{"code": code, "message": text}})
}

// Encode returns a value as a line.
func Encode(v any) []byte {
	data, err := json.Marshal(v)
	if err != nil { // unexpected: strings, numbers, and JSON that was decoded before
		return nil
	}
	return append(data, '\n')
}

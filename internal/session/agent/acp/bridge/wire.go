package bridge

import (
	"bufio"
	"bytes"
	"encoding/json"
	"io"
	"strings"

	"github.com/RelevanceAI/harvest/client/errors"
)

const (
	// maxLine is the limit of a line of the agent. The content of a longer line is lost, but nothing after it.
	maxLine = 64 << 20
	maxRaw  = 4 << 10 // bytes of an unrecognized line that become an event
)

// Codes of errors (https://www.jsonrpc.org/specification, https://agentclientprotocol.com/protocol/schema).
const (
	methodNotFound = -32601
	authRequired   = "-32000"
)

// message is a message of JSON-RPC. Agents deviate from the schema, so that only the fields for dispatch have a type.
type message struct {
	ID     json.RawMessage `json:"id"`
	Method string          `json:"method"`
	Params json.RawMessage `json:"params"`
	Result json.RawMessage `json:"result"`
	Error  json.RawMessage `json:"error"`
}

// failure is the error of an answer. Its code may be any value: Gemini sends the status of HTTP.
type failure struct {
	Code    json.RawMessage `json:"code"`
	Message string          `json:"message"`
	Data    json.RawMessage `json:"data"`
}

// code returns the code as text.
func (f failure) code() string { return strings.Trim(string(f.Code), `"`) }

// text returns the message and the details.
func (f failure) text() string {
	var data struct{ Details, Message string }
	decode(f.Data, &data)
	text := f.Message
	for _, more := range []string{data.Details, data.Message} {
		if more != "" && !strings.Contains(text, more) {
			text = strings.TrimPrefix(text+": "+more, ": ")
		}
	}
	if text == "" {
		text = "error " + f.code()
	}
	return text
}

// failed returns the error of an answer.
func (m *message) failed() (failure, bool) {
	if len(m.Error) == 0 || string(m.Error) == "null" {
		return failure{}, false
	}
	var f failure
	decode(m.Error, &f)
	return f, true
}

// decode decodes the fields that have the expected type, and leaves the others.
func decode(data json.RawMessage, into any) bool {
	if len(data) == 0 {
		return false
	}
	err := json.Unmarshal(data, into)
	var mismatch *json.UnmarshalTypeError
	return err == nil || errors.As(err, &mismatch)
}

// parse returns the message of a line; ok is false for a line without one.
func parse(line []byte) (m message, ok bool) {
	if err := json.Unmarshal(line, &m); err != nil {
		return message{}, false
	}
	return m, m.Method != "" || len(m.ID) > 0 && string(m.ID) != "null"
}

// input is a line of the agent.
type input struct {
	text []byte
	cut  bool // the line was longer than maxLine
}

// readLines passes on the lines of r until its end.
func readLines(r io.Reader, limit int, each func(input)) {
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
			each(input{text: line, cut: cut})
		}
		line, cut = nil, false
		if err != nil {
			return
		}
	}
}

// newRequest returns the line of a request or, with a nil id, of a notification.
func newRequest(id any, method string, params any) []byte {
	m := map[string]any{"jsonrpc": "2.0", "method": method, "params": params}
	if id != nil {
		m["id"] = id
	}
	return encode(m)
}

func newAnswer(id json.RawMessage, result any) []byte {
	return encode(map[string]any{"jsonrpc": "2.0", "id": id, "result": result})
}

func newError(id json.RawMessage, code int, text string) []byte {
	return encode(map[string]any{"jsonrpc": "2.0", "id": id, "error": map[string]any{"code": code, "message": text}})
}

func encode(v any) []byte {
	data, err := json.Marshal(v)
	if err != nil { // unexpected: strings, numbers, and JSON that was decoded before
		return nil
	}
	return append(data, '\n')
}

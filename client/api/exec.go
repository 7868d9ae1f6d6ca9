package api

import (
	"bytes"
	"encoding/base64"
	"encoding/json"
	"time"
	"unicode/utf8"
)

// ExecRequest is the body of POST /v1/sandboxes/{id}/exec, and the first message of a stream.
type ExecRequest struct {
	Args []string `json:"args,omitempty"` // the program and its arguments; with Code, the arguments that the code sees
	Code string   `json:"code,omitempty"` // Python, instead of a program

	Stdin string `json:"stdin,omitempty"` // not for streams, which use messages
	// NoStdin, for a stream, makes the input empty: no messages with input follow.
	NoStdin        bool              `json:"no_stdin,omitempty"`
	Env            map[string]string `json:"env,omitempty"`
	Workdir        string            `json:"workdir,omitempty"`
	User           string            `json:"user,omitempty"`
	TimeoutSeconds float64           `json:"timeout_seconds,omitempty"` // 0 means the default
	Terminal       *Size             `json:"terminal,omitempty"`
	// Detach makes the response Started; the command continues in the background.
	Detach bool `json:"detach,omitempty"`
	// Capture, for a stream, returns the output in the Result, not as messages.
	Capture bool `json:"capture,omitempty"`
}

// AttachRequest is the first message of a stream that attaches to a command that was started earlier.
type AttachRequest struct {
	ProcessID string `json:"process_id"`
	// Offset is how many bytes of the output, of both streams together, the client already has. The server sends the
	// output after them.
	Offset int64 `json:"offset,omitempty"`
	// Attachment is the client's name for this attachment, of at most 64 bytes. A client whose connection broke
	// reconnects with the same name: the command's output waits for it for a short time, and the earlier connection
	// ends. "" for none.
	Attachment string `json:"attachment,omitempty"`
}

// RunRequest is the body of POST /v1/run, and the first message of its stream: a sandbox for one command.
type RunRequest struct {
	ExecRequest
	Sandbox SandboxRequest `json:"sandbox"`
	Keep    bool           `json:"keep,omitempty"` // keep the sandbox after the command has ended
}

// Size of a terminal, in characters.
type Size struct {
	Rows int `json:"rows"`
	Cols int `json:"cols"`
}

// Result is the result of a command.
type Result struct {
	ReturnCode  int     `json:"returncode"` // 128+n if a signal killed it, 124 after a time limit
	Stdout      string  `json:"stdout"`
	Stderr      string  `json:"stderr"`
	Duration    float64 `json:"duration_secs"`
	SandboxID   string  `json:"sandbox_id"`
	TimedOut    bool    `json:"timed_out"`
	Signal      string  `json:"signal,omitempty"`
	OutOfMemory bool    `json:"out_of_memory,omitempty"`
	Truncated   bool    `json:"truncated,omitempty"` // the middle of Stdout or Stderr is missing, or other output
	// Reason is one sentence, set if the command's end was not caused by the command itself.
	Reason string `json:"reason,omitempty"`
	// Crashed lists processes of the command that died of a signal such as SIGSEGV that no process had sent.
	Crashed string `json:"crashed,omitempty"`
	// Encoding is "base64" if Stdout or Stderr is not UTF-8: then both are encoded. Go programs receive them decoded.
	Encoding string `json:"encoding,omitempty"`
}

// Why returns the reason for the failure of a command if its output does not contain it: Reason, or Crashed.
func (r Result) Why() string {
	if r.Reason == "" && r.ReturnCode != 0 {
		return r.Crashed
	}
	return r.Reason
}

// MarshalJSON encodes output that is not UTF-8.
func (r Result) MarshalJSON() ([]byte, error) {
	type plain Result
	if r.Encoding = ""; !utf8.ValidString(r.Stdout) || !utf8.ValidString(r.Stderr) {
		r.Encoding = EncodingBase64
		r.Stdout, r.Stderr = base64.StdEncoding.EncodeToString([]byte(r.Stdout)),
			base64.StdEncoding.EncodeToString([]byte(r.Stderr))
	}
	var b bytes.Buffer
	out := json.NewEncoder(&b)
	out.SetEscapeHTML(false)
	err := out.Encode(plain(r))
	return bytes.TrimSuffix(b.Bytes(), []byte("\n")), err
}

// UnmarshalJSON decodes output that MarshalJSON has encoded.
func (r *Result) UnmarshalJSON(data []byte) error {
	type plain Result
	var got plain
	if err := json.Unmarshal(data, &got); err != nil {
		return err
	}
	if got.Encoding == EncodingBase64 {
		for _, text := range []*string{&got.Stdout, &got.Stderr} {
			raw, err := base64.StdEncoding.DecodeString(*text)
			if err != nil {
				return err
			}
			*text = string(raw)
		}
		got.Encoding = ""
	}
	*r = Result(got)
	return nil
}

// EncodingBase64 marks output that is not UTF-8.
const EncodingBase64 = "base64"

// Started contains the IDs with which a client can attach to the command later.
type Started struct {
	SandboxID string `json:"sandbox_id"`
	ProcessID string `json:"process_id"`
}

// Output is the data of the events stdout and stderr.
type Output struct {
	Data     string `json:"data"`
	Encoding string `json:"encoding"` // "utf-8", or "base64" for bytes that are not UTF-8
}

// Process is a command that was started in a sandbox.
type Process struct {
	ID       string    `json:"id"`
	Args     []string  `json:"args"`
	Terminal bool      `json:"terminal,omitempty"`
	Started  time.Time `json:"started_at"`
	Exit     *Exit     `json:"exit,omitempty"` // nil while it runs
}

// Exit is the end of a Process.
type Exit struct {
	Code        int    `json:"code"`
	Signal      string `json:"signal,omitempty"`
	OutOfMemory bool   `json:"out_of_memory,omitempty"`
	OutOfSpace  bool   `json:"out_of_space,omitempty"` // killed while a volume grew beyond the disk limit
	InputLost   bool   `json:"input_lost,omitempty"`   // killed because its input was lost when the server ended
	Crashed     string `json:"crashed,omitempty"`      // as in Result
}

// A stream is a WebSocket of binary messages. The first byte of a message identifies the stream to which it belongs.
// Only the client's first message, the request, is plain JSON.
const (
	StreamStdin   byte = 0
	StreamStdout  byte = 1
	StreamStderr  byte = 2
	StreamControl byte = 3 // Control, in both directions
	StreamEnd     byte = 4 // End, the server's last message
)

// Control is a message other than data; one field is set.
type Control struct {
	// From the client.
	Signal   string `json:"signal,omitempty"`
	Resize   *Size  `json:"resize,omitempty"`
	StdinEOF bool   `json:"stdin_eof,omitempty"`
	Kill     bool   `json:"kill,omitempty"`

	// From the server.
	// The command has started; sent before any output, except when attaching.
	Started  *Started  `json:"started,omitempty"`
	Progress *Progress `json:"progress,omitempty"`
	// StdinRead is the number of bytes that the command has read: the client may send as many more.
	StdinRead int   `json:"stdin_read,omitempty"`
	Truncated int64 `json:"truncated_bytes,omitempty"` // bytes that are missing before the output that follows
}

// End is the last message of a stream; one field is set. A stream that ends without it says nothing about the
// command.
type End struct {
	Exit    *Result  `json:"exit,omitempty"`
	Problem *Problem `json:"problem,omitempty"`
}

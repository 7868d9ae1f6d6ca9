package client

import (
	"context"
	"encoding/json"
	"io"
	"strconv"
	"sync"
	"unicode/utf8"

	"github.com/coder/websocket"

	"github.com/RelevanceAI/harvest/api"
	"github.com/RelevanceAI/harvest/errors"
)

// Streams is what a command is connected to. Every field may be nil: an empty input, output that is dropped.
type Streams struct {
	Stdin          io.Reader
	Stdout, Stderr io.Writer
	Progress       func(api.Progress) // of building an image before the command
	Truncated      func(bytes int64)  // of Attach: so much of the beginning is no longer kept
	Started        func(*Process)     // the command runs; except for Attach, before any of its output
}

// Process is a command whose input and output are connected. All methods may be called concurrently.
type Process struct {
	conn    *websocket.Conn
	ctx     context.Context
	cancel  context.CancelFunc
	streams Streams

	begun   chan struct{} // closed when started is set
	ended   chan struct{} // closed when result and err are set
	started api.Started
	result  api.Result
	err     error

	mu    sync.Mutex
	more  sync.Cond
	space int  // guarded by mu: bytes of input that the server has room for
	over  bool // guarded by mu
}

// Start starts a command in a sandbox and returns when it runs. When ctx ends, the connection does, and so does the command
// unless it is detached.
func (c *Client) Start(ctx context.Context, ref string, req api.ExecRequest, streams Streams) (*Process, error) {
	if err := checkText(req); err != nil {
		return nil, err
	}
	return c.open(ctx, api.Path(api.SandboxExec, ref), req, streams)
}

// Attach connects to a command that was started earlier: all output that is kept comes, then what follows. The end of ctx
// ends the connection only. The command's input stays as it is.
func (c *Client) Attach(ctx context.Context, ref, processID string, streams Streams) (*Process, error) {
	return c.open(ctx, api.Path(api.SandboxExec, ref), api.AttachRequest{ProcessID: processID}, streams)
}

// Run starts a command in a sandbox of its own, which ends with it, as Start does otherwise.
func (c *Client) Run(ctx context.Context, req api.RunRequest, streams Streams) (*Process, error) {
	if err := checkText(req.ExecRequest); err != nil {
		return nil, err
	}
	return c.open(ctx, api.Run, req, streams)
}

// checkText returns Invalid if req has bytes that JSON would silently change.
func checkText(req api.ExecRequest) error {
	texts := map[string]string{"the code": req.Code, "the standard input": req.Stdin}
	for i, arg := range req.Args {
		texts["argument "+strconv.Itoa(i)] = arg
	}
	for name, value := range req.Env {
		texts["the environment variable "+strconv.Quote(name)] = name + value
	}
	for what, text := range texts {
		if !utf8.ValidString(text) {
			return errors.Remedy(errors.Newf(errors.Invalid, "%s is not UTF-8", what), "pass other bytes in a file, or as the input of a stream")
		}
	}
	return nil
}

func (c *Client) open(ctx context.Context, path string, first any, streams Streams) (*Process, error) {
	data, err := json.Marshal(first)
	if err != nil {
		return nil, errors.Explainf(err, errors.Invalid, "the request cannot be written as JSON")
	}
	if len(data) > api.MaxExec {
		return nil, errors.Remedy(errors.Newf(errors.Invalid, "the request takes %d bytes, %d are allowed", len(data), api.MaxExec),
			"copy large files into a volume or the sandbox instead")
	}
	conn, resp, err := websocket.Dial(ctx, c.base+path, &websocket.DialOptions{HTTPClient: c.http, HTTPHeader: c.header.Clone()})
	if err != nil {
		if resp != nil && resp.StatusCode >= 300 {
			return nil, failure(resp)
		}
		return nil, broken(err)
	}
	conn.SetReadLimit(-1) // results are bounded by the server
	p := &Process{conn: conn, streams: streams, space: api.Window, begun: make(chan struct{}), ended: make(chan struct{})}
	p.more.L = &p.mu
	p.ctx, p.cancel = context.WithCancel(ctx)
	if err := conn.Write(p.ctx, websocket.MessageText, data); err != nil {
		p.cancel()
		conn.CloseNow()
		return nil, broken(err)
	}
	go p.receive()
	select {
	case <-p.begun:
		go p.feed()
		return p, nil
	case <-p.ended:
		return nil, p.err
	}
}

// ID names the process within its sandbox, for Attach.
func (p *Process) ID() string { return p.started.ProcessID }

// SandboxID is the sandbox's.
func (p *Process) SandboxID() string { return p.started.SandboxID }

// Wait returns how the command ended, after the last byte of its output was written. An error means that we do not know how
// it ended. The end of ctx ends the waiting only.
func (p *Process) Wait(ctx context.Context) (api.Result, error) {
	select {
	case <-p.ended:
		return p.result, p.err
	case <-ctx.Done():
		return api.Result{}, ctx.Err()
	}
}

// Signal sends a signal by its name, such as "TERM".
func (p *Process) Signal(name string) error { return p.control(api.Control{Signal: name}) }

// Resize sets the size of the terminal.
func (p *Process) Resize(size api.Size) error { return p.control(api.Control{Resize: &size}) }

// Kill ends the command and everything that it started.
func (p *Process) Kill() error { return p.control(api.Control{Kill: true}) }

func (p *Process) control(c api.Control) error {
	data, err := json.Marshal(c)
	if err != nil {
		return errors.Wrapf(err, "encode a control message")
	}
	return broken(p.write(api.StreamControl, data))
}

func (p *Process) write(id byte, data []byte) error {
	return p.conn.Write(p.ctx, websocket.MessageBinary, append([]byte{id}, data...))
}

// receive takes the server's messages until the last one.
func (p *Process) receive() {
	res, err := p.messages()
	if err != nil {
		if cause := p.ctx.Err(); cause != nil {
			err = errors.Explainf(cause, errors.KindOf(cause), "the connection was given up")
		}
		p.conn.CloseNow()
	} else {
		_ = p.conn.Close(websocket.StatusNormalClosure, "")
	}
	p.result, p.err = res, err
	p.mu.Lock()
	p.over = true
	p.more.Broadcast()
	p.mu.Unlock()
	p.cancel()
	close(p.ended)
}

func (p *Process) messages() (api.Result, error) {
	begun := false
	for {
		_, msg, err := p.conn.Read(p.ctx)
		if err != nil {
			return api.Result{}, broken(err)
		}
		if len(msg) == 0 {
			continue
		}
		switch data := msg[1:]; msg[0] {
		case api.StreamStdout:
			err = emit(p.streams.Stdout, data)
		case api.StreamStderr:
			err = emit(p.streams.Stderr, data)
		case api.StreamControl:
			var c api.Control
			if err = broken(json.Unmarshal(data, &c)); err == nil && p.told(c) && !begun {
				begun = true
				if p.streams.Started != nil {
					p.streams.Started(p)
				}
				close(p.begun)
			}
		case api.StreamEnd:
			return end(data)
		}
		if err != nil {
			return api.Result{}, err
		}
	}
}

func end(data []byte) (api.Result, error) {
	var e api.End
	if err := json.Unmarshal(data, &e); err != nil {
		return api.Result{}, broken(err)
	}
	if e.Problem != nil {
		return api.Result{}, Error(*e.Problem)
	}
	if e.Exit == nil {
		return api.Result{}, broken(io.ErrUnexpectedEOF)
	}
	return *e.Exit, nil
}

// told handles a control message, and reports whether it was that the command has started.
func (p *Process) told(c api.Control) bool {
	if c.Progress != nil && p.streams.Progress != nil {
		p.streams.Progress(*c.Progress)
	}
	if c.Truncated > 0 && p.streams.Truncated != nil {
		p.streams.Truncated(c.Truncated)
	}
	if c.StdinRead > 0 {
		p.mu.Lock()
		p.space += c.StdinRead
		p.more.Broadcast()
		p.mu.Unlock()
	}
	if c.Started != nil {
		p.started = *c.Started
	}
	return c.Started != nil
}

func emit(w io.Writer, data []byte) error {
	if w == nil {
		return nil
	}
	_, err := w.Write(data)
	return errors.Wrapf(err, "write the command's output")
}

// feed sends the input as fast as the command takes it. It may outlive the command by the Read that it is in.
func (p *Process) feed() {
	if p.streams.Stdin != nil {
		buf := make([]byte, api.Chunk)
		for {
			n, err := p.streams.Stdin.Read(buf)
			if n > 0 && (!p.reserve(n) || p.write(api.StreamStdin, buf[:n]) != nil) {
				return
			}
			if err != nil {
				break
			}
		}
	}
	_ = p.control(api.Control{StdinEOF: true})
}

// reserve waits until the server has room for n bytes, and reports false if the command has ended instead.
func (p *Process) reserve(n int) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	for p.space < n && !p.over {
		p.more.Wait()
	}
	p.space -= n
	return !p.over
}

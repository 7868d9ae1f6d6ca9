package client

import (
	"context"
	"crypto/rand"
	"encoding/json"
	"io"
	"strconv"
	"sync"
	"unicode/utf8"

	"github.com/coder/websocket"

	"github.com/RelevanceAI/harvest/client/api"
	"github.com/RelevanceAI/harvest/client/errors"
)

// Streams are the streams of a command. Every field may be nil: empty input, discarded output.
type Streams struct {
	Stdin          io.Reader
	Stdout, Stderr io.Writer
	Progress       func(api.Progress) // of an image build before the command
	Truncated      func(bytes int64)  // bytes that are missing before the output that follows
	Broken         func(error)        // of Attach: the connection broke, and the client reconnects
	Started        func(*Process)     // the command has started; except for Attach, called before any output
}

// Process is a command whose input and output are connected. All methods may be called concurrently.
type Process struct {
	ctx     context.Context
	cancel  context.CancelFunc
	streams Streams

	begun   chan struct{} // closed when started is set
	ended   chan struct{} // closed when result and err are set
	started api.Started
	result  api.Result
	err     error

	again bool  // reconnect when the connection breaks
	at    int64 // of Attach: bytes of output received or no longer kept; only receive uses it

	mu    sync.Mutex
	more  sync.Cond
	conn  *websocket.Conn // guarded by mu: nil while not connected
	space int             // guarded by mu: bytes of input that the server can accept
	over  bool            // guarded by mu
}

// Start starts a command in a sandbox and returns when it has started. When ctx ends, the connection is closed, and
// the command is killed unless it is detached.
func (c *Client) Start(ctx context.Context, ref string, req api.ExecRequest, streams Streams) (*Process, error) {
	if err := checkText(req); err != nil {
		return nil, err
	}
	req.NoStdin = streams.Stdin == nil
	return c.start(ctx, api.Path(api.SandboxExec, ref), req, streams)
}

// Attach connects to a command that was started earlier. It writes all output that is kept, and then new output. When
// ctx ends, only the connection ends. The command's input is not connected.
//
// Attach reconnects a broken connection until ctx ends, even if the server restarts. No output is repeated, and none
// is lost except as reported to Truncated. Signal, Resize and Kill wait for the next connection; messages sent just
// before a connection breaks may be lost.
func (c *Client) Attach(ctx context.Context, ref, processID string, streams Streams) (*Process, error) {
	streams.Stdin = nil
	p := newProcess(ctx, streams)
	p.again = true
	req := api.AttachRequest{ProcessID: processID, Attachment: rand.Text()}
	go p.receive(func() (res api.Result, err error) {
		err = c.resume(p.ctx, func(l *link) error {
			req.Offset = p.at
			before := p.at
			res, err = c.session(p, api.Path(api.SandboxExec, ref), req)
			if p.at > before {
				l.pause = firstAgain
			}
			switch kind := errors.KindOf(err); {
			case err == nil:
				return stopped(errNoMore)
			case !p.hasBegun() || p.ctx.Err() != nil:
				return stopped(err)
			case kind == errors.Exhausted: // too many clients reconnected at once
				err = errors.Explainf(err, errors.Unavailable, "%s", errors.Message(err))
			}
			l.ever = true
			if streams.Broken != nil && errors.KindOf(err) == errors.Unavailable {
				streams.Broken(err)
			}
			return err
		})
		if errors.Is(err, errNoMore) {
			err = nil
		}
		return res, err
	})
	return p.wait()
}

// Run starts a command in a new sandbox, which is destroyed with it. Otherwise it is like Start.
func (c *Client) Run(ctx context.Context, req api.RunRequest, streams Streams) (*Process, error) {
	if err := checkText(req.ExecRequest); err != nil {
		return nil, err
	}
	req.NoStdin = streams.Stdin == nil
	return c.start(ctx, api.Run, req, streams)
}

// checkText returns Invalid if req contains bytes that JSON encoding would change silently.
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
			return errors.Remedy(errors.Newf(errors.Invalid, "%s: not UTF-8", what),
				"pass other bytes in a file, or as the input of a stream")
		}
	}
	return nil
}

// start opens a connection whose first message starts a command.
func (c *Client) start(ctx context.Context, path string, first any, streams Streams) (*Process, error) {
	p := newProcess(ctx, streams)
	go p.receive(func() (api.Result, error) { return c.session(p, path, first) })
	return p.wait()
}

func newProcess(ctx context.Context, streams Streams) *Process {
	p := &Process{streams: streams, space: api.Window, begun: make(chan struct{}), ended: make(chan struct{})}
	p.more.L = &p.mu
	p.ctx, p.cancel = context.WithCancel(ctx)
	return p
}

// wait returns p when its command has started.
func (p *Process) wait() (*Process, error) {
	select {
	case <-p.begun:
		if !p.again {
			go p.feed()
		}
		return p, nil
	case <-p.ended:
		return nil, p.err
	}
}

func (p *Process) hasBegun() bool {
	select {
	case <-p.begun:
		return true
	default:
		return false
	}
}

// session runs one connection of p, from its first message to the last.
func (c *Client) session(p *Process, path string, first any) (api.Result, error) {
	conn, err := c.open(p.ctx, path, first)
	if err != nil {
		return api.Result{}, err
	}
	res, err := p.messages(conn)
	if err != nil {
		conn.CloseNow()
	} else {
		_ = conn.Close(websocket.StatusNormalClosure, "")
	}
	p.use(nil)
	return res, err
}

// open opens a connection and sends its first message.
func (c *Client) open(ctx context.Context, path string, first any) (*websocket.Conn, error) {
	data, err := json.Marshal(first)
	if err != nil {
		return nil, errors.Explainf(err, errors.Invalid, "cannot encode the request as JSON")
	}
	if len(data) > api.MaxExec {
		return nil, errors.Remedy(errors.Newf(errors.Invalid, "the request has %d bytes, more than the maximum of %d",
			len(data), api.MaxExec),
			"copy large files into a volume or the sandbox instead")
	}
	conn, resp, err := websocket.Dial(ctx, c.base+path, &websocket.DialOptions{HTTPClient: c.http,
		HTTPHeader: c.header.Clone()})
	if err != nil {
		if resp != nil && resp.StatusCode >= 300 {
			return nil, failure(resp)
		}
		return nil, broken(err)
	}
	conn.SetReadLimit(-1) // the server bounds the size of results
	if err := conn.Write(ctx, websocket.MessageText, data); err != nil {
		conn.CloseNow()
		return nil, broken(err)
	}
	return conn, nil
}

// ID identifies the process within its sandbox, for Attach.
func (p *Process) ID() string { return p.started.ProcessID }

// SandboxID returns the ID of the sandbox.
func (p *Process) SandboxID() string { return p.started.SandboxID }

// Wait returns the result of the command, after the last byte of its output was written. An error means that the
// result is unknown. When ctx ends, only the waiting ends.
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

// Kill kills the command and all its descendants.
func (p *Process) Kill() error { return p.control(api.Control{Kill: true}) }

func (p *Process) control(c api.Control) error {
	data, err := json.Marshal(c)
	if err != nil {
		return errors.Wrapf(err, "encode a control message")
	}
	return broken(p.write(api.StreamControl, data))
}

// write sends a message. If there is no connection and the client reconnects, write waits for the next connection.
func (p *Process) write(id byte, data []byte) error {
	p.mu.Lock()
	for p.conn == nil && p.again && !p.over {
		p.more.Wait()
	}
	conn := p.conn
	p.mu.Unlock()
	if conn == nil {
		return errors.Newf(errors.Unavailable, "the connection has ended")
	}
	return conn.Write(p.ctx, websocket.MessageBinary, append([]byte{id}, data...))
}

// use sets the connection for write.
func (p *Process) use(conn *websocket.Conn) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.conn = conn
	p.more.Broadcast()
}

// receive calls serve, which returns after the last message, and sets the result of the command.
func (p *Process) receive(serve func() (api.Result, error)) {
	res, err := serve()
	if err != nil {
		if cause := p.ctx.Err(); cause != nil {
			err = errors.Explainf(cause, errors.KindOf(cause), "the connection was aborted")
		}
	}
	p.result, p.err = res, err
	p.mu.Lock()
	p.over = true
	p.more.Broadcast()
	p.mu.Unlock()
	p.cancel()
	close(p.ended)
}

// messages handles the messages of a connection until the last one.
func (p *Process) messages(conn *websocket.Conn) (api.Result, error) {
	buf := make([]byte, api.Chunk)
	for {
		_, msg, err := conn.Reader(p.ctx)
		if err != nil {
			return api.Result{}, broken(err)
		}
		if _, err := io.ReadFull(msg, buf[:1]); err == io.EOF {
			continue
		} else if err != nil {
			return api.Result{}, broken(err)
		}
		id := buf[0]
		if id == api.StreamStdout || id == api.StreamStderr {
			if err := p.output(id, msg, buf); err != nil {
				return api.Result{}, err
			}
			continue
		}
		data, err := io.ReadAll(msg)
		switch {
		case err != nil:
			return api.Result{}, broken(err)
		case id == api.StreamEnd:
			return end(data)
		case id == api.StreamControl:
			var c api.Control
			if err := json.Unmarshal(data, &c); err != nil {
				return api.Result{}, broken(err)
			}
			if !p.told(c) {
				continue
			}
			p.use(conn)
			if !p.hasBegun() {
				if p.streams.Started != nil {
					p.streams.Started(p)
				}
				close(p.begun)
			}
		}
	}
}

// output passes on the data of a message, even if the connection breaks in the middle of it.
func (p *Process) output(id byte, msg io.Reader, buf []byte) error {
	w := p.streams.Stdout
	if id == api.StreamStderr {
		w = p.streams.Stderr
	}
	for {
		n, err := msg.Read(buf)
		p.at += int64(n)
		if w != nil && n > 0 {
			if _, err := w.Write(buf[:n]); err != nil {
				return stopped(errors.Wrapf(err, "write the command's output"))
			}
		}
		if err == io.EOF {
			return nil
		}
		if err != nil {
			return broken(err)
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

// told handles a control message, and reports whether it was Started.
func (p *Process) told(c api.Control) bool {
	if c.Progress != nil && p.streams.Progress != nil {
		p.streams.Progress(*c.Progress)
	}
	if c.Truncated > 0 {
		p.at += c.Truncated
		if p.streams.Truncated != nil {
			p.streams.Truncated(c.Truncated)
		}
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

// feed sends the input as fast as the command reads it. It may outlive the command while it is blocked in a Read.
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

// reserve waits until the server can accept n bytes. It returns false if the command has ended instead.
func (p *Process) reserve(n int) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	for p.space < n && !p.over {
		p.more.Wait()
	}
	p.space -= n
	return !p.over
}

package wire

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"io"
	"path/filepath"
	"strings"

	"github.com/RelevanceAI/harvest/client/errors"
	"github.com/RelevanceAI/harvest/internal/base/tarfs"
	"github.com/RelevanceAI/harvest/internal/engine"
)

// Client starts and follows the commands of a sandbox, and copies its files, over connections to the sandbox's
// keeper.
type Client struct {
	ID string // ID of the sandbox, for error texts
	// Connect opens a connection. Its errors are returned unchanged: Conflict for a sandbox that has ended.
	Connect func(ctx context.Context) (*Conn, error)
}

// process is a connection to a command.
type process struct {
	c    *Client
	id   string
	conn *Conn
	ctx  context.Context // context of OpenProcess, whose end ends the connection; nil for Start
	done chan struct{}
	exit engine.Exit // valid once done is closed
	err  error       // valid once done is closed
}

// Start implements engine.Sandbox.
func (c *Client) Start(ctx context.Context, cmd engine.Command) (engine.Process, error) {
	if err := engine.CheckCommand(cmd); err != nil {
		return nil, err
	}
	args := &StartArgs{Own: cmd.Own, Dir: cmd.Dir, User: cmd.User, Terminal: cmd.Terminal, Stdin: cmd.Stdin != nil,
		InputOnce: cmd.InputOnce, Merged: cmd.Merged, Quiet: cmd.Stdout == nil && cmd.Stderr == nil}
	for _, arg := range cmd.Args {
		args.Args = append(args.Args, []byte(arg))
	}
	for name, value := range cmd.Env {
		args.Env = append(args.Env, []byte(name+"="+value))
	}
	p, err := c.start(ctx, args, engine.Stdio{Stdin: cmd.Stdin, Stdout: cmd.Stdout, Stderr: cmd.Stderr,
		Truncated: cmd.Truncated})
	if err != nil {
		return nil, err
	}
	return p, nil
}

// OpenProcess implements engine.ProcessOpener.
func (c *Client) OpenProcess(ctx context.Context, id string, stdio engine.Stdio) (engine.Process, error) {
	args := &AttachArgs{ID: id, Stdin: stdio.Stdin != nil, Input: stdio.Stdin != nil && stdio.Input != nil,
		Quiet: stdio.Stdout == nil && stdio.Stderr == nil}
	p, err := c.open(ctx, Request{Op: Attach, Attach: args}, stdio)
	if err != nil {
		return nil, err
	}
	return p, nil
}

func (c *Client) start(ctx context.Context, args *StartArgs, stdio engine.Stdio) (*process, error) {
	return c.open(ctx, Request{Op: Start, Start: args}, stdio)
}

// open sends a request and turns the connection into one to a command. If ctx ends while the command starts,
// the command is killed.
func (c *Client) open(ctx context.Context, req Request, stdio engine.Stdio) (*process, error) {
	conn, err := c.Connect(ctx)
	if err != nil {
		return nil, err
	}
	type answer struct {
		reply Reply
		err   error
	}
	answered := make(chan answer, 1)
	go func() {
		err := conn.SendJSON(KindRequest, req)
		var reply Reply
		if err == nil {
			reply, err = conn.ReceiveReply(nil)
		}
		answered <- answer{reply, err}
	}()
	select {
	case a := <-answered:
		if a.err != nil {
			_ = conn.Close()
			return nil, a.err
		}
		p := &process{c: c, id: a.reply.ID, conn: conn, done: make(chan struct{})}
		if req.Op == Attach {
			p.ctx = ctx
		}
		if had := a.reply.Input; had != nil && stdio.Input != nil {
			stdio.Input(had.Bytes, had.Ended)
		}
		if stdio.Stdin != nil {
			go p.feed(stdio.Stdin, req.Start != nil && req.Start.InputOnce)
		}
		go p.deliver(stdio)
		return p, nil
	case <-ctx.Done():
		go func() {
			if a := <-answered; a.err == nil && req.Op == Start {
				_, _ = c.Call(context.WithoutCancel(ctx),
					Request{Op: Control, Control: &ControlArgs{ID: a.reply.ID, Kill: true}})
			}
			_ = conn.Close()
		}()
		return nil, errors.Wrapf(ctx.Err(), "start command")
	}
}

// feed sends the input until the input or the connection ends. With once, it reports a failure of the input.
func (p *process) feed(stdin io.Reader, once bool) {
	buf := make([]byte, 64<<10)
	for {
		n, err := stdin.Read(buf)
		if n > 0 && p.conn.Send(KindStdin, buf[:n]) != nil {
			return
		}
		if err != nil {
			end := KindStdinEnd
			if once && err != io.EOF {
				end = KindStdinLost
			}
			_ = p.conn.Send(end, nil)
			return
		}
	}
}

// deliver forwards output until the command has ended.
func (p *process) deliver(stdio engine.Stdio) {
	defer close(p.done)
	defer p.conn.Close()
	if p.ctx != nil {
		defer context.AfterFunc(p.ctx, p.hangUp)()
	}
	out := map[Kind]io.Writer{KindStdout: stdio.Stdout, KindStderr: stdio.Stderr}
	for {
		kind, payload, err := p.conn.Next()
		if err != nil {
			p.err = p.broke(err, "; how its command ended is not known")
			return
		}
		switch kind {
		case KindStdout, KindStderr:
			if w := out[kind]; w != nil {
				if _, err := io.Copy(w, payload); err != nil {
					out[kind] = nil // the writer has failed
				}
			}
			_, err = io.Copy(io.Discard, payload)
		case KindTruncated:
			var n int64
			if err = json.NewDecoder(payload).Decode(&n); err == nil && stdio.Truncated != nil {
				stdio.Truncated(n)
			}
		case KindExit:
			p.err = json.NewDecoder(payload).Decode(&p.exit)
			return
		case KindFailure:
			var f Failure
			if err = json.NewDecoder(payload).Decode(&f); err == nil {
				p.err = f.Err()
				return
			}
		}
		if err != nil {
			p.err = p.broke(err, "")
			return
		}
	}
}

// broke explains why the connection ended before the command.
func (p *process) broke(err error, more string) error {
	if p.ctx != nil && p.ctx.Err() != nil {
		return errors.Wrapf(p.ctx.Err(), "follow a command")
	}
	return errors.Explainf(err, errors.Unavailable, "the connection to the sandbox %q broke%s", p.c.ID, more)
}

// hangUp closes the connection. A tool ends with its connection.
func (p *process) hangUp() { _ = p.conn.Close() }

// ID implements engine.Process.
func (p *process) ID() string { return p.id }

// Wait implements engine.Process.
func (p *process) Wait(ctx context.Context) (engine.Exit, error) {
	select {
	case <-p.done:
		return p.exit, p.err
	default:
	}
	select {
	case <-p.done:
		return p.exit, p.err
	case <-ctx.Done():
		return engine.Exit{}, errors.Wrapf(ctx.Err(), "wait for command")
	}
}

// Signal implements engine.Process.
func (p *process) Signal(ctx context.Context, sig string) error {
	n, err := engine.ParseSignal(sig)
	if err != nil {
		return err
	}
	return p.control(ctx, ControlArgs{Signal: int(n)})
}

// Kill implements engine.Process.
func (p *process) Kill(ctx context.Context) error {
	return p.control(ctx, ControlArgs{Kill: true})
}

// Resize implements engine.Process.
func (p *process) Resize(ctx context.Context, size engine.Size) error {
	if err := engine.CheckSize(size); err != nil {
		return err
	}
	return p.control(ctx, ControlArgs{Size: &size})
}

// control acts on the command. If the command or its sandbox is gone, the command has ended, which is not an
// error.
func (p *process) control(ctx context.Context, args ControlArgs) error {
	args.ID = p.id
	_, err := p.c.Call(ctx, Request{Op: Control, Control: &args})
	if args.Size == nil && (errors.Is(err, errors.Conflict) || errors.Is(err, errors.NotFound)) {
		return nil
	}
	return err
}

// Call sends req and returns the reply. It stops waiting when ctx ends.
func (c *Client) Call(ctx context.Context, req Request) (Reply, error) {
	conn, err := c.Connect(ctx)
	if err != nil {
		return Reply{}, err
	}
	defer conn.Close()
	defer context.AfterFunc(ctx, func() { _ = conn.Close() })()
	if err := conn.SendJSON(KindRequest, req); err != nil {
		return Reply{}, c.ended(ctx, err)
	}
	reply, err := conn.ReceiveReply(nil)
	if err != nil && ctx.Err() != nil {
		return Reply{}, errors.Wrapf(ctx.Err(), "ask sandbox %s", c.ID)
	}
	return reply, c.ended(ctx, err)
}

// ended returns a Conflict in the place of err if a connection broke because the sandbox has ended.
func (c *Client) ended(ctx context.Context, err error) error {
	if !errors.Is(err, errors.Unavailable) {
		return err
	}
	conn, gone := c.Connect(ctx)
	if gone == nil {
		_ = conn.Close() // it was only a question
	}
	if errors.Is(gone, errors.Conflict) {
		return gone
	}
	return err
}

// Processes implements engine.ProcessOpener.
func (c *Client) Processes(ctx context.Context) ([]engine.ProcessInfo, error) {
	reply, err := c.Call(ctx, Request{Op: Processes})
	return reply.Processes, err
}

// CopyIn implements engine.Sandbox.
func (c *Client) CopyIn(ctx context.Context, dir string, tar io.Reader) error {
	if err := CheckPath(dir); err != nil {
		return err
	}
	return c.Tool(ctx, io.Discard, tar, ToolUnpack, dir)
}

// CopyOut implements engine.Sandbox.
func (c *Client) CopyOut(ctx context.Context, path string) (io.ReadCloser, error) {
	if err := CheckPath(path); err != nil {
		return nil, err
	}
	return c.ToolOutput(ctx, ToolPack, path)
}

// Tool runs one of Harvest's own tools in the sandbox, with args, to its end. stdin may be nil. It returns the
// tool's error. Cancelling ctx ends the tool.
func (c *Client) Tool(ctx context.Context, stdout io.Writer, stdin io.Reader, args ...string) error {
	p, stderr, err := c.tool(ctx, stdout, stdin, args...)
	if err != nil {
		return err
	}
	return c.toolEnd(ctx, p, stderr)
}

// ToolOutput returns the output of a tool. If the tool fails before its first byte, ToolOutput returns the
// error. The caller must close the stream, which ends the tool.
func (c *Client) ToolOutput(ctx context.Context, args ...string) (io.ReadCloser, error) {
	r, w := io.Pipe()
	p, stderr, err := c.tool(ctx, w, nil, args...)
	if err != nil {
		return nil, err
	}
	go func() { _ = w.CloseWithError(c.toolEnd(ctx, p, stderr)) }()
	// With the first byte it is known whether the path exists.
	buffered := bufio.NewReader(r)
	if _, err := buffered.Peek(1); err != nil && err != io.EOF {
		_ = r.Close()
		return nil, err
	}
	return &reading{Reader: buffered, close: func() error {
		_ = r.Close()
		p.hangUp()
		return nil
	}}, nil
}

// Files implements engine.Filer.
func (c *Client) Files(ctx context.Context, req tarfs.Request, w io.Writer) error {
	text, err := json.Marshal(req)
	if err != nil {
		return errors.Wrapf(err, "write a request for files")
	}
	return c.Tool(ctx, w, nil, ToolFiles, string(text))
}

type reading struct {
	io.Reader
	close func() error
}

func (s *reading) Close() error { return s.close() }

// CheckPath returns Invalid if path is not an absolute path in a sandbox.
func CheckPath(path string) error {
	if !filepath.IsAbs(path) || strings.ContainsRune(path, 0) {
		return errors.Remedy(errors.Newf(errors.Invalid, "%.200q is not an absolute path in the sandbox", path),
			"begin it with /")
	}
	return nil
}

// tool starts one of Harvest's own tools in the sandbox.
func (c *Client) tool(ctx context.Context, stdout io.Writer, stdin io.Reader,
	args ...string) (*process, *bytes.Buffer, error) {
	var stderr bytes.Buffer
	start := &StartArgs{Args: [][]byte{[]byte(ToolName)}, Tool: true, Stdin: stdin != nil}
	for _, arg := range args {
		start.Args = append(start.Args, []byte(arg))
	}
	p, err := c.start(ctx, start, engine.Stdio{Stdin: stdin, Stdout: stdout, Stderr: &stderr})
	return p, &stderr, err
}

// toolEnd waits for a tool and returns its error. Cancelling ctx kills the tool.
func (c *Client) toolEnd(ctx context.Context, p *process, stderr *bytes.Buffer) error {
	exit, err := p.Wait(ctx)
	if err != nil {
		p.hangUp()
		return err
	}
	if exit.Code == 0 {
		return nil
	}
	for line := range strings.Lines(stderr.String()) {
		var f Failure
		if strings.HasPrefix(line, "{") && json.Unmarshal([]byte(line), &f) == nil && f.Kind != "" {
			return f.Err()
		}
	}
	if exit.OutOfMemory {
		return errors.Newf(errors.Exhausted, "the sandbox ran out of memory")
	}
	err = errors.Errorf("a tool in sandbox %s ended with code %d: %s", c.ID, exit.Code, stderr)
	if exit.Signal == "KILL" { // nothing else sends SIGKILL to it
		return errors.Explainf(err, errors.Unavailable, "the sandbox was ended while files were copied")
	}
	return err
}

// ToolName is the first argument of Harvest's own program when it runs as a tool in a sandbox (StartArgs.Tool).
const ToolName = "harvest-tool"

// The tools. Clients start the first three, keepers the others.
const (
	ToolUnpack = "unpack" // DIR: unpacks a tar stream from standard input
	ToolPack   = "pack"   // PATH: writes a tar stream to standard output
	ToolFiles  = "files"  // REQUEST: a tarfs.Request as JSON; answers on standard output
	ToolLaunch = "launch" // COMMAND: runs another program, described by LaunchArgs as JSON
	ToolRelay  = "relay"  // ".": connects to ports inside; receives connections on standard input, a socket
)

// LaunchArgs is a command whose arguments or environment are not UTF-8. gVisor's control socket uses JSON,
// which would change them.
type LaunchArgs struct{ Args, Env [][]byte }

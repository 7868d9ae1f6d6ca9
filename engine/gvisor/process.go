package gvisor

import (
	"context"
	"encoding/json"
	"io"

	"github.com/RelevanceAI/harvest/engine"
	"github.com/RelevanceAI/harvest/engine/gvisor/wire"
	"github.com/RelevanceAI/harvest/errors"
)

// process is a connection to a command.
type process struct {
	s    *Sandbox
	id   string
	conn *wire.Conn
	ctx  context.Context // of OpenProcess: its end ends the connection; nil of Start
	done chan struct{}
	exit engine.Exit // valid once done is closed
	err  error       // valid once done is closed
}

// Start implements engine.Sandbox.
func (s *Sandbox) Start(ctx context.Context, cmd engine.Command) (engine.Process, error) {
	if err := engine.CheckCommand(cmd); err != nil {
		return nil, err
	}
	args := &wire.StartArgs{Own: cmd.Own, Dir: cmd.Dir, User: cmd.User, Terminal: cmd.Terminal, Stdin: cmd.Stdin != nil, Quiet: cmd.Stdout == nil && cmd.Stderr == nil}
	for _, arg := range cmd.Args {
		args.Args = append(args.Args, []byte(arg))
	}
	for name, value := range cmd.Env {
		args.Env = append(args.Env, []byte(name+"="+value))
	}
	p, err := s.start(ctx, args, engine.Stdio{Stdin: cmd.Stdin, Stdout: cmd.Stdout, Stderr: cmd.Stderr})
	if err != nil {
		return nil, err
	}
	return p, nil
}

// OpenProcess implements engine.ProcessOpener.
func (s *Sandbox) OpenProcess(ctx context.Context, id string, stdio engine.Stdio) (engine.Process, error) {
	args := &wire.AttachArgs{ID: id, Stdin: stdio.Stdin != nil, Quiet: stdio.Stdout == nil && stdio.Stderr == nil}
	p, err := s.open(ctx, wire.Request{Op: wire.Attach, Attach: args}, stdio)
	if err != nil {
		return nil, err
	}
	return p, nil
}

func (s *Sandbox) start(ctx context.Context, args *wire.StartArgs, stdio engine.Stdio) (*process, error) {
	return s.open(ctx, wire.Request{Op: wire.Start, Start: args}, stdio)
}

// open sends a request that ends in a connection to a command. If ctx ends while the command starts, it is killed.
func (s *Sandbox) open(ctx context.Context, req wire.Request, stdio engine.Stdio) (*process, error) {
	conn, err := s.connect(ctx)
	if err != nil {
		return nil, err
	}
	type answer struct {
		reply wire.Reply
		err   error
	}
	answered := make(chan answer, 1)
	go func() {
		err := conn.SendJSON(wire.KindRequest, req)
		var reply wire.Reply
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
		p := &process{s: s, id: a.reply.ID, conn: conn, done: make(chan struct{})}
		if req.Op == wire.Attach {
			p.ctx = ctx
		}
		if stdio.Stdin != nil {
			go p.feed(stdio.Stdin)
		}
		go p.deliver(stdio)
		return p, nil
	case <-ctx.Done():
		go func() {
			if a := <-answered; a.err == nil && req.Op == wire.Start {
				_, _ = s.call(context.WithoutCancel(ctx), wire.Request{Op: wire.Control, Control: &wire.ControlArgs{ID: a.reply.ID, Kill: true}})
			}
			_ = conn.Close()
		}()
		return nil, errors.Wrapf(ctx.Err(), "start command")
	}
}

// feed sends the input until it ends or the connection does.
func (p *process) feed(stdin io.Reader) {
	buf := make([]byte, 64<<10)
	for {
		n, err := stdin.Read(buf)
		if n > 0 && p.conn.Send(wire.KindStdin, buf[:n]) != nil {
			return
		}
		if err != nil {
			_ = p.conn.Send(wire.KindStdinEnd, nil)
			return
		}
	}
}

// deliver passes output on until the command has ended.
func (p *process) deliver(stdio engine.Stdio) {
	defer close(p.done)
	defer p.conn.Close()
	if p.ctx != nil {
		defer context.AfterFunc(p.ctx, p.hangUp)()
	}
	out := map[wire.Kind]io.Writer{wire.KindStdout: stdio.Stdout, wire.KindStderr: stdio.Stderr}
	for {
		kind, payload, err := p.conn.Next()
		if err != nil {
			p.err = p.broke(err, "; how its command ended is not known")
			return
		}
		switch kind {
		case wire.KindStdout, wire.KindStderr:
			if w := out[kind]; w != nil {
				if _, err := io.Copy(w, payload); err != nil {
					out[kind] = nil // nobody takes it any more
				}
			}
			_, err = io.Copy(io.Discard, payload)
		case wire.KindTruncated:
			var n int64
			if err = json.NewDecoder(payload).Decode(&n); err == nil && stdio.Truncated != nil {
				stdio.Truncated(n)
			}
		case wire.KindExit:
			p.err = json.NewDecoder(payload).Decode(&p.exit)
			return
		case wire.KindFailure:
			var f wire.Failure
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
	return errors.Explainf(err, errors.Unavailable, "the connection to the sandbox %q broke%s", p.s.h.ID, more)
}

// hangUp ends the connection; a tool ends with it.
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
	return p.control(ctx, wire.ControlArgs{Signal: int(n)})
}

// Kill implements engine.Process.
func (p *process) Kill(ctx context.Context) error {
	return p.control(ctx, wire.ControlArgs{Kill: true})
}

// Resize implements engine.Process.
func (p *process) Resize(ctx context.Context, size engine.Size) error {
	if err := engine.CheckSize(size); err != nil {
		return err
	}
	return p.control(ctx, wire.ControlArgs{Size: &size})
}

// control acts on the command. One that is gone with its sandbox, or that nobody remembers, has ended, which is no error.
func (p *process) control(ctx context.Context, args wire.ControlArgs) error {
	args.ID = p.id
	_, err := p.s.call(ctx, wire.Request{Op: wire.Control, Control: &args})
	if args.Size == nil && (errors.Is(err, errors.Conflict) || errors.Is(err, errors.NotFound)) {
		return nil
	}
	return err
}

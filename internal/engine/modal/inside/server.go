package inside

import (
	"context"
	"encoding/json"
	"io"
	"maps"
	"net"
	"os"
	"strings"
	"sync"

	"github.com/hashicorp/yamux"

	"github.com/RelevanceAI/harvest/client/errors"
	"github.com/RelevanceAI/harvest/internal/base/tarfs"
	"github.com/RelevanceAI/harvest/internal/engine"
	"github.com/RelevanceAI/harvest/internal/engine/gvisor/wire"
	"github.com/RelevanceAI/harvest/internal/engine/proc"
)

// server answers the engine's requests, which package wire defines.
type server struct {
	dir string // of the commands

	mu    sync.Mutex
	table *proc.Table    // guarded by mu, like all below; nil until the sandbox is claimed
	claim wire.ClaimArgs // the engine's description of the sandbox
	env   map[string]string
	home  string // the image's working directory
}

func newServer(dir string) *server {
	s := &server{dir: dir, env: map[string]string{}, home: "/"}
	for _, pair := range os.Environ() {
		name, value, _ := strings.Cut(pair, "=")
		s.env[name] = value
	}
	if wd, err := os.Getwd(); err == nil {
		s.home = wd
	}
	return s
}

// link serves the connections of one client until it disconnects.
func (s *server) link(ctx context.Context, conn net.Conn) {
	session, err := yamux.Server(conn, Mux())
	if err != nil {
		_ = conn.Close()
		return
	}
	defer session.Close()
	defer context.AfterFunc(ctx, func() { _ = session.Close() })()
	for {
		stream, err := session.Accept()
		if err != nil {
			return
		}
		go func() {
			defer stream.Close()
			s.serve(ctx, wire.NewConn(stream))
		}()
	}
}

// serve answers one request.
func (s *server) serve(ctx context.Context, conn *wire.Conn) {
	kind, payload, err := conn.Receive()
	if err != nil || kind != wire.KindRequest {
		return
	}
	var req wire.Request
	if err := json.Unmarshal(payload, &req); err != nil {
		s.fail(conn, errors.Wrapf(err, "read a request"))
		return
	}
	if err := s.answer(ctx, conn, req); err != nil {
		s.fail(conn, err)
	}
}

// fail sends an error. The client may have disconnected, so a failure to send it is ignored.
func (s *server) fail(conn *wire.Conn, err error) {
	_ = conn.SendJSON(wire.KindFailure, wire.FailureOf(err))
}

func (s *server) answer(ctx context.Context, conn *wire.Conn, req wire.Request) error {
	switch {
	case req.Op == wire.Claim && req.Claim != nil:
		return s.claimed(conn, *req.Claim)
	case req.Op == wire.Info:
		s.mu.Lock()
		defer s.mu.Unlock()
		return conn.SendJSON(wire.KindReply, wire.Reply{State: &wire.State{ID: s.claim.ID}, Claim: &s.claim})
	case req.Op == wire.Start && req.Start != nil && req.Start.Tool:
		return s.tool(ctx, conn, req.Start)
	}
	if req.Op == wire.Connect && req.Dial != nil {
		return s.port(ctx, conn, req.Dial.Port)
	}
	table, defaults := s.commands()
	if table == nil {
		return errors.Newf(errors.Conflict, "the sandbox is not ready")
	}
	switch {
	case req.Op == wire.Start && req.Start != nil:
		return s.start(ctx, conn, table, defaults, req.Start)
	case req.Op == wire.Attach && req.Attach != nil:
		return s.attach(ctx, conn, table, req.Attach)
	case req.Op == wire.Control && req.Control != nil:
		if err := control(ctx, table, req.Control); err != nil {
			return err
		}
		return conn.SendJSON(wire.KindReply, wire.Reply{})
	case req.Op == wire.Processes:
		infos, err := table.Processes()
		if err != nil {
			return err
		}
		return conn.SendJSON(wire.KindReply, wire.Reply{Processes: infos})
	}
	return errors.Newf(errors.Unsupported, "unknown operation of the program in the sandbox: %.40q", string(req.Op))
}

// claimed turns the sandbox into the one that the engine describes. Invalid if its user does not exist.
func (s *server) claimed(conn *wire.Conn, args wire.ClaimArgs) error {
	if err := proc.CheckUser(args.User); err != nil {
		return err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.table != nil && s.claim.ID != args.ID {
		return errors.Newf(errors.Conflict, "the sandbox is %.80q already", s.claim.ID)
	}
	if err := link(args.Mounts); err != nil {
		return err
	}
	if err := giveVolumes(args); err != nil {
		return err
	}
	if s.table == nil {
		if err := inherit(s.dir, args.ID); err != nil {
			return err
		}
	}
	s.claim = args
	s.table = &proc.Table{Dir: s.dir, Name: args.ID, Keep: args.OutputBytes}
	return conn.SendJSON(wire.KindReply, wire.Reply{Found: &wire.Found{Env: s.env, Dir: s.home}})
}

// commands returns the commands, and the defaults for new ones.
func (s *server) commands() (*proc.Table, proc.Defaults) {
	s.mu.Lock()
	defer s.mu.Unlock()
	d := proc.Defaults{Env: maps.Clone(s.env), Dir: s.claim.Dir, User: s.claim.User}
	maps.Copy(d.Env, s.claim.Env)
	if d.Dir == "" {
		d.Dir = s.home
	}
	return s.table, d
}

func (s *server) start(ctx context.Context, conn *wire.Conn, table *proc.Table, defaults proc.Defaults,
	args *wire.StartArgs) error {
	cmd := engine.Command{Own: args.Own, Dir: args.Dir, Env: map[string]string{}, User: args.User,
		Terminal: args.Terminal, Merged: args.Merged}
	out := newOutput(conn)
	cmd.Truncated = out.truncated
	for _, arg := range args.Args {
		cmd.Args = append(cmd.Args, string(arg))
	}
	for _, pair := range args.Env {
		name, value, _ := strings.Cut(string(pair), "=")
		cmd.Env[name] = value
	}
	if !args.Quiet {
		cmd.Stdout, cmd.Stderr = out.writer(wire.KindStdout), out.writer(wire.KindStderr)
	}
	in := newInput(conn)
	if args.Stdin {
		cmd.Stdin, cmd.InputOnce, in.once = in, args.InputOnce, args.InputOnce
	}
	p, err := table.Start(ctx, cmd, defaults)
	if err != nil {
		return err
	}
	return s.follow(ctx, conn, p, in, out)
}

func (s *server) attach(ctx context.Context, conn *wire.Conn, table *proc.Table, args *wire.AttachArgs) error {
	out := newOutput(conn)
	stdio := engine.Stdio{Truncated: out.truncated}
	if !args.Quiet {
		stdio.Stdout, stdio.Stderr = out.writer(wire.KindStdout), out.writer(wire.KindStderr)
	}
	in := newInput(conn)
	if args.Stdin {
		stdio.Stdin = in
	}
	p, err := table.Open(ctx, args.ID, stdio)
	if err != nil {
		return err
	}
	return s.follow(ctx, conn, p, in, out)
}

// follow forwards output until the command has ended, and accepts input meanwhile.
func (s *server) follow(ctx context.Context, conn *wire.Conn, p engine.Process, in *input, out *output) error {
	defer in.end()
	if err := conn.SendJSON(wire.KindReply, wire.Reply{ID: p.ID()}); err != nil {
		out.open(err)
		return nil // the command keeps running and can be reopened
	}
	out.open(nil)
	go in.receive()
	exit, err := p.Wait(ctx)
	if err != nil {
		return err
	}
	out.flush()
	_ = conn.SendJSON(wire.KindExit, exit)
	return nil
}

// control acts on a command.
func control(ctx context.Context, table *proc.Table, args *wire.ControlArgs) error {
	p, err := table.Find(args.ID)
	switch {
	case err != nil:
		return err
	case args.Kill:
		return p.Kill(ctx)
	case args.Size != nil:
		return p.Resize(ctx, *args.Size)
	}
	return p.SignalNumber(ctx, args.Signal)
}

// tool copies files. Other engines have a separate program for this.
func (s *server) tool(ctx context.Context, conn *wire.Conn, args *wire.StartArgs) error {
	if len(args.Args) != 3 {
		return errors.Newf(errors.Invalid, "a tool has 3 arguments, not %d", len(args.Args))
	}
	if err := conn.SendJSON(wire.KindReply, wire.Reply{ID: wire.ToolName}); err != nil {
		return nil
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	in, out := newInput(conn), newOutput(conn)
	in.gone = cancel
	out.open(nil)
	go in.receive()
	defer in.end()
	var err error
	what := string(args.Args[2])
	switch string(args.Args[1]) {
	case wire.ToolUnpack:
		err = tarfs.UnpackAt(what, cutOff{in, ctx}, tarfs.Options{Owners: os.Geteuid() == 0, SetID: true})
	case wire.ToolPack:
		err = tarfs.PackAt(what, out.writer(wire.KindStdout))
	case wire.ToolFiles:
		var req tarfs.Request
		if err = json.Unmarshal(args.Args[2], &req); err == nil {
			err = tarfs.Do(ctx, tarfs.Host{}, req, out.writer(wire.KindStdout))
		}
	case ToolVolume:
		err = volumeFiles(ctx, args.Args[2], cutOff{in, ctx}, out.writer(wire.KindStdout))
	default:
		err = errors.Newf(errors.Unsupported, "there is no tool %.40q", args.Args[1])
	}
	if err != nil {
		return err
	}
	_ = conn.SendJSON(wire.KindExit, engine.Exit{})
	return nil
}

// cutOff is an input that fails when its sender has disconnected.
type cutOff struct {
	in *input
	// ctx ends when the sender disconnects.
	ctx context.Context
}

func (c cutOff) Read(p []byte) (int, error) {
	n, err := c.in.Read(p)
	if c.ctx.Err() != nil && err != nil {
		err = errors.Wrapf(c.ctx.Err(), "receive files")
	}
	return n, err
}

// output sends a command's output, once the engine has the reply that it was started.
type output struct {
	conn    *wire.Conn
	opened  chan struct{}
	failed  error // valid once opened is closed
	mu      sync.Mutex
	dropped int64 // guarded by mu; to be reported before the next byte
}

func newOutput(conn *wire.Conn) *output { return &output{conn: conn, opened: make(chan struct{})} }

// open lets output through, or makes it fail with err.
func (o *output) open(err error) {
	o.failed = err
	close(o.opened)
}

// truncated counts output that is no longer kept.
func (o *output) truncated(n int64) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.dropped += n
}

// flush reports dropped output, if it was not reported yet.
func (o *output) flush() error {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.dropped == 0 {
		return nil
	}
	n := o.dropped
	o.dropped = 0
	return o.conn.SendJSON(wire.KindTruncated, n)
}

func (o *output) writer(kind wire.Kind) io.Writer { return &outputWriter{o, kind} }

type outputWriter struct {
	o    *output
	kind wire.Kind
}

func (w *outputWriter) Write(p []byte) (int, error) {
	<-w.o.opened
	if w.o.failed != nil {
		return 0, w.o.failed
	}
	if err := w.o.flush(); err != nil {
		return 0, err
	}
	if err := w.o.conn.Send(w.kind, p); err != nil {
		return 0, err
	}
	return len(p), nil
}

// input is the engine's input for a command. It does not end when the engine disconnects: it stays open for the
// next connection.
type input struct {
	conn *wire.Conn
	r    *io.PipeReader
	w    *io.PipeWriter
	gone func() // if set, called when the engine disconnects, which then ends the input
	once bool   // the input is lost when the engine disconnects
}

func newInput(conn *wire.Conn) *input {
	in := &input{conn: conn}
	in.r, in.w = io.Pipe()
	return in
}

func (in *input) Read(p []byte) (int, error) { return in.r.Read(p) }

// end unblocks everything that waits for input.
func (in *input) end() { _ = in.r.CloseWithError(io.EOF); _ = in.w.CloseWithError(io.EOF) }

// lose makes reads fail, unless the input has ended.
func (in *input) lose() { _ = in.w.CloseWithError(errors.Errorf("the input is lost")) }

// receive accepts input until the engine ends it or disconnects.
func (in *input) receive() {
	ended := false
	for {
		kind, payload, err := in.conn.Next()
		if err != nil {
			if in.gone != nil {
				in.gone()
				in.end()
			}
			if in.once {
				in.lose()
			}
			_ = in.conn.Close() // nothing reads on the other side, and writers must not block on that
			return
		}
		switch {
		case kind == wire.KindStdinEnd:
			ended = true
			_ = in.w.Close()
		case kind == wire.KindStdinLost && !ended:
			ended = true
			in.lose()
		case kind == wire.KindStdin && !ended:
			_, _ = io.Copy(in.w, payload) // keep receiving even if the command reads no more
		}
		if _, err := io.Copy(io.Discard, payload); err != nil {
			return
		}
	}
}

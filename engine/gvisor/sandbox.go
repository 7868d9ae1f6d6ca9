package gvisor

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"io"
	"os"
	"path/filepath"
	"strings"
	"syscall"

	"github.com/RelevanceAI/harvest/engine"
	"github.com/RelevanceAI/harvest/engine/gvisor/cgroup"
	"github.com/RelevanceAI/harvest/engine/gvisor/keeper"
	"github.com/RelevanceAI/harvest/engine/gvisor/wire"
	"github.com/RelevanceAI/harvest/errors"
	"github.com/RelevanceAI/harvest/internal/socket"
	"github.com/RelevanceAI/harvest/internal/tarfs"
	"github.com/RelevanceAI/harvest/logf"
)

// Sandbox is a gVisor sandbox. It is an engine.Sandbox, engine.ProcessOpener, engine.Networker and engine.Dialer.
type Sandbox struct {
	e *Engine
	h engine.Handle
}

// Handle implements engine.Sandbox.
func (s *Sandbox) Handle() engine.Handle { return s.h }

// dial connects to the keeper of the sandbox in dir.
func dial(ctx context.Context, dir string) (*wire.Conn, error) {
	c, err := socket.Dial(ctx, dir, keeper.Socket)
	if err != nil {
		return nil, err
	}
	return wire.NewConn(c), nil
}

// connect dials the keeper; a sandbox without one has ended.
func (s *Sandbox) connect(ctx context.Context) (*wire.Conn, error) {
	conn, err := dial(ctx, s.e.dir(s.h.Ref))
	switch {
	case err == nil:
		return conn, nil
	case ctx.Err() != nil:
		return nil, errors.Wrapf(ctx.Err(), "connect to sandbox %s", s.h.ID)
	default:
		err = errors.Wrapf(err, "connect to keeper%s", s.e.lastWords(s.h.Ref))
		return nil, errors.Explainf(err, errors.Conflict, "the sandbox %q has ended", s.h.ID)
	}
}

// call sends req and returns the reply. ctx ends the waiting.
func (s *Sandbox) call(ctx context.Context, req wire.Request) (wire.Reply, error) {
	conn, err := s.connect(ctx)
	if err != nil {
		return wire.Reply{}, err
	}
	defer conn.Close()
	defer context.AfterFunc(ctx, func() { _ = conn.Close() })()
	if err := conn.SendJSON(wire.KindRequest, req); err != nil {
		return wire.Reply{}, err
	}
	reply, err := conn.ReceiveReply(nil)
	if err != nil && ctx.Err() != nil {
		return wire.Reply{}, errors.Wrapf(ctx.Err(), "ask sandbox %s", s.h.ID)
	}
	return reply, err
}

// Processes implements engine.ProcessOpener.
func (s *Sandbox) Processes(ctx context.Context) ([]engine.ProcessInfo, error) {
	reply, err := s.call(ctx, wire.Request{Op: wire.Processes})
	return reply.Processes, err
}

// Usage implements engine.Meter.
func (s *Sandbox) Usage(ctx context.Context) (engine.Usage, error) {
	reply, err := s.call(ctx, wire.Request{Op: wire.Usage})
	if err == nil && reply.Usage == nil {
		err = errors.Errorf("the keeper of sandbox %s tells no usage", s.h.ID)
	}
	if err != nil {
		return engine.Usage{}, err
	}
	return *reply.Usage, nil
}

// Wait implements engine.Sandbox.
func (s *Sandbox) Wait(ctx context.Context) (engine.End, error) {
	reply, err := s.call(ctx, wire.Request{Op: wire.Wait})
	if err == nil {
		return *reply.End, nil
	}
	if ctx.Err() != nil {
		return engine.End{}, err
	}
	// The keeper is gone. It may have written down why.
	s.e.mu.Lock()
	held := s.e.holding[s.h.Ref]
	s.e.mu.Unlock()
	if held == nil {
		return engine.End{Destroyed: true, Detail: "the sandbox was destroyed"}, nil
	}
	if state, err := s.e.readState(s.h.Ref); err == nil && state.End != nil {
		return *state.End, nil
	}
	return engine.End{Detail: "the process that kept the sandbox was killed"}, nil
}

// Destroy implements engine.Sandbox.
func (s *Sandbox) Destroy(ctx context.Context) error { return s.e.destroy(ctx, s.h.Ref) }

// CopyIn implements engine.Sandbox.
func (s *Sandbox) CopyIn(ctx context.Context, dir string, tar io.Reader) error {
	if err := checkPath(dir); err != nil {
		return err
	}
	p, stderr, err := s.tool(ctx, io.Discard, tar, keeper.Unpack, dir)
	if err != nil {
		return err
	}
	return s.toolEnd(ctx, p, stderr)
}

// CopyOut implements engine.Sandbox.
func (s *Sandbox) CopyOut(ctx context.Context, path string) (io.ReadCloser, error) {
	if err := checkPath(path); err != nil {
		return nil, err
	}
	r, w := io.Pipe()
	p, stderr, err := s.tool(ctx, w, nil, keeper.Pack, path)
	if err != nil {
		return nil, err
	}
	go func() { _ = w.CloseWithError(s.toolEnd(ctx, p, stderr)) }()
	// Whether the path exists shows with the first byte.
	buffered := bufio.NewReader(r)
	if _, err := buffered.Peek(1); err != nil && err != io.EOF {
		_ = r.Close()
		return nil, err
	}
	return &stream{Reader: buffered, close: func() error {
		_ = r.Close()
		p.hangUp()
		return nil
	}}, nil
}

// Files implements engine.Filer.
func (s *Sandbox) Files(ctx context.Context, req tarfs.Request, w io.Writer) error {
	text, err := json.Marshal(req)
	if err != nil {
		return errors.Wrapf(err, "write a request for files")
	}
	p, stderr, err := s.tool(ctx, w, nil, keeper.Files, string(text))
	if err != nil {
		return err
	}
	return s.toolEnd(ctx, p, stderr)
}

type stream struct {
	io.Reader
	close func() error
}

func (s *stream) Close() error { return s.close() }

func checkPath(path string) error {
	if !filepath.IsAbs(path) || strings.ContainsRune(path, 0) {
		return errors.Remedy(errors.Newf(errors.Invalid, "%.200q is not an absolute path in the sandbox", path), "begin it with /")
	}
	return nil
}

// tool starts Harvest's own program inside.
func (s *Sandbox) tool(ctx context.Context, stdout io.Writer, stdin io.Reader, args ...string) (*process, *bytes.Buffer, error) {
	var stderr bytes.Buffer
	start := &wire.StartArgs{Args: [][]byte{[]byte(keeper.ToolName)}, Tool: true, Stdin: stdin != nil}
	for _, arg := range args {
		start.Args = append(start.Args, []byte(arg))
	}
	p, err := s.start(ctx, start, engine.Stdio{Stdin: stdin, Stdout: stdout, Stderr: &stderr})
	return p, &stderr, err
}

// toolEnd waits for a tool and returns its error. A ctx that ends kills it.
func (s *Sandbox) toolEnd(ctx context.Context, p *process, stderr *bytes.Buffer) error {
	exit, err := p.Wait(ctx)
	if err != nil {
		p.hangUp()
		return err
	}
	if exit.Code == 0 {
		return nil
	}
	for line := range strings.Lines(stderr.String()) {
		var f wire.Failure
		if strings.HasPrefix(line, "{") && json.Unmarshal([]byte(line), &f) == nil && f.Kind != "" {
			return f.Err()
		}
	}
	if exit.OutOfMemory {
		return errors.Newf(errors.Exhausted, "the sandbox ran out of memory")
	}
	err = errors.Errorf("a tool in sandbox %s ended with code %d: %s", s.h.ID, exit.Code, stderr)
	if exit.Signal == "KILL" { // nobody else kills it
		return errors.Explainf(err, errors.Unavailable, "the sandbox was ended while files were copied")
	}
	return err
}

// alive reports whether ref has a keeper that answers.
func (e *Engine) alive(ctx context.Context, ref string) bool {
	conn, err := dial(ctx, e.dir(ref))
	if err != nil {
		return false
	}
	return conn.Close() == nil
}

func (e *Engine) readState(ref string) (wire.State, error) {
	var s wire.State
	b, err := os.ReadFile(filepath.Join(e.dir(ref), keeper.StateFile))
	if err == nil {
		err = json.Unmarshal(b, &s)
	}
	return s, errors.Wrapf(err, "read state of sandbox %s", ref)
}

// destroy ends a sandbox, by its keeper if that answers, and removes all of it. What the keeper cannot do, remove does.
func (e *Engine) destroy(ctx context.Context, ref string) error {
	s := &Sandbox{e: e, h: engine.Handle{Ref: ref}}
	_, err := s.call(ctx, wire.Request{Op: wire.Destroy})
	if err != nil && !errors.Is(err, errors.Conflict) {
		logf.Warnf(ctx, "the keeper of sandbox %s does not end it: %v", ref, err)
	}
	return e.remove(ref)
}

// remove kills what is left of a sandbox and removes its cgroup and files. It is repeatable.
func (e *Engine) remove(ref string) error {
	dir := e.dir(ref)
	if _, err := os.Lstat(dir); errors.IsNotExist(err) {
		e.drop(ref)
		return nil
	}
	// gVisor's processes die with the keeper.
	for _, pid := range keepersOf(dir) {
		_ = syscall.Kill(pid, syscall.SIGKILL)
	}
	err := cgroup.Open(e.cgroup(ref)).Remove()
	e.drop(ref)
	return errors.Stage(errors.Join(err, e.trash.put(dir)), "destroy")
}

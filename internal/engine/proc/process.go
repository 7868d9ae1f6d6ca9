package proc

import (
	"bytes"
	"context"
	"encoding/gob"
	"encoding/json"
	"io"
	"net"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"syscall"
	"time"

	"github.com/RelevanceAI/harvest/client/errors"
	"github.com/RelevanceAI/harvest/internal/engine"
)

var processID = regexp.MustCompile(`^[a-z0-9]{1,64}$`)

// process is a connection to a keeper.
type process struct {
	t        *Table
	id       string
	dir      string // directory of its keeper
	terminal bool
	ctx      context.Context // context of Open, whose end ends the connection; nil for Start
	from     int64           // position of the first kept byte

	done chan struct{}
	exit engine.Exit // valid when done is closed, like err
	err  error
}

// lookPath finds a program like execvp.
func lookPath(name, dir, path string) (string, error) {
	var candidates []string
	switch {
	case filepath.IsAbs(name):
		candidates = []string{name}
	case strings.Contains(name, "/"):
		candidates = []string{filepath.Join(dir, name)}
	default:
		for _, p := range filepath.SplitList(path) {
			candidates = append(candidates, filepath.Join(p, name))
		}
	}
	problem, code := "there is no program %.200q", engine.ExitNoProgram
	for _, c := range candidates {
		info, err := os.Stat(c)
		if err == nil && info.Mode().IsRegular() && info.Mode()&0o111 != 0 {
			return c, nil
		}
		if err == nil {
			problem, code = "%.200q cannot be executed", engine.ExitNotExecutable
		}
	}
	return "", errors.Exit(errors.Newf(errors.Invalid, problem, name), code)
}

// start starts a keeper, and returns the connection to it once the command runs.
func (p *process) start(ctx context.Context, o *order) (net.Conn, error) {
	conn, err := spawn(p.dir)
	if err != nil {
		return nil, err
	}
	stop := context.AfterFunc(ctx, func() { _ = conn.SetDeadline(time.Now()) })
	var answer reply
	err = writeValue(conn, frameRequest, request{Op: "start", Order: o})
	if err == nil {
		err = readValue(conn, frameReply, &answer)
	}
	if !stop() {
		err = ctx.Err()
	}
	switch {
	case err != nil:
		conn.Close()
		return nil, errors.Wrapf(err, "start a command")
	case answer.Error != "":
		conn.Close()
		return nil, startError(o.Info.Args[0], answer)
	}
	return conn, nil
}

func startError(name string, answer reply) error {
	err := errors.Errorf("start a command: %s", answer.Error)
	switch syscall.Errno(answer.Errno) {
	case syscall.ENOENT, syscall.ENOTDIR: // the interpreter of a script is missing
		return errors.Exit(errors.Explainf(err, errors.Invalid, "%.200q cannot be executed", name),
			engine.ExitNoProgram)
	case syscall.EACCES, syscall.ENOEXEC, syscall.ELOOP, syscall.ENAMETOOLONG, syscall.E2BIG, syscall.EPERM:
		return errors.Exit(errors.Explainf(err, errors.Invalid, "%.200q cannot be executed", name),
			engine.ExitNotExecutable)
	case syscall.EAGAIN, syscall.ENOMEM, syscall.EMFILE, syscall.ENFILE, syscall.ENOSPC:
		return errors.Explainf(err, errors.Exhausted, "the machine has too few resources for another command")
	}
	return err
}

// follow forwards output and input until the command has ended.
func (p *process) follow(conn net.Conn, stdio engine.Stdio) {
	defer close(p.done)
	pos := p.from
	if conn != nil {
		if stdio.Stdin != nil {
			go pumpInput(conn, stdio.Stdin)
		}
		if p.ctx != nil {
			defer context.AfterFunc(p.ctx, func() { conn.Close() })()
		}
		pos, p.err = p.receive(conn, &stdio)
		conn.Close()
	}
	switch {
	case p.err != nil && p.ctx != nil && p.ctx.Err() != nil:
		p.err = errors.Wrapf(p.ctx.Err(), "follow a command")
	case conn == nil || p.err != nil:
		p.err = p.replay(pos, &stdio)
	}
	if p.exit.Signal == "KILL" && p.t.OutOfMemory != nil && p.t.OutOfMemory() {
		p.exit.OutOfMemory = true
	}
}

func pumpInput(conn net.Conn, in io.Reader) {
	buf := make([]byte, maxData)
	for {
		n, err := in.Read(buf)
		if n > 0 && writeFrame(conn, frameInput, buf[:n]) != nil {
			return
		}
		if err != nil {
			end := byte(frameEOF)
			if err != io.EOF {
				end = frameLost
			}
			_ = writeFrame(conn, end, nil) // the keeper may be gone
			return
		}
	}
}

// deliver writes output. It stops writing to a writer that fails.
func deliver(stdio *engine.Stdio, stream byte, data []byte) {
	w := &stdio.Stdout
	if stream == frameStderr {
		w = &stdio.Stderr
	}
	if *w != nil {
		if _, err := (*w).Write(data); err != nil {
			*w = nil
		}
	}
}

// missing reports that the disk did not return n bytes of output.
func missing(stdio *engine.Stdio, n int64) {
	if stdio.Truncated != nil {
		stdio.Truncated(n)
	}
}

// receive reads output from a keeper until the exit. It returns the position that it has reached.
func (p *process) receive(conn net.Conn, stdio *engine.Stdio) (pos int64, err error) {
	pos = p.from
	buf := make([]byte, maxData)
	for {
		kind, data, err := readFrame(conn, buf)
		if err != nil {
			return pos, errors.Wrapf(err, "follow a command")
		}
		if kind == frameExit {
			return pos, gob.NewDecoder(bytes.NewReader(data)).Decode(&p.exit)
		}
		if kind == frameMissing {
			var n int64
			if err := gob.NewDecoder(bytes.NewReader(data)).Decode(&n); err != nil {
				return pos, errors.Wrapf(err, "follow a command")
			}
			pos += n
			missing(stdio, n)
			continue
		}
		deliver(stdio, kind, data)
		pos += int64(len(data))
	}
}

// replay delivers the output that a keeper has left on disk from pos on, and reads the command's exit.
func (p *process) replay(pos int64, stdio *engine.Stdio) error {
	s, err := openSpool(p.dir)
	if err != nil {
		return errors.Explainf(err, errors.Unavailable, "the connection to the command broke, and its output is lost")
	}
	r, dropped := s.reader(pos)
	defer r.close()
	if dropped > 0 {
		missing(stdio, dropped)
	}
	buf := make([]byte, maxData)
	for {
		stream, data, err := r.next(buf)
		if err == io.EOF {
			break
		}
		if err != nil {
			missing(stdio, r.skip())
			continue
		}
		deliver(stdio, stream, data)
	}
	info, err := readInfo(p.dir)
	if err != nil || info.Exit == nil {
		return errors.Explainf(errors.Join(err, errors.Unavailable), errors.Unavailable,
			"the connection to the command broke; its exit status is unknown")
	}
	p.exit = *info.Exit
	return nil
}

func readInfo(dir string) (info engine.ProcessInfo, err error) {
	data, err := os.ReadFile(filepath.Join(dir, "info.json"))
	if err != nil {
		return info, errors.Wrapf(err, "read a process")
	}
	return info, errors.Wrapf(json.Unmarshal(data, &info), "read a process")
}

// attach connects to a running keeper.
func (p *process) attach(stdio *engine.Stdio) (net.Conn, error) {
	conn, err := dial(p.dir)
	if err != nil {
		return nil, err
	}
	var answer reply
	err = writeValue(conn, frameRequest, request{Op: "attach"})
	if err == nil {
		err = readValue(conn, frameReply, &answer)
	}
	if err != nil {
		conn.Close()
		return nil, err
	}
	if p.from = answer.Dropped; p.from > 0 && stdio.Truncated != nil {
		stdio.Truncated(p.from)
	}
	return conn, nil
}

func (p *process) ID() string { return p.id }

func (p *process) Wait(ctx context.Context) (engine.Exit, error) {
	select {
	case <-p.done:
	case <-ctx.Done():
		select {
		case <-p.done:
		default:
			return engine.Exit{}, errors.Wrapf(ctx.Err(), "wait for a command")
		}
	}
	return p.exit, p.err
}

func (p *process) Signal(ctx context.Context, name string) error {
	sig, err := engine.ParseSignal(name)
	if err != nil {
		return err
	}
	return p.request(ctx, request{Op: "signal", Signal: int(sig)})
}

func (p *process) Resize(ctx context.Context, size engine.Size) error {
	if !p.terminal {
		return errors.Newf(errors.Conflict, "the command has no terminal")
	}
	if err := engine.CheckSize(size); err != nil {
		return err
	}
	return p.request(ctx, request{Op: "resize", Size: size})
}

// request sends a request to the keeper. It succeeds if the command has ended.
func (p *process) request(ctx context.Context, req request) error {
	conn, err := dial(p.dir)
	if err == nil {
		defer conn.Close()
		defer context.AfterFunc(ctx, func() { _ = conn.SetDeadline(time.Now()) })()
		var answer reply
		err = writeValue(conn, frameRequest, req)
		if err == nil {
			err = readValue(conn, frameReply, &answer)
		}
		if err == nil && answer.Error != "" && !p.hasEnded() {
			return errors.Errorf("%s: %s", req.Op, answer.Error)
		}
	}
	if err == nil || p.hasEnded() {
		return nil
	}
	if ctx.Err() != nil {
		err = ctx.Err()
		return errors.Wrapf(err, "%s", req.Op)
	}
	return errors.Explainf(err, errors.Unavailable, "the command cannot be reached")
}

func (p *process) hasEnded() bool {
	info, err := readInfo(p.dir)
	return err != nil || info.Exit != nil
}

func (p *process) Kill(ctx context.Context) error {
	if err := killMarked(ctx, markProcess+p.id); err != nil || p.hasEnded() {
		return err
	}
	// The environment of a program that has just started may not be visible yet.
	_ = p.Signal(ctx, "KILL") // an error means that it has ended
	return killMarked(ctx, markProcess+p.id)
}

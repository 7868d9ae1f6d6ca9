package bridge

import (
	"bytes"
	"context"
	"os"
	"os/exec"
	"strings"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/RelevanceAI/harvest/client/errors"
	"github.com/RelevanceAI/harvest/internal/base/jsonrpc"
)

const (
	eofTime     = 3 * time.Second // between the end of the input and SIGTERM
	termTime    = 2 * time.Second // between SIGTERM and SIGKILL
	drainTime   = time.Second     // for the last output: a child of the agent may keep it open
	maxTail     = 4 << 10         // bytes of the error output that are kept
	shellSignal = 128             // the offset that shells add to the number of the signal that killed a program
)

// child is the agent's process.
type child struct {
	cmd    *exec.Cmd
	lines  chan jsonrpc.Line // closed at the end of the output
	ended  chan struct{}     // closed when the process has ended
	failed error             // how it ended; valid after ended
	tail   tail
	stdin  *os.File
	output *os.File

	mu    sync.Mutex
	queue [][]byte
	wake  chan struct{}
}

// startChild starts the agent in a process group of its own.
func startChild(ctx context.Context, p program, dir string) (*child, error) {
	inside, stdin, err := os.Pipe()
	if err != nil {
		return nil, errors.Wrapf(err, "pipe")
	}
	defer inside.Close()
	output, stdout, err := os.Pipe()
	if err != nil {
		return nil, errors.Join(errors.Wrapf(err, "pipe"), stdin.Close())
	}
	defer stdout.Close()
	c := &child{cmd: exec.CommandContext(ctx, p.args[0], p.args[1:]...), lines: make(chan jsonrpc.Line, 64),
		ended: make(chan struct{}), stdin: stdin, output: output, wake: make(chan struct{}, 1)}
	c.cmd.Env = append(os.Environ(), p.env...)
	c.cmd.Dir, c.cmd.Stdin, c.cmd.Stdout, c.cmd.Stderr = dir, inside, stdout, &c.tail
	c.cmd.Cancel = func() error { return nil } // end ends it
	c.cmd.WaitDelay = drainTime                // of the error output
	c.cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL}
	if err := c.cmd.Start(); err != nil {
		return nil, errors.Join(errors.Remedy(errors.Explainf(err, errors.Invalid, "%s cannot be started", p.args[0]),
			"install it in the image or in the sandbox"), stdin.Close(), output.Close())
	}
	go c.wait()
	go func() {
		jsonrpc.ReadLines(output, jsonrpc.MaxLine, func(in jsonrpc.Line) { c.lines <- in })
		close(c.lines)
	}()
	go c.feed()
	return c, nil
}

// wait waits for the end of the process, and then for its last output.
func (c *child) wait() {
	err := c.cmd.Wait()
	c.failed = endOf(c.cmd.ProcessState, err)
	close(c.ended)
	_ = c.output.SetReadDeadline(time.Now().Add(drainTime)) // a process that it left may keep the output open
}

// endOf describes the end of the agent. If a signal killed it, the error has the exit code of shells for the signal.
func endOf(state *os.ProcessState, err error) error {
	if status, ok := state.Sys().(syscall.WaitStatus); ok && status.Signaled() {
		return errors.Exit(errors.Newf(errors.Unavailable, "the agent died of %s", unix.SignalName(status.Signal())),
			shellSignal+int(status.Signal()))
	}
	return errors.Explainf(errors.Errorf("wait: %v", err), errors.Unavailable,
		"the agent has ended with exit status %d", state.ExitCode())
}

// write sends a line without waiting: an agent that does not read must not stop the bridge.
func (c *child) write(line []byte) {
	c.mu.Lock()
	c.queue = append(c.queue, line)
	c.mu.Unlock()
	select {
	case c.wake <- struct{}{}:
	default:
	}
}

// feed writes the queued lines until the process has ended.
func (c *child) feed() {
	for {
		c.mu.Lock()
		lines := c.queue
		c.queue = nil
		c.mu.Unlock()
		if _, err := c.stdin.Write(bytes.Join(lines, nil)); err != nil {
			return // the process has closed its input; wait reports its end
		}
		select {
		case <-c.wake:
		case <-c.ended:
			return
		}
	}
}

// end ends the process and all processes of its group: some agents leave their children after SIGTERM, and some ignore
// the end of the input.
func (c *child) end() {
	_ = c.stdin.Close()
	for _, step := range []struct {
		wait time.Duration
		then syscall.Signal
	}{{eofTime, syscall.SIGTERM}, {termTime, syscall.SIGKILL}} {
		select {
		case <-c.ended:
		case <-time.After(step.wait):
			_ = syscall.Kill(-c.cmd.Process.Pid, step.then)
		}
	}
	_ = syscall.Kill(-c.cmd.Process.Pid, syscall.SIGKILL)
	<-c.ended
	for range c.lines {
	}
	_ = c.output.Close()
}

// tail keeps the end of the agent's error output. It is a log: some agents write whole requests to it.
type tail struct {
	mu   sync.Mutex
	text []byte
}

func (t *tail) Write(p []byte) (int, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.text = append(t.text, p...)
	if over := len(t.text) - maxTail; over > 0 {
		t.text = append([]byte{}, t.text[over:]...)
	}
	return len(p), nil
}

// String returns the last lines.
func (t *tail) String() string {
	t.mu.Lock()
	defer t.mu.Unlock()
	return strings.ToValidUTF8(strings.TrimSpace(string(t.text)), "")
}

package pipe

import (
	"context"
	"strings"
	"sync"
	"time"

	"github.com/RelevanceAI/harvest/internal/base/logf"
	"github.com/RelevanceAI/harvest/internal/engine"
	"github.com/RelevanceAI/harvest/internal/fleet"
	"github.com/RelevanceAI/harvest/internal/fleet/commands"
	"github.com/RelevanceAI/harvest/internal/session/shell"
)

// Life is the maximum lifetime of an agent's process, the same as that of its sandbox.
const Life = 7 * 24 * time.Hour

// Process is a running agent. One goroutine owns it. Lines, Ended, Detach, Close and Kill accept a nil Process, which
// has no output and no end.
type Process struct {
	In *Inbox
	// Received is the engine's initial count of input bytes that the process received from an earlier server. Written
	// adds the bytes that this server has written.
	Received, Written int64
	Counted           bool // the engine counts input bytes

	x      *commands.Execution
	lines  chan Line
	ended  chan Exit
	stop   chan struct{} // closed when the reader of lines stops
	once   sync.Once
	stderr tail
}

// Exit is the end of a process; Err is set if the result is unknown.
type Exit struct {
	Result commands.Result
	Err    error
}

func newProcess() *Process {
	return &Process{In: NewInbox(), lines: make(chan Line, 64), ended: make(chan Exit, 1), stop: make(chan struct{})}
}

// Start starts a process with the program of req. Follow must follow.
func Start(ctx context.Context, box shell.Sandbox, req fleet.ExecRequest) (*Process, error) {
	p := newProcess()
	req.Timeout, req.Detach = Life, true
	req.Background = true // the session determines when the sandbox is busy
	out := &Splitter{Lines: p.lines, Stop: p.stop}
	req.Stdin, req.Stdout, req.Stderr, req.Truncated = p.In, out, &p.stderr, out.Skip
	var err error
	if p.x, err = box.Fleet.Exec(ctx, box.Account, box.ID, req); err != nil {
		p.Close()
		return nil, err
	}
	return p, nil
}

// Attach attaches to the process of an earlier server. All its output is read again. Follow must follow.
func Attach(ctx context.Context, box shell.Sandbox, id string) (*Process, error) {
	p := newProcess()
	out := &Splitter{Lines: p.lines, Stop: p.stop}
	var err error
	p.x, err = box.Fleet.Attach(ctx, box.Account, box.ID, id, engine.Stdio{
		Stdin: p.In, Stdout: out, Stderr: &p.stderr, Truncated: out.Skip,
		Input: func(n int64, _ bool) { p.Received, p.Written, p.Counted = n, n, true },
	})
	if err != nil {
		p.Close()
		return nil, err
	}
	return p, nil
}

// ID returns the ID by which a later server attaches.
func (p *Process) ID() string { return p.x.ID() }

// Lines returns the channel of the output.
func (p *Process) Lines() <-chan Line {
	if p == nil {
		return nil
	}
	return p.lines
}

// Ended returns the channel with the end of the process, or nil while output is unread.
func (p *Process) Ended() <-chan Exit {
	if p == nil || len(p.lines) > 0 {
		return nil
	}
	return p.ended
}

// Stderr returns the last lines of the standard error.
func (p *Process) Stderr() string { return p.stderr.String() }

// Detach stops reading output. The process keeps running, and blocks once its output is not read.
func (p *Process) Detach() {
	if p != nil {
		p.once.Do(func() { close(p.stop) })
	}
}

// Write writes to the process's input. It never blocks.
func (p *Process) Write(text []byte) {
	p.Written += int64(len(text))
	p.In.Append(text)
}

// Close closes the input of a process that has ended.
func (p *Process) Close() {
	if p != nil {
		p.In.Close()
	}
}

// Kill kills the process. It logs a failure.
func (p *Process) Kill(ctx context.Context) {
	if p == nil {
		return
	}
	if err := p.x.Kill(ctx); err != nil {
		logf.Errorf(ctx, "kill the agent: %v", err)
	}
}

// Follow waits for the process to end.
func (p *Process) Follow(ctx context.Context) {
	result, err := p.x.Wait(ctx)
	p.ended <- Exit{result, err}
}

// tail stores the last bytes that are written to it.
type tail struct {
	mu   sync.Mutex
	text []byte // guarded by mu
}

const tailSize = 4 << 10

func (t *tail) Write(b []byte) (int, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.text = append(t.text, b...)
	if over := len(t.text) - tailSize; over > 0 {
		t.text = append([]byte(nil), t.text[over:]...)
	}
	return len(b), nil
}

func (t *tail) String() string {
	t.mu.Lock()
	defer t.mu.Unlock()
	return strings.TrimSpace(strings.ToValidUTF8(string(t.text), ""))
}

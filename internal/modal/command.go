package modal

import (
	"context"
	"fmt"
	"io"
	"time"

	pb "github.com/modal-labs/modal-client/go/proto/modal_proto"

	"github.com/RelevanceAI/harvest/client/errors"
	"github.com/RelevanceAI/harvest/internal/engine"
	"github.com/RelevanceAI/harvest/internal/fleet"
	"github.com/RelevanceAI/harvest/internal/fleet/commands"
	"github.com/RelevanceAI/harvest/internal/modal/syncs"
)

// command is a running or finished command of a sandbox: a process, or a file operation that looks like one to
// clients. Its output can be read from any offset for as long as the command is remembered.
type command struct {
	out, err *spool // nil: discarded
	in       *stdin
	exec     *commands.Execution             // nil if it is not a process
	joined   bool                            // stdout and stderr are one stream
	flush    func(context.Context, *command) // called at the end of a process; nil if it flushes no volume

	done   chan struct{} // closed once the following are set
	result commands.Result
	fault  error // why the result is unknown
}

// order describes a command to start.
type order struct {
	args     []string
	env      map[string]string
	dir      string
	terminal *engine.Size
	limit    time.Duration
	stdout   bool
	stderr   bool
	joined   bool // stderr goes to stdout
	detached bool // does not count as activity of the sandbox
	flush    *syncs.Flush
}

func (b *box) newCommand(o order) *command {
	c := &command{in: newStdin(), joined: o.joined || o.terminal != nil, done: make(chan struct{})}
	if o.stdout {
		c.out = newSpool(b.s.opts.Dir, b.s.opts.Output)
	}
	switch {
	case o.joined:
		c.err = c.out
	case o.stderr:
		c.err = newSpool(b.s.opts.Dir, b.s.opts.Output)
	}
	return c
}

// writerOf avoids an io.Writer that is not nil but holds a nil *spool.
func writerOf(s *spool) io.Writer {
	if s == nil {
		return io.Discard
	}
	return s
}

// start starts a process in the Fleet's sandbox ref.
func (b *box) start(ctx context.Context, ref string, o order) (*command, error) {
	env, err := b.inside(ctx, ref, o.env)
	if err != nil {
		return nil, err
	}
	c := b.newCommand(o)
	exec, err := b.s.opts.Fleet.Exec(context.WithoutCancel(ctx), b.account, ref, fleet.ExecRequest{
		Args: o.args, Env: env, Workdir: o.dir, Terminal: o.terminal, Timeout: o.limit, Stdin: c.in,
		Stdout: writerOf(c.out), Stderr: writerOf(c.err), Detach: o.detached, Background: o.detached,
		Truncated: c.truncated,
	})
	if err != nil {
		return nil, err
	}
	c.exec, c.flush = exec, b.flushing(ref, o.flush)
	b.s.tasks.Go(func() { c.follow(b.s.ctx) })
	return c, nil
}

// attach takes over a process that an earlier server started. Of its order, only the output streams matter.
// Input continues at the offset that the engine reports, or else at the offset that the earlier server
// recorded; a killed server records none.
func (b *box) attach(ctx context.Context, ref, process string, noted int64, o order) (*command, error) {
	o.stdout, o.stderr = true, true
	c := b.newCommand(o)
	c.in.resume(noted)
	exec, err := b.s.opts.Fleet.Attach(context.WithoutCancel(ctx), b.account, ref, process, engine.Stdio{
		Stdin: c.in, Stdout: c.out, Stderr: c.err, Input: c.in.resumeAt, Truncated: c.truncated,
	})
	if err != nil {
		return nil, err
	}
	c.exec, c.flush = exec, b.flushing(ref, o.flush)
	b.s.tasks.Go(func() { c.follow(b.s.ctx) })
	return c, nil
}

// truncated records that the engine did not keep n bytes of the command's output. The engine does not report
// which stream they belonged to.
func (c *command) truncated(n int64) {
	if c.joined && c.out != nil {
		c.out.skip(n)
		return
	}
	for _, s := range []*spool{c.out, c.err} {
		if s != nil {
			s.detach()
		}
	}
}

// follow waits for the end of a process.
func (c *command) follow(ctx context.Context) {
	c.result, c.fault = c.exec.Wait(ctx)
	if ctx.Err() != nil { // the command still runs: its input must not end with this server
		c.finishOutput()
		return
	}
	c.reportCrash()
	if c.flush != nil && c.fault == nil {
		c.flush(ctx, c)
	}
	c.finish()
}

// reportCrash adds a crash to the command's stderr: the protocol has an exit code only, and shells report the end of
// a child as 139.
func (c *command) reportCrash() {
	why, to := c.result.Crashed, c.err
	if c.joined {
		to = c.out
	}
	if why == "" || why != c.result.Why() || to == nil {
		return
	}
	fmt.Fprintf(to, "harvest: %s\n", why)
}

// finish publishes the end of the command.
func (c *command) finish() {
	c.in.leave()
	c.finishOutput()
}

func (c *command) finishOutput() {
	for _, s := range []*spool{c.out, c.err} {
		if s != nil {
			s.end()
		}
	}
	close(c.done)
}

func (c *command) forget() {
	for _, s := range []*spool{c.out, c.err} {
		if s != nil {
			s.forget()
		}
	}
}

// ended reports, without waiting, whether the command has ended.
func (c *command) ended() bool {
	select {
	case <-c.done:
		return true
	default:
		return false
	}
}

// await waits for the end of the command.
func (c *command) await(ctx context.Context) error {
	if c.ended() {
		return nil
	}
	select {
	case <-c.done:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// killed returns the signal that ended a command, 0 if it was not killed. A time limit counts as SIGKILL.
func killed(r commands.Result) int32 {
	if r.Signal == "" && !r.TimedOut {
		return 0
	}
	sig, err := engine.ParseSignal(r.Signal)
	if err != nil || r.TimedOut {
		return 9
	}
	return int32(sig)
}

func waited(c *command) (*pb.TaskExecWaitResponse, error) {
	if c.fault != nil {
		return nil, errors.Explainf(c.fault, errors.NotFound, "the exit status of the command is unknown")
	}
	if sig := killed(c.result); sig != 0 {
		return pb.TaskExecWaitResponse_builder{Signal: &sig}.Build(), nil
	}
	code := int32(c.result.ReturnCode)
	return pb.TaskExecWaitResponse_builder{Code: &code}.Build(), nil
}

// sizeOf returns the size of the terminal that a client requests; nil without one.
func sizeOf(p *pb.PTYInfo) *engine.Size {
	if p == nil || !p.GetEnabled() && p.GetPtyType() == pb.PTYInfo_PTY_TYPE_UNSPECIFIED {
		return nil
	}
	size := engine.Size{Rows: 24, Cols: 80}
	if p.GetWinszRows() > 0 && p.GetWinszCols() > 0 {
		size = engine.Size{Rows: int(p.GetWinszRows()), Cols: int(p.GetWinszCols())}
	}
	return &size
}

// terminalEnv adds the environment variables of the terminal.
func terminalEnv(env map[string]string, p *pb.PTYInfo) {
	for name, value := range map[string]string{"TERM": p.GetEnvTerm(), "COLORTERM": p.GetEnvColorterm(),
		"TERM_PROGRAM": p.GetEnvTermProgram()} {
		if _, set := env[name]; !set && value != "" {
			env[name] = value
		}
	}
}

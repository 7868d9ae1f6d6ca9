package session

import (
	"context"
	"fmt"
	"maps"
	"path"
	"strings"
	"sync"
	"time"

	"github.com/RelevanceAI/harvest/agent"
	"github.com/RelevanceAI/harvest/engine"
	"github.com/RelevanceAI/harvest/errors"
	"github.com/RelevanceAI/harvest/logf"
	"github.com/RelevanceAI/harvest/sandbox"
	"github.com/RelevanceAI/harvest/session/models"
	"github.com/RelevanceAI/harvest/session/pipe"
	"github.com/RelevanceAI/harvest/session/volumes"
)

// process is a running agent. Its methods are no-ops on a nil process.
type process struct {
	x      *sandbox.Execution
	in     *pipe.Inbox
	lines  chan pipe.Line
	ended  chan procEnd
	stop   chan struct{} // closed when the reader of lines stops
	once   sync.Once
	stderr tail
	// The loop of the session owns the remaining fields. received is the engine's initial count of input bytes that
	// the process received from an earlier server. written adds the bytes that this server has written.
	received, written int64
	counted           bool // the engine counts input bytes
}

// procEnd is the end of a process; err is set if the result is unknown.
type procEnd struct {
	result sandbox.Result
	err    error
}

func newProcess() *process {
	return &process{in: pipe.NewInbox(), lines: make(chan pipe.Line, 64), ended: make(chan procEnd, 1),
		stop: make(chan struct{})}
}

func (p *process) output() <-chan pipe.Line {
	if p == nil {
		return nil
	}
	return p.lines
}

// exit returns the channel with the end of the process, or nil while output is unread.
func (p *process) exit() <-chan procEnd {
	if p == nil || len(p.lines) > 0 {
		return nil
	}
	return p.ended
}

// letGo stops reading output. The process keeps running, and blocks once its output is not read.
func (p *process) letGo() {
	if p != nil {
		p.once.Do(func() { close(p.stop) })
	}
}

// write writes to the process's input. It never blocks.
func (p *process) write(text []byte) {
	p.written += int64(len(text))
	p.in.Append(text)
}

// close closes the input of a process that has ended.
func (p *process) close() {
	if p != nil {
		p.in.Close()
	}
}

func (p *process) kill(ctx context.Context) {
	if p == nil {
		return
	}
	if err := p.x.Kill(ctx); err != nil {
		logf.Errorf(ctx, "kill the agent: %v", err)
	}
}

// follow waits for the process to end.
func (p *process) follow(ctx context.Context) {
	result, err := p.x.Wait(ctx)
	p.ended <- procEnd{result, err}
}

// tail stores the last bytes that are written to it.
type tail struct {
	mu   sync.Mutex
	text []byte // guarded by mu
}

// agentLife is the maximum lifetime of an agent's process, the same as that of its sandbox.
const agentLife = 7 * 24 * time.Hour

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

// setup returns the parameters for starting the agent.
func (s Session) setup() agent.Setup {
	return agent.Setup{Dir: path.Join(s.Dir, s.Subdir), Conversation: s.Conversation, Model: s.Model, Env: s.agentEnv(),
		Approval: s.Approval}
}

// start starts the agent for the first queued prompt, and reports whether it did. If not, either that prompt has
// failed, or a new sandbox is being created for it.
func (r *runner) start(ctx context.Context) bool {
	s := r.session()
	program := r.m.opts.Agents[s.Agent]
	r.openLine()
	setup, err := r.equip(ctx, program)
	if err != nil {
		return r.notStarted(ctx, err)
	}
	cmd := program.Command(setup)
	r.published = 0
	r.publish(draft{EventStarted, Event{}}) // with the offset of a process without output
	p := newProcess()
	out := &pipe.Splitter{Lines: p.lines, Stop: p.stop}
	x, err := r.m.opts.Fleet.Exec(ctx, r.account, s.SandboxID, sandbox.ExecRequest{
		Args: cmd.Args, Own: cmd.Own, Env: cmd.Env, Workdir: cmd.Dir, Timeout: agentLife, Stdin: p.in, Stdout: out,
		Stderr: &p.stderr, Detach: true,
		Background: true, // keepBusy determines when the sandbox is busy
	})
	if err != nil {
		p.close()
		return r.notStarted(ctx, err)
	}
	p.x = x
	r.agent, r.conv = p, program.Open(setup)
	r.change(func(s *Session) { s.Process = x.ID() })
	r.m.work.Go(func() { p.follow(r.m.ctx) })
	p.write(r.conv.Begin())
	if setup.MCPConfig != "" {
		r.closeGate()
	}
	return true
}

// equip returns the setup of the agent's process.
func (r *runner) equip(ctx context.Context, program agent.Agent) (setup agent.Setup, err error) {
	s := r.session()
	setup = s.setup()
	if s.Subdir != "" { // git does not track empty directories, and the agent may have removed it
		p := preparation{m: r.m, s: s, sandbox: s.SandboxID}
		if _, err := p.m.in(p.s.Account, p.sandbox).Output(ctx, `mkdir -p "$1"`, setup.Dir); err != nil {
			return setup, err
		}
	}
	r.resume(ctx, program, &setup)
	if models.Needed(program) {
		if setup.Access, err = r.m.models().Access(ctx, r.account, r.id, s.Sandbox.Secrets); err != nil {
			return setup, err
		}
		overridden, err := models.Guard(ctx, r.m.in(s.Account, s.SandboxID), program, &setup, s.Dir, setup.Dir)
		if err != nil {
			return setup, err
		}
		for _, text := range overridden {
			r.publish(draft{string(agent.Overridden), Event{Event: agent.Event{Text: text}}})
		}
	}
	config, err := r.prepareMCP(ctx, program)
	if err != nil {
		return setup, err
	}
	setup.MCPConfig = config.File
	maps.Copy(setup.Env, config.Env)
	return setup, nil
}

// notStarted handles a failed start of the agent. It returns false.
func (r *runner) notStarted(ctx context.Context, err error) bool {
	r.line.Close()
	r.line = nil
	if r.session().Spare {
		logf.Warnf(ctx, "start the agent of a session made ahead: %v", err)
		r.end("its agent could not be started")
		return false
	}
	sb, e := r.m.opts.Fleet.Get(ctx, r.account, r.session().SandboxID)
	// Conflict means that the sandbox is about to end.
	if errors.KindOf(e) == errors.NotFound || e == nil && sb.Status.Ended() || errors.KindOf(err) == errors.Conflict {
		r.ready = false
		r.makeReady(ctx)
		return false
	}
	logf.Errorf(ctx, "start the agent: %v", err)
	if len(r.queue) == 0 { // startAhead
		return false
	}
	r.failFirst("the agent could not be started: " + errors.Message(err))
	return false
}

// attach attaches to the agent process of an earlier server. It reads all its output again, but does not publish
// output that became events earlier.
func (r *runner) attach(ctx context.Context, s Session) {
	p := newProcess()
	out := &pipe.Splitter{Lines: p.lines, Stop: p.stop}
	stdio := engine.Stdio{
		Stdin: p.in, Stdout: out, Stderr: &p.stderr, Truncated: func(n int64) { out.At = n },
		Input: func(n int64, _ bool) { p.received, p.written, p.counted = n, n, true },
	}
	x, err := r.m.opts.Fleet.Attach(r.m.ctx, r.account, s.SandboxID, s.Process, stdio)
	if err != nil {
		p.close()
		logf.Errorf(ctx, "find the agent again: %v", err)
		r.change(func(s *Session) { s.Process = "" })
		return
	}
	p.x = x
	setup := s.setup()
	setup.Again = true
	r.agent, r.conv = p, r.m.opts.Agents[s.Agent].Open(setup)
	if r.current == nil {
		r.closeGate() // the first prompt may still have to wait
	}
	r.recheck, r.lost = true, nil
	if p.counted {
		r.lost = s.Deliveries
	}
	r.began, r.heard, r.behind, r.timed = time.Now(), time.Now(), r.published > 0, false
	r.openLine()
	r.m.work.Go(func() { p.follow(r.m.ctx) })
}

// exited handles the end of the agent's process. During a turn it is a failure, whatever the exit code.
func (r *runner) exited(ctx context.Context, end procEnd) {
	if r.m.ctx.Err() != nil {
		return // the connection ended because this server is shutting down
	}
	p, waiting := r.agent, r.current == nil && r.gate.Closed() && len(r.queue) > 0
	p.close()
	r.agent, r.gate, r.behind, r.occupied = nil, nil, false, time.Time{}
	r.line.End(ctx)
	r.line = nil
	r.change(func(s *Session) { s.Process = "" })
	if r.session().Spare {
		logf.Warnf(ctx, "the agent of a session made ahead has ended with code %d: %s", end.result.ReturnCode,
			p.stderr.String())
		r.end("its agent has ended")
		return
	}
	if r.current == nil && !waiting {
		return
	}
	if how := r.crash(end); how != "" && (waiting && r.startAgain(ctx, how) || !waiting && r.again(ctx, how)) {
		return
	}
	why := fmt.Sprintf("the agent's process ended with code %d and without a result", end.result.ReturnCode)
	switch {
	case end.err != nil:
		why = "the agent was lost: " + errors.Message(end.err)
	case end.result.OutOfMemory:
		why = "the agent's process was ended because the sandbox ran out of memory"
	case r.crash(end) != "":
		why = r.crash(end)
	case end.result.Why() != "":
		why = "the agent's process ended: " + end.result.Why()
	}
	if said := p.stderr.String(); said != "" && r.stopped == "" {
		why += ": " + said
	}
	logf.Infof(ctx, "%s", why)
	if waiting {
		r.failFirst(why)
		return
	}
	r.requeue(r.deferred)
	r.deferred = nil
	r.turnEnded(agent.Event{Type: agent.Done, Failed: true, Reason: "process_ended", Text: why}, 0)
}

// failFirst fails the first queued prompt.
func (r *runner) failFirst(why string) {
	m := r.queue[0]
	r.queue = r.queue[1:]
	r.current = &m
	r.turnEndedAs(agent.Event{Type: agent.Done, Failed: true, Reason: "not_started", Text: why})
}

// turnEndedAs is turnEnded for a turn that never began.
func (r *runner) turnEndedAs(e agent.Event) {
	if s := r.session().Status; s == Ready || s == Done || s == Failed {
		r.setStatus(Thinking, "")
	}
	r.turnEnded(e, 0)
}

// agentEnv returns the environment variables for the location of the agent's conversation.
func (s Session) agentEnv() map[string]string {
	dir := volumes.StateDir(s.ID)
	return map[string]string{"CLAUDE_CONFIG_DIR": dir + "/claude", "XDG_DATA_HOME": dir + "/data"}
}

package session

import (
	"context"
	"fmt"
	"maps"
	"path"
	"time"

	"github.com/RelevanceAI/harvest/client/errors"
	"github.com/RelevanceAI/harvest/internal/base/logf"
	"github.com/RelevanceAI/harvest/internal/fleet"
	"github.com/RelevanceAI/harvest/internal/session/agent"
	"github.com/RelevanceAI/harvest/internal/session/agent/release"
	"github.com/RelevanceAI/harvest/internal/session/models"
	"github.com/RelevanceAI/harvest/internal/session/pipe"
	"github.com/RelevanceAI/harvest/internal/session/records"
	"github.com/RelevanceAI/harvest/internal/session/volumes"
)

// setupOf returns the parameters for starting the agent.
func setupOf(s records.Session) agent.Setup {
	return agent.Setup{Dir: path.Join(s.Dir, s.Subdir), Conversation: s.Conversation, Model: s.Model,
		Effort: s.Effort, Env: agentEnv(s), Approval: s.Approval}
}

// start starts the agent for the first queued prompt, and reports whether it did. If not, either that prompt has
// failed, or a new sandbox is being created for it.
func (r *runner) start(ctx context.Context) bool {
	s := r.session()
	program := programOf(r.m, s.Agent)
	r.openLine()
	setup, err := r.equip(ctx, program)
	if err != nil {
		return r.notStarted(ctx, err)
	}
	cmd := program.Command(setup)
	if s.Release != "" {
		pkg, err := release.Of(s.Agent, program, s.Release)
		if err != nil { // an earlier version of Harvest accepted it
			return r.notStarted(ctx, err)
		}
		cmd = release.Wrap(cmd, pkg)
	}
	r.published = 0
	r.publish(draft{records.EventStarted, records.Event{}}) // with the offset of a process without output
	p, err := pipe.Start(ctx, r.m.in(r.account, s.SandboxID), fleet.ExecRequest{Args: cmd.Args, Own: cmd.Own,
		Env: cmd.Env, Workdir: cmd.Dir})
	if err != nil {
		return r.notStarted(ctx, err)
	}
	r.agent, r.conv = p, program.Open(setup)
	r.change(func(s *records.Session) { s.Process = p.ID() })
	r.m.work.Go(func() { p.Follow(r.m.ctx) })
	p.Write(r.conv.Begin())
	if setup.MCPConfig != "" {
		r.closeGate()
	}
	return true
}

// equip returns the setup of the agent's process.
func (r *runner) equip(ctx context.Context, program agent.Agent) (setup agent.Setup, err error) {
	s := r.session()
	setup = setupOf(s)
	if s.Subdir != "" { // git does not track empty directories, and the agent may have removed it
		if _, err := r.m.in(s.Account, s.SandboxID).Output(ctx, `mkdir -p "$1"`, setup.Dir); err != nil {
			return setup, err
		}
	}
	r.resume(ctx, program, &setup)
	if models.Needed(program) {
		if setup.Access, err = r.m.models().Access(ctx, program, r.account, r.id, s.Sandbox.Secrets); err != nil {
			return setup, err
		}
		overridden, err := models.Guard(ctx, r.m.in(s.Account, s.SandboxID), program, &setup, s.Dir, setup.Dir)
		if err != nil {
			return setup, err
		}
		for _, text := range overridden {
			r.publish(draft{string(agent.Overridden), records.Event{Event: agent.Event{Text: text}}})
		}
	}
	setup.MCPLimits = r.mcpLimits()
	config, err := r.prepareMCP(ctx, program, setup.MCPLimits)
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
func (r *runner) attach(ctx context.Context, s records.Session) {
	p, err := pipe.Attach(r.m.ctx, r.m.in(r.account, s.SandboxID), s.Process)
	if ctx.Err() != nil { // the server stops: the next one attaches
		p.Detach()
		return
	}
	if err != nil {
		logf.Errorf(ctx, "find the agent again: %v", err)
		r.change(func(s *records.Session) { s.Process = "" })
		return
	}
	setup := setupOf(s)
	setup.Again = true
	r.agent, r.conv = p, programOf(r.m, s.Agent).Open(setup)
	if r.current == nil {
		r.closeGate() // the first prompt may still have to wait
	}
	r.recheck, r.lost = true, nil
	if p.Counted {
		r.lost = s.Deliveries
	}
	r.began, r.heard, r.behind, r.timed = time.Now(), time.Now(), r.published > 0, false
	r.openLine()
	r.m.work.Go(func() { p.Follow(r.m.ctx) })
}

// exited handles the end of the agent's process. During a turn it is a failure, whatever the exit code.
func (r *runner) exited(ctx context.Context, end pipe.Exit) {
	if r.m.ctx.Err() != nil {
		return // the connection ended because this server is shutting down
	}
	p, waiting := r.agent, r.current == nil && r.gate.Closed() && len(r.queue) > 0 && r.session().Next == nil
	p.Close()
	r.agent, r.gate, r.behind, r.occupied = nil, nil, false, time.Time{}
	r.line.End(ctx)
	r.line = nil
	r.change(func(s *records.Session) { s.Process = "" })
	if r.session().Spare {
		logf.Warnf(ctx, "the agent of a session made ahead has ended with code %d: %s", end.Result.ReturnCode,
			p.Stderr())
		r.end("its agent has ended")
		return
	}
	if forgotten(r, end) || r.current == nil && !waiting {
		return
	}
	if how := r.crash(end); how != "" && (waiting && r.startAgain(ctx, how) || !waiting && r.again(ctx, how)) {
		return
	}
	why := fmt.Sprintf("the agent's process ended with code %d and without a result", end.Result.ReturnCode)
	switch {
	case end.Err != nil:
		why = "the agent was lost: " + errors.Message(end.Err)
	case end.Result.OutOfMemory:
		why = "the agent's process was ended because the sandbox ran out of memory"
	case r.crash(end) != "":
		why = r.crash(end)
	case end.Result.Why() != "":
		why = "the agent's process ended: " + end.Result.Why()
	}
	if said := p.Stderr(); said != "" && r.stopped == "" {
		why += ": " + said
	}
	logf.Infof(ctx, "%s", why)
	if waiting {
		r.failFirst(why)
		return
	}
	r.requeue(r.deferred)
	r.deferred = nil
	if r.stopped != "" { // the process was ended because it did not stop in time
		why = ""
	}
	r.turnEnded(agent.Event{Type: agent.Done, Failed: true, Reason: processEnded, Text: why}, 0)
}

// processEnded is the reason for the end of a turn whose agent's process ended.
const processEnded = "process_ended"

// failFirst fails the first queued prompt.
func (r *runner) failFirst(why string) {
	m := r.queue[0]
	r.queue = r.queue[1:]
	r.current = &m
	r.turnEndedAs(agent.Event{Type: agent.Done, Failed: true, Reason: "not_started", Text: why})
}

// turnEndedAs is turnEnded for a turn that never began.
func (r *runner) turnEndedAs(e agent.Event) {
	if s := r.session().Status; s == records.Ready || s == records.Done || s == records.Failed {
		r.setStatus(records.Thinking, "")
	}
	r.turnEnded(e, 0)
}

// agentEnv returns the environment variables for the location of the agent's conversation.
func agentEnv(s records.Session) map[string]string {
	dir := volumes.StateDir(s.ID)
	return map[string]string{"CLAUDE_CONFIG_DIR": dir + "/claude", "XDG_DATA_HOME": dir + "/data"}
}

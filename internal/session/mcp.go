package session

import (
	"context"
	"math"
	"runtime"
	"time"

	"github.com/RelevanceAI/harvest/client/errors"
	"github.com/RelevanceAI/harvest/internal/session/agent"
	"github.com/RelevanceAI/harvest/internal/session/records"
	"github.com/RelevanceAI/harvest/internal/session/servers"
)

// prepareMCP writes the configuration of the agent's MCP servers into the sandbox, and reports the invalid ones.
func (r *runner) prepareMCP(ctx context.Context, a agent.Agent, limits agent.MCPLimits) (servers.Config, error) {
	configurer, ok := a.(agent.MCPConfigurer)
	if !ok {
		return servers.Config{}, nil
	}
	s := r.session()
	config, err := servers.Source{Sandbox: r.m.in(s.Account, s.SandboxID), Secrets: r.m.opts.Secrets,
		Names: s.Sandbox.Secrets, Dir: s.Dir, Own: s.MCP, Limits: limits}.Write(ctx, configurer)
	for _, reason := range config.Invalid {
		r.publish(draft{records.EventMCPFailed, records.Event{Event: agent.Event{ID: ".mcp.json", Reason: reason}}})
	}
	return config, err
}

// mcpFactor is how many times MCPWait the agent waits for an MCP server: a server that the first prompt does not wait
// for may still start.
const mcpFactor = 4

// mcpLimits returns the agent's own limits for the start of MCP servers. A server that starts keeps a processor busy
// for seconds, so that no more start at once than there are processors. At least two do: one that hangs must not stop
// all others.
func (r *runner) mcpLimits() agent.MCPLimits {
	processors := runtime.NumCPU()
	if limit := r.session().Sandbox.CPU; limit > 0 {
		processors = min(processors, int(math.Ceil(limit)))
	}
	return agent.MCPLimits{Timeout: mcpFactor * r.m.opts.MCPWait, AtOnce: max(2, processors)}
}

// closeGate starts the wait for the MCP servers of a process.
func (r *runner) closeGate() {
	if asker, ok := r.conv.(agent.MCPAsker); ok {
		r.gate = servers.NewGate(r.m.opts.MCPWait, r.m.opts.HangAfter)
		r.agent.Write(asker.AskMCP())
	}
}

// watchGate queries the agent again, or opens the gate if the agent does not answer.
func (r *runner) watchGate(now time.Time) {
	drafts := gateEvents(r.gate.Watch(now, func() bool {
		asker, ok := r.conv.(agent.MCPAsker)
		if !ok || r.agent == nil {
			return false
		}
		r.agent.Write(asker.AskMCP())
		return true
	}))
	if len(drafts) > 0 {
		r.publish(drafts...)
	}
}

// serversReady reports whether the next prompt may be sent. Between two turns it starts the MCP servers again that have
// failed.
func (r *runner) serversReady() bool {
	asker, ok := r.conv.(agent.MCPAsker)
	if !ok || r.agent == nil {
		return !r.gate.Closed()
	}
	restart, ask := r.gate.Between()
	for _, name := range restart {
		r.restartServer(asker, name)
	}
	if ask {
		r.agent.Write(asker.AskMCP())
	}
	return !r.gate.Closed()
}

func (r *runner) restartServer(asker agent.MCPAsker, name string) {
	r.publish(draft{records.EventMCPRestarting, records.Event{Event: agent.Event{ID: name}}})
	r.agent.Write(asker.RestartMCP(name))
}

// MCPServers returns the state of the agent's MCP servers; it is empty while no agent runs.
func (m *Manager) MCPServers(ctx context.Context, account, ref string) (all []agent.MCP, err error) {
	r, err := m.live(ctx, account, ref)
	if err != nil {
		return nil, err
	}
	err = r.call(ctx, func() error {
		all = r.gate.Servers()
		return nil
	})
	return all, err
}

// RestartMCP starts an MCP server of the agent again. Events report the result. It returns Conflict if no agent runs.
func (m *Manager) RestartMCP(ctx context.Context, account, ref, name string) error {
	r, err := m.live(ctx, account, ref)
	if err != nil {
		return err
	}
	return r.call(ctx, func() error {
		asker, ok := r.conv.(agent.MCPAsker)
		if !ok || r.agent == nil {
			return errors.Remedy(errors.Newf(errors.Conflict, "the agent is not running"),
				"send a prompt: it starts the agent with all MCP servers")
		}
		if !r.gate.Restart(name, r.current != nil) {
			return errors.Remedy(errors.Newf(errors.NotFound, "MCP server %.80q: not found", name),
				"list the servers of the session")
		}
		r.restartServer(asker, name)
		r.agent.Write(asker.AskMCP())
		return nil
	})
}

// gateEvents returns the events for reports of the gate.
func gateEvents(reports []servers.Report) (drafts []draft) {
	for _, report := range reports {
		switch {
		case report.Opened:
			stage := records.Stage{Name: "mcp servers", MS: float64(report.Waited.Microseconds()) / 1000}
			drafts = append(drafts, draft{records.EventStage, records.Event{Stage: &stage}})
		case report.Failed:
			drafts = append(drafts, draft{records.EventMCPFailed, records.Event{Event: agent.Event{ID: report.Server,
				Reason: report.Reason}}})
		default:
			drafts = append(drafts, draft{records.EventMCPReady, records.Event{Event: agent.Event{ID: report.Server}}})
		}
	}
	return drafts
}

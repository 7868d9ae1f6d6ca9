package session

import (
	"context"
	"time"

	"github.com/RelevanceAI/harvest/internal/session/agent"
	"github.com/RelevanceAI/harvest/internal/session/records"
	"github.com/RelevanceAI/harvest/internal/session/servers"
)

// prepareMCP writes the configuration of the agent's MCP servers into the sandbox, and reports the invalid ones.
func (r *runner) prepareMCP(ctx context.Context, a agent.Agent) (servers.Config, error) {
	configurer, ok := a.(agent.MCPConfigurer)
	if !ok {
		return servers.Config{}, nil
	}
	s := r.session()
	config, err := servers.Source{Sandbox: r.m.in(s.Account, s.SandboxID), Secrets: r.m.opts.Secrets,
		Names: s.Sandbox.Secrets, Dir: s.Dir, Own: s.MCP}.Write(ctx, configurer)
	for _, reason := range config.Invalid {
		r.publish(draft{records.EventMCPFailed, records.Event{Event: agent.Event{ID: ".mcp.json", Reason: reason}}})
	}
	return config, err
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

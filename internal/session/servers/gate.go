package servers

import (
	"cmp"
	"fmt"
	"time"

	"github.com/RelevanceAI/harvest/internal/session/agent"
)

const (
	askPause  = 250 * time.Millisecond // between two queries of the servers' state
	slowPause = 30 * time.Second       // maximum of that pause, for servers that are late
	lateLimit = 10 * time.Minute       // time after which late servers are not queried
	grace     = 5 * time.Second        // for the last answer
)

// Gate delays the first prompt of an agent's process until each MCP server is ready or has failed, or a time limit has
// passed: agents pass the list of tools to their model once. An open Gate still reports servers that are late. A nil
// Gate is open.
type Gate struct {
	limit    time.Duration   // from the first output of the agent
	silence  time.Duration   // until that output
	began    time.Time       // when the process was started
	until    time.Time       // when the gate opens in any case; zero until the agent prints something
	ask      time.Time       // time of the next query to the agent; zero while an answer is pending
	pause    time.Duration   // between two queries
	reported map[string]bool // whether a server failed, by its name
	open     bool
}

// NewGate returns the closed Gate of a process that starts now, while an answer of the agent is pending. It opens limit
// after the agent's first output, or after silence without output.
func NewGate(limit, silence time.Duration) *Gate {
	return &Gate{limit: limit, silence: silence, began: time.Now(), pause: askPause, reported: map[string]bool{}}
}

// Report is a change: of a server's state, or the Gate has opened.
type Report struct {
	Opened bool          // the Gate has opened; the other fields except for Waited are zero
	Waited time.Duration // how long the Gate was closed
	Server string
	Failed bool   // otherwise the server is ready
	Reason string // of a failure
}

// Closed reports whether prompts must wait.
func (g *Gate) Closed() bool { return g != nil && !g.open }

// Hear returns the changes in an event of the agent. The first event starts the timer of the limit.
func (g *Gate) Hear(e agent.Event) []Report {
	if g == nil {
		return nil
	}
	if g.until.IsZero() {
		g.until = time.Now().Add(g.limit)
	}
	if e.Type == agent.MCPStatus || e.Type == agent.Ready && g.open && len(e.MCP) > 0 {
		return g.status(e.MCP)
	}
	return nil
}

// status returns reports of the servers whose state has changed.
func (g *Gate) status(servers []agent.MCP) (all []Report) {
	pending, over := false, !time.Now().Before(g.until)
	for _, s := range servers {
		failed, reason := false, ""
		last, known := g.reported[s.Name]
		switch s.Status {
		case "connected":
		case "pending", "connecting":
			pending = true
			if !over || known {
				continue
			}
			failed, reason = true, fmt.Sprintf("it was not ready after %s", g.limit)
		default:
			failed, reason = true, cmp.Or(s.Error, s.Status)
		}
		if !known || last != failed {
			g.reported[s.Name] = failed
			all = append(all, Report{Server: s.Name, Failed: failed, Reason: reason})
		}
	}
	if pending && !over {
		g.ask = time.Now().Add(g.pause)
		return all
	}
	if !g.open {
		all = append(all, g.opened())
	}
	g.ask = time.Time{}
	if pending && time.Since(g.until) < lateLimit {
		g.pause = min(2*g.pause, slowPause)
		g.ask = time.Now().Add(g.pause)
	}
	return all
}

// opened opens the gate, and returns the report with the time that prompts waited.
func (g *Gate) opened() Report {
	g.open = true
	return Report{Opened: true, Waited: time.Since(g.began)}
}

// Due returns when Watch must run next; zero if never.
func (g *Gate) Due() time.Time {
	switch {
	case g == nil:
		return time.Time{}
	case !g.ask.IsZero():
		return g.ask
	case g.open:
		return time.Time{}
	case g.until.IsZero(): // the agent has printed nothing
		return g.began.Add(g.silence)
	}
	return g.until.Add(grace) // the agent does not answer
}

// Watch queries the agent again when that is due, or opens the Gate if the agent does not answer. ask sends the query;
// it returns false if it cannot.
func (g *Gate) Watch(now time.Time, ask func() bool) []Report {
	due := g.Due()
	if due.IsZero() || now.Before(due) {
		return nil
	}
	query := !g.ask.IsZero()
	g.ask = time.Time{}
	if query && ask() || g.open {
		return nil
	}
	return []Report{g.opened()}
}

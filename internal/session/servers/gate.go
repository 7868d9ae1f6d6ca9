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
	maxTries  = 2                      // restarts of a server that does not become ready
)

// Gate delays prompts of an agent's process until each MCP server is ready or has failed, or a time limit has passed:
// agents pass the list of tools to their model once. It delays the first prompt; and the next one while servers that
// failed are started again, and for servers that were late. An open Gate still reports servers that are late. A nil
// Gate is open.
type Gate struct {
	limit   time.Duration // from the first output of the agent, or from a restart
	silence time.Duration // until that output
	began   time.Time     // when the gate was closed
	until   time.Time     // when the gate opens in any case; zero until the agent prints something
	ask     time.Time     // time of the next query to the agent; zero while an answer is pending
	pause   time.Duration // between two queries
	servers map[string]*server
	order   []string // names of the servers
	open    bool
	turn    bool // a prompt was sent since the last restarts
}

// server is the state of a server.
type server struct {
	status     string // as the agent reports it
	reason     string // of a failure
	reported   bool   // failed is valid
	failed     bool   // last report
	restarting bool
	began      time.Time // of the restart
	tries      int       // restarts since it was last ready, except those on request
	waited     bool      // the gate was closed again because it was late
}

// NewGate returns the closed Gate of a process that starts now, while an answer of the agent is pending. It opens limit
// after the agent's first output, or after silence without output.
func NewGate(limit, silence time.Duration) *Gate {
	return &Gate{limit: limit, silence: silence, began: time.Now(), pause: askPause, servers: map[string]*server{}}
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

// Servers returns the state of each server.
func (g *Gate) Servers() []agent.MCP {
	all := []agent.MCP{}
	if g == nil {
		return all
	}
	for _, name := range g.order {
		s := g.servers[name]
		m := agent.MCP{Name: name, Status: s.status, Error: s.reason}
		if s.restarting {
			m.Status, m.Error = "pending", ""
		}
		all = append(all, m)
	}
	return all
}

// Sent records that a prompt was sent: when its turn has ended, servers that have failed are started again.
func (g *Gate) Sent() {
	if g != nil {
		g.turn = true
	}
}

// Between returns the servers that must be started again between two turns, and whether the agent must be queried. If
// there are any, or if servers are late for the first time, it closes the gate. The caller reports the end of each
// restart with an MCPRestarted event.
func (g *Gate) Between() (restart []string, ask bool) {
	if g == nil || !g.open || !g.turn {
		return nil, false
	}
	g.turn = false
	late := false
	for _, name := range g.order {
		switch s := g.servers[name]; {
		case s.restarting:
		case s.status == "failed" && s.tries < maxTries:
			s.tries++
			restart = append(restart, name)
		case isPending(s.status) && !s.waited:
			s.waited, late = true, true
		}
	}
	if late || len(restart) > 0 {
		g.close(restart)
	}
	return restart, len(g.order) > 0
}

// Restart records that a server is started again on request. It returns false if the server is unknown. The gate closes
// unless a turn is under way.
func (g *Gate) Restart(name string, working bool) bool {
	if g == nil || g.servers[name] == nil {
		return false
	}
	if working {
		g.servers[name].begin()
	} else {
		g.close([]string{name})
	}
	return true
}

// close closes the gate while servers are started again.
func (g *Gate) close(restart []string) {
	if g.open {
		g.open, g.began, g.pause = false, time.Now(), askPause
	}
	if !g.until.IsZero() { // otherwise the first output of the agent starts the timer
		g.until = time.Now().Add(g.limit)
	}
	g.ask = time.Time{} // the caller queries the agent
	for _, name := range restart {
		g.servers[name].begin()
	}
}

func (s *server) begin() { s.restarting, s.began = true, time.Now() }

// Hear returns the changes in an event of the agent. The first event starts the timer of the limit, unless it is a
// notice, as an agent may have to be installed first, or a list of commands, which comes before its work.
func (g *Gate) Hear(e agent.Event) []Report {
	if g == nil {
		return nil
	}
	if g.until.IsZero() && e.Type != agent.Notice && e.Type != agent.Commands {
		g.until = time.Now().Add(g.limit)
	}
	switch {
	case e.Type == agent.MCPStatus || e.Type == agent.Ready && g.open && len(e.MCP) > 0:
		return g.status(e.MCP)
	case e.Type == agent.MCPRestarted:
		return g.restarted(e)
	}
	return nil
}

// restarted returns the report of a restart that has ended, and queries the agent for the server's state.
func (g *Gate) restarted(e agent.Event) []Report {
	s := g.servers[e.ID]
	if s == nil || !s.restarting {
		return nil
	}
	s.restarting, s.reported = false, false
	g.ask = time.Now()
	if !e.Failed {
		return nil
	}
	s.status, s.reason, s.reported, s.failed = "failed", e.Text, true, true
	if time.Since(s.began) >= g.limit { // the agent may read no prompt for as long
		s.tries = maxTries
	}
	return []Report{{Server: e.ID, Failed: true, Reason: e.Text}}
}

func isPending(status string) bool { return status == "pending" || status == "connecting" }

// status returns reports of the servers whose state has changed.
func (g *Gate) status(all []agent.MCP) (reports []Report) {
	pending, over := false, !time.Now().Before(g.until)
	for _, m := range all {
		s := g.servers[m.Name]
		if s == nil {
			s = &server{}
			g.servers[m.Name] = s
			g.order = append(g.order, m.Name)
		}
		if s.restarting {
			pending = true
			continue
		}
		failed, reason := false, ""
		switch {
		case m.Status == "connected":
			s.tries = 0
		case isPending(m.Status):
			pending = true
			failed, reason = true, fmt.Sprintf("it was not ready after %s", g.limit)
		default:
			failed, reason = true, cmp.Or(m.Error, m.Status)
		}
		s.status, s.reason = m.Status, reason
		if isPending(m.Status) && (!over || s.reported) {
			continue
		}
		if !s.reported || s.failed != failed {
			s.reported, s.failed = true, failed
			reports = append(reports, Report{Server: m.Name, Failed: failed, Reason: reason})
		}
	}
	if pending && !over {
		g.ask = time.Now().Add(g.pause)
		return reports
	}
	if !g.open {
		reports = append(reports, g.opened())
	}
	g.ask = time.Time{}
	if pending && time.Since(g.until) < lateLimit {
		g.pause = min(2*g.pause, slowPause)
		g.ask = time.Now().Add(g.pause)
	}
	return reports
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

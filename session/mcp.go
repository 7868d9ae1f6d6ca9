package session

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"path"
	"slices"
	"strings"
	"time"

	"github.com/RelevanceAI/harvest/agent"
	"github.com/RelevanceAI/harvest/errors"
	"github.com/RelevanceAI/harvest/logf"
	"github.com/RelevanceAI/harvest/mcp"
	"github.com/RelevanceAI/harvest/sandbox"
)

const (
	mcpDir  = "/tmp/harvest-mcp" // of the configuration, which has no secrets
	mcpFile = "servers.json"
	mcpAsk  = 250 * time.Millisecond // between two questions how servers are
	mcpSlow = 30 * time.Second       // the same, at most, for servers that are late
	mcpLate = 10 * time.Minute       // after which late servers are not asked about

	mcpGrace = 5 * time.Second // for the last answer
)

// mcpScript prints which of its parameters but the first are files, and after an empty line the MCP servers of the repository, which is
// the first.
const mcpScript = `
dir=$1
shift
for f in "$@"; do [ ! -e "$f" ] || echo "$f"; done
echo
[ ! -f "$dir/.mcp.json" ] || head -c 65537 "$dir/.mcp.json"`

// prepareMCP writes the configuration of the agent's MCP servers into the sandbox, and returns its path, "" if there are none, and what
// they need in the agent's environment. What is wrong with one that a repository wants is told, and the others are used.
func (r *runner) prepareMCP(ctx context.Context, a agent.Agent) (file string, env map[string]string, err error) {
	configurer, ok := a.(agent.MCPConfigurer)
	if !ok {
		return "", nil, nil
	}
	s := r.session()
	values := map[string]string{}
	known := mcp.Enabled(mcp.Servers(), func(key string) bool {
		if r.m.opts.Secrets == nil {
			return false
		}
		found, err := r.m.opts.Secrets.Find(ctx, r.account, s.Sandbox.Secrets, []string{key})
		if err != nil {
			logf.Errorf(ctx, "look for %s: %v", key, err)
		}
		values[key] = found[key]
		return values[key] != ""
	})
	p := preparation{m: r.m, s: s, sandbox: s.SandboxID}
	params := []string{s.Dir}
	for _, server := range known {
		params = append(params, filesOf(server)...)
	}
	out, err := p.script(ctx, "", mcpScript, params...)
	if err != nil {
		return "", nil, err
	}
	there, own, _ := strings.Cut(out, "\n\n")
	if strings.HasPrefix(out, "\n") {
		there, own = "", out[1:]
	}
	files := strings.Split(there, "\n")
	servers := slices.DeleteFunc(known, func(server mcp.Server) bool {
		return slices.ContainsFunc(filesOf(server), func(f string) bool { return !slices.Contains(files, f) })
	})
	if servers, env, err = r.hideKeys(ctx, p, servers, values); err != nil {
		return "", nil, err
	}
	for _, text := range []string{own, string(s.MCP)} {
		if strings.TrimSpace(text) == "" {
			continue
		}
		others, err := mcp.Parse([]byte(text))
		if err != nil {
			r.publish(draft{EventMCPFailed, Event{Event: agent.Event{ID: ".mcp.json", Reason: errors.Message(err)}}})
			continue
		}
		servers = mcp.Merge(servers, others)
	}
	if len(servers) == 0 {
		return "", nil, nil
	}
	config, err := configurer.MCPConfig(servers)
	if err != nil {
		return "", nil, err
	}
	return path.Join(mcpDir, mcpFile), env, r.m.copyFile(ctx, r.account, s.SandboxID, mcpDir, mcpFile, config)
}

// keyScript writes its input into a file that only the agent's user can read, in memory: no snapshot has it.
const keyScript = `umask 077; mkdir -p "${1%/*}"; cat >"$1"`

// withKeys runs a command with the variables of a file.
const withKeys = `set -a; . "$0"; set +a; exec "$@"`

// hideKeys returns servers that take their keys from files of their own, so that the agent and the commands that it runs have none of them in
// their environment. A server at a URL has no process that could: what it needs is in env, which is the agent's.
func (r *runner) hideKeys(ctx context.Context, p preparation, servers []mcp.Server, values map[string]string) (out []mcp.Server, env map[string]string, err error) {
	env = map[string]string{}
	for _, s := range servers {
		if s.Secret == "" {
			out = append(out, s)
			continue
		}
		if s.URL != "" {
			env[s.Secret] = values[s.Secret]
			out = append(out, s)
			continue
		}
		var text strings.Builder
		for _, name := range slices.Sorted(maps.Keys(s.Env)) {
			value := strings.ReplaceAll(s.Env[name], "${"+s.Secret+"}", values[s.Secret])
			fmt.Fprintf(&text, "%s='%s'\n", name, strings.ReplaceAll(value, "'", `'\''`))
		}
		file := path.Join("/dev/shm/harvest-mcp", s.Name)
		x, err := r.m.opts.Fleet.Exec(ctx, r.account, p.sandbox, sandbox.ExecRequest{Args: []string{"/bin/sh", "-euc", keyScript, "sh", file}, Workdir: "/", Stdin: strings.NewReader(text.String())})
		if err != nil {
			return nil, nil, err
		}
		if result, err := x.Wait(ctx); err != nil || result.ReturnCode != 0 {
			return nil, nil, errors.Errorf("write the key of the MCP server %s: %v, %s", s.Name, err, lastLines(result.Stderr, result.Why()))
		}
		s.Command, s.Env = append([]string{"/bin/sh", "-c", withKeys, file}, s.Command...), nil
		out = append(out, s)
	}
	return out, env, nil
}

// filesOf are the files without which a server of ours cannot run: it has them as absolute paths at the beginning of its command.
func filesOf(s mcp.Server) (files []string) {
	for i, arg := range s.Command {
		if i < 2 && path.IsAbs(arg) {
			files = append(files, arg)
		}
	}
	return files
}

// gate holds the first prompt of an agent's process back until each MCP server is ready, has failed, or MCPWait is over: agents tell their model
// once which tools it has. A gate that is open still reports servers that are late.
type gate struct {
	began    time.Time         // when the process was started
	until    time.Time         // when the gate opens in any case; zero until the agent has printed something
	ask      time.Time         // when the agent is asked next; zero while an answer is under way
	pause    time.Duration     // between two questions
	reported map[string]string // types of events by the servers' names
	open     bool
}

// closed reports whether prompts wait.
func (g *gate) closed() bool { return g != nil && !g.open }

// closeGate begins to wait for the MCP servers of a process.
func (r *runner) closeGate() {
	asker, ok := r.conv.(agent.MCPAsker)
	if !ok {
		return
	}
	r.gate = &gate{began: time.Now(), pause: mcpAsk, reported: map[string]string{}}
	r.agent.write(asker.AskMCP())
}

// servers returns the events of an agent's report of its MCP servers. Its first sign starts the time that prompts wait.
func (r *runner) servers(e agent.Event) []draft {
	if r.gate == nil {
		return nil
	}
	if r.gate.until.IsZero() {
		r.gate.until = time.Now().Add(r.m.opts.MCPWait)
	}
	if e.Type == agent.MCPStatus || e.Type == agent.Ready && r.gate.open && len(e.MCP) > 0 {
		return r.mcpStatus(e.MCP)
	}
	return nil
}

// mcpStatus returns events for the servers whose state has changed.
func (r *runner) mcpStatus(servers []agent.MCP) (drafts []draft) {
	g := r.gate
	pending, over := false, !time.Now().Before(g.until)
	for _, s := range servers {
		typ, reason := EventMCPReady, ""
		switch s.Status {
		case "connected":
		case "pending", "connecting":
			pending = true
			if !over || g.reported[s.Name] != "" {
				continue
			}
			typ, reason = EventMCPFailed, fmt.Sprintf("it was not ready after %s", r.m.opts.MCPWait)
		default:
			typ, reason = EventMCPFailed, cmp.Or(s.Error, s.Status)
		}
		if g.reported[s.Name] != typ {
			g.reported[s.Name] = typ
			drafts = append(drafts, draft{typ, Event{Event: agent.Event{ID: s.Name, Reason: reason}}})
		}
	}
	if pending && !over {
		g.ask = time.Now().Add(g.pause)
		return drafts
	}
	if !g.open {
		drafts = append(drafts, g.opened())
	}
	g.ask = time.Time{}
	if pending && time.Since(g.until) < mcpLate {
		g.pause = min(2*g.pause, mcpSlow)
		g.ask = time.Now().Add(g.pause)
	}
	return drafts
}

// opened opens the gate, and returns the event that reports how long prompts waited.
func (g *gate) opened() draft {
	g.open = true
	return draft{EventStage, Event{Stage: &Stage{"mcp servers", float64(time.Since(g.began).Microseconds()) / 1000}}}
}

// gateDue returns when the gate needs attention; zero if never.
func (r *runner) gateDue() time.Time {
	g := r.gate
	switch {
	case g == nil:
		return time.Time{}
	case !g.ask.IsZero():
		return g.ask
	case g.open:
		return time.Time{}
	case g.until.IsZero(): // the agent has printed nothing
		return g.began.Add(r.m.opts.HangAfter)
	}
	return g.until.Add(mcpGrace) // the agent does not answer
}

// watchGate asks the agent again, or opens the gate if it does not answer.
func (r *runner) watchGate(now time.Time) {
	due := r.gateDue()
	if due.IsZero() || now.Before(due) {
		return
	}
	if asker, ok := r.conv.(agent.MCPAsker); ok && !r.gate.ask.IsZero() && r.agent != nil {
		r.gate.ask = time.Time{}
		r.agent.write(asker.AskMCP())
		return
	}
	r.gate.ask = time.Time{}
	if !r.gate.open {
		r.publish(r.gate.opened())
	}
}

// answerItself answers a question about a tool that was allowed for always.
func (r *runner) answerItself(id, tool string) {
	if !slices.Contains(r.session().Allowed, tool) {
		return
	}
	if err := r.answer(id, agent.Answer{Allow: true, Always: true}); err != nil {
		logf.Errorf(r.m.ctx, "answer for the user: %v", err)
	}
}

// allow remembers that a tool need not be asked about any more.
func (r *runner) allow(tool string) {
	if tool != "" && !slices.Contains(r.session().Allowed, tool) {
		r.change(func(s *Session) { s.Allowed = append(slices.Clone(s.Allowed), tool) })
	}
}

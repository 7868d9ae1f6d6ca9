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
	"github.com/RelevanceAI/harvest/session/shell"
)

const (
	mcpDir  = "/tmp/harvest-mcp" // directory of the configuration, which contains no secrets
	mcpFile = "servers.json"
	mcpAsk  = 250 * time.Millisecond // pause between two queries of the servers' state
	mcpSlow = 30 * time.Second       // maximum of that pause, for servers that are late
	mcpLate = 10 * time.Minute       // time after which late servers are not queried

	mcpGrace = 5 * time.Second // grace period for the last answer
)

// mcpScript takes the repository's directory and paths. It prints the paths that exist, an empty line, and the
// repository's MCP configuration.
const mcpScript = `
dir=$1
shift
for f in "$@"; do [ ! -e "$f" ] || echo "$f"; done
echo
[ ! -f "$dir/.mcp.json" ] || head -c 65537 "$dir/.mcp.json"`

// prepareMCP writes the configuration of the agent's MCP servers into the sandbox. It returns the file's path ("" if
// there are no servers) and the environment variables that they need. If a server of the repository is invalid, the
// error is reported and the other servers are used.
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
	out, err := p.m.in(p.s.Account, p.sandbox).Output(ctx, mcpScript, params...)
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
	return path.Join(mcpDir, mcpFile), env, r.m.in(r.account, s.SandboxID).CopyFile(ctx, mcpDir, mcpFile, config)
}

// withKeys runs a command with the environment variables of a file.
const withKeys = `set -a; . "$0"; set +a; exec "$@"`

// hideKeys returns servers that read their keys from separate files, so that the environment of the agent and its
// commands does not contain them. A server at a URL has no process that could read a file: its key is in env, which
// is for the agent.
func (r *runner) hideKeys(ctx context.Context, p preparation, servers []mcp.Server,
	values map[string]string) (out []mcp.Server, env map[string]string, err error) {
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
		x, err := r.m.opts.Fleet.Exec(ctx, r.account, p.sandbox,
			sandbox.ExecRequest{Args: []string{"/bin/sh", "-euc", shell.PrivateFile, "sh", file}, Workdir: "/",
				Stdin: strings.NewReader(text.String())})
		if err != nil {
			return nil, nil, err
		}
		if result, err := x.Wait(ctx); err != nil || result.ReturnCode != 0 {
			return nil, nil, errors.Errorf("write the key of the MCP server %s: %v, %s", s.Name, err,
				shell.LastLines(result.Stderr, result.Why()))
		}
		s.Command, s.Env = append([]string{"/bin/sh", "-c", withKeys, file}, s.Command...), nil
		out = append(out, s)
	}
	return out, env, nil
}

// filesOf returns the files that a built-in server needs: absolute paths at the beginning of its command.
func filesOf(s mcp.Server) (files []string) {
	for i, arg := range s.Command {
		if i < 2 && path.IsAbs(arg) {
			files = append(files, arg)
		}
	}
	return files
}

// gate delays the first prompt of an agent's process until each MCP server is ready or has failed, or MCPWait has
// passed: agents pass the list of tools to their model once. An open gate still reports servers that are late.
type gate struct {
	began    time.Time         // when the process was started
	until    time.Time         // when the gate opens in any case; zero until the agent prints something
	ask      time.Time         // time of the next query to the agent; zero while an answer is pending
	pause    time.Duration     // between two queries
	reported map[string]string // event types by server name
	open     bool
}

// closed reports whether prompts must wait.
func (g *gate) closed() bool { return g != nil && !g.open }

// closeGate starts the wait for the MCP servers of a process.
func (r *runner) closeGate() {
	asker, ok := r.conv.(agent.MCPAsker)
	if !ok {
		return
	}
	r.gate = &gate{began: time.Now(), pause: mcpAsk, reported: map[string]string{}}
	r.agent.write(asker.AskMCP())
}

// servers returns the events for an agent's report of its MCP servers. The first report starts the timer of MCPWait.
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

// opened opens the gate, and returns the event with the time that prompts waited.
func (g *gate) opened() draft {
	g.open = true
	return draft{EventStage, Event{Stage: &Stage{Name: "mcp servers",
		MS: float64(time.Since(g.began).Microseconds()) / 1000}}}
}

// gateDue returns when watchGate must run next; zero if never.
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

// watchGate queries the agent again, or opens the gate if the agent does not answer.
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

// allow records that a tool no longer needs approval.
func (r *runner) allow(tool string) {
	if tool != "" && !slices.Contains(r.session().Allowed, tool) {
		r.change(func(s *Session) { s.Allowed = append(slices.Clone(s.Allowed), tool) })
	}
}

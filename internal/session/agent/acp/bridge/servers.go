package bridge

import (
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/RelevanceAI/harvest/client/errors"
	"github.com/RelevanceAI/harvest/internal/base/mcp"
	"github.com/RelevanceAI/harvest/internal/session/agent"
)

// startTime is the time that an agent has to start an MCP server after it has opened the session.
const startTime = 5 * time.Second

// noteStart notes the process of an MCP server in the file $0, and becomes the server. The protocol has no word about
// MCP servers: some agents start none, and none reports one that fails.
const noteStart = `command -v "$1" >/dev/null 2>&1 || { echo missing >"$0"; exit 127; }; echo $$ >"$0"; exec "$@"`

// servers are the MCP servers of a session.
type servers struct {
	all   []mcp.Server
	http  bool   // the agent takes servers at URLs
	dir   string // of the notes
	since time.Time
}

// findServers reads the file of MCP servers; "" means none.
func findServers(file string) (*servers, error) {
	v := &servers{}
	if file == "" {
		return v, nil
	}
	text, err := os.ReadFile(file)
	if err != nil {
		return nil, errors.Wrapf(err, "read the MCP servers")
	}
	if v.all, err = mcp.Parse(text); err != nil {
		return nil, err
	}
	if v.dir, err = os.MkdirTemp("", Program+"-"); err != nil {
		return nil, errors.Wrapf(err, "make a directory")
	}
	return v, nil
}

// params returns the servers in the protocol's form.
func (v *servers) params() []any {
	all := []any{}
	for i, s := range v.all {
		switch {
		case len(s.Command) > 0:
			args := []string{"-c", noteStart, v.note(i)}
			for _, arg := range s.Command {
				args = append(args, expand(arg))
			}
			all = append(all, map[string]any{"name": s.Name, "command": "/bin/sh", "args": args, "env": pairs(s.Env)})
		case v.http:
			all = append(all, map[string]any{"type": "http", "name": s.Name, "url": expand(s.URL),
				"headers": pairs(s.Headers)})
		}
	}
	return all
}

func (v *servers) note(i int) string { return filepath.Join(v.dir, strconv.Itoa(i)) }

// pairs returns variables or headers in the protocol's form.
func pairs(values map[string]string) []any {
	all := []any{}
	for _, name := range slices.Sorted(maps.Keys(values)) {
		all = append(all, map[string]string{"name": name, "value": expand(values[name])})
	}
	return all
}

var variable = regexp.MustCompile(`\$\{([A-Za-z_][A-Za-z0-9_]*)(:-([^}]*))?\}`)

// expand replaces ${NAME} and ${NAME:-default}, which agents do not replace in what a client sends.
func expand(text string) string {
	return variable.ReplaceAllStringFunc(text, func(found string) string {
		parts := variable.FindStringSubmatch(found)
		if value, ok := os.LookupEnv(parts[1]); ok && (value != "" || parts[2] == "") {
			return value
		}
		return parts[3]
	})
}

// opened notes when the agent had to start the servers.
func (v *servers) opened(now time.Time) { v.since = now }

// status returns the state of each server as far as it can be seen from outside of the agent. failed means that the
// agent has failed.
func (v *servers) status(now time.Time, name string, failed bool) []agent.MCP {
	all := []agent.MCP{}
	if v == nil {
		return all
	}
	for i, s := range v.all {
		m := agent.MCP{Name: s.Name, Status: "connected"}
		switch {
		case failed:
			m.Status, m.Error = "ignored", name+" does not run"
		case len(s.Command) > 0:
			m.Status, m.Error = v.started(i, now, name)
		case v.since.IsZero():
			m.Status = "pending"
		case !v.http:
			m.Status, m.Error = "ignored", name+" takes no MCP servers with a URL"
		}
		all = append(all, m)
	}
	return all
}

func (v *servers) started(i int, now time.Time, name string) (status, reason string) {
	note, err := os.ReadFile(v.note(i))
	text := strings.TrimSpace(string(note))
	switch {
	case err != nil && (v.since.IsZero() || now.Sub(v.since) < startTime):
		return "pending", ""
	case err != nil:
		return "ignored", name + " has not started it"
	case text == "missing":
		return "missing", fmt.Sprintf("program %q: not found", v.all[i].Command[0])
	case !alive(text):
		return "ended", "its process has ended"
	}
	return "connected", ""
}

// alive reports whether a process exists that has not ended.
func alive(pid string) bool {
	n, err := strconv.Atoi(pid)
	if err != nil {
		return true // the note is being written
	}
	if syscall.Kill(n, 0) == syscall.ESRCH {
		return false
	}
	stat, err := os.ReadFile("/proc/" + pid + "/stat")
	return err != nil || !strings.Contains(string(stat), ") Z ")
}

func (v *servers) remove() {
	if v != nil && v.dir != "" {
		_ = os.RemoveAll(v.dir)
	}
}

package editor

import (
	"cmp"
	"context"
	"encoding/json"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/RelevanceAI/harvest/client/api"
	"github.com/RelevanceAI/harvest/client/errors"
	"github.com/RelevanceAI/harvest/internal/base/jsonrpc"
	"github.com/RelevanceAI/harvest/internal/cli/chat"
)

// version is the version of the protocol.
const version = 1

// abilities are those of the editor.
type abilities struct {
	Session struct {
		Notices *struct{} `json:"notices"`
	} `json:"session"`
	Elicitation struct {
		Form *struct{} `json:"form"`
	} `json:"elicitation"`
}

func (f *face) initialize(params json.RawMessage) (work, error) {
	var p struct {
		Able abilities `json:"clientCapabilities"`
	}
	if !jsonrpc.Decode(params, &p) {
		return nil, errors.Newf(errors.Invalid, "initialize: no parameters")
	}
	f.mu.Lock()
	f.able = p.Able
	f.mu.Unlock()
	yes := struct{}{}
	return done(map[string]any{
		"protocolVersion": version,
		"agentInfo":       map[string]string{"name": "harvest", "title": "Harvest", "version": f.Version},
		"authMethods":     []any{}, // HARVEST_API_KEY is in the environment
		"agentCapabilities": map[string]any{
			"loadSession":         true,
			"promptCapabilities":  map[string]bool{"image": false, "audio": false, "embeddedContext": true},
			"mcpCapabilities":     map[string]bool{"http": true, "sse": false},
			"sessionCapabilities": map[string]any{"list": yes, "resume": yes},
		},
	}), nil
}

func (f *face) authenticate(json.RawMessage) (work, error) {
	return nil, errors.Remedy(errors.Newf(errors.Invalid, "Harvest has no authentication methods"),
		"set HARVEST_API_KEY in the editor's settings to a key from harvest key create")
}

// sessionParams are the parameters of requests about sessions.
type sessionParams struct {
	Session string      `json:"sessionId"`
	Dir     string      `json:"cwd"`
	More    []string    `json:"additionalDirectories"`
	MCP     []mcpServer `json:"mcpServers"`
}

// checked decodes the parameters of a session that is opened.
func checked(params json.RawMessage) (p sessionParams, err error) {
	if !jsonrpc.Decode(params, &p) {
		return p, errors.Newf(errors.Invalid, "the request has no parameters")
	}
	if !filepath.IsAbs(p.Dir) {
		return p, errors.Newf(errors.Invalid, "cwd %.200q is not an absolute path", p.Dir)
	}
	if info, err := os.Stat(p.Dir); err != nil || !info.IsDir() {
		return p, errors.Newf(errors.Invalid, "cwd %.200q is not a directory", p.Dir)
	}
	if len(p.More) > 0 {
		return p, errors.Remedy(errors.Newf(errors.Invalid, "a session has no additional directories"),
			"further repositories: harvest acp --also")
	}
	return p, nil
}

func (f *face) newSession(params json.RawMessage) (work, error) {
	p, err := checked(params)
	if err != nil {
		return nil, err
	}
	servers, names, err := mergeServers(f.MCP, p.MCP)
	if err != nil {
		return nil, err
	}
	return func(ctx context.Context) (any, func(), error) {
		server, err := f.connected(ctx)
		if err != nil {
			return nil, nil, err
		}
		t := newThread(f, server, record{Dir: p.Dir, Settings: f.Settings, Servers: names})
		t.mcp = servers
		if err := t.create(ctx); err != nil {
			return nil, nil, err
		}
		f.keep(t)
		result := t.options().result()
		result["sessionId"] = t.id
		return result, t.opened, nil
	}, nil
}

// keep adds a thread. It replaces an open one with the same ID.
func (f *face) keep(t *thread) {
	f.mu.Lock()
	old := f.threads[t.id]
	f.threads[t.id] = t
	f.mu.Unlock()
	if old != nil {
		old.leave()
	}
}

func (f *face) loadSession(params json.RawMessage) (work, error) { return f.reopen(params, true) }

func (f *face) resumeSession(params json.RawMessage) (work, error) { return f.reopen(params, false) }

// reopen opens an earlier session. replay sends its events to the editor before the answer.
func (f *face) reopen(params json.RawMessage, replay bool) (work, error) {
	p, err := checked(params)
	if err != nil {
		return nil, err
	}
	if !validID(p.Session) {
		return nil, errors.Newf(errors.NotFound, "session %.100q: not found", p.Session)
	}
	_, names, err := mergeServers(nil, p.MCP)
	if err != nil {
		return nil, err
	}
	return func(ctx context.Context) (any, func(), error) {
		server, err := f.connected(ctx)
		if err != nil {
			return nil, nil, err
		}
		t, err := f.restore(ctx, server, p)
		if err != nil {
			return nil, nil, err
		}
		if err := t.replay(ctx, replay); err != nil {
			return nil, nil, err
		}
		f.keep(t)
		return t.options().result(), func() {
			t.opened()
			t.missing(names)
		}, nil
	}, nil
}

func (f *face) listSessions(params json.RawMessage) (work, error) {
	var p struct {
		Dir    string `json:"cwd"`
		Cursor string `json:"cursor"`
	}
	jsonrpc.Decode(params, &p)
	switch {
	case p.Cursor != "":
		return nil, errors.Newf(errors.Invalid, "invalid cursor %.100q: all sessions are on one page", p.Cursor)
	case p.Dir != "" && !filepath.IsAbs(p.Dir):
		return nil, errors.Newf(errors.Invalid, "cwd %.200q is not an absolute path", p.Dir)
	}
	return func(ctx context.Context) (any, func(), error) {
		server, err := f.connected(ctx)
		if err != nil {
			return nil, nil, err
		}
		sessions, err := server.Sessions(ctx, api.SessionFilter{All: true})
		if err != nil {
			return nil, nil, err
		}
		return map[string]any{"sessions": listed(readRecords(f.Records), sessions, p.Dir)}, nil, nil
	}, nil
}

// info is a session in a list.
type info struct {
	ID      string `json:"sessionId"`
	Dir     string `json:"cwd"`
	Title   string `json:"title,omitempty"`
	Updated string `json:"updatedAt"`

	active time.Time
}

// listed returns the threads of a directory ("" for all) that have had a prompt and whose session the server knows, the
// last active first.
func listed(records map[string]record, sessions []api.Session, dir string) []info {
	all := []info{}
	for id, r := range records {
		at := slices.IndexFunc(sessions, func(s api.Session) bool { return s.ID == r.current() })
		if at < 0 || !r.Prompted || dir != "" && r.Dir != filepath.Clean(dir) {
			continue
		}
		s := sessions[at]
		all = append(all, info{ID: id, Dir: r.Dir, Title: chat.FirstLine(s.Title),
			Updated: s.Active.UTC().Format(time.RFC3339), active: s.Active})
	}
	slices.SortFunc(all, func(a, b info) int {
		return cmp.Or(b.active.Compare(a.active), strings.Compare(a.ID, b.ID))
	})
	return all
}

func (f *face) prompt(params json.RawMessage) (work, error) {
	var p struct {
		Session string  `json:"sessionId"`
		Prompt  []block `json:"prompt"`
	}
	if !jsonrpc.Decode(params, &p) || len(p.Prompt) == 0 {
		return nil, errors.Newf(errors.Invalid, "session/prompt: no prompt")
	}
	t, err := f.opened(p.Session)
	if err != nil {
		return nil, err
	}
	text, err := promptText(p.Prompt, t.paths())
	if err != nil {
		return nil, err
	}
	if run := t.command(text); run != nil {
		return run, nil
	}
	return t.prompt(text), nil
}

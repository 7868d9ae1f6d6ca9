package bridge

import (
	"encoding/json"
	"fmt"
	"os"
	"strconv"
	"strings"
	"time"

	"github.com/RelevanceAI/harvest/client/errors"
	"github.com/RelevanceAI/harvest/internal/base/jsonrpc"
	"github.com/RelevanceAI/harvest/internal/session/agent"
	"github.com/RelevanceAI/harvest/internal/session/agent/acp"
)

// Limits of time.
const (
	initTime   = 90 * time.Second // until initialize is answered: on a busy machine, the slowest agents need 20 s
	openTime   = 3 * time.Minute  // until a session is open
	optionTime = 30 * time.Second // until an option is set
	replayTime = 10 * time.Second // until the replay of a loaded session begins
	quietTime  = time.Second      // without an update, after which the replay has ended
	cancelTime = 10 * time.Second // until a cancelled prompt is answered
	firstWord  = 30 * time.Second // of silence, until the first report of it; each further report takes twice as long
)

// maxRaw is the number of bytes of an unrecognized line that become an event.
const maxRaw = 4 << 10

// version is the version of the protocol. If a client offers a higher number, some agents speak a draft.
const version = 1

// options are the parameters of a session.
type options struct {
	name, dir, session, model, effort, system, mcp string
	approval                                       agent.Approval
}

// session is the state of the protocol. One loop calls all methods.
type session struct {
	options
	now   func() time.Time
	write func([]byte)   // sends a line to the agent
	print func(acp.Line) // prints a line for Harvest

	calls   int
	pending map[string]func(*jsonrpc.Message) // waits for an answer, by the ID of the request
	timers  map[string]timer

	quirks  quirks
	offers  offers
	id      string // of the agent's session
	version string // of the agent
	servers *servers
	loading bool // updates repeat an earlier conversation
	loaded  int  // such updates
	mode    string
	using   string // model
	startup string // text of pi about itself, which it sends as if the model said it; "" after that
	ready   bool   // prompts may be sent

	queue     []acp.Request // prompts that wait
	turn      *turn
	ended     map[string]bool      // tool calls
	questions map[string]*question // open
	warned    map[string]bool      // warnings of the program that were reported
	primed    bool                 // the agent has the instructions
	commands  []agent.Command      // of the agent, as last reported
	cost      float64              // of the agent's session, as of the last turn
	costKnown bool
	sum       agent.Usage // of the agent's session, as of the last turn
	over      error       // why the bridge must end
}

type timer struct {
	at time.Time
	do func()
}

// offers is the answer to initialize.
type offers struct {
	Version      json.RawMessage `json:"protocolVersion"`
	Capabilities struct {
		LoadSession bool `json:"loadSession"`
		MCP         struct {
			HTTP bool `json:"http"`
		} `json:"mcpCapabilities"`
		Session struct {
			Resume json.RawMessage `json:"resume"`
		} `json:"sessionCapabilities"`
	} `json:"agentCapabilities"`
	Info struct {
		Name    string `json:"name"`
		Version string `json:"version"`
	} `json:"agentInfo"`
	Auth []struct {
		Name        string `json:"name"`
		Description string `json:"description"`
	} `json:"authMethods"`
}

func newSession(o options) *session {
	return &session{options: o, now: time.Now, pending: map[string]func(*jsonrpc.Message){}, timers: map[string]timer{},
		ended: map[string]bool{}, questions: map[string]*question{}, warned: map[string]bool{}}
}

// after calls do after a time, unless stop is called with the same name.
func (s *session) after(name string, d time.Duration, do func()) {
	s.timers[name] = timer{s.now().Add(d), do}
}

func (s *session) stop(name string) { delete(s.timers, name) }

// due returns when tick must be called next; zero if never.
func (s *session) due() (at time.Time) {
	for _, t := range s.timers {
		if at.IsZero() || t.at.Before(at) {
			at = t.at
		}
	}
	return at
}

// tick runs the timers that are due.
func (s *session) tick() {
	for name, t := range s.timers {
		if !s.now().Before(t.at) {
			delete(s.timers, name)
			t.do()
		}
	}
}

// fail ends the bridge. A prompt that waits fails.
func (s *session) fail(err error) {
	if s.over == nil {
		s.over = err
	}
}

func (s *session) event(e agent.Event) { s.print(acp.Line{Event: e}) }

// notice reports something that a person should know. reason is a word for programs.
func (s *session) notice(reason, format string, args ...any) {
	s.event(agent.Event{Type: agent.Notice, Reason: reason, Text: fmt.Sprintf(format, args...)})
}

// call sends a request. limit is the time until the answer; 0 means any. After it, the bridge ends.
func (s *session) call(method string, params any, limit time.Duration, then func(json.RawMessage, *jsonrpc.Failure)) {
	id := strconv.Itoa(s.calls)
	s.calls++
	s.pending[id] = func(m *jsonrpc.Message) {
		s.stop("call " + id)
		if f, failed := m.Failed(); failed {
			then(nil, &f)
			return
		}
		then(m.Result, nil)
	}
	if limit > 0 {
		s.after("call "+id, limit, func() {
			s.fail(errors.Newf(errors.Timeout, "%s did not answer %s within %s", s.name, method, limit))
		})
	}
	s.write(jsonrpc.NewRequest(json.RawMessage(id), method, params))
}

// read handles a line of the agent.
func (s *session) read(in jsonrpc.Line) {
	if s.turn != nil {
		s.hear()
	}
	if in.Cut {
		s.notice("line_lost", "a line of %s has more than %d MB: it is lost", s.name, jsonrpc.MaxLine>>20)
		return
	}
	m, ok := jsonrpc.Parse(in.Text)
	switch {
	case !ok:
		s.other(in.Text)
	case m.Method == "":
		id := strings.Trim(string(m.ID), `"`)
		if then := s.pending[id]; then != nil {
			delete(s.pending, id)
			then(&m)
		}
	case len(m.ID) > 0 && m.Method == "session/request_permission":
		s.ask(m)
	case len(m.ID) > 0:
		s.write(jsonrpc.NewError(m.ID, jsonrpc.MethodNotFound, "Method not found"))
	case m.Method == "session/update":
		s.update(m.Params)
	case m.Method == "$/cancel_request":
		s.withdraw(m.Params)
	}
}

// other reports a line that is no message of the protocol.
func (s *session) other(text []byte) {
	if len(text) > maxRaw {
		text = append(append([]byte{}, text[:maxRaw]...), "…"...)
	}
	s.event(agent.OtherLine(text))
}

// start begins the conversation with the agent.
func (s *session) start() {
	if info, err := os.Stat(s.dir); err != nil || !info.IsDir() { // most agents start in any directory
		s.fail(errors.Newf(errors.Invalid, "directory %q: not found", s.dir))
		return
	}
	var err error
	if s.servers, err = findServers(s.mcp); err != nil {
		s.fail(err)
		return
	}
	s.call("initialize", map[string]any{"protocolVersion": version,
		"clientCapabilities": map[string]any{"fs": map[string]bool{"readTextFile": false, "writeTextFile": false},
			"terminal": false},
		"clientInfo": map[string]string{"name": "harvest", "version": "1"}}, initTime, s.initialized)
}

func (s *session) initialized(result json.RawMessage, f *jsonrpc.Failure) {
	if f != nil {
		s.refused("initialize", f)
		return
	}
	jsonrpc.Decode(result, &s.offers)
	if got := string(s.offers.Version); got != strconv.Itoa(version) {
		s.fail(errors.Newf(errors.Invalid, "%s speaks version %.20s of the Agent Client Protocol, Harvest speaks %d",
			s.name, got, version))
		return
	}
	s.version, s.quirks = s.offers.Info.Version, quirksOf(s.offers.Info.Name)
	s.servers.http = s.offers.Capabilities.MCP.HTTP
	s.open()
}

// forgotten ends the bridge since the agent cannot continue the conversation: Harvest knows the last messages.
func (s *session) forgotten(why string) {
	s.notice("not_resumed", "%s cannot continue the conversation: %s", s.name, why)
	s.over = errors.Exit(errors.Newf(errors.NotFound, "the conversation cannot be continued: %s", why),
		agent.ExitForgotten)
}

// open opens the session, and prefers the way that repeats nothing.
func (s *session) open() {
	params := map[string]any{"cwd": s.dir, "mcpServers": s.servers.params()}
	resume := s.offers.Capabilities.Session.Resume
	method := "session/new"
	switch {
	case s.session == "":
	case len(resume) > 0 && string(resume) != "null" && string(resume) != "false":
		method = "session/resume"
	case s.offers.Capabilities.LoadSession:
		method, s.loading = "session/load", true
	default:
		s.forgotten("it offers no way to do so")
		return
	}
	if method != "session/new" {
		params["sessionId"] = s.session
	}
	s.call(method, params, openTime, func(result json.RawMessage, f *jsonrpc.Failure) {
		if f != nil && !f.Is(jsonrpc.AuthRequired) && method != "session/new" {
			s.forgotten(f.Text())
			return
		}
		if f != nil {
			s.refused(method, f)
			return
		}
		s.opened(result)
	})
}

// refused ends the bridge because the agent refuses to start.
func (s *session) refused(method string, f *jsonrpc.Failure) {
	if f.Is(jsonrpc.AuthRequired) {
		s.fail(errors.Newf(errors.Denied, "%s", s.login(f)))
		return
	}
	s.fail(errors.Newf(errors.Unavailable, "%s refused %s: %s", s.name, method, f.Text()))
}

// login says how to log in, in the agent's own words.
func (s *session) login(f *jsonrpc.Failure) string {
	var ways []string
	for _, m := range s.offers.Auth {
		way := m.Name
		if m.Description != "" && m.Description != m.Name {
			way += " (" + m.Description + ")"
		}
		ways = append(ways, way)
	}
	if len(ways) == 0 {
		return fmt.Sprintf("log in: %s has no credentials (%s)", s.name, f.Text())
	}
	return "log in: " + strings.Join(ways, "; or ")
}

// opened continues when the session is open. After a load, the agent may still repeat the conversation.
func (s *session) opened(result json.RawMessage) {
	var o opened
	jsonrpc.Decode(result, &o)
	s.startup = strings.TrimSpace(o.Meta.Pi.Startup)
	if s.id = s.session; o.Session != "" {
		s.id = o.Session
	}
	if s.id == "" {
		s.fail(errors.Newf(errors.Unavailable, "%s opened a session without an ID", s.name))
		return
	}
	s.primed = s.session != ""
	s.servers.opened(s.now())
	if !s.loading {
		s.configure(o)
		return
	}
	limit := replayTime
	if s.loaded > 0 {
		limit = quietTime
	}
	s.after("replay", limit, func() {
		if s.loading = false; s.loaded == 0 {
			s.forgotten("it says that it does, but it repeats nothing")
			return
		}
		s.configure(o)
	})
}

// replayed counts an update of the earlier conversation.
func (s *session) replayed() {
	s.loaded++
	if t, waits := s.timers["replay"]; waits {
		s.after("replay", quietTime, t.do)
	}
}

// begun reports that prompts can be sent.
func (s *session) begun() {
	s.ready = true
	s.event(agent.Event{Type: agent.Ready, Conversation: s.id, Model: s.using, Version: s.version})
	s.next()
}

// ends reports the end of the bridge to a prompt that waits. tail is the end of the agent's error output.
func (s *session) ends(err error, tail string) {
	text, reason := errors.Message(err), "agent_failed"
	if errors.KindOf(err) == errors.Denied {
		reason = "auth_required"
	} else if tail != "" {
		text += ": " + tail
	}
	switch {
	case s.turn != nil && s.turn.interrupted:
		s.finish(agent.Event{Failed: true, Interrupted: true, Reason: "cancelled"})
	case s.turn != nil:
		s.finish(agent.Event{Failed: true, Reason: reason, Text: text})
	case len(s.queue) > 0:
		s.queue = s.queue[1:]
		s.event(agent.Event{Type: agent.Done, Failed: true, Reason: reason, Text: text, Usage: &agent.Usage{}})
	}
}

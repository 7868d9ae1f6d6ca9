package chat

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/RelevanceAI/harvest/client/api"
	"github.com/RelevanceAI/harvest/client/errors"
)

// earlier is how many lines of the history are shown at the start.
const earlier = 60

// Event processes the next event of the session.
func (m *Model) Event(e api.Event) error {
	var data api.SessionEvent
	if err := json.Unmarshal(e.Data, &data); err != nil {
		return errors.Explainf(err, errors.Unavailable, "the server sent an invalid event")
	}
	switch kind, _, _ := strings.Cut(e.Type, "."); kind {
	case "session", "repo", "mcp":
		m.sessionEvent(e.Type, data)
	case "message":
		m.messageEvent(e.Type, data)
	case "tool", "file":
		m.toolEvent(e.Type, data)
	case "agent":
		m.agentEvent(e.Type, data)
	case "git":
		m.gitEvent(e.Type, data)
	case "egress":
		m.notef("%s", Denied(data.Denial))
	case "done":
		m.doneEvent(data)
	}
	if !m.seen && e.ID >= m.first {
		m.Replayed()
	}
	return nil
}

// Replayed marks the end of the history and prints its last lines.
func (m *Model) Replayed() {
	m.seen = true
	if above := len(m.out) - earlier; above > 0 {
		note := fmt.Sprintf("… %d lines above; harvest attach %s shows all", above, m.id)
		m.out = append([]string{m.in(dim, note)}, m.out[above:]...)
	}
}

func (m *Model) sessionEvent(kind string, e api.SessionEvent) {
	switch kind {
	case "session.status_changed", "session.created":
		m.status = e.Status
	case "session.stage":
		if e.Stage != nil {
			m.stage = e.Stage.Name
		}
	case "session.changed":
		m.notef("%s", Changed(e.Changed))
	case "session.notice":
		m.notef("%s", e.Text)
	case "session.recalled":
		m.notef("continues the earlier conversation: %s", e.Text)
	case "session.ended":
		m.status, m.ended, m.turn = e.Status, true, ""
		if !m.seen {
			return
		}
		if e.Status == "failed" {
			m.fail(errors.Newf(errors.Unavailable, "the session failed: %s", e.Reason))
		} else {
			m.block("The session has ended. To continue with its files and its conversation:",
				"  harvest agent --continue "+m.id)
		}
		m.quit = true
	case "repo.synced":
		switch s := e.Synced; {
		case s == nil:
		case s.Error != "":
			m.notef("commits newer than the image could not be fetched: %s", FirstLine(s.Error))
		case s.Behind > 0:
			m.notef("the image was %s behind; the newest were fetched", Count(s.Behind, "commit"))
		}
	case "mcp.ready":
		if _, again := m.servers[e.ID]; again {
			m.notef("MCP server %s is ready", e.ID)
		}
		m.server(e.ID, true)
	case "mcp.restarting":
		m.notef("MCP server %s starts again", e.ID)
	case "mcp.failed":
		m.server(e.ID, false)
		m.notef("MCP server %s failed: %s", e.ID, FirstLine(e.Reason))
	}
}

// server records whether an MCP server is ready.
func (m *Model) server(name string, ready bool) {
	if m.servers == nil {
		m.servers = map[string]bool{}
	}
	m.servers[name] = ready
}

// Denied describes a connection or lookup that the network policy refused.
func Denied(d *api.Denial) string {
	if d == nil {
		return "the network policy refused a connection"
	}
	what := d.Domain
	if what == "" {
		what = d.Address
	}
	if d.Port != 0 && d.Protocol != "dns" {
		what += fmt.Sprintf(" port %d", d.Port)
	}
	return "the network policy refused " + Plain(what) + ": " + FirstLine(d.Reason)
}

// OwnPrompt describes a prompt of Harvest's own.
const OwnPrompt = "Harvest asks the agent for the text of a pull request"

func (m *Model) messageEvent(kind string, e api.SessionEvent) {
	if e.Parent != "" {
		return // belongs to a sub-agent, whose call has the result
	}
	switch kind {
	case "message.queued":
		if e.Message != nil && e.Message.Purpose != "" {
			return
		}
		if !m.unqueue(e) { // otherwise it was held
			m.asked++
		}
		if e.Message != nil {
			m.queued = append(m.queued, *e.Message)
			m.editor.remember(e.Message.Prompt)
			if i := slices.Index(m.sending, e.Message.Prompt); i >= 0 {
				m.sending = slices.Delete(m.sending, i, i+1)
			}
		}
	case "message.held":
		if !m.unqueue(e) {
			m.asked++
		}
		if e.Message != nil {
			m.onHold = append(m.onHold, *e.Message)
		}
	case "message.cancelled":
		m.unqueue(e)
		if e.Message != nil {
			m.block(wrap(m.in(dim, "not sent: "+FirstLine(e.Message.Prompt)+orReason(e.Reason)), m.room(), "  ")...)
		}
	case "message.sent":
		m.unqueue(e)
		m.begin(e.Message)
		if e.Message != nil && e.Message.Purpose != "" {
			m.notef("%s", OwnPrompt)
			return
		}
		if e.Message != nil {
			m.block(m.prompt(e.Message.Prompt)...)
			m.print("")
		}
	case "message.started":
		m.heard = m.now
		m.text(e.ID).thinking = e.Thinking
	case "message.delta":
		t := m.text(e.ID)
		t.rest += e.Text
		t.deltas = true
		if !t.thinking {
			m.advance(t)
		}
	case "message.completed":
		m.complete(e)
	}
}

func orReason(reason string) string {
	if reason == "" {
		return ""
	}
	return ": " + Plain(reason)
}

// unqueue removes a prompt that is queued or held, and reports whether it was there.
func (m *Model) unqueue(e api.SessionEvent) bool {
	id := e.MessageID
	if e.Message != nil {
		id = e.Message.ID
	}
	before := len(m.queued) + len(m.onHold)
	is := func(q api.Message) bool { return q.ID == id }
	m.queued, m.onHold = slices.DeleteFunc(m.queued, is), slices.DeleteFunc(m.onHold, is)
	return len(m.queued)+len(m.onHold) < before
}

// begin begins a turn.
func (m *Model) begin(message *api.Message) {
	m.turn, m.since, m.heard, m.stopping, m.retrying = "turn", m.now, m.now, false, ""
	if message != nil {
		m.turn = message.ID
		if !m.seen && !message.Started.IsZero() {
			m.since, m.heard = message.Started, message.Started
		}
	}
}

// prompt returns the lines of a user's prompt.
func (m *Model) prompt(text string) (all []string) {
	for i, line := range strings.Split(expand(Plain(trimPrompt(text))), "\n") {
		mark := "  "
		if i == 0 {
			mark = m.mark()
		}
		all = append(all, wrap(m.in(bold, mark+line), m.room(), "  ")...)
	}
	return all
}

func (m *Model) mark() string {
	if m.plain {
		return "> "
	}
	return "› "
}

func (m *Model) text(id string) *message {
	t := m.texts[id]
	if t == nil {
		t = &message{}
		m.texts[id] = t
		m.order = append(m.order, id)
	}
	return t
}

// advance prints the complete blocks of a text.
func (m *Model) advance(t *message) {
	complete, rest := blocks(t.rest)
	t.rest = rest
	for _, block := range complete {
		m.say(t, block)
	}
}

func (m *Model) say(t *message, block string) {
	if lines := m.markdown(block, m.room()); len(lines) > 0 {
		m.block(lines...)
		t.any = true
	}
}

// complete processes the end of a text. The event has the whole text, even if earlier pieces were lost.
func (m *Model) complete(e api.SessionEvent) {
	t := m.text(e.ID)
	m.heard = m.now
	delete(m.texts, e.ID)
	m.order = slices.DeleteFunc(m.order, func(id string) bool { return id == e.ID })
	switch {
	case e.Thinking || t.thinking:
		if text := strings.TrimSpace(e.Text); text != "" {
			lines, above := tail(text, 3)
			if above > 0 {
				lines = append([]string{fmt.Sprintf("… %d lines above", above)}, lines...)
			}
			m.block(wrap(m.in(dim, "(thinking) "+strings.Join(lines, "\n")), m.room(), "  ")...)
		}
	case !t.deltas:
		t.rest = e.Text
		fallthrough
	default:
		m.advance(t)
		if strings.TrimSpace(t.rest) != "" {
			m.say(t, t.rest)
		}
	}
}

func (m *Model) toolEvent(kind string, e api.SessionEvent) {
	switch kind {
	case "tool.started":
		if m.tools[e.ID] == nil {
			m.running = append(m.running, e.ID)
		}
		m.tools[e.ID] = &tool{id: e.ID, name: e.Tool, input: e.Input, parent: e.Parent, began: m.now}
	case "tool.output":
		if t := m.tools[e.ID]; t != nil {
			t.add(e.Text)
		}
	case "tool.completed":
		t := m.tools[e.ID]
		if t == nil {
			t = &tool{id: e.ID, name: e.Tool, parent: e.Parent}
		}
		if e.Text != "" {
			t.output = e.Text
		}
		t.failed, t.denied, t.stopped = e.Failed, e.Denied, e.Interrupted
		t.took = time.Duration(e.Took * float64(time.Millisecond))
		m.forget(e.ID)
		m.last, m.heard = t, m.now
		m.block(m.closed(t)...)
	case "file.changed":
		m.files[e.Path] = true
	}
}

func (m *Model) forget(id string) {
	delete(m.tools, id)
	m.running = slices.DeleteFunc(m.running, func(other string) bool { return other == id })
}

func (m *Model) agentEvent(kind string, e api.SessionEvent) {
	if kind != "agent.retrying" {
		m.retrying = ""
	}
	switch kind {
	case "agent.crashed":
		m.block(wrap(m.in(yellow, Plain(e.Reason)+"; the agent is restarted"), m.room(), "  ")...)
		m.tools, m.running, m.questions = map[string]*tool{}, nil, nil
	case "agent.output_lost":
		m.block(wrap(m.in(yellow, Plain(e.Reason)), m.room(), "  ")...)
	case "agent.continued":
		m.begin(e.Message)
		reason := e.Reason
		if reason == "" {
			reason = "no reason given"
		}
		m.notef("the agent continues by itself: %s", reason)
	case "agent.overridden", "agent.notice", "agent.silent":
		m.notef("%s", e.Text)
	case "agent.commands":
		m.offered = e.Commands
	case "agent.plan":
		m.notef("plan: %s", Plan(e.Plan))
	case "agent.retrying":
		m.retrying = FirstLine(e.Text)
		m.notef("the model's API: %s", e.Text)
	case "agent.asked":
		m.ask(e)
	case "agent.withdrawn":
		m.settled(e)
	}
}

func (m *Model) gitEvent(kind string, e api.SessionEvent) {
	g := e.Git
	if g == nil {
		return
	}
	switch {
	case kind == "git.panic":
		text := "the agent pressed the panic button: " + FirstLine(g.Reason) + "; a person must " + FirstLine(g.Need)
		m.block(wrap(m.in(red, text), m.room(), "  ")...)
	case kind == "git.committed":
		m.notef("committed %s", FirstLine(g.Subject))
	case kind == "git.pushed":
		m.notef("pushed %s", g.Branch)
	case kind == "git.stashed":
		m.notef("the agent stashed %s; /checkout fetches each as a branch", Count(g.Commits, "change"))
	case kind == "git.left":
		m.notef("not handed back: %s", FirstLine(g.Reason))
	case g.Failed:
		m.notef("not synchronised: %s", FirstLine(g.Reason))
	default:
		m.notef("synchronised with origin/%s: %s", g.Onto, Count(g.Commits, "commit"))
	}
}

// doneEvent ends a turn.
func (m *Model) doneEvent(e api.SessionEvent) {
	for _, id := range slices.Clone(m.order) { // texts without an end event
		if t := m.texts[id]; !t.thinking && strings.TrimSpace(t.rest) != "" {
			m.say(t, t.rest)
		}
	}
	for _, id := range m.running {
		t := m.tools[id]
		t.failed, t.stopped = true, e.Interrupted
		m.block(m.closed(t)...)
	}
	m.texts, m.order, m.tools, m.running, m.questions = map[string]*message{}, nil, map[string]*tool{}, nil, nil
	if e.Usage != nil {
		m.cost += e.Usage.Cost
	}
	took := ""
	if d := m.now.Sub(m.since); m.seen && !m.since.IsZero() && d >= time.Second {
		took = " after " + seconds(d)
	}
	files := len(m.files)
	m.turn, m.stopping, m.retrying, m.files = "", false, "", map[string]bool{}
	switch {
	case e.Interrupted:
		m.block(m.in(yellow, "stopped"+took))
	case e.Failed:
		err := error(errors.Newf(errors.Unavailable, "the turn failed: %s", Plain(orText(e.Text, e.Reason))))
		if m.explain != nil {
			err = m.explain(e)
		}
		m.fail(err)
	case files == 1:
		m.block(m.in(dim, "done"+took+"; 1 file changed: /diff shows it"))
	case files > 1:
		m.block(m.in(dim, fmt.Sprintf("done%s; %d files changed: /diff shows them", took, files)))
	default:
		m.block(m.in(dim, "done"+took))
	}
}

func orText(text, otherwise string) string {
	if text == "" {
		return otherwise
	}
	return text
}

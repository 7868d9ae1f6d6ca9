package editor

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	"github.com/RelevanceAI/harvest/client/api"
	"github.com/RelevanceAI/harvest/internal/cli/chat"
)

// update is an update of a session for the editor. Its kind determines which fields are set.
type update struct {
	Kind      string `json:"sessionUpdate"`
	MessageID string `json:"messageId,omitempty"`
	Content   any    `json:"content,omitempty"` // a content block, or the list of a tool call
	toolCall
	Entries     any       `json:"entries,omitempty"` // []entry, also if it is empty
	Used        *int64    `json:"used,omitempty"`
	Size        *int64    `json:"size,omitempty"`
	Cost        *cost     `json:"cost,omitempty"`
	Commands    []command `json:"availableCommands,omitempty"`
	Mode        string    `json:"currentModeId,omitempty"`
	Options     []option  `json:"configOptions,omitempty"`
	Severity    string    `json:"severity,omitempty"`
	Description string    `json:"description,omitempty"`
}

// entry is a step of a plan.
type entry struct {
	Content  string `json:"content"`
	Priority string `json:"priority"`
	Status   string `json:"status"`
}

type cost struct {
	Amount   float64 `json:"amount"`
	Currency string  `json:"currency"`
}

// textBlock returns a content block.
func textBlock(text string) map[string]string { return map[string]string{"type": "text", "text": text} }

// view converts the events of sessions to updates. It is not safe for concurrent use.
type view struct {
	paths   paths
	notices bool // the editor shows notices
	past    bool // the events are a replay
	waiting bool // a prompt of the editor waits for its turn or its end
	at      int  // position of the session in the thread

	texts   map[string]*message
	order   []string // IDs of texts
	tools   map[string]*call
	running []string // IDs of the tool calls that have not ended
	start   preparation
	titled  bool
	cost    float64 // of the thread
}

// message is a message in progress.
type message struct {
	thinking bool
	sent     bool   // a part was sent
	held     string // not sent yet, of a replay
}

func newView(p paths, notices bool) *view {
	return &view{paths: p, notices: notices, texts: map[string]*message{}, tools: map[string]*call{}}
}

// id returns the ID of a tool call or a message in the thread: agents of two sessions may use the same.
func (v *view) id(id string) string {
	if v.at == 0 || id == "" {
		return id
	}
	return fmt.Sprint(id, "_", v.at+1)
}

// event returns the updates for an event. own means that the event is about a prompt of the editor.
func (v *view) event(kind string, e api.SessionEvent, own bool) []update {
	switch part, _, _ := strings.Cut(kind, "."); part {
	case "session":
		return v.session(kind, e)
	case "message":
		return v.message(kind, e, own)
	case "tool", "file":
		return v.tool(kind, e)
	case "agent", "mcp", "git", "egress", "repo":
		return v.report(kind, e)
	case "done":
		return v.done(e)
	}
	return nil
}

// preparation is the preparation of a session. The editor sees it as a tool call.
type preparation struct {
	lines []string
	shown bool
	over  bool
}

// startID is the ID of the tool call that shows the preparation.
const startID = "harvest_start"

// expect notes that a prompt of the editor waits, and shows the preparation if it is not over.
func (v *view) expect(waits bool) []update {
	v.waiting = waits
	return v.prepare("")
}

// prepare adds a line to the preparation. It is shown only while a prompt waits for it.
func (v *view) prepare(line string) []update {
	p := &v.start
	if v.past || p.over {
		return nil
	}
	if line != "" {
		p.lines = append(p.lines, line)
	}
	content := list(contents(strings.Join(p.lines, "\n\n")))
	switch {
	case p.shown && line != "":
		return []update{{Kind: "tool_call_update", toolCall: toolCall{ID: v.id(startID)}, Content: content}}
	case !p.shown && v.waiting:
		p.shown = true
		return []update{{Kind: "tool_call", toolCall: toolCall{ID: v.id(startID), Title: "Prepare the sandbox",
			ToolKind: "other", Status: "in_progress"}, Content: content}}
	}
	return nil
}

// prepared ends the preparation.
func (v *view) prepared(status string) []update {
	shown := v.start.shown && !v.start.over
	v.start.over = true
	if !shown {
		return nil
	}
	return []update{{Kind: "tool_call_update", toolCall: toolCall{ID: v.id(startID), Status: status}}}
}

func (v *view) session(kind string, e api.SessionEvent) []update {
	switch kind {
	case "session.queued":
		return v.prepare("the sandbox waits to start")
	case "session.stage":
		if e.Stage != nil {
			return v.prepare(fmt.Sprintf("%s: ready in %.0f ms", chat.Plain(e.Stage.Name), e.Stage.MS))
		}
	case "session.status_changed":
		if e.Status != "creating" && e.Status != "failed" {
			return v.prepared("completed")
		}
	case "session.notice":
		return v.notice("warning", e.Text, "")
	case "session.recalled":
		return v.notice("info", "Harvest continues the earlier conversation", e.Text)
	case "session.ended":
		all := v.prepared("failed")
		if e.Status == "failed" {
			return append(all, v.notice("error", "The session failed", e.Reason)...)
		}
		return append(all, v.notice("info", "The session has ended. The next prompt continues with its files", "")...)
	}
	return nil
}

func (v *view) message(kind string, e api.SessionEvent, own bool) (all []update) {
	if e.Parent != "" {
		return nil // of a sub-agent, whose call has the result
	}
	switch kind {
	case "message.sent":
		all = v.prepared("completed")
		switch {
		case e.Message == nil:
		case e.Message.Purpose != "":
			return append(all, v.notice("info", chat.OwnPrompt, "")...)
		default:
			if !own {
				all = append(all, update{Kind: "user_message_chunk", MessageID: e.Message.ID,
					Content: textBlock(e.Message.Prompt)})
			}
			if title := chat.FirstLine(e.Message.Prompt); !v.titled && title != "" {
				all = append(all, update{Kind: "session_info_update", toolCall: toolCall{Title: title}})
			}
			v.titled = true
		}
	case "message.started":
		v.text(e.ID).thinking = e.Thinking
	case "message.delta":
		return v.say(e.ID, v.text(e.ID), e.Text)
	case "message.completed":
		t := v.text(e.ID)
		t.thinking = t.thinking || e.Thinking
		if !t.sent {
			t.held = e.Text
		}
		all = v.release(e.ID, t)
		delete(v.texts, e.ID)
	}
	return all
}

// text returns a message in progress.
func (v *view) text(id string) *message {
	t := v.texts[id]
	if t == nil {
		t = &message{}
		v.texts[id] = t
		v.order = append(v.order, id)
	}
	return t
}

// say sends a piece of a message. In a replay, it waits for the rest.
func (v *view) say(id string, t *message, text string) []update {
	t.held += text
	if v.past {
		return nil
	}
	return v.release(id, t)
}

// release sends the part of a message that was not sent.
func (v *view) release(id string, t *message) []update {
	if t.held == "" {
		return nil
	}
	u := update{Kind: "agent_message_chunk", MessageID: v.id(id), Content: textBlock(t.held)}
	if t.thinking {
		u.Kind = "agent_thought_chunk"
	}
	t.held, t.sent = "", true
	return []update{u}
}

// releaseAll sends the parts of messages that were not sent.
func (v *view) releaseAll() (all []update) {
	for _, id := range v.order {
		if t := v.texts[id]; t != nil {
			all = append(all, v.release(id, t)...)
		}
	}
	return all
}

// live ends the replay, and returns the parts of messages and of output that it held back.
func (v *view) live() []update {
	v.past = false
	return append(v.releaseAll(), v.flush()...)
}

// done ends a turn.
func (v *view) done(e api.SessionEvent) []update {
	all := v.releaseAll()
	for _, id := range slices.Clone(v.running) { // the agent did not report their end
		all = append(all, v.ended(v.tools[id], api.SessionEvent{ID: id, Failed: true, Interrupted: e.Interrupted})...)
	}
	v.texts, v.order, v.tools, v.running = map[string]*message{}, nil, map[string]*call{}, nil
	if e.Usage != nil {
		v.cost += e.Usage.Cost
	}
	if e.Context != nil && e.Context.Size > 0 {
		all = append(all, update{Kind: "usage_update", Used: &e.Context.Used, Size: &e.Context.Size,
			Cost: &cost{v.cost, "USD"}})
	}
	return all
}

// notice returns a note of Harvest. In a replay there is none: notices are about the moment.
func (v *view) notice(severity, title, more string) []update {
	title, more = chat.Plain(title), chat.Plain(more)
	switch {
	case v.past:
		return nil
	case v.notices:
		return []update{{Kind: "notice", Severity: severity, toolCall: toolCall{Title: title}, Description: more}}
	case more != "":
		title += ": " + more
	}
	return []update{{Kind: "agent_thought_chunk", Content: textBlock("Harvest: " + title + "\n")}}
}

// report returns the updates for reports of the agent and about it.
func (v *view) report(kind string, e api.SessionEvent) []update {
	switch kind {
	case "agent.plan":
		steps := []entry{}
		for _, s := range e.Plan {
			steps = append(steps, entry{s.Text, "medium", cmp.Or(s.Status, "pending")})
		}
		return []update{{Kind: "plan", Entries: steps}}
	case "agent.crashed":
		return v.notice("warning", "The agent is restarted", e.Reason)
	case "agent.output_lost":
		return v.notice("warning", "Output of the agent is lost", e.Reason)
	case "agent.continued":
		return v.notice("info", "The agent continues by itself", e.Reason)
	case "agent.retrying":
		return v.notice("warning", "The model's API failed", e.Text)
	case "agent.overridden", "agent.notice", "agent.silent":
		return v.notice("info", e.Text, "")
	case "mcp.failed":
		return v.notice("warning", "MCP server "+e.ID+" failed", e.Reason)
	case "egress.denied":
		return v.notice("warning", chat.Denied(e.Denial), "")
	case "repo.synced":
		if e.Synced != nil && e.Synced.Error != "" {
			return v.notice("warning", "Commits newer than the image could not be fetched", e.Synced.Error)
		}
	case "git.panic":
		if e.Git != nil {
			return v.notice("error", "The agent pressed the panic button: "+e.Git.Reason, "A person must "+e.Git.Need)
		}
	}
	return nil
}

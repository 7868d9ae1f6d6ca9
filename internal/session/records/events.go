package records

import (
	"context"
	"encoding/json"
	"strings"
	"time"

	"github.com/RelevanceAI/harvest/client/errors"
	"github.com/RelevanceAI/harvest/internal/base/event"
	"github.com/RelevanceAI/harvest/internal/engine"
	"github.com/RelevanceAI/harvest/internal/session/agent"
	"github.com/RelevanceAI/harvest/internal/session/cause"
	"github.com/RelevanceAI/harvest/internal/session/git"
)

// Event is the data of a session's events. The event type determines which fields are set. Package agent defines the
// events of agents.
type Event struct {
	agent.Event
	MessageID string   `json:"message_id,omitempty"` // prompt of the turn
	Message   *Message `json:"message,omitempty"`    // of message.queued, message.held, message.sent, message.cancelled
	Position  int      `json:"position,omitempty"`
	Status    Status   `json:"status,omitempty"` // of session.created, session.status_changed, session.ended
	Stage     *Stage   `json:"stage,omitempty"`  // of session.stage
	// Took is the duration in milliseconds since tool.started, of tool.completed. It is 0 if the turn began under
	// another server.
	Took float64 `json:"took_ms,omitempty"`
	// Deadline is when the agent decides a question of agent.asked itself; zero if it waits without a limit.
	Deadline time.Time `json:"deadline,omitzero"`
	// Cause is set in done if the turn failed and the same prompt would fail again.
	Cause  cause.Cause `json:"cause,omitempty"`
	Limit  string      `json:"limit,omitempty"`
	Synced *Synced     `json:"synced,omitempty"` // of repo.synced
	// Git is set in git.synced, git.committed, git.pushed, git.stashed, git.left, git.panic.
	Git *git.Event `json:"git,omitempty"`
	// Denial is the refused connection or lookup, of egress.denied.
	Denial *engine.Denial `json:"denial,omitempty"`
	// Changed is set in session.changed.
	Changed *Changed `json:"changed,omitempty"`
	// GitLines is the number of harvest-git lines converted to events, including this one.
	GitLines int `json:"git_lines,omitempty"`
	// Denials is the ID of the last event in the sandbox's stream whose denial was reported.
	Denials int64 `json:"sandbox_event,omitempty"`
	// Offset is the number of bytes of the agent's output converted to events, including this one.
	Offset int64 `json:"offset"`
}

// Stage is a completed step of session preparation.
type Stage struct {
	Name string  `json:"name"`
	MS   float64 `json:"ms"`

	Queued bool `json:"-"` // not completed: the sandbox is queued for its start
}

// RepoImage is the image of a repository.
type RepoImage struct {
	Repo   string    `json:"-"` // id
	Image  string    `json:"image_id"`
	Base   string    `json:"-"` // name of the image that it was built from
	Dir    string    `json:"-"`
	Branch string    `json:"branch"`
	Commit string    `json:"image_commit"`
	Built  time.Time `json:"image_built_at"`
	// LFS and Submodules mean that the image has these parts, which an update has to fetch, too.
	LFS, Submodules bool `json:"-"`
}

// Synced is the result of updating a session that started from an image of its repository.
type Synced struct {
	RepoImage
	Behind int    `json:"commits_behind"`  // commits behind the newest one when the session began; -1 if unknown
	Commit string `json:"commit"`          // the starting commit after the update
	Error  string `json:"error,omitempty"` // why the update failed
}

// Event types that do not come from the agent.
const (
	EventCreated       = "session.created"
	EventStatus        = "session.status_changed"
	EventChanged       = "session.changed" // Changed: options that hold from the next prompt, and limits
	EventEnded         = "session.ended"
	EventStage         = "session.stage"
	EventWaits         = "session.queued" // the sandbox is queued for its start
	EventQueued        = "message.queued" // also after message.held
	EventHeld          = "message.held"   // is not sent until it is queued again
	EventSent          = "message.sent"
	EventCancelled     = "message.cancelled"
	EventMCPReady      = "mcp.ready"      // ID: an MCP server has listed its tools
	EventMCPRestarting = "mcp.restarting" // ID: it is started again; mcp.ready or mcp.failed follows
	EventMCPFailed     = "mcp.failed"     // ID, Reason: it has not, and the turn begins without it
	EventStarted       = "agent.started"  // a process of the agent started; it has not printed anything yet
)

// EventOutputLost reports that a part of the agent's output is missing, and has become no events. Reason says how much.
const EventOutputLost = "agent.output_lost"

// EventOwnTurn reports that the agent began a turn by itself, for example because a background command ended. Message
// is the turn's record, Reason is the agent's reason.
const EventOwnTurn = "agent.continued"

// EventNotice reports something about the session that a person may not expect, such as a missing secret. Text is one
// sentence, and Reason its kind.
const EventNotice = "session.notice"

// Notice is the content of EventNotice.
type Notice struct {
	Reason string // kind, such as NoticeSecret
	Text   string // one sentence
}

// The kinds of notices.
const (
	NoticeHardware   = "hardware"     // the sandbox has less than the repository requires
	NoticeSecret     = "secret"       // a secret is missing that the repository recommends
	NoticeUnfollowed = "devcontainer" // the dev container of the repository is not followed
	NoticeCommand    = "command"      // a command of the dev container failed in the background
)

// EventRenamed reports that a person has chosen another title. Text is the title.
const EventRenamed = "session.renamed"

// EventOutput has output of a command of the dev container that runs in the background. ID is the command's name, Text
// the output.
const EventOutput = "session.output"

// EventRecalled reports that the agent had no record of the conversation and received the end of it with the prompt.
// Text says so.
const EventRecalled = "session.recalled"

// EventCrashed reports that a signal killed the agent's process, which restarts with the same prompt and
// conversation. Reason describes the crash.
const EventCrashed = "agent.crashed"

// EventSynced reports that the commits since the image was built have been fetched, or why that failed.
const EventSynced = "repo.synced"

// maxText is the limit for a tool's output or an unrecognized line in an event, in bytes. The agent's own transcript
// contains the full text.
const maxText = 256 << 10

// Fit shortens an event that is too long. JSON encoding may take six times a text's bytes, so events that may be too
// long are measured.
func Fit(e Event) Event {
	if e.size() < event.MaxData/8 {
		return e
	}
	short := e
	for most := maxText; most > 0; most /= 4 {
		short = e.shortened(most)
		if text, err := json.Marshal(short); err == nil && len(text) <= event.MaxData {
			break
		}
	}
	return short
}

// texts returns the event's texts whose length a program in the sandbox controls.
func (e *Event) texts() []*string {
	all := []*string{&e.Text, &e.Reason, &e.ID, &e.Parent, &e.Tool, &e.Path, &e.Conversation, &e.Model, &e.Version}
	if e.Message != nil {
		all = append(all, &e.Message.Prompt, &e.Message.Reply)
	}
	return all
}

// size returns the event's approximate size in bytes of text.
func (e *Event) size() int {
	n := len(e.Raw) + len(e.Input)
	for _, text := range e.texts() {
		n += len(*text)
	}
	for _, q := range e.Questions {
		n += len(q.Text) + len(q.Header) + 100
		for _, o := range q.Options {
			n += len(o.Label) + len(o.Description) + 100
		}
	}
	if e.Answer != nil {
		n += len(e.Answer.Message)
		for question, answer := range e.Answer.Answers {
			n += len(question) + len(answer)
		}
	}
	for _, server := range e.MCP {
		n += len(server.Name) + len(server.Error) + 100
	}
	for _, c := range e.Commands {
		n += len(c.Name) + len(c.Description) + len(c.Hint) + 100
	}
	return n
}

// shortened returns the event with every text cut to at most most bytes.
func (e Event) shortened(most int) Event {
	if e.Message != nil {
		m := *e.Message
		e.Message = &m
	}
	for _, text := range e.texts() {
		if len(*text) > most {
			*text = strings.ToValidUTF8((*text)[:most], "") + "\n[the rest is left out]"
		}
	}
	if len(e.Raw) > most {
		e.Raw = json.RawMessage(`"[a line that is too long]"`)
	}
	if len(e.Input) > most {
		e.Input = json.RawMessage(`"[too long]"`)
	}
	if answer := (&Event{Event: agent.Event{Answer: e.Answer}}).size(); answer > most {
		e.Answer = &agent.Answer{Allow: e.Answer.Allow, Always: e.Answer.Always, Message: "[too long]"}
	}
	lists := Event{Event: agent.Event{Questions: e.Questions, MCP: e.MCP, Commands: e.Commands}}
	if lists.size() > most {
		e.Questions, e.MCP, e.Commands = nil, nil, nil
	}
	return e
}

// LastEvent returns the newest event of a session, or nil.
func LastEvent(ctx context.Context, journal *event.Journal, id string) (*Event, error) {
	last, err := journal.Last(ctx, id)
	if err != nil || last == 0 {
		return nil, errors.Wrapf(err, "read the events of session %s", id)
	}
	reader, err := journal.Subscribe(ctx, id, last-1)
	if err != nil {
		return nil, errors.Wrapf(err, "read the events of session %s", id)
	}
	defer reader.Close()
	events, err := reader.Next(ctx)
	if err != nil {
		return nil, errors.Wrapf(err, "read the events of session %s", id)
	}
	var e Event
	newest := events[len(events)-1]
	return &e, errors.Wrapf(json.Unmarshal(newest.Data, &e), "decode event %d of session %s", newest.ID, id)
}

// Package records has the records of sessions, messages and events, and the contract of the Store that keeps them.
package records

import (
	"context"
	"encoding/json"
	"slices"
	"strings"
	"time"

	"github.com/RelevanceAI/harvest/client/errors"
	"github.com/RelevanceAI/harvest/internal/fleet/record"
	"github.com/RelevanceAI/harvest/internal/fleet/spec"
	"github.com/RelevanceAI/harvest/internal/session/agent"
	"github.com/RelevanceAI/harvest/internal/session/workspace"
)

// Session is the record of a session: a snapshot that does not change by itself.
type Session struct {
	ID      string `json:"id"` // "ses_" and a ULID in lower case
	Account string `json:"account"`
	// Spare means that the session is made ahead for the account, which does not see it yet.
	Spare bool `json:"spare,omitempty"`
	// Place is for lists: like an ID, and newer than ID for a session that was made ahead; "" means ID.
	Place  string `json:"place,omitempty"`
	Title  string `json:"title,omitempty"` // the beginning of the first prompt, unless a person chose it
	Agent  string `json:"agent"`
	Model  string `json:"model,omitempty"`
	Repo   string `json:"repo,omitempty"`   // URL, without credentials
	Branch string `json:"branch,omitempty"` // starting branch
	Base   string `json:"base,omitempty"`   // starting commit
	Dir    string `json:"dir"`              // of the first repository, in the sandbox
	// Subdir is the directory below Dir in which the agent starts; "" means Dir itself.
	Subdir string           `json:"subdir,omitempty"`
	Author workspace.Author `json:"author"`

	// Repos are all repositories; Repo, Branch, Base and Dir describe the first.
	Repos []workspace.Repository `json:"repositories,omitempty"`
	// Pinned means that the session is at the top of lists for people.
	Pinned bool `json:"pinned,omitempty"`
	// Archived means that lists leave the session out. It has ended.
	Archived bool `json:"archived,omitempty"`
	// GitSecret is the secret with git's credentials; "" means the first that has some.
	GitSecret string `json:"git_secret,omitempty"`
	// PerTurn lends the sandbox credentials only while a turn or an operation on the repository is under way.
	PerTurn bool `json:"per_turn,omitempty"`
	// Continues is the session whose files and conversation this one started with.
	Continues string `json:"continues,omitempty"`

	SandboxID    string         `json:"sandbox_id,omitempty"`
	Conversation string         `json:"conversation,omitempty"` // the agent's own name for it
	Release      string         `json:"release,omitempty"`      // version of the agent; "" means the default
	Effort       string         `json:"effort,omitempty"`       // of the model; "" means the default
	Approval     agent.Approval `json:"approval,omitempty"`
	Limits       Limits         `json:"limits"`

	Status  Status      `json:"status"`
	Reason  string      `json:"reason,omitempty"` // one sentence: why it failed, hangs or ended
	Turns   int         `json:"turns"`
	Usage   agent.Usage `json:"usage"`
	Created time.Time   `json:"created_at"`
	Active  time.Time   `json:"active_at"` // time of the last activity
	Ended   time.Time   `json:"ended_at,omitzero"`

	// The remaining fields are for recovery and not for clients. Process is the agent's process, "" while none runs.
	Process string `json:"-"`
	// Next are the options that hold from the next prompt; nil: they stay.
	Next    *Options        `json:"next,omitempty"`
	MCP     json.RawMessage `json:"mcp,omitempty"`     // the user's own servers, in the format of mcp.Parse
	Allowed []string        `json:"allowed,omitempty"` // tools that no longer need approval
	// Answered are the answered questions of the current turn: the agent's output is read again after a restart.
	Answered []string `json:"answered,omitempty"`
	// Asked has the times at which the current turn's questions were asked, by their IDs.
	Asked map[string]time.Time `json:"asked,omitempty"`
	// Attended means that a person has followed the session's events, who could answer questions.
	Attended bool `json:"attended,omitempty"`
	// Later are the commands of the dev container that run in the background.
	Later []string `json:"later,omitempty"`
	// Deliveries are the newest prompt and the answers of its turn, as written to the agent.
	Deliveries []Delivery `json:"-"`
	// Stopping is why the current turn is being stopped; "" if it is not.
	Stopping string       `json:"-"`
	Sandbox  spec.Request `json:"-"` // for a replacement of the first sandbox; without Env, which may be secret
}

// Repositories returns all repositories of the session, the first one first.
func (s Session) Repositories() []workspace.Repository {
	if len(s.Repos) > 0 {
		return s.Repos
	}
	// A record of an earlier version has no Repos.
	return []workspace.Repository{{URL: s.Repo, Branch: s.Branch, Dir: s.Dir, Base: s.Base, Start: s.Base}}
}

// Options are those that can change between turns.
type Options struct {
	Model    string         `json:"model"`
	Effort   string         `json:"effort"`
	Approval agent.Approval `json:"approval"`
}

// Changed describes options after a change.
type Changed struct {
	Options
	Limits Limits `json:"limits"`
}

// Options returns the options that the agent has.
func (s Session) Options() Options { return Options{s.Model, s.Effort, s.Approval} }

// NextOptions returns the options of the next prompt.
func (s Session) NextOptions() Options {
	if s.Next != nil {
		return *s.Next
	}
	return s.Options()
}

// WorkBranch is the branch that the agent works on.
func (s Session) WorkBranch() string { return workspace.Branch(s.ID) }

// Totals is the usage of an account's sessions.
type Totals struct {
	Sessions, Turns int
	Usage           agent.Usage
}

// Limits of a session; zero means no limit.
type Limits struct {
	Turns   int     `json:"turns,omitempty"`
	Seconds float64 `json:"seconds,omitempty"` // of one turn
	USD     float64 `json:"usd,omitempty"`     // of all turns, by the agent's own price list
}

// Exhausted returns Exhausted if the session has no turns left beyond the completed and the planned ones.
func (s Session) Exhausted(planned int) error {
	switch l := s.Limits; {
	case l.Turns > 0 && s.Turns+planned >= l.Turns:
		return errors.Remedy(errors.Newf(errors.Exhausted, "the session has reached its limit of %d turns", l.Turns),
			"create a new session, or give this one a higher limit")
	case l.USD > 0 && s.Usage.Cost >= l.USD:
		return errors.Remedy(errors.Newf(errors.Exhausted, "the session has cost %.2f USD, and its limit is %.2f",
			s.Usage.Cost, l.USD), "create a new session, or give this one a higher limit")
	}
	return nil
}

// Status is the state of a session.
type Status string

// The states.
const (
	Creating    Status = "creating"          // sandbox, repository and agent are being prepared
	Ready       Status = "ready"             // waiting for the first prompt
	Thinking    Status = "thinking"          // the model is at work
	RunningTool Status = "running_tool"      // a tool is running
	Waiting     Status = "waiting_for_input" // the agent has asked a question
	Hung        Status = "hung"              // the agent was silent for too long
	Done        Status = "done"              // the last turn succeeded
	Failed      Status = "failed"            // the last turn failed, or the preparation did
	Ended       Status = "ended"             // the sandbox is gone
)

// next lists the states that may follow each state; see the diagram in docs/sessions.md.
var next = map[Status][]Status{
	Creating:    {Ready, Failed, Ended},
	Ready:       {Thinking, Failed, Ended},
	Thinking:    {RunningTool, Waiting, Hung, Done, Failed, Ended},
	RunningTool: {Thinking, Waiting, Hung, Done, Failed, Ended},
	Waiting:     {Thinking, RunningTool, Done, Failed, Ended},
	Hung:        {Thinking, RunningTool, Waiting, Done, Failed, Ended},
	Done:        {Thinking, Failed, Ended},
	Failed:      {Thinking, Ended},
	Ended:       nil,
}

// Working reports whether a turn is under way.
func (s Status) Working() bool {
	return slices.Contains([]Status{Thinking, RunningTool, Waiting, Hung}, s)
}

// May reports whether to may follow s.
func (s Status) May(to Status) bool { return slices.Contains(next[s], to) }

// Message is a prompt.
type Message struct {
	ID      string       `json:"id"` // "msg_" and a ULID in lower case
	Session string       `json:"session_id"`
	Prompt  string       `json:"prompt"`
	State   MessageState `json:"state"`
	Reply   string       `json:"reply,omitempty"` // the agent's last words
	Created time.Time    `json:"created_at"`
	Started time.Time    `json:"started_at,omitzero"`
	Ended   time.Time    `json:"ended_at,omitzero"`
	Usage   agent.Usage  `json:"usage"`
	Own     bool         `json:"own,omitempty"` // the agent began the turn by itself; Prompt is its reason
	// Purpose is what Harvest itself wants the reply for, such as PurposePull; "" for prompts of people and agents.
	Purpose string `json:"purpose,omitempty"`
	// Note is a text of Harvest that the agent receives before the prompt.
	Note string `json:"note,omitempty"`
}

// PurposePull is the purpose of prompts that ask for the text of a pull request.
const PurposePull = "pull_request"

// MessageState is the progress of a prompt.
type MessageState string

// The states of messages.
const (
	Queued    MessageState = "queued"
	Held      MessageState = "held" // not sent until a client releases it
	Running   MessageState = "running"
	Completed MessageState = "completed"
	Stopped   MessageState = "stopped"   // a client interrupted the turn
	Broken    MessageState = "failed"    // the turn failed
	Cancelled MessageState = "cancelled" // before it was sent
)

// Store stores records. Package store implements it on SQLite; package storetest tests it.
type Store interface {
	// PutSession inserts or replaces a record.
	PutSession(ctx context.Context, s Session) error
	// Session returns a record, or NotFound.
	Session(ctx context.Context, id string) (Session, error)
	// Sessions returns records of the account, newest first, at most limit (0: all). "" means every account, with the
	// spares, which are otherwise left out. If before is not "", it is an ID or a Place, and only older records are
	// returned. live excludes sessions that have ended.
	Sessions(ctx context.Context, account string, live bool, before string, limit int) ([]Session, error)
	// Mentioning returns the IDs of the account's sessions with a prompt of a person, or the last words of a reply,
	// that contains a text. Case does not matter.
	Mentioning(ctx context.Context, account, text string) (map[string]bool, error)
	// Totals returns the account's total usage, including sessions that have ended, without spares.
	Totals(ctx context.Context, account string) (Totals, error)
	// TakeSession stores, in one transaction, the record of a session that was a spare, its prompts, and its sandbox.
	TakeSession(ctx context.Context, s Session, messages []Message, box record.Sandbox) error
	// DropSession deletes a record with its messages. It is idempotent.
	DropSession(ctx context.Context, id string) error
	// PutMessage inserts or replaces a message.
	PutMessage(ctx context.Context, m Message) error
	// Messages returns the messages of a session, oldest first.
	Messages(ctx context.Context, session string) ([]Message, error)
}

// MaxPrompt is the maximum size of a prompt, in bytes, as api.MaxPrompt.
const MaxPrompt = 1 << 20

// NotFound returns the error of a Store for a session that does not exist.
func NotFound(id string) error {
	return errors.Remedy(errors.Newf(errors.NotFound, "session %.80q: not found", id), "list the sessions")
}

// CheckPrompt returns Invalid if text is not a valid prompt.
func CheckPrompt(text string) error {
	switch {
	case strings.TrimSpace(text) == "":
		return errors.Remedy(errors.Newf(errors.Invalid, "the prompt is empty"), "describe the task")
	case len(text) > MaxPrompt:
		return errors.Remedy(errors.Newf(errors.Invalid, "the prompt has %d bytes, more than the maximum of %d",
			len(text), MaxPrompt), "put long texts into a file of the repository")
	case strings.ContainsRune(text, 0):
		return errors.Newf(errors.Invalid, "the prompt contains a NUL byte")
	}
	return nil
}

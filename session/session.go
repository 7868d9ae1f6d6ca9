// Package session is coding agents at work: a session is a sandbox with a repository in it, an agent, and the prompts that people
// send to it. Manager is the entry.
//
// Whatever an agent does becomes events of the session's stream (package event), persisted before anybody sees them. Agents
// outlive the server: their process belongs to the sandbox, and what it printed meanwhile is read when the next server attaches.
package session

import (
	"context"
	"encoding/json"
	"slices"
	"strings"
	"time"

	"github.com/RelevanceAI/harvest/agent"
	"github.com/RelevanceAI/harvest/errors"
	"github.com/RelevanceAI/harvest/sandbox"
)

// Session is the record of a session: a snapshot that does not change by itself.
type Session struct {
	ID      string `json:"id"` // "ses_" and a ULID in lower case
	Account string `json:"account"`
	Title   string `json:"title,omitempty"` // the beginning of the first prompt
	Agent   string `json:"agent"`
	Model   string `json:"model,omitempty"`
	Repo    string `json:"repo,omitempty"`   // URL, without credentials
	Branch  string `json:"branch,omitempty"` // that the work began on
	Base    string `json:"base,omitempty"`   // commit that the work began on
	Dir     string `json:"dir"`              // of the first repository, in the sandbox
	Subdir  string `json:"subdir,omitempty"` // of Dir, where the agent starts; "" means Dir itself
	Author  Author `json:"author"`

	Repos     []Repository `json:"repositories,omitempty"` // all of them; the first is what Repo, Branch, Base and Dir say
	GitSecret string       `json:"git_secret,omitempty"`   // that git's credentials come from; "" means the first that has some
	Continues string       `json:"continues,omitempty"`    // session whose files and conversation this one began with

	SandboxID    string         `json:"sandbox_id,omitempty"`
	Conversation string         `json:"conversation,omitempty"` // the agent's own name for it
	Approval     agent.Approval `json:"approval,omitempty"`
	Limits       Limits         `json:"limits"`

	Status  Status      `json:"status"`
	Reason  string      `json:"reason,omitempty"` // one sentence: why it failed, hangs or ended
	Turns   int         `json:"turns"`
	Usage   agent.Usage `json:"usage"`
	Created time.Time   `json:"created_at"`
	Active  time.Time   `json:"active_at"` // when something last happened
	Ended   time.Time   `json:"ended_at,omitzero"`

	// The rest is for recovery and not for clients. Process is the agent's, "" while none runs.
	Process string          `json:"-"`
	MCP     json.RawMessage `json:"mcp,omitempty"`     // servers of the user's own, as mcp.Parse takes them
	Allowed []string        `json:"allowed,omitempty"` // tools that need not be asked about any more
	// Answered are questions of the turn under way that were: what the agent has printed is read again after a restart.
	Answered []string `json:"answered,omitempty"`
	// Deliveries are the newest prompt and the answers of its turn, as they were written to the agent.
	Deliveries []Delivery `json:"-"`
	// Stopping is why the turn under way is being stopped; "" if it is not.
	Stopping string          `json:"-"`
	Sandbox  sandbox.Request `json:"-"` // for a new sandbox when the first one is gone; without Env, which may be secret
}

// Totals is what an account's sessions have used together.
type Totals struct {
	Sessions, Turns int
	Usage           agent.Usage
}

// Author is who commits are by: "Name (Harvest) <mail>".
type Author struct {
	Name  string `json:"name"`
	Email string `json:"email"`
}

// Limits of a session; zero means none.
type Limits struct {
	Turns   int     `json:"turns,omitempty"`
	Seconds float64 `json:"seconds,omitempty"` // of one turn
	USD     float64 `json:"usd,omitempty"`     // of all turns, by the agent's own price list
}

// Status is what a session is doing.
type Status string

// The states.
const (
	Creating    Status = "creating"          // sandbox, repository and agent are made ready
	Ready       Status = "ready"             // it waits for the first prompt
	Thinking    Status = "thinking"          // the model is at work
	RunningTool Status = "running_tool"      // a tool is
	Waiting     Status = "waiting_for_input" // the agent has asked something
	Hung        Status = "hung"              // nothing was heard of it for too long
	Done        Status = "done"              // the last turn has ended well
	Failed      Status = "failed"            // the last turn has not, or the session could not be made
	Ended       Status = "ended"             // the sandbox is gone
)

// next are the states that may follow each; see the diagram in docs/sessions.md.
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

// working reports whether a turn is under way.
func (s Status) working() bool {
	return slices.Contains([]Status{Thinking, RunningTool, Waiting, Hung}, s)
}

// may reports whether to may follow s.
func (s Status) may(to Status) bool { return slices.Contains(next[s], to) }

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
}

// MessageState is how far a prompt has come.
type MessageState string

// The states of messages.
const (
	Queued    MessageState = "queued"
	Running   MessageState = "running"
	Completed MessageState = "completed"
	Stopped   MessageState = "stopped"   // somebody interrupted the turn
	Broken    MessageState = "failed"    // the turn failed
	Cancelled MessageState = "cancelled" // before it was sent
)

// Request describes a new session.
type Request struct {
	Repo            string              // URL; "" for none
	Branch          string              // "" means the repository's default
	Depth           int                 // of history; 0 means all
	LFS, Submodules bool                // as RepositoryRequest has them
	More            []RepositoryRequest // further repositories, beside the first one
	Name            string              // of the first repository's directory; "" means that of its address
	GitSecret       string              // name of the secret with git's credentials; "" means the first that has some for the repository's host, NoSecret none
	Agent           string              // "" means the Manager's default
	Model           string              // "" means the agent's default
	Prompt          string              // the first one; "" for none yet
	Approval        agent.Approval      //
	Author          Author              // zero means the Manager's default
	Limits          Limits
	MCP             []byte          // servers of the user's own, as mcp.Parse takes them; ${NAME} stands for a variable of the agent
	Sandbox         sandbox.Request // its Env is the agent's too; a sandbox that replaces the first one has Secrets only
	// Bundle, if set, is what `git bundle create - HEAD` printed: the repository comes from there instead of Repo, which stays its origin.
	Bundle []byte
	// Shallow goes with Bundle, if it comes from a shallow repository: its file .git/shallow.
	Shallow []byte
	Subdir  string // of the first repository, where the agent starts; "" means its top
	// Continues is a session of the account that has ended: this one begins with its files, its repositories and the end of its conversation. Of the rest
	// what is zero is as it was there.
	Continues    string
	conversation string // of the session that it continues, if the agent is the same
	// Uncommitted goes with Bundle.
	Uncommitted Uncommitted
}

// Store keeps records. Package store has one on SQLite and one in memory; package storetest proves them.
type Store interface {
	// PutSession inserts or replaces a record.
	PutSession(ctx context.Context, s Session) error
	// Session returns a record. NotFound if there is none.
	Session(ctx context.Context, id string) (Session, error)
	// Sessions returns records of the account ("" means every account), newest first, at most limit (0: all); before, if not "", is an id:
	// only older ones. live leaves out those that have ended.
	Sessions(ctx context.Context, account string, live bool, before string, limit int) ([]Session, error)
	// Totals returns what the account's sessions have used, those that have ended included.
	Totals(ctx context.Context, account string) (Totals, error)
	// PutMessage inserts or replaces a message.
	PutMessage(ctx context.Context, m Message) error
	// Messages returns those of a session, oldest first.
	Messages(ctx context.Context, session string) ([]Message, error)
}

// What a request may have.
const (
	MaxPrompt = 1 << 20 // bytes
	maxQueue  = 100     // prompts that wait
	maxTitle  = 80      // bytes
)

// checkPrompt returns Invalid if no agent could be sent text.
func checkPrompt(text string) error {
	switch {
	case strings.TrimSpace(text) == "":
		return errors.Remedy(errors.Newf(errors.Invalid, "the prompt is empty"), "say what the agent shall do")
	case len(text) > MaxPrompt:
		return errors.Remedy(errors.Newf(errors.Invalid, "the prompt has %d bytes, %d are allowed", len(text), MaxPrompt), "put long texts into a file of the repository")
	case strings.ContainsRune(text, 0):
		return errors.Newf(errors.Invalid, "the prompt contains a NUL byte")
	}
	return nil
}

// title returns the beginning of a prompt, on one line.
func title(prompt string) string {
	text := strings.Join(strings.Fields(prompt), " ")
	if len(text) <= maxTitle {
		return text
	}
	cut := strings.ToValidUTF8(text[:maxTitle], "")
	if i := strings.LastIndexByte(cut, ' '); i > maxTitle/2 {
		cut = cut[:i]
	}
	return cut + "…"
}

// NotFound is what a Store returns for a session that it does not have.
func NotFound(id string) error {
	return errors.Remedy(errors.Newf(errors.NotFound, "there is no session %.80q", id), "list the sessions")
}

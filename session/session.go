// Package session runs coding agents. A session consists of a sandbox with a repository in it, an agent, and the
// prompts that people send to it. Manager is the entry point.
//
// The actions of an agent become events of the session's stream (package event), which are persisted before clients
// see them. Agents outlive the server: their process belongs to the sandbox, and the next server that attaches reads
// the output of the meantime.
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
	"github.com/RelevanceAI/harvest/session/workspace"
)

// Session is the record of a session: a snapshot that does not change by itself.
type Session struct {
	ID      string `json:"id"` // "ses_" and a ULID in lower case
	Account string `json:"account"`
	// Spare means that the session is made ahead for the account, which does not see it yet.
	Spare bool `json:"spare,omitempty"`
	// Place is for lists: like an ID, and newer than ID for a session that was made ahead; "" means ID.
	Place  string `json:"place,omitempty"`
	Title  string `json:"title,omitempty"` // the beginning of the first prompt
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
	// GitSecret is the secret with git's credentials; "" means the first that has some.
	GitSecret string `json:"git_secret,omitempty"`
	// Continues is the session whose files and conversation this one started with.
	Continues string `json:"continues,omitempty"`

	SandboxID    string         `json:"sandbox_id,omitempty"`
	Conversation string         `json:"conversation,omitempty"` // the agent's own name for it
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
	Process string          `json:"-"`
	MCP     json.RawMessage `json:"mcp,omitempty"`     // the user's own servers, in the format of mcp.Parse
	Allowed []string        `json:"allowed,omitempty"` // tools that no longer need approval
	// Answered are the answered questions of the current turn: the agent's output is read again after a restart.
	Answered []string `json:"answered,omitempty"`
	// Attended means that a person has followed the session's events, who could answer questions.
	Attended bool `json:"attended,omitempty"`
	// Deliveries are the newest prompt and the answers of its turn, as written to the agent.
	Deliveries []Delivery `json:"-"`
	// Stopping is why the current turn is being stopped; "" if it is not.
	Stopping string          `json:"-"`
	Sandbox  sandbox.Request `json:"-"` // for a replacement of the first sandbox; without Env, which may be secret
}

// Repositories returns all repositories of the session, the first one first.
func (s Session) Repositories() []workspace.Repository {
	if len(s.Repos) > 0 {
		return s.Repos
	}
	// A record of an earlier version has no Repos.
	return []workspace.Repository{{URL: s.Repo, Branch: s.Branch, Dir: s.Dir, Base: s.Base, Start: s.Base}}
}

// WorkBranch is the branch that the agent works on.
func (s Session) WorkBranch() string { return workspace.Branch(s.ID) }

// given returns the user's own state of the first repository.
func (req Request) given() workspace.Given {
	return workspace.Given{Bundle: req.Bundle, Shallow: req.Shallow, Uncommitted: req.Uncommitted}
}

// repositories describes the repositories of req.
func (req Request) repositories() workspace.Request {
	first := workspace.RepositoryRequest{URL: req.Repo, Branch: req.Branch, Depth: req.Depth, LFS: req.LFS,
		Submodules: req.Submodules}
	return workspace.Request{Repositories: slices.Concat([]workspace.RepositoryRequest{first}, req.More),
		Name: req.Name, Subdir: req.Subdir, Given: req.given()}
}

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
	// Purpose is what Harvest itself wants the reply for, such as PurposePull; "" for prompts of people and agents.
	Purpose string `json:"purpose,omitempty"`
}

// PurposePull is the purpose of prompts that ask for the text of a pull request.
const PurposePull = "pull_request"

// MessageState is the progress of a prompt.
type MessageState string

// The states of messages.
const (
	Queued    MessageState = "queued"
	Running   MessageState = "running"
	Completed MessageState = "completed"
	Stopped   MessageState = "stopped"   // a client interrupted the turn
	Broken    MessageState = "failed"    // the turn failed
	Cancelled MessageState = "cancelled" // before it was sent
)

// Request describes a new session.
type Request struct {
	Repo            string                        // URL; "" for none
	Branch          string                        // "" means the repository's default
	Depth           int                           // of history; 0 means all
	LFS, Submodules bool                          // as in workspace.RepositoryRequest
	More            []workspace.RepositoryRequest // further repositories, beside the first one
	Name            string                        // of the first repository's directory; "" means that of its address
	// GitSecret is the name of the secret with git's credentials; "" means the first that has some for the repository's
	// host, credentials.None means no credentials.
	GitSecret string
	Agent     string           // "" means the Manager's default
	Model     string           // "" means the agent's default
	Prompt    string           // the first one; "" for none yet
	Approval  agent.Approval   //
	Author    workspace.Author // zero means the Manager's default
	Limits    Limits
	// MCP describes the user's own servers, in the format of mcp.Parse. ${NAME} stands for a variable of the agent.
	MCP     []byte
	Sandbox sandbox.Request // its Env is also the agent's; a replacement for it has Secrets only
	// Bundle, if set, is the output of `git bundle create - HEAD`: the repository is cloned from it instead of Repo,
	// which remains its origin.
	Bundle []byte
	// Shallow accompanies a Bundle from a shallow repository: the content of its file .git/shallow.
	Shallow []byte
	Subdir  string // of the first repository, where the agent starts; "" means its top
	// Continues is a session of the account that has ended. The new session starts with its files, its repositories
	// and the end of its conversation. Other zero fields take the values of that session.
	Continues    string
	conversation string // conversation of the continued session, if the agent is the same
	title        string // title of the continued session
	// Uncommitted accompanies Bundle.
	Uncommitted workspace.Uncommitted
}

// Store stores records. Package store implements it on SQLite and in memory; package storetest tests the
// implementations.
type Store interface {
	// PutSession inserts or replaces a record.
	PutSession(ctx context.Context, s Session) error
	// Session returns a record, or NotFound.
	Session(ctx context.Context, id string) (Session, error)
	// Sessions returns records of the account, newest first, at most limit (0: all). "" means every account, with the
	// spares, which are otherwise left out. If before is not "", it is an ID or a Place, and only older records are
	// returned. live excludes sessions that have ended.
	Sessions(ctx context.Context, account string, live bool, before string, limit int) ([]Session, error)
	// Totals returns the account's total usage, including sessions that have ended, without spares.
	Totals(ctx context.Context, account string) (Totals, error)
	// TakeSession stores, in one transaction, the record of a session that was a spare, its prompts, and its sandbox.
	TakeSession(ctx context.Context, s Session, messages []Message, box sandbox.Sandbox) error
	// DropSession deletes a record with its messages. It is idempotent.
	DropSession(ctx context.Context, id string) error
	// PutMessage inserts or replaces a message.
	PutMessage(ctx context.Context, m Message) error
	// Messages returns the messages of a session, oldest first.
	Messages(ctx context.Context, session string) ([]Message, error)
}

// Limits of requests.
const (
	MaxPrompt = 1 << 20 // bytes, as api.MaxPrompt
	maxQueue  = 100     // queued prompts
)

// checkPrompt returns Invalid if text is not a valid prompt.
func checkPrompt(text string) error {
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

// NotFound returns the error of a Store for a session that does not exist.
func NotFound(id string) error {
	return errors.Remedy(errors.Newf(errors.NotFound, "session %.80q: not found", id), "list the sessions")
}

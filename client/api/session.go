package api

import (
	"encoding/json"
	"time"
)

// Routes of sessions.
const (
	Sessions          = "/v1/sessions"
	SessionsWarm      = "/v1/sessions/warm"
	Sessioned         = "/v1/sessions/{id}"
	SessionMessages   = "/v1/sessions/{id}/messages"
	SessionMessage    = "/v1/sessions/{id}/messages/{message}"
	SessionStop       = "/v1/sessions/{id}/stop"    // ?hold=
	SessionRelease    = "/v1/sessions/{id}/release" // ?message=
	SessionMCP        = "/v1/sessions/{id}/mcp"
	SessionMCPRestart = "/v1/sessions/{id}/mcp/{name}/restart"
	SessionAnswer     = "/v1/sessions/{id}/answers/{question}"
	SessionEvents     = "/v1/sessions/{id}/events" // ?after=&tail=
	SessionDiff       = "/v1/sessions/{id}/diff"
	SessionBundle     = "/v1/sessions/{id}/bundle"
	SessionTaken      = "/v1/sessions/{id}/taken"
	SessionSync       = "/v1/sessions/{id}/sync"
	SessionPush       = "/v1/sessions/{id}/push"
	SessionPull       = "/v1/sessions/{id}/pull-request"
)

// Routes of the files that clients send ahead of a session.
const (
	Uploads = "/v1/uploads"
	Upload  = "/v1/uploads/{id}"
)

// MaxInline is the size limit for a SessionRequest with the bundle and the patch in it, in bytes.
const MaxInline = MaxExec

// MaxPatch is the size limit for the changes of a session as a patch, in bytes.
const MaxPatch = 256 << 20

// Content types of a session's results.
const (
	TypePatch  = "text/x-diff"
	TypeBundle = "application/x-git-bundle"
	TypeBytes  = "application/octet-stream"
)

// SessionRequest is the body of POST /v1/sessions.
type SessionRequest struct {
	Repo       string              `json:"repo,omitempty"`       // address of a repository; "" for none
	Branch     string              `json:"branch,omitempty"`     // "" means the repository's default
	Depth      int                 `json:"depth,omitempty"`      // of history; 0 means all
	LFS        bool                `json:"lfs,omitempty"`        // fetch large files, which are pointers otherwise
	Submodules bool                `json:"submodules,omitempty"` // clone submodules, too
	More       []RepositoryRequest `json:"more,omitempty"`       // further repositories, beside the first one
	// Name is the name of the first repository's directory below /workspace; "" means the name in its address.
	Name string `json:"name,omitempty"`
	// Identity tells repositories apart that have the same name and no address: agents have a memory of each. It is 12
	// to 64 hexadecimal digits. Without it, all of one name share one memory. It is ignored with Repo.
	Identity string `json:"identity,omitempty"`
	// GitSecret is the name of the secret with git's credentials; "" means the first that has some for the
	// repository's host, "none" means no credentials.
	GitSecret string `json:"git_secret,omitempty"`
	// Credentials says when the sandbox may use credentials that the server lends it: "session", the default, or
	// "turn", only while the agent works on a turn, or the server on the repository.
	Credentials string `json:"credentials,omitempty"`
	// Bundle is the output of `git bundle create`: the repository is cloned from it, and repo is only its origin. A
	// bundle of more than a few MiB is uploaded first, and BundleID names it.
	Bundle   []byte `json:"bundle,omitempty"`
	BundleID string `json:"bundle_id,omitempty"`
	// Shallow, for a bundle from a shallow repository, is its .git/shallow.
	Shallow []byte `json:"shallow,omitempty"`
	// Subdir is the directory of the first repository in which the agent starts; "" means its top.
	Subdir string `json:"subdir,omitempty"`
	// Uncommitted are the user's uncommitted changes; they become a separate commit.
	Uncommitted *Uncommitted `json:"uncommitted,omitempty"`
	Agent       string       `json:"agent,omitempty"` // name, such as "claude", or a command that speaks ACP
	// AgentVersion is an exact version of a built-in agent, which is installed into the sandbox; "" means
	// agents.versions of the server's configuration, else the version of the image.
	AgentVersion string `json:"agent_version,omitempty"`
	// Continues is a session that has ended. The new session starts with its files, its repositories and the end of
	// its conversation, and takes all other missing values from it. A repository must not be given, and of the
	// sandbox only env.
	Continues string `json:"continues,omitempty"`
	Model     string `json:"model,omitempty"`
	// Effort is how much the model thinks, in the agent's words, such as "high"; "" means the agent's default.
	Effort   string        `json:"effort,omitempty"`
	Prompt   string        `json:"prompt,omitempty"`   // the first one
	Approval string        `json:"approval,omitempty"` // "": all tools run; "edits", "ask", "plan"
	Author   *Author       `json:"author,omitempty"`
	Limits   SessionLimits `json:"limits,omitzero"`
	// MCP describes the user's own MCP servers in the format of a project's .mcp.json. ${NAME} stands for a variable
	// of the agent's environment.
	MCP     json.RawMessage `json:"mcp,omitempty"`
	Sandbox SandboxRequest  `json:"sandbox,omitzero"`
}

// SessionFilter selects sessions of an account. The zero filter selects those that have not ended.
type SessionFilter struct {
	All      bool // ?all=true: also those that have ended, without archived ones
	Archived bool // ?archived=true: only archived ones
	Pinned   bool // ?pinned=true: only pinned ones
	// Text, ?q=, selects those that have this text in their ID, title, repository, agent or status, in a person's
	// prompt, or in the last words of a reply; with All archived ones, too.
	Text string
}

// SessionChange is the body of PATCH /v1/sessions/{id}. Missing values stay as they are.
type SessionChange struct {
	Model    *string        `json:"model,omitempty"`    // "" means the agent's default
	Effort   *string        `json:"effort,omitempty"`   // "" means the agent's default
	Approval *string        `json:"approval,omitempty"` // "": all tools run; "edits", "ask", "plan"
	Limits   *SessionLimits `json:"limits,omitempty"`   // all of them: a missing one means no limit

	// The others can change after the end of the session, too.

	// Title is one line of at most 200 bytes; "" means the beginning of the first prompt.
	Title    *string `json:"title,omitempty"`
	Pinned   *bool   `json:"pinned,omitempty"`   // true: at the top of lists for people
	Archived *bool   `json:"archived,omitempty"` // true: lists leave it out; only after its end
}

// Changed describes the options of a session after a change of the event session.changed.
type Changed struct {
	Model    string        `json:"model"`
	Effort   string        `json:"effort"`
	Approval string        `json:"approval"`
	Limits   SessionLimits `json:"limits"`
}

// TakenRequest is the body of POST /v1/sessions/{id}/taken.
type TakenRequest struct {
	Repository string `json:"repository,omitempty"` // "" means the first
	Changes    string `json:"changes"`              // header Harvest-Changes of the diff or the bundle
}

// RepositoryRequest describes a repository to clone.
type RepositoryRequest struct {
	Repo       string `json:"repo"`
	Branch     string `json:"branch,omitempty"`
	Depth      int    `json:"depth,omitempty"`
	LFS        bool   `json:"lfs,omitempty"`
	Submodules bool   `json:"submodules,omitempty"`
}

// Uncommitted contains the user's uncommitted changes.
type Uncommitted struct {
	Patch   []byte `json:"patch,omitempty"`    // output of `git diff --binary HEAD`
	PatchID string `json:"patch_id,omitempty"` // upload with the patch, instead of Patch
	Author  Author `json:"author"`
}

// FileUpload is a file that waits for sessions: a bundle or a patch.
type FileUpload struct {
	ID      string    `json:"id"`
	Size    int64     `json:"size_bytes"`
	Expires time.Time `json:"expires_at"`
}

// Author is the author of commits.
type Author struct {
	Name  string `json:"name"`
	Email string `json:"email"`
}

// SessionLimits are the limits of a session; 0 means no limit.
type SessionLimits struct {
	Turns   int     `json:"turns,omitempty"`
	Seconds float64 `json:"seconds,omitempty"` // of one turn
	USD     float64 `json:"usd,omitempty"`
}

// Session is a session of an agent.
type Session struct {
	ID           string        `json:"id"`
	Title        string        `json:"title,omitempty"`
	Pinned       bool          `json:"pinned,omitempty"`   // at the top of lists for people
	Archived     bool          `json:"archived,omitempty"` // lists leave it out
	Agent        string        `json:"agent"`
	AgentVersion string        `json:"agent_version,omitempty"` // that was asked for
	Model        string        `json:"model,omitempty"`
	Effort       string        `json:"effort,omitempty"`
	Approval     string        `json:"approval,omitempty"`
	Repo         string        `json:"repo,omitempty"`
	Continues    string        `json:"continues,omitempty"`   // session whose files and conversation it started with
	Branch       string        `json:"branch,omitempty"`      // starting branch
	WorkBranch   string        `json:"work_branch"`           // branch of the work
	Base         string        `json:"base_commit,omitempty"` // starting commit
	Dir          string        `json:"dir"`
	Repositories []Repository  `json:"repositories"`     // all repositories, including that one
	Memory       string        `json:"memory,omitempty"` // name of the agents' memory of the first repository
	SandboxID    string        `json:"sandbox_id,omitempty"`
	Conversation string        `json:"conversation,omitempty"`
	Limits       SessionLimits `json:"limits,omitzero"`
	Status       string        `json:"status"`
	Reason       string        `json:"reason,omitempty"`
	Turns        int           `json:"turns"`
	Usage        Usage         `json:"usage"`
	Created      time.Time     `json:"created_at"`
	Active       time.Time     `json:"active_at"`
	Ended        time.Time     `json:"ended_at,omitzero"`
}

// Repository is a repository that a session works on.
type Repository struct {
	Name   string `json:"name"` // name in other routes
	Repo   string `json:"repo,omitempty"`
	Branch string `json:"branch,omitempty"`
	Dir    string `json:"dir"`
	Base   string `json:"base_commit,omitempty"`
	Pull   string `json:"pull_request,omitempty"` // address of the pull request
}

// Usage is the usage of turns.
type Usage struct {
	InputTokens      int64   `json:"input_tokens"`
	OutputTokens     int64   `json:"output_tokens"`
	CacheReadTokens  int64   `json:"cache_read_tokens"`
	CacheWriteTokens int64   `json:"cache_write_tokens"`
	Cost             float64 `json:"cost_usd"`
	// Unpriced means that Cost is too low: it lacks requests to a model whose price is not known.
	Unpriced bool `json:"unpriced,omitempty"`
}

// MessageRequest is the body of POST /v1/sessions/{id}/messages.
type MessageRequest struct {
	Prompt string `json:"prompt"`
	Hold   bool   `json:"hold,omitempty"` // send it only after a release
}

// QueuedMessage is the response.
type QueuedMessage struct {
	MessageID string `json:"message_id"`
	Position  int    `json:"position"` // number of turns before it
}

// Message is a prompt of a session.
type Message struct {
	ID      string    `json:"id"`
	Prompt  string    `json:"prompt"`
	State   string    `json:"state"` // "queued", "held", "running", "completed", "stopped", "failed" or "cancelled"
	Reply   string    `json:"reply,omitempty"`
	Created time.Time `json:"created_at"`
	Started time.Time `json:"started_at,omitzero"`
	Ended   time.Time `json:"ended_at,omitzero"`
	Usage   Usage     `json:"usage"`
	Own     bool      `json:"own,omitempty"` // the agent began the turn by itself; Prompt is its reason
	// Purpose is what Harvest itself wants the reply for: "pull_request"; missing in prompts of people.
	Purpose string `json:"purpose,omitempty"`
	// Note is a text of Harvest that the agent received before the prompt, such as one about denied connections.
	Note string `json:"note,omitempty"`
}

// AnswerRequest is the body of POST /v1/sessions/{id}/answers/{question}.
type AnswerRequest struct {
	Allow   bool              `json:"allow"`
	Always  bool              `json:"always,omitempty"`
	Message string            `json:"message,omitempty"` // reason of a refusal
	Answers map[string]string `json:"answers,omitempty"` // maps the text of a question to its answer
}

// SessionEvent is the data of a session's events. The event type determines which fields are set.
type SessionEvent struct {
	ID          string          `json:"id,omitempty"`
	Parent      string          `json:"parent,omitempty"`
	Text        string          `json:"text,omitempty"`
	Thinking    bool            `json:"thinking,omitempty"`
	Tool        string          `json:"tool,omitempty"`
	Input       json.RawMessage `json:"input,omitempty"`
	Failed      bool            `json:"failed,omitempty"`
	Denied      bool            `json:"denied,omitempty"`
	Path        string          `json:"path,omitempty"`
	Created     bool            `json:"created,omitempty"`
	Questions   []Question      `json:"questions,omitempty"`
	Interrupted bool            `json:"interrupted,omitempty"` // of done and tool.completed: the turn was stopped
	Reason      string          `json:"reason,omitempty"`
	// Deadline is when the agent decides a question of agent.asked itself; zero if it waits without a limit.
	Deadline time.Time `json:"deadline,omitzero"`
	// Cause is set in done if the turn failed and the same prompt would fail again: "cost_limit", "no_credit",
	// "key_refused", "unknown_model" or "prompt_too_long".
	Cause     string      `json:"cause,omitempty"`
	Took      float64     `json:"took_ms,omitempty"` // of tool.completed, in milliseconds; 0 if unknown
	Usage     *Usage      `json:"usage,omitempty"`
	MessageID string      `json:"message_id,omitempty"`
	Message   *Message    `json:"message,omitempty"`
	Position  int         `json:"position,omitempty"`
	Status    string      `json:"status,omitempty"`
	Stage     *Stage      `json:"stage,omitempty"`
	Synced    *RepoSynced `json:"synced,omitempty"` // of repo.synced
	// Git is set in git.synced, git.committed, git.pushed, git.stashed, git.left and git.panic.
	Git *GitEvent `json:"git,omitempty"`
	// Denial is the connection or lookup of egress.denied, which the network policy of the sandbox denied. Of each
	// destination, a turn has one such event, and at most 20.
	Denial *Denial `json:"denial,omitempty"`
	// Plan is set in agent.plan: all steps of the agent's plan.
	Plan []PlanStep `json:"plan,omitempty"`
	// Commands is set in agent.commands: all commands of the agent, in place of those of an earlier event.
	Commands []AgentCommand `json:"commands,omitempty"`
	// Changed is set in session.changed.
	Changed *Changed `json:"changed,omitempty"`
	// Context is set in done if the agent reports how full the model's context is.
	Context *Context `json:"context,omitempty"`
}

// PlanStep is a step of an agent's plan.
type PlanStep struct {
	Text   string `json:"text"`
	Status string `json:"status,omitempty"` // "pending", "in_progress" or "completed"
}

// AgentCommand is a command of an agent, which a prompt that begins with a slash and its name runs.
type AgentCommand struct {
	Name        string `json:"name"`
	Description string `json:"description,omitempty"`
	Hint        string `json:"hint,omitempty"` // of what follows the name
}

// Context is how full the model's context is, in tokens.
type Context struct {
	Used int64 `json:"used"`
	Size int64 `json:"size"`
}

// RepoSynced is the result of updating a session that started from an image of its repository.
type RepoSynced struct {
	Image       string    `json:"image_id"`
	ImageCommit string    `json:"image_commit"`
	Built       time.Time `json:"image_built_at"`
	Branch      string    `json:"branch"`
	Behind      int       `json:"commits_behind"` // commits that the image was behind; -1 if unknown
	Commit      string    `json:"commit"`         // starting commit
	Error       string    `json:"error,omitempty"`
}

// Question is a question of an agent for a person.
type Question struct {
	Text     string   `json:"text"`
	Header   string   `json:"header,omitempty"`
	Multiple bool     `json:"multiple,omitempty"`
	Options  []Option `json:"options,omitempty"`
}

// Option is a possible answer.
type Option struct {
	Label       string `json:"label"`
	Description string `json:"description,omitempty"`
}

// MCPServer is the state of an MCP server, as the agent reports it.
type MCPServer struct {
	Name   string `json:"name"`
	Status string `json:"status"` // "connected", "pending", "failed", …
	Error  string `json:"error,omitempty"`
}

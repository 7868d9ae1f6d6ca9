package api

import "time"

// GitEvent describes an action of git in a session's repository. The event type determines which fields are set.
type GitEvent struct {
	Dir        string `json:"dir,omitempty"`
	Branch     string `json:"branch,omitempty"`
	Onto       string `json:"onto,omitempty"`    // of git.synced: upstream branch
	Commit     string `json:"commit,omitempty"`  //
	Subject    string `json:"subject,omitempty"` // of git.committed
	Commits    int    `json:"commits,omitempty"` // upstream commits below the work, or commits made at once
	Failed     bool   `json:"failed,omitempty"`  // of git.synced: the repository is unchanged
	Reason     string `json:"reason,omitempty"`  // what failed
	Tried      string `json:"tried,omitempty"`   // a line for each attempt
	Checkpoint string `json:"checkpoint,omitempty"`
	Need       string `json:"need,omitempty"` // of git.panic: what a person must do
}

// SyncRequest is the body of POST /v1/sessions/{id}/sync.
type SyncRequest struct {
	Repository string `json:"repository,omitempty"` // its name; "" means the first
	Branch     string `json:"branch,omitempty"`     // upstream branch; "" means the session's starting branch
	Rewritten  bool   `json:"rewritten,omitempty"`  // the branch was rewritten on purpose
}

// PushRequest is the body of POST /v1/sessions/{id}/push.
type PushRequest struct {
	Repository string `json:"repository,omitempty"`
}

// PullRequestRequest is the body of POST /v1/sessions/{id}/pull-request. The agent writes a missing title and body, by
// the repository's template.
type PullRequestRequest struct {
	Repository string `json:"repository,omitempty"`
	Title      string `json:"title,omitempty"`
	Body       string `json:"body,omitempty"`
	Base       string `json:"base,omitempty"`  // target branch
	Ready      bool   `json:"ready,omitempty"` // not a draft
	// NoSummary does not ask the agent for the text: it lists the commits, and that of an existing pull request stays.
	NoSummary bool `json:"no_summary,omitempty"`
}

// PullRequest is the response.
type PullRequest struct {
	Number int    `json:"number"`
	URL    string `json:"url"`
	Draft  bool   `json:"draft"`
	New    bool   `json:"new"` // false: the branch already had one
	// Updated means that the commits or the text of an existing one have changed.
	Updated bool `json:"updated,omitempty"`
	// Summary is the source of the text: "agent", "commits" (a list), "given" (by the request) or "kept" (unchanged).
	Summary string `json:"summary"`
	Note    string `json:"note,omitempty"` // one sentence about an unexpected result
}

// Routes of the agents' memories of repositories.
const (
	Memories     = "/v1/memory"
	Memoried     = "/v1/memory/{name}"
	MemoryMove   = "/v1/memory/{name}/move"
	MemoryEntity = "/v1/memory/{name}/entities/{entity}"
)

// Memory is the memory of a repository, in a list.
type Memory struct {
	Name    string    `json:"name"` // OWNER-REPOSITORY, or local-DIRECTORY-IDENTITY
	Size    int64     `json:"size_bytes"`
	Created time.Time `json:"created_at"`
}

// MoveMemoryRequest is the body of POST /v1/memory/{name}/move.
type MoveMemoryRequest struct {
	To string `json:"to"` // name of the other memory
}

// MemoryGraph is the content of a memory.
type MemoryGraph struct {
	Entities  []Entity   `json:"entities"`
	Relations []Relation `json:"relations"`
}

// Entity is an entity in a memory, with its observations.
type Entity struct {
	Name         string   `json:"name"`
	Type         string   `json:"type"`
	Observations []string `json:"observations"`
}

// Relation is a relation between two entities.
type Relation struct {
	From string `json:"from"`
	To   string `json:"to"`
	Type string `json:"type"`
}

// EntityRequest is the body of PUT /v1/memory/{name}/entities/{entity}.
type EntityRequest struct {
	Type         string   `json:"type,omitempty"` // "" means "note"
	Observations []string `json:"observations"`
}

package api

import "time"

// GitEvent is something that git did in a session's repository. The event's type says which fields are set.
type GitEvent struct {
	Dir        string `json:"dir,omitempty"`
	Branch     string `json:"branch,omitempty"`
	Onto       string `json:"onto,omitempty"`    // of git.synced: branch of others
	Commit     string `json:"commit,omitempty"`  //
	Subject    string `json:"subject,omitempty"` // of git.committed
	Commits    int    `json:"commits,omitempty"` // of others that the work was carried onto, or that were made at once
	Failed     bool   `json:"failed,omitempty"`  // of git.synced: everything is as it was
	Reason     string `json:"reason,omitempty"`  // what failed
	Tried      string `json:"tried,omitempty"`   // a line for each attempt
	Checkpoint string `json:"checkpoint,omitempty"`
	Need       string `json:"need,omitempty"` // of git.panic: what a person must do
}

// SyncRequest is the body of POST /v1/sessions/{id}/sync.
type SyncRequest struct {
	Repository string `json:"repository,omitempty"` // its name; "" means the first
	Branch     string `json:"branch,omitempty"`     // of others; "" means the one that the work began on
	Rewritten  bool   `json:"rewritten,omitempty"`  // that branch was rewritten on purpose
}

// PushRequest is the body of POST /v1/sessions/{id}/push.
type PushRequest struct {
	Repository string `json:"repository,omitempty"`
}

// PullRequestRequest is the body of POST /v1/sessions/{id}/pull-request. What is missing comes from the session and the repository's template.
type PullRequestRequest struct {
	Repository string `json:"repository,omitempty"`
	Title      string `json:"title,omitempty"`
	Body       string `json:"body,omitempty"`
	Base       string `json:"base,omitempty"`  // branch that the changes go into
	Ready      bool   `json:"ready,omitempty"` // it is no draft
}

// PullRequest is the answer.
type PullRequest struct {
	Number int    `json:"number"`
	URL    string `json:"url"`
	Draft  bool   `json:"draft"`
	New    bool   `json:"new"` // false: there was one for the branch already
}

// Routes of what agents remember of repositories.
const (
	Memories     = "/v1/memory"
	Memoried     = "/v1/memory/{name}"
	MemoryEntity = "/v1/memory/{name}/entities/{entity}"
)

// Memory is what is remembered of a repository, in a list.
type Memory struct {
	Name    string    `json:"name"` // OWNER-REPOSITORY
	Size    int64     `json:"size_bytes"`
	Created time.Time `json:"created_at"`
}

// MemoryGraph is all of it.
type MemoryGraph struct {
	Entities  []Entity   `json:"entities"`
	Relations []Relation `json:"relations"`
}

// Entity is something that is remembered, and what is known of it.
type Entity struct {
	Name         string   `json:"name"`
	Type         string   `json:"type"`
	Observations []string `json:"observations"`
}

// Relation is how two entities belong together.
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

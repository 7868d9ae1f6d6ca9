package api

import "time"

// Routes of repositories.
const (
	Repos       = "/v1/repos"
	Repoed      = "/v1/repos/{id}" // an id or a name
	RepoBuild   = "/v1/repos/{id}/build"
	RepoRefresh = "/v1/repos/{id}/refresh"
	RepoBuilds  = "/v1/repos/{id}/builds"
	RepoEvents  = "/v1/repos/{id}/events" // ?after=&tail=
)

// Names of a repository's events. The data is a RepoEvent.
const (
	EventBuildStarted = "repo.build_started"
	EventBuildStage   = "repo.stage"
	EventBuildLog     = "repo.log"
	EventBuildEnded   = "repo.build_ended"
)

// RepoRequest is the body of POST /v1/repos. Commands are for a shell; null leaves them to harvest.json in the repository or to what is
// found out about it, and "" means none.
type RepoRequest struct {
	URL          string         `json:"url"`
	Name         string         `json:"name,omitempty"`   // "" means owner/name, as the address has it
	Branch       string         `json:"branch,omitempty"` // "" means the repository's default
	Setup        *string        `json:"setup,omitempty"`  // as root, before the rest
	Install      *string        `json:"install,omitempty"`
	Build        *string        `json:"build,omitempty"`
	Test         *string        `json:"test,omitempty"` // a failure is noted and no more
	Root         bool           `json:"root,omitempty"` // run them as root, not as the image's user
	LimitSeconds float64        `json:"limit_seconds,omitempty"`
	Sandbox      SandboxRequest `json:"sandbox,omitzero"` // image (default agent), secrets, network and limits of the sandbox in which it is built
}

// Repo is a registered repository, of which an image is kept.
type Repo struct {
	ID            string            `json:"id"`
	Name          string            `json:"name"`
	URL           string            `json:"url"`
	Branch        string            `json:"branch,omitempty"`
	Dir           string            `json:"dir"`
	Status        string            `json:"status"` // "new", "building", "ready" or "failed"
	Reason        string            `json:"reason,omitempty"`
	Image         string            `json:"image_id,omitempty"` // the last good one, "" until there is one
	Commit        string            `json:"commit,omitempty"`   // that it has
	DefaultBranch string            `json:"default_branch,omitempty"`
	Projects      []RepoProject     `json:"projects,omitempty"`
	Locks         map[string]string `json:"locks,omitempty"` // path to git's digest of what says what to install
	RecipeDigest  string            `json:"recipe_digest,omitempty"`
	Recipe        RepoRequest       `json:"recipe"` // as it was asked for
	Built         time.Time         `json:"built_at,omitzero"`
	Checked       time.Time         `json:"checked_at,omitzero"` // when the newest commit was last known
	Behind        int               `json:"commits_behind"`      // that the image was then
	Used          time.Time         `json:"used_at,omitzero"`    // by a session
	Created       time.Time         `json:"created_at"`
}

// RepoProject is a directory of a repository with a package manager.
type RepoProject struct {
	Dir      string `json:"dir"`
	Manager  string `json:"manager"`
	Pin      string `json:"pin,omitempty"`
	Lock     string `json:"lock,omitempty"`
	Node     string `json:"node,omitempty"` // the version of Node.js that it asks for
	NodeFrom string `json:"node_from,omitempty"`
	Install  string `json:"install,omitempty"`
	Build    string `json:"build,omitempty"`
	Test     string `json:"test,omitempty"`
}

// RepoBuilt is one attempt to make an image of a repository.
type RepoBuilt struct {
	ID           string            `json:"id"`
	RepoID       string            `json:"repo_id"`
	Cause        string            `json:"cause"`          // "build" or "refresh"
	Mode         string            `json:"mode,omitempty"` // "whole", "incremental" or "unchanged"
	Status       string            `json:"status"`         // "running", "succeeded", "failed" or "interrupted"
	Success      bool              `json:"success"`
	Stage        string            `json:"failed_stage,omitempty"`
	Error        string            `json:"error,omitempty"`
	Remedy       string            `json:"remedy,omitempty"`
	Output       string            `json:"output,omitempty"` // the last lines of the step that failed
	Commit       string            `json:"commit,omitempty"`
	From         string            `json:"from_image_id,omitempty"`
	Image        string            `json:"image_id,omitempty"`
	RecipeDigest string            `json:"recipe_digest,omitempty"`
	Locks        map[string]string `json:"locks,omitempty"`
	Node         string            `json:"node,omitempty"` // the version of Node.js that ran
	Steps        []RepoStep        `json:"steps,omitempty"`
	Started      time.Time         `json:"started_at"`
	Ended        time.Time         `json:"ended_at,omitzero"`
	Seconds      float64           `json:"duration_secs"`
}

// RepoStep is a step of a build that has ended.
type RepoStep struct {
	Stage   string  `json:"stage"`
	Command string  `json:"command,omitempty"`
	Code    int     `json:"returncode"`
	Seconds float64 `json:"duration_secs"`
}

// RepoEvent is the data of a repository's events, of which the type says which fields are set.
type RepoEvent struct {
	RepoID  string     `json:"repo_id"`
	Name    string     `json:"name"`
	BuildID string     `json:"build_id"`
	Build   *RepoBuilt `json:"build,omitempty"`   // of repo.build_started and repo.build_ended
	Stage   string     `json:"stage,omitempty"`   // of repo.stage and repo.log
	Command string     `json:"command,omitempty"` // of repo.stage: what it runs
	Text    string     `json:"text,omitempty"`    // of repo.log: whole lines
}

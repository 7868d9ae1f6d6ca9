package api

import "time"

// Routes of repositories.
const (
	Repos       = "/v1/repos"
	Repoed      = "/v1/repos/{id}" // an ID or a name
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

// RepoRequest is the body of POST /v1/repos. Commands are shell commands. null means the command of the repository's
// harvest.json, else the one that Harvest detects; "" means none.
type RepoRequest struct {
	URL     string  `json:"url"`
	Name    string  `json:"name,omitempty"`   // "" means owner/name from the address
	Branch  string  `json:"branch,omitempty"` // "" means the repository's default
	Setup   *string `json:"setup,omitempty"`  // runs as root, before the others
	Install *string `json:"install,omitempty"`
	Build   *string `json:"build,omitempty"`
	Test    *string `json:"test,omitempty"` // a failure is only recorded
	Root    bool    `json:"root,omitempty"` // run the commands as root, not as the image's user
	// Submodules and LFS fetch submodules and large files (git-lfs); null means as the repository's harvest.json says.
	Submodules *bool `json:"submodules,omitempty"`
	LFS        *bool `json:"lfs,omitempty"`
	// Groups are the dependency groups, extras and requirements files of Python projects to install; null means as the
	// repository's harvest.json says, else those for development and tests.
	Groups *[]string `json:"groups,omitempty"`
	// DevContainer is the name or path of a dev container configuration of the repository, "" to use none; null means
	// as the repository's harvest.json says, else that of the whole repository, or the only one.
	DevContainer *string `json:"devcontainer,omitempty"`
	LimitSeconds float64 `json:"limit_seconds,omitempty"`
	// Sandbox configures the sandbox of the build: image (default agent), secrets, network and limits.
	Sandbox SandboxRequest `json:"sandbox,omitzero"`
}

// Repo is a registered repository with its image.
type Repo struct {
	ID            string        `json:"id"`
	Name          string        `json:"name"`
	URL           string        `json:"url"`
	Branch        string        `json:"branch,omitempty"`
	Dir           string        `json:"dir"`
	Status        string        `json:"status"` // "new", "building", "ready" or "failed"
	Reason        string        `json:"reason,omitempty"`
	Image         string        `json:"image_id,omitempty"` // last good image, "" if none exists
	Commit        string        `json:"commit,omitempty"`   // commit of the image
	DefaultBranch string        `json:"default_branch,omitempty"`
	DevContainer  string        `json:"devcontainer,omitempty"` // path of the devcontainer.json of the image
	Projects      []RepoProject `json:"projects,omitempty"`
	Left          []RepoGap     `json:"left_out,omitempty"` // parts of the repository that the image lacks
	// Locks maps paths to git's digests of files that determine dependencies.
	Locks        map[string]string `json:"locks,omitempty"`
	RecipeDigest string            `json:"recipe_digest,omitempty"`
	Recipe       RepoRequest       `json:"recipe"` // as requested
	Built        time.Time         `json:"built_at,omitzero"`
	Checked      time.Time         `json:"checked_at,omitzero"` // when the newest commit was last queried
	Behind       int               `json:"commits_behind"`      // of the image at that time
	Used         time.Time         `json:"used_at,omitzero"`    // last use by a session
	Created      time.Time         `json:"created_at"`
}

// RepoGap is a part of a repository that its image lacks.
type RepoGap struct {
	What string `json:"what"` // "submodules", "lfs", "groups", "requirements", "python" or "directories"
	Why  string `json:"why"`  // the missing part, and how to get it
}

// RepoProject is a directory of a repository with a package manager.
type RepoProject struct {
	Dir      string `json:"dir"`
	Manager  string `json:"manager"`
	Pin      string `json:"pin,omitempty"` // package manager with the requested version
	PinFrom  string `json:"pin_from,omitempty"`
	Lock     string `json:"lock,omitempty"`
	Node     string `json:"node,omitempty"` // requested version of Node.js
	NodeFrom string `json:"node_from,omitempty"`
	// Python is the requested version of Python, such as "==3.12.*".
	Python     string `json:"python,omitempty"`
	PythonFrom string `json:"python_from,omitempty"`
	Install    string `json:"install,omitempty"`
	Build      string `json:"build,omitempty"`
	Test       string `json:"test,omitempty"`
}

// RepoBuilt is one attempt to build an image of a repository.
type RepoBuilt struct {
	ID           string            `json:"id"`
	RepoID       string            `json:"repo_id"`
	Cause        string            `json:"cause"`          // "build" or "refresh"
	Mode         string            `json:"mode,omitempty"` // "whole", "incremental" or "unchanged"
	Status       string            `json:"status"`         // "running", "succeeded", "failed" or "interrupted"
	Success      bool              `json:"success"`
	Stage        string            `json:"failed_stage,omitempty"`
	Kind         string            `json:"kind,omitempty"` // class of the error, such as "invalid" or "unavailable"
	Error        string            `json:"error,omitempty"`
	Remedy       string            `json:"remedy,omitempty"`
	Output       string            `json:"output,omitempty"` // last lines of the failed step
	Commit       string            `json:"commit,omitempty"`
	From         string            `json:"from_image_id,omitempty"`
	Image        string            `json:"image_id,omitempty"`
	RecipeDigest string            `json:"recipe_digest,omitempty"`
	Locks        map[string]string `json:"locks,omitempty"`
	Node         string            `json:"node,omitempty"`   // the version of Node.js that ran
	Python       string            `json:"python,omitempty"` // of the environment of a project of pip
	Left         []RepoGap         `json:"left_out,omitempty"`
	Steps        []RepoStep        `json:"steps,omitempty"`
	Started      time.Time         `json:"started_at"`
	Ended        time.Time         `json:"ended_at,omitzero"`
	Seconds      float64           `json:"duration_secs"`
}

// RepoStep is a completed step of a build.
type RepoStep struct {
	Stage   string  `json:"stage"`
	Command string  `json:"command,omitempty"`
	Code    int     `json:"returncode"`
	Seconds float64 `json:"duration_secs"`
}

// RepoEvent is the data of a repository's events. The event type determines which fields are set.
type RepoEvent struct {
	RepoID  string     `json:"repo_id"`
	Name    string     `json:"name"`
	BuildID string     `json:"build_id"`
	Build   *RepoBuilt `json:"build,omitempty"`   // of repo.build_started and repo.build_ended
	Stage   string     `json:"stage,omitempty"`   // of repo.stage and repo.log
	Command string     `json:"command,omitempty"` // of repo.stage: command
	Text    string     `json:"text,omitempty"`    // of repo.log: whole lines
}

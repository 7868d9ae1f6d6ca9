// Package repo manages images of repositories. A registered repository is cloned, its dependencies are installed and
// it is built once in a sandbox; a snapshot of that sandbox becomes the image. Manager is the entry point; Detect
// determines the needs of a repository.
//
// Sessions start from such an image, and fetch only newer commits. A refresh checks for changes and, if possible,
// builds the next image incrementally from the last one. The last good image stays until a newer one succeeds.
package repo

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/RelevanceAI/harvest/client/errors"
	"github.com/RelevanceAI/harvest/internal/base/pattern"
	"github.com/RelevanceAI/harvest/internal/fleet/spec"
)

const (
	idPrefix    = "repo_"
	buildPrefix = "bld_"
	imagePrefix = "repo/" // prefix of image names
	tagRepo     = "harvest.repo"

	// DefaultImage is the base of repository images unless a Recipe names another.
	DefaultImage = "agent"
	// DefaultLimit is the default time limit of a build.
	DefaultLimit = 10 * time.Minute
	maxLimit     = 2 * time.Hour
	maxCommand   = 16 << 10
	maxGroups    = 50
)

// Repo is the record of a registered repository: a snapshot that does not change by itself.
type Repo struct {
	ID      string `json:"id"` // "repo_" and a ULID in lower case
	Account string `json:"account"`
	Name    string `json:"name"` // unique within the account
	URL     string `json:"url"`  // without credentials
	Branch  string `json:"branch,omitempty"`
	Dir     string `json:"dir"` // path in sandboxes
	Recipe  Recipe `json:"recipe"`

	Status Status `json:"status"`
	Reason string `json:"reason,omitempty"` // why the last attempt failed
	// The following fields describe the last good image. Image is "" until there is one.
	Image   string `json:"image_id,omitempty"`
	Commit  string `json:"commit,omitempty"`
	Default string `json:"default_branch,omitempty"` // branch of the image
	Plan    Plan   `json:"plan,omitzero"`
	Left    []Gap  `json:"left_out,omitempty"` // parts of the repository that the image lacks
	// Locks maps paths to git's digests of the files that determine dependencies. One digest is that of the files that
	// a dev container's image is built from.
	Locks        map[string]string `json:"locks,omitempty"`
	RecipeDigest string            `json:"recipe_digest,omitempty"`
	Built        time.Time         `json:"built_at,omitzero"`
	Whole        time.Time         `json:"whole_at,omitzero"` // time of the last whole build
	// Checked is when the newest commit was last queried.
	Checked time.Time `json:"checked_at,omitzero"`
	Behind  int       `json:"commits_behind"`   // of the image at that time
	Used    time.Time `json:"used_at,omitzero"` // last use by a session
	Created time.Time `json:"created_at"`
	// Failures is the number of consecutive failures. Next is the earliest time of the next scheduled attempt; zero
	// means no delay.
	Failures int       `json:"failures,omitempty"`
	Next     time.Time `json:"next_at,omitzero"`

	// Retired are images that were in use when a newer one replaced them. They are for the Manager, not for clients.
	Retired []string `json:"-"`
}

// backOff returns the delay of scheduled attempts after a number of failures: none for the attempts of one refresh,
// then an hour, doubled each time, up to a day.
func backOff(failures int) time.Duration {
	const retries, most = 4, 24 * time.Hour
	if failures < retries {
		return 0
	}
	return min(most, time.Hour<<min(failures-retries, 5))
}

// failed records a failed build.
func (r *Repo) failed(b Build) {
	r.Status, r.Reason = Failed, b.Error
	if b.Stage != "" {
		r.Reason = b.Stage + ": " + b.Error
	}
	r.Failures++
	if wait := backOff(r.Failures); wait > 0 {
		r.Next = b.Ended.Add(wait)
		r.Reason += fmt.Sprintf(" (failed %d times, the next attempt is after %s; harvest repo build tries at once)",
			r.Failures, r.Next.Format("2006-01-02 15:04 UTC"))
	}
}

// Status is the state of a repository.
type Status string

// The states.
const (
	New      Status = "new"      // not built yet
	Building Status = "building" // a build or a check for changes is under way
	Ready    Status = "ready"    // the image was current at the last check
	Failed   Status = "failed"   // the last attempt failed; an older image may exist
)

// Recipe configures the build of an image, and takes precedence over the repository's own configuration.
type Recipe struct {
	// Setup, Install, Build and Test are shell commands. nil means the command of the repository's harvest.json,
	// else the one that Detect determines; "" means none.
	Setup   *string `json:"setup,omitempty"` // runs as root, before the others: for system packages
	Install *string `json:"install,omitempty"`
	Build   *string `json:"build,omitempty"`
	Test    *string `json:"test,omitempty"` // a failure is only recorded
	Root    bool    `json:"root,omitempty"` // run the commands as root, not as the image's user

	Parts

	LimitSeconds float64 `json:"limit_seconds,omitempty"` // of a whole build; 0 means 600
	// Sandbox contains the parameters of the build's sandbox, as for sessions: image, secrets, network and limits.
	// Its Env is not stored, so it must be empty.
	Sandbox spec.Request `json:"sandbox,omitzero"`
}

func (r Recipe) limit() time.Duration {
	if r.LimitSeconds == 0 {
		return DefaultLimit
	}
	return time.Duration(r.LimitSeconds * float64(time.Second))
}

func (r Recipe) image() string {
	if r.Sandbox.Image == "" {
		return DefaultImage
	}
	return r.Sandbox.Image
}

// digest returns the digest of all inputs of an image except the repository's content. image is the ID of the base
// image.
func (r Recipe) digest(url, branch, image string) (string, error) {
	text, err := json.Marshal([]any{1, url, branch, image, r})
	if err != nil {
		return "", errors.Wrapf(err, "encode the recipe")
	}
	sum := sha256.Sum256(text)
	return "sha256:" + hex.EncodeToString(sum[:]), nil
}

// Build is one attempt to build an image, or a check that found no changes.
type Build struct {
	ID      string `json:"id"` // "bld_" and a ULID in lower case
	Repo    string `json:"repo_id"`
	Cause   Cause  `json:"cause"`
	Mode    Mode   `json:"mode,omitempty"` // "" until determined
	Status  Result `json:"status"`
	Success bool   `json:"success"`

	Stage  string `json:"failed_stage,omitempty"` // failed step
	Kind   string `json:"kind,omitempty"`         // class of the error: a client/errors.Kind
	Error  string `json:"error,omitempty"`        // one sentence
	Remedy string `json:"remedy,omitempty"`
	Output string `json:"output,omitempty"` // last lines of the step's output

	Commit       string            `json:"commit,omitempty"`
	From         string            `json:"from_image_id,omitempty"`
	Image        string            `json:"image_id,omitempty"`
	RecipeDigest string            `json:"recipe_digest,omitempty"`
	Locks        map[string]string `json:"locks,omitempty"`
	Plan         Plan              `json:"plan,omitzero"`
	Left         []Gap             `json:"left_out,omitempty"`
	Node         string            `json:"node,omitempty"`   // version that ran
	Python       string            `json:"python,omitempty"` // version of the environment of a project of pip
	Steps        []Ran             `json:"steps,omitempty"`
	Started      time.Time         `json:"started_at"`
	Ended        time.Time         `json:"ended_at,omitzero"`
	Seconds      float64           `json:"duration_secs"`
}

// Ran is a completed step.
type Ran struct {
	Stage   string  `json:"stage"`
	Command string  `json:"command,omitempty"`
	Code    int     `json:"returncode"` // may be nonzero for tests
	Seconds float64 `json:"duration_secs"`
}

// Cause is the reason for a Build.
type Cause string

// The causes.
const (
	Asked   Cause = "build"   // a user requested a build from the beginning
	Refresh Cause = "refresh" // only the necessary work
)

// Mode is the extent of a Build.
type Mode string

// The modes.
const (
	Whole       Mode = "whole"       // from the recipe's base image
	Incremental Mode = "incremental" // from the repository's last image: dependencies are the same
	Unchanged   Mode = "unchanged"   // there was nothing to do
)

// Result is the state of a Build.
type Result string

// The results.
const (
	Running     Result = "running"
	Succeeded   Result = "succeeded"
	Broken      Result = "failed"
	Interrupted Result = "interrupted" // the server ended during the build
)

// Store stores records. Package store implements it on SQLite and in memory; package storetest tests the
// implementations.
type Store interface {
	// PutRepo inserts or replaces a record and builds of it, atomically. It returns Conflict if another repository of
	// the account has its name.
	PutRepo(ctx context.Context, r Repo, builds ...Build) error
	// Repo returns a record, or NotFound.
	Repo(ctx context.Context, id string) (Repo, error)
	// Repos returns the records of the account ("" means every account), by name.
	Repos(ctx context.Context, account string) ([]Repo, error)
	// DeleteRepo deletes a record and its builds. It returns NotFound if the record does not exist.
	DeleteRepo(ctx context.Context, id string) error
	// Builds returns at most limit (0: all) builds of a repository, newest first.
	Builds(ctx context.Context, repo string, limit int) ([]Build, error)
	// TrimBuilds removes all but the newest builds of a repository.
	TrimBuilds(ctx context.Context, repo string, keep int) error
}

// NotFound returns the error of a Store for a repository that does not exist.
func NotFound(ref string) error {
	return errors.Remedy(errors.Newf(errors.NotFound, "there is no repository %.100q", ref),
		`list those there are with "harvest repo ls", or add it`)
}

// NameTaken returns the error of a Store's PutRepo if the name is in use.
func NameTaken(name string) error {
	return errors.Remedy(errors.Newf(errors.Conflict, "a repository named %q is registered already", name),
		"choose another name with --name, or remove that one first")
}

var namePattern = pattern.New(`^[A-Za-z0-9][A-Za-z0-9._-]*(/[A-Za-z0-9][A-Za-z0-9._-]*)*$`)

const maxName = 120

func checkName(name string) error {
	if !namePattern().MatchString(name) || len(name) > maxName || strings.HasPrefix(name, idPrefix) {
		return errors.Remedy(errors.Newf(errors.Invalid, "%.150q cannot be a repository's name", name),
			"use letters, digits and . _ -, with / between, as in owner/name")
	}
	return nil
}

// nameOf returns the default name of a repository: owner/name from its address.
func nameOf(url string) string {
	path := url
	if _, rest, ok := strings.Cut(path, "://"); ok {
		_, path, _ = strings.Cut(rest, "/")
	} else if _, rest, ok := strings.Cut(path, ":"); ok {
		path = rest
	}
	parts := strings.FieldsFunc(strings.TrimSuffix(strings.TrimSuffix(path, "/"), ".git"),
		func(c rune) bool { return c == '/' })
	if len(parts) > 2 {
		parts = parts[len(parts)-2:]
	}
	for i, p := range parts {
		parts[i] = strings.TrimLeft(notName().ReplaceAllString(p, "-"), "._-")
	}
	return strings.Trim(strings.Join(parts, "/"), "/")
}

var notName = pattern.New(`[^A-Za-z0-9._-]+`)

// key returns a canonical form of an address: equal for addresses of the same repository.
func key(url string) string {
	url = strings.TrimSuffix(strings.TrimRight(url, "/"), ".git")
	scheme, rest, ok := strings.Cut(url, "://")
	if !ok { // user@host:path
		host, path, _ := strings.Cut(url, ":")
		_, host, _ = strings.Cut(host, "@")
		return strings.ToLower(host) + "/" + strings.TrimLeft(path, "/")
	}
	if strings.ToLower(scheme) == "file" {
		return url
	}
	host, path, _ := strings.Cut(rest, "/")
	if at := strings.LastIndexByte(host, '@'); at >= 0 {
		host = host[at+1:]
	}
	return strings.ToLower(host) + "/" + path
}

// check returns an error if the recipe is invalid.
func (r Recipe) check() error {
	for what, command := range map[string]*string{"setup": r.Setup, "install": r.Install, "build": r.Build,
		"test": r.Test} {
		if command == nil {
			continue
		}
		if len(*command) > maxCommand || strings.ContainsRune(*command, 0) {
			return errors.Newf(errors.Invalid, "the %s command is too long, or has a NUL byte", what)
		}
	}
	if r.Groups != nil && (len(*r.Groups) > maxGroups ||
		slices.ContainsFunc(*r.Groups, func(g string) bool {
			return !simpleName().MatchString(g) ||
				len(g) > maxName
		})) {
		return errors.Remedy(errors.Newf(errors.Invalid, "invalid groups %.150q", *r.Groups),
			"give up to %d names of dependency groups or extras, such as dev", maxGroups)
	}
	if !(r.LimitSeconds >= 0 && r.LimitSeconds <= maxLimit.Seconds()) {
		return errors.Remedy(errors.Newf(errors.Invalid, "limit_seconds cannot be %v", r.LimitSeconds),
			"give up to %g seconds, or 0 for the default, %g", maxLimit.Seconds(), DefaultLimit.Seconds())
	}
	s := r.Sandbox
	switch {
	case len(s.Env) > 0:
		return errors.Remedy(errors.Newf(errors.Invalid, "the environment of a repository's sandbox would not be kept"),
			"put it into a secret, and name that")
	case s.Name != "" || s.SnapshotOnEnd || s.User != "" || s.Workdir != "" || s.IdleAction != "" ||
		len(s.StartCommand) > 0:
		return errors.Newf(errors.Invalid,
			"name, user, workdir, idle_action, start_command and snapshot_on_end are not for sandboxes of repositories")
	}
	return nil
}

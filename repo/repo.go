// Package repo keeps images of repositories: a registered repository is cloned, its dependencies are installed and it is built once,
// all in a sandbox, of which a snapshot is then taken. Manager is the entry; Detect says what a repository needs.
//
// Sessions begin with such an image, and fetch only what is newer. A refresh looks whether there is anything new and makes the next
// image of the last one if it can; the last good image stays until there is a better one.
package repo

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"strings"
	"time"

	"github.com/RelevanceAI/harvest/errors"
	"github.com/RelevanceAI/harvest/internal/pattern"
	"github.com/RelevanceAI/harvest/sandbox"
)

const (
	idPrefix    = "repo_"
	buildPrefix = "bld_"
	imagePrefix = "repo/" // of the names of images
	tagRepo     = "harvest.repo"

	// DefaultImage is what images of repositories are made of unless a Recipe says otherwise.
	DefaultImage = "agent"
	// DefaultLimit is how long a build may take.
	DefaultLimit = 10 * time.Minute
	maxLimit     = 2 * time.Hour
	maxCommand   = 16 << 10
)

// Repo is the record of a registered repository: a snapshot that does not change by itself.
type Repo struct {
	ID      string `json:"id"` // "repo_" and a ULID in lower case
	Account string `json:"account"`
	Name    string `json:"name"` // unique within the account
	URL     string `json:"url"`  // without credentials
	Branch  string `json:"branch,omitempty"`
	Dir     string `json:"dir"` // where it is in sandboxes
	Recipe  Recipe `json:"recipe"`

	Status Status `json:"status"`
	Reason string `json:"reason,omitempty"` // why the last attempt failed
	// What the last good image is, and how it came about. Image is "" until there is one.
	Image        string            `json:"image_id,omitempty"`
	Commit       string            `json:"commit,omitempty"`
	Default      string            `json:"default_branch,omitempty"` // the branch that it was made of
	Plan         Plan              `json:"plan,omitzero"`
	Locks        map[string]string `json:"locks,omitempty"` // path to git's digest of the files that say what to install
	RecipeDigest string            `json:"recipe_digest,omitempty"`
	Built        time.Time         `json:"built_at,omitzero"`
	Whole        time.Time         `json:"whole_at,omitzero"` // when all was last installed anew
	// Checked is when it was last known what the newest commit is.
	Checked time.Time `json:"checked_at,omitzero"`
	Behind  int       `json:"commits_behind"`   // that the image was then
	Used    time.Time `json:"used_at,omitzero"` // by a session
	Created time.Time `json:"created_at"`
	// Failures are attempts that failed, one after the other, and Next is when a schedule tries again; zero: at its next time.
	Failures int       `json:"failures,omitempty"`
	Next     time.Time `json:"next_at,omitzero"`

	// Retired are images that somebody still used when a better one was there. For the Manager, not for clients.
	Retired []string `json:"-"`
}

// backOff is how long schedules wait after so many failures: not at all for the attempts of one refresh, then an hour, twice as long each
// time, and a day at most.
func backOff(failures int) time.Duration {
	const retries, most = 4, 24 * time.Hour
	if failures < retries {
		return 0
	}
	return min(most, time.Hour<<min(failures-retries, 5))
}

// failed notes a build that has failed.
func (r *Repo) failed(b Build) {
	r.Status, r.Reason = Failed, b.Error
	if b.Stage != "" {
		r.Reason = b.Stage + ": " + b.Error
	}
	r.Failures++
	if wait := backOff(r.Failures); wait > 0 {
		r.Next = b.Ended.Add(wait)
		r.Reason += fmt.Sprintf(" (failed %d times, the next attempt is after %s; harvest repo build tries at once)", r.Failures, r.Next.Format("2006-01-02 15:04 UTC"))
	}
}

// Status says how a repository is doing.
type Status string

// The states.
const (
	New      Status = "new"      // nothing was done yet
	Building Status = "building" // an image is being made, or it is found out whether one has to be
	Ready    Status = "ready"    // the image is as new as it was when last looked
	Failed   Status = "failed"   // the last attempt failed; there may be an older image
)

// Recipe says how an image is made, where the repository itself shall not say.
type Recipe struct {
	// Shell commands. nil means what the repository's harvest.json says, else what Detect finds out; "" means none.
	Setup   *string `json:"setup,omitempty"` // as root, before the rest: packages of the system
	Install *string `json:"install,omitempty"`
	Build   *string `json:"build,omitempty"`
	Test    *string `json:"test,omitempty"` // a failure is noted and no more
	Root    bool    `json:"root,omitempty"` // run the commands as root, not as the image's user

	LimitSeconds float64 `json:"limit_seconds,omitempty"` // of a whole build; 0 means 600
	// Sandbox is what it is made in, as it is for sessions: image, secrets, network and limits. Its Env is not kept, so it must be empty.
	Sandbox sandbox.Request `json:"sandbox,omitzero"`
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

// digest is that of everything that makes an image another one, beside the repository: image is the id of what it begins with.
func (r Recipe) digest(url, branch, image string) (string, error) {
	text, err := json.Marshal([]any{1, url, branch, image, r})
	if err != nil {
		return "", errors.Wrapf(err, "encode the recipe")
	}
	sum := sha256.Sum256(text)
	return "sha256:" + hex.EncodeToString(sum[:]), nil
}

// Build is one attempt to make an image, or a look that found nothing to do.
type Build struct {
	ID      string `json:"id"` // "bld_" and a ULID in lower case
	Repo    string `json:"repo_id"`
	Cause   Cause  `json:"cause"`
	Mode    Mode   `json:"mode,omitempty"` // "" until it is known
	Status  Result `json:"status"`
	Success bool   `json:"success"`

	Stage  string `json:"failed_stage,omitempty"` // the step that failed
	Error  string `json:"error,omitempty"`        // one sentence
	Remedy string `json:"remedy,omitempty"`
	Output string `json:"output,omitempty"` // the last lines that the step printed

	Commit       string            `json:"commit,omitempty"`
	From         string            `json:"from_image_id,omitempty"`
	Image        string            `json:"image_id,omitempty"`
	RecipeDigest string            `json:"recipe_digest,omitempty"`
	Locks        map[string]string `json:"locks,omitempty"`
	Plan         Plan              `json:"plan,omitzero"`
	Node         string            `json:"node,omitempty"` // the version that ran
	Steps        []Ran             `json:"steps,omitempty"`
	Started      time.Time         `json:"started_at"`
	Ended        time.Time         `json:"ended_at,omitzero"`
	Seconds      float64           `json:"duration_secs"`
}

// Ran is a step that was run to its end.
type Ran struct {
	Stage   string  `json:"stage"`
	Command string  `json:"command,omitempty"`
	Code    int     `json:"returncode"` // of a test it may be anything
	Seconds float64 `json:"duration_secs"`
}

// Cause is why there is a Build.
type Cause string

// The causes.
const (
	Asked   Cause = "build"   // somebody wants an image, made anew from the beginning
	Refresh Cause = "refresh" // whatever is necessary
)

// Mode is how much a Build does.
type Mode string

// The modes.
const (
	Whole       Mode = "whole"       // from the recipe's image
	Incremental Mode = "incremental" // from the repository's last one: dependencies are the same
	Unchanged   Mode = "unchanged"   // there was nothing to do
)

// Result is what became of a Build.
type Result string

// The results.
const (
	Running     Result = "running"
	Succeeded   Result = "succeeded"
	Broken      Result = "failed"
	Interrupted Result = "interrupted" // the server ended meanwhile
)

// Store keeps records. Package store has one on SQLite and one in memory; package storetest proves them.
type Store interface {
	// PutRepo inserts or replaces a record and builds of it, all or nothing. Conflict if another repository of the account has its name.
	PutRepo(ctx context.Context, r Repo, builds ...Build) error
	// Repo returns a record. NotFound if there is none.
	Repo(ctx context.Context, id string) (Repo, error)
	// Repos returns the records of the account ("" means every account), by name.
	Repos(ctx context.Context, account string) ([]Repo, error)
	// DeleteRepo removes a record and its builds. NotFound if there is none.
	DeleteRepo(ctx context.Context, id string) error
	// Builds returns at most limit (0: all) builds of a repository, newest first.
	Builds(ctx context.Context, repo string, limit int) ([]Build, error)
	// TrimBuilds removes all but the newest builds of a repository.
	TrimBuilds(ctx context.Context, repo string, keep int) error
}

// NotFound is what a Store returns for a repository that it does not have.
func NotFound(ref string) error {
	return errors.Remedy(errors.Newf(errors.NotFound, "there is no repository %.100q", ref), `list those there are with "harvest repo ls", or add it`)
}

// NameTaken is what a Store's PutRepo returns when the name is in use.
func NameTaken(name string) error {
	return errors.Remedy(errors.Newf(errors.Conflict, "a repository named %q is registered already", name), "choose another name with --name, or remove that one first")
}

var namePattern = pattern.New(`^[A-Za-z0-9][A-Za-z0-9._-]*(/[A-Za-z0-9][A-Za-z0-9._-]*)*$`)

const maxName = 120

func checkName(name string) error {
	if !namePattern().MatchString(name) || len(name) > maxName || strings.HasPrefix(name, idPrefix) {
		return errors.Remedy(errors.Newf(errors.Invalid, "%.150q cannot be a repository's name", name), "use letters, digits and . _ -, with / between, as in owner/name")
	}
	return nil
}

// nameOf returns what a repository is called whose user has given it no name: owner/name, as its address has it.
func nameOf(url string) string {
	path := url
	if _, rest, ok := strings.Cut(path, "://"); ok {
		_, path, _ = strings.Cut(rest, "/")
	} else if _, rest, ok := strings.Cut(path, ":"); ok {
		path = rest
	}
	parts := strings.FieldsFunc(strings.TrimSuffix(strings.TrimSuffix(path, "/"), ".git"), func(c rune) bool { return c == '/' })
	if len(parts) > 2 {
		parts = parts[len(parts)-2:]
	}
	for i, p := range parts {
		parts[i] = strings.TrimLeft(notName().ReplaceAllString(p, "-"), "._-")
	}
	return strings.Trim(strings.Join(parts, "/"), "/")
}

var notName = pattern.New(`[^A-Za-z0-9._-]+`)

// key is what two addresses have in common that mean the same repository.
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

// check returns what is wrong with a recipe.
func (r Recipe) check() error {
	for what, command := range map[string]*string{"setup": r.Setup, "install": r.Install, "build": r.Build, "test": r.Test} {
		if command == nil {
			continue
		}
		if len(*command) > maxCommand || strings.ContainsRune(*command, 0) {
			return errors.Newf(errors.Invalid, "the %s command is too long, or has a NUL byte", what)
		}
	}
	if !(r.LimitSeconds >= 0 && r.LimitSeconds <= maxLimit.Seconds()) {
		return errors.Remedy(errors.Newf(errors.Invalid, "limit_seconds cannot be %v", r.LimitSeconds), "give up to %g seconds, or 0 for the default, %g", maxLimit.Seconds(), DefaultLimit.Seconds())
	}
	s := r.Sandbox
	switch {
	case len(s.Env) > 0:
		return errors.Remedy(errors.Newf(errors.Invalid, "the environment of a repository's sandbox would not be kept"), "put it into a secret, and name that")
	case s.Name != "" || s.SnapshotOnEnd || s.User != "" || s.Workdir != "":
		return errors.Newf(errors.Invalid, "name, user, workdir and snapshot_on_end are not for sandboxes of repositories")
	}
	return nil
}

package workspace

import (
	"cmp"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"unicode"

	"github.com/RelevanceAI/harvest/client/errors"
	"github.com/RelevanceAI/harvest/internal/base/pattern"
	"github.com/RelevanceAI/harvest/internal/session/git"
	"github.com/RelevanceAI/harvest/internal/session/memory/names"
)

// Repository is a repository that a session works on.
type Repository struct {
	// URL has no credentials; it is "" for a repository that starts empty or has no origin.
	URL string `json:"url,omitempty"`
	// Identity tells repositories without a URL apart that have the same name: they have separate memories.
	Identity   string `json:"identity,omitempty"`
	Branch     string `json:"branch,omitempty"` // starting branch; "" means the default
	Depth      int    `json:"depth,omitempty"`  // depth of history; 0 means all
	LFS        bool   `json:"lfs,omitempty"`    // fetch large files, too
	Submodules bool   `json:"submodules,omitempty"`
	Dir        string `json:"dir"`            // in the sandbox
	Base       string `json:"base,omitempty"` // starting commit; "" if there was none
	// Start is the agent's starting commit: Base, or the user's uncommitted changes on top of it.
	Start string `json:"start,omitempty"`
	Pull  string `json:"pull_request,omitempty"` // address of the pull request
	Taken string `json:"taken,omitempty"`        // digest of the changes that a client has
}

// RepositoryRequest describes a repository to clone.
type RepositoryRequest struct {
	URL        string
	Branch     string // "" means the repository's default
	Depth      int    // depth of history; 0 means all
	LFS        bool   // fetch large files (git-lfs), which are pointers otherwise
	Submodules bool   // clone submodules, too
}

// Uncommitted contains the user's uncommitted changes. They become a separate commit by their author, before the
// agent's first.
type Uncommitted struct {
	Patch  []byte // output of `git diff --binary HEAD`
	Author Author
}

// Author is the author of commits: "Name (Harvest) <mail>".
type Author struct {
	Name  string `json:"name"`
	Email string `json:"email"`
}

// CheckAuthor returns Invalid if git would not accept the author unchanged.
func CheckAuthor(a Author) error {
	for _, text := range []string{a.Name, a.Email} {
		if strings.TrimSpace(text) == "" || len(text) > 200 || strings.ContainsAny(text, "<>\n\x00") {
			return errors.Remedy(errors.Newf(errors.Invalid, "the author needs a name and a mail address"),
				`such as "Ada Lovelace" and "ada@example.org"`)
		}
	}
	return nil
}

// Name returns the name that identifies a repository within a session.
func (r Repository) Name() string { return path.Base(r.Dir) }

// Dirs returns the directories of repositories.
func Dirs(all []Repository) (dirs []string) {
	for _, r := range all {
		dirs = append(dirs, r.Dir)
	}
	return dirs
}

// Named returns the repository of a session with this name, or the first one for "".
func Named(all []Repository, name string) (Repository, error) {
	if name == "" {
		return all[0], nil
	}
	names := ""
	for _, r := range all {
		if r.Name() == name {
			return r, nil
		}
		names += " " + r.Name()
	}
	return Repository{}, errors.Remedy(errors.Newf(errors.NotFound, "the session has no repository %.100q", name),
		"it has%s", names)
}

// Request describes the repositories of a new session.
type Request struct {
	Repositories []RepositoryRequest // the first may have no URL
	Name         string              // of the first repository's directory; "" means that of its address
	Identity     string              // of the first repository if it has no URL; "" if unknown
	Subdir       string              // of the first repository, where the agent starts; "" means its top
	Sent         Sent
}

// Sent describes the user's own state of the first repository.
type Sent struct {
	Commits bool   // a bundle has them
	Shallow []byte // the file .git/shallow, if the bundle is from a shallow repository
	Changes bool   // a patch has the uncommitted changes
	Author  Author // of the changes
}

// Given is the user's own state of the first repository, in files of this machine.
type Given struct {
	// Bundle, if set, has the output of `git bundle create - HEAD`: the repository is cloned from it instead of its
	// URL, which remains its origin.
	Bundle string
	// Shallow accompanies a Bundle from a shallow repository: the content of its file .git/shallow.
	Shallow []byte
	// Patch accompanies Bundle: the output of `git diff --binary HEAD`. "" means no uncommitted changes.
	Patch  string
	Author Author // of the changes
}

// maxRepositories is how many repositories a session may have.
const maxRepositories = 10

// Check returns the repositories of req, or an error if their source is invalid.
func Check(req Request) ([]Repository, error) {
	first := req.Repositories[0]
	if (req.Sent.Commits || first.URL == "") && first.Depth != 0 {
		return nil, errors.Newf(errors.Invalid, "depth needs a repository that is cloned from an address")
	}
	if len(req.Repositories) > maxRepositories {
		return nil, errors.Newf(errors.Invalid, "more than %d repositories", maxRepositories)
	}
	all := []Repository{}
	for i, r := range req.Repositories {
		dir, err := req.dir(i)
		if err != nil {
			return nil, err
		}
		if slices.ContainsFunc(all, func(o Repository) bool { return o.Dir == dir }) {
			return nil, errors.Newf(errors.Invalid, "two repositories have the same directory %s", dir)
		}
		all = append(all, Repository{URL: r.URL, Branch: r.Branch, Depth: r.Depth, LFS: r.LFS,
			Submodules: r.Submodules, Dir: dir})
	}
	if err := names.CheckIdentity(req.Identity); err != nil {
		return nil, err
	}
	if first.URL == "" {
		all[0].Identity = req.Identity
	}
	if req.Subdir != "" && (!filepath.IsLocal(req.Subdir) || path.Clean(req.Subdir) != req.Subdir ||
		strings.ContainsFunc(req.Subdir, unicode.IsControl)) {
		return nil, errors.Remedy(errors.Newf(errors.Invalid, "invalid directory of the repository %.200q", req.Subdir),
			"give a path relative to the repository's root, such as services/api")
	}
	return all, req.Sent.check()
}

// dir returns the directory of the i-th repository, or an error if the repository is invalid.
func (req Request) dir(i int) (string, error) {
	r := req.Repositories[i]
	if err := git.CheckBranch(r.Branch); err != nil {
		return "", err
	}
	if r.Depth < 0 {
		return "", errors.Newf(errors.Invalid, "the depth must not be negative")
	}
	name := ""
	if r.URL != "" {
		address, err := git.ParseAddress(r.URL)
		if err != nil {
			return "", err
		}
		name = address.Name()
	} else if i > 0 {
		return "", errors.Newf(errors.Invalid, "repository %d: no address", i+1)
	}
	if i == 0 && req.Name != "" {
		if name = git.DirName(req.Name); name != req.Name {
			return "", errors.Remedy(errors.Newf(errors.Invalid, "invalid directory name %.100q", req.Name),
				"use letters, digits, '.', '_' and '-'")
		}
	}
	return path.Join(root, cmp.Or(name, "work")), nil
}

// shallowFile matches the content of .git/shallow.
var shallowFile = pattern.New(`^([0-9a-f]{40,64}\n)+$`)

// check returns Invalid if the parts do not fit together.
func (s Sent) check() error {
	if len(s.Shallow) > 0 && (!s.Commits || !shallowFile().Match(s.Shallow)) {
		return errors.Newf(errors.Invalid, "invalid shallow: want a list of commits in the format of .git/shallow")
	}
	if s.Changes {
		if !s.Commits {
			return errors.Remedy(errors.Newf(errors.Invalid, "uncommitted changes need their repository, as a bundle"),
				"send its commits, too")
		}
		return CheckAuthor(s.Author)
	}
	return nil
}

// CheckRepo returns the directory to which sandboxes clone a repository, or an error if its address or branch is
// invalid.
func CheckRepo(url, branch string) (dir string, err error) {
	all, err := Check(Request{Repositories: []RepositoryRequest{{URL: url, Branch: branch}}})
	if err != nil {
		return "", err
	}
	return all[0].Dir, nil
}

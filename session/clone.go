package session

import (
	"archive/tar"
	"bytes"
	"cmp"
	"context"
	"path"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"
	"unicode"

	"github.com/RelevanceAI/harvest/errors"
	"github.com/RelevanceAI/harvest/git"
	"github.com/RelevanceAI/harvest/internal/pattern"
	"github.com/RelevanceAI/harvest/session/shell"
)

// Repository is a repository that a session works on.
type Repository struct {
	// URL has no credentials; it is "" for a repository that starts empty or has no origin.
	URL        string `json:"url,omitempty"`
	Branch     string `json:"branch,omitempty"` // starting branch; "" means the default
	Depth      int    `json:"depth,omitempty"`  // depth of history; 0 means all
	LFS        bool   `json:"lfs,omitempty"`    // fetch large files, too
	Submodules bool   `json:"submodules,omitempty"`
	Dir        string `json:"dir"`            // in the sandbox
	Base       string `json:"base,omitempty"` // starting commit; "" if there was none
	// Start is the agent's starting commit: Base, or the user's uncommitted changes on top of it.
	Start string `json:"start,omitempty"`
	Pull  string `json:"pull_request,omitempty"` // address of the pull request
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

// given is the input of a new session. The runner keeps it until the repository is cloned.
type given struct {
	bundle      []byte
	shallow     []byte // the bundle's commits without parents
	uncommitted Uncommitted
}

// Repositories returns all repositories of the session, the first one first.
func (s Session) Repositories() []Repository {
	if len(s.Repos) > 0 {
		return s.Repos
	}
	// A record of an earlier version has no Repos.
	return []Repository{{URL: s.Repo, Branch: s.Branch, Dir: s.Dir, Base: s.Base, Start: s.Base}}
}

// WorkBranch is the branch that the agent works on.
func (s Session) WorkBranch() string { return "harvest/" + strings.TrimPrefix(s.ID, idPrefix) }

// checkRepos returns the repositories of req, or an error if their source is invalid.
func checkRepos(req Request) ([]Repository, error) {
	if (len(req.Bundle) > 0 || req.Repo == "") && req.Depth != 0 {
		return nil, errors.Newf(errors.Invalid, "depth needs a repository that is cloned from an address")
	}
	const most = 10
	if len(req.More) >= most {
		return nil, errors.Newf(errors.Invalid, "more than %d repositories", most)
	}
	all := []Repository{}
	for i, r := range slices.Concat([]RepositoryRequest{{req.Repo, req.Branch, req.Depth, req.LFS, req.Submodules}},
		req.More) {
		if err := git.CheckBranch(r.Branch); err != nil {
			return nil, err
		}
		if r.Depth < 0 {
			return nil, errors.Newf(errors.Invalid, "the depth must not be negative")
		}
		name := ""
		if r.URL != "" {
			address, err := git.ParseAddress(r.URL)
			if err != nil {
				return nil, err
			}
			name = address.Name()
		} else if i > 0 {
			return nil, errors.Newf(errors.Invalid, "repository %d: no address", i+1)
		}
		if i == 0 && req.Name != "" {
			if name = git.DirName(req.Name); name != req.Name {
				return nil, errors.Remedy(errors.Newf(errors.Invalid, "invalid directory name %.100q", req.Name),
					"use letters, digits, '.', '_' and '-'")
			}
		}
		if name == "" {
			name = "work"
		}
		dir := path.Join(workspace, name)
		if slices.ContainsFunc(all, func(o Repository) bool { return o.Dir == dir }) {
			return nil, errors.Newf(errors.Invalid, "two repositories have the same directory %s", dir)
		}
		all = append(all, Repository{URL: r.URL, Branch: r.Branch, Depth: r.Depth, LFS: r.LFS,
			Submodules: r.Submodules, Dir: dir})
	}
	if req.Subdir != "" && (!filepath.IsLocal(req.Subdir) || path.Clean(req.Subdir) != req.Subdir ||
		strings.ContainsFunc(req.Subdir, unicode.IsControl)) {
		return nil, errors.Remedy(errors.Newf(errors.Invalid, "invalid directory of the repository %.200q", req.Subdir),
			"give a path relative to the repository's root, such as services/api")
	}
	if len(req.Shallow) > 0 && (len(req.Bundle) == 0 || !shallowFile().Match(req.Shallow)) {
		return nil, errors.Newf(errors.Invalid, "invalid shallow: want a list of commits in the format of .git/shallow")
	}
	if len(req.Uncommitted.Patch) > 0 {
		if len(req.Bundle) == 0 {
			return nil, errors.Newf(errors.Invalid, "uncommitted changes need their repository, as a bundle")
		}
		if err := checkAuthor(req.Uncommitted.Author); err != nil {
			return nil, err
		}
	}
	return all, nil
}

// shallowFile matches the content of .git/shallow.
var shallowFile = pattern.New(`^([0-9a-f]{40,64}\n)+$`)

// cloneScript clones a repository unless it exists. Its parameters are environment variables.
const cloneScript = `
git config --global user.name "$NAME"
git config --global user.email "$EMAIL"
if [ ! -e "$DIR/.git" ]; then
	if [ -n "$SHALLOW" ]; then
		git init --quiet "$DIR"
		cp "$SHALLOW" "$DIR/.git/shallow"
		git -C "$DIR" fetch --quiet --no-tags --no-recurse-submodules "$FROM" HEAD "+refs/heads/*:refs/remotes/origin/*"
		git -C "$DIR" checkout --quiet --detach "${BRANCH:+origin/}${BRANCH:-FETCH_HEAD}"
		[ -z "$ORIGIN" ] || git -C "$DIR" remote add origin "$ORIGIN"
	elif [ -n "$FROM" ]; then
		set -- --quiet --no-recurse-submodules
		[ -z "$BRANCH" ] || set -- "$@" "--branch=$BRANCH"
		[ "$DEPTH" = 0 ] || set -- "$@" "--depth=$DEPTH"
		git clone "$@" -- "$FROM" "$DIR"
		if [ "$FROM" != "$ORIGIN" ]; then
			if [ -n "$ORIGIN" ]; then git -C "$DIR" remote set-url origin "$ORIGIN"; else git -C "$DIR" remote remove origin; fi
		fi
	else
		git init --quiet -b main "$DIR"
		git -C "$DIR" commit --quiet --allow-empty -m "Begin"
	fi
fi` + beginScript

// applyScript commits the user's uncommitted changes, and sets start to that commit.
const applyScript = `
	if [ -s "$PATCH" ]; then
		git apply --index --whitespace=nowarn "$PATCH"
		git -c core.hooksPath=/dev/null -c commit.gpgSign=false -c user.name="$BY" -c user.email="$BYMAIL" \
			commit --quiet --no-verify -m "Uncommitted changes at the start of the session" -m "Harvest-Carried: yes"
		start=$(git rev-parse --verify HEAD)
	fi`

// beginScript starts the work at HEAD, unless it has started: on a separate branch, on top of the user's uncommitted
// changes. It prints the starting commit and the agent's starting commit. Each git process costs milliseconds in a
// sandbox, so harvest-git's settings are written into the configuration in one step.
const beginScript = `
cd "$DIR"
if ! grep -qF "work = \"$WORK\"" .git/config; then
	base=$(git rev-parse --quiet --verify HEAD || true)
	if [ -n "$base" ]; then git checkout --quiet -B "$WORK"; else git symbolic-ref HEAD "refs/heads/$WORK"; fi
	start=$base` + applyScript + `
	[ -z "$start" ] || git update-ref refs/harvest/reported "$start"
	: >.git/harvest-reported
	mkdir -p .git/info
	printf '%s\n' '# of tools that Harvest gives to agents' .playwright-mcp/ >>.git/info/exclude
	printf '%s\tbase = %s\n' "$CONFIG" "$start" >>.git/config
	echo "$base $start"
fi`

// gitConfig returns a repository's settings for harvest-git, as a section of git's configuration (git-config(1),
// "Syntax"). Without onto, harvest-git determines the origin's default branch itself.
func (s Session) gitConfig(onto string) string {
	return configSection([2]string{"work", s.WorkBranch()}, [2]string{"onto", onto}, [2]string{"title", s.Title},
		[2]string{"events", s.gitEvents()})
}

// configSection returns the section of harvest-git's settings with the pairs that have a value.
func configSection(pairs ...[2]string) string {
	quote := strings.NewReplacer("\\", "\\\\", "\"", "\\\"", "\n", " ")
	var b strings.Builder
	b.WriteString("[harvest]\n")
	for _, pair := range pairs {
		if pair[1] != "" {
			b.WriteString("\t" + pair[0] + " = \"" + quote.Replace(pair[1]) + "\"\n")
		}
	}
	return b.String()
}

// partsScript fetches the parts that a clone omits: DIR LFS SUBMODULES. The allowed protocols are those with which
// git does not start a program of the repository's choice.
const partsScript = `
cd "$1"
if [ "$2" = true ]; then
	git lfs install --local --skip-smudge >/dev/null
	git lfs pull
fi
if [ "$3" = true ]; then
	GIT_ALLOW_PROTOCOL=https:http:ssh:git git submodule update --quiet --init --recursive
fi`

// clone clones the i-th repository with all its parts.
func (p *preparation) clone(ctx context.Context, i int) error {
	r := &p.repos[i]
	from, origin, patch, shallow, script := r.URL, r.URL, "", "", cloneScript
	if i == 0 && p.given.bundle != nil {
		if err := p.copyBundle(ctx); err != nil {
			return err
		}
		from, patch = bundleDir+"/repo.bundle", bundleDir+"/uncommitted.patch"
		if len(p.given.shallow) > 0 {
			shallow = bundleDir + "/shallow"
		}
	}
	if other := p.logins.HTTPS(r.URL); other != "" { // the token is valid for https only
		if from == origin {
			from = other
		}
		origin = other
	}
	branch := r.Branch
	if i == 0 && p.image != nil {
		script, branch = imageScript, cmp.Or(branch, p.image.Branch)
		if p.given.bundle == nil {
			from = ""
		}
	}
	by := p.given.uncommitted.Author
	out, result, err := p.m.in(p.s.Account, p.sandbox).Run(ctx,
		shell.Script{Text: script, Env: map[string]string{
			"DIR": r.Dir, "FROM": from, "ORIGIN": origin, "BRANCH": branch, "DEPTH": strconv.Itoa(r.Depth),
			"WORK": p.s.WorkBranch(),
			"NAME": p.s.Author.Name + " (Harvest)", "EMAIL": p.s.Author.Email, "PATCH": patch, "SHALLOW": shallow,
			"BY": by.Name, "BYMAIL": by.Email,
			"CONFIG": p.s.gitConfig(branch), "GIT_ALLOW_PROTOCOL": "https:http:ssh:git:file",
		}})
	if err == nil && result.ReturnCode != 0 {
		err = p.unreached(ctx, r.URL, git.Explain("the repository could not be cloned", result.Stderr+result.Why()))
	}
	if err != nil {
		return err
	}
	text := string(out)
	if i == 0 && p.image != nil {
		text = p.behindImage(text)
	}
	if base, start, ok := strings.Cut(strings.TrimRight(text, "\n"), " "); ok &&
		(p.s.Continues == "" || p.s.SandboxID != "" || r.Base == "") {
		r.Base, r.Start = base, start
	}
	if i == 0 && p.synced != nil {
		p.synced.Commit = r.Base
	}
	if !r.LFS && !r.Submodules {
		return nil
	}
	_, result, err = p.m.in(p.s.Account, p.sandbox).Run(ctx,
		shell.Script{Text: partsScript, Params: []string{r.Dir, strconv.FormatBool(r.LFS),
			strconv.FormatBool(r.Submodules)}})
	if err == nil && result.ReturnCode != 0 {
		err = git.Explain("the repository's large files or submodules could not be fetched", result.Stderr+result.Why())
	}
	return err
}

// unreached returns the error of a clone, or a clearer one if the network policy refused the server, or if the server's
// address is the loopback of the sandbox.
func (p *preparation) unreached(ctx context.Context, from string, err error) error {
	address, parseErr := git.ParseAddress(from)
	if parseErr != nil || !git.Unreachable(err.Error()) {
		return err
	}
	why := p.m.opts.Fleet.Refusal(ctx, p.s.Account, p.sandbox, address.Hostname())
	return cmp.Or(git.Unreached("the repository could not be cloned", address.Hostname(), why), err)
}

// copyBundle copies the bundle and the user's uncommitted changes into the sandbox, where the clone reads them.
func (p *preparation) copyBundle(ctx context.Context) error {
	var archive bytes.Buffer
	w := tar.NewWriter(&archive)
	for name, text := range map[string][]byte{"repo.bundle": p.given.bundle,
		"uncommitted.patch": p.given.uncommitted.Patch, "shallow": p.given.shallow} {
		err := w.WriteHeader(&tar.Header{Name: name, Mode: 0o644, Size: int64(len(text)), ModTime: time.Now()})
		if err == nil {
			_, err = w.Write(text)
		}
		if err != nil {
			return errors.Wrapf(err, "pack the bundle")
		}
	}
	if err := w.Close(); err != nil {
		return errors.Wrapf(err, "pack the bundle")
	}
	return p.m.opts.Fleet.CopyIn(ctx, p.s.Account, p.sandbox, bundleDir, &archive)
}

// checkAuthor returns Invalid if git would not accept the author unchanged.
func checkAuthor(a Author) error {
	for _, text := range []string{a.Name, a.Email} {
		if strings.TrimSpace(text) == "" || len(text) > 200 || strings.ContainsAny(text, "<>\n\x00") {
			return errors.Remedy(errors.Newf(errors.Invalid, "the author needs a name and a mail address"),
				`such as "Ada Lovelace" and "ada@example.org"`)
		}
	}
	return nil
}

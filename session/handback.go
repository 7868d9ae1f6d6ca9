package session

import (
	"context"
	"path"
	"strings"

	"github.com/RelevanceAI/harvest/errors"
	"github.com/RelevanceAI/harvest/git"
	"github.com/RelevanceAI/harvest/internal/fault"
	"github.com/RelevanceAI/harvest/session/shell"
)

// quietGit defines functions for scripts that run git in files that an agent wrote. tree prints the tree of all
// files, including those of nested repositories, without changing the index: DIRECTORY.
var quietGit = git.Stage + `
cd "$1"
tree() {
	copy=$(mktemp)
	index=$(git rev-parse --git-path index)
	if [ -f "$index" ]; then cp "$index" "$copy"; else rm -f "$copy"; fi
	(export GIT_INDEX_FILE="$copy" && stage)
	GIT_INDEX_FILE=$copy git write-tree
	rm -f "$copy"
}`

// beginWork defines begin, which prints the commit behind which the agent's own work begins: START. After the work was
// carried forward, that is the last of the upstream commits, or of the user's uncommitted changes on top of them.
const beginWork = `
begin() {
	onto=$(git config harvest.onto || git symbolic-ref --quiet --short refs/remotes/origin/HEAD || true)
	common=$(git merge-base HEAD "refs/remotes/origin/${onto#origin/}" 2>/dev/null || true)
	if [ -z "$common" ] || { git merge-base --is-ancestor "$1" HEAD && ! git merge-base --is-ancestor "$1" "$common"; } 2>/dev/null; then
		echo "$1"
		return
	fi
	carried=$(git log --reverse --format=%H --grep='^Harvest-Carried: yes' "$common..HEAD" | head -n 1)
	echo "${carried:-$common}"
}`

// diffScript prints the agent's changes since a commit ("" for an empty tree), including untracked files, without
// changing the agent's index: DIRECTORY COMMIT. The output does not depend on the agent's settings of git.
var diffScript = quietGit + beginWork + `
began=$(mktemp)
trap 'rm -f "$began"' EXIT
begin "$2" >"$began" &
now=$(tree)
wait $!
read -r from <"$began" || true
[ -n "$from" ] || from=$(git hash-object -t tree /dev/null)
plain diff --binary ` + git.PatchFormat + ` "$from" "$now"`

// bundleScript prints the work branch as a bundle that requires the starting commit. Uncommitted changes become a
// commit on top with the date of the commit below, so that repeated runs produce the same commit. Stash entries
// become separate branches. The script does not change the agent's branch, index or files. It exits with 9 if there
// are no changes: DIRECTORY BRANCH BASE TITLE START.
var bundleScript = quietGit + `
now=$(tree)
head=$(git rev-parse --quiet --verify HEAD || true)
if [ -z "$head" ] || [ "$now" != "$(git rev-parse "$head^{tree}")" ]; then
	date=$(git log -1 --format=%cd --date=raw ${head:+"$head"} 2>/dev/null || date '+%s %z')
	head=$(GIT_AUTHOR_DATE=$date GIT_COMMITTER_DATE=$date git commit-tree "$now" ${head:+-p "$head"} -m "wip: $4")
fi
stash=$(git log -g --max-count=20 --format=%H refs/stash -- 2>/dev/null || true)
if [ -n "$stash" ]; then :; elif [ "$head" = "$5" ] || [ "$now" = "$(git hash-object -t tree /dev/null)" -a -z "$5" ]; then exit 9; fi
other=$(mktemp -d)
trap 'rm -rf "$other"' EXIT
git init --quiet --bare --template= --object-format="$(git rev-parse --show-object-format)" "$other"
git rev-parse --path-format=absolute --git-path objects >"$other/objects/info/alternates"
shallow=$(git rev-parse --path-format=absolute --git-path shallow)
if [ -f "$shallow" ]; then cp "$shallow" "$other/shallow"; fi
git -C "$other" update-ref "refs/heads/$2" "$head"
number=0
for entry in $stash; do
	number=$((number + 1))
	git -C "$other" update-ref "refs/heads/$2-stash-$number" "$entry"
done
git -C "$other" bundle create --quiet - --branches ${3:+"^$3"}`

// Diff returns the agent's changes in a repository ("" for the first) since the session began, as a patch for `git
// apply`. It does not include the user's uncommitted changes.
func (m *Manager) Diff(ctx context.Context, account, ref, repository string) ([]byte, error) {
	s, r, _, err := m.withRepository(ctx, account, ref, repository)
	if err != nil {
		return nil, err
	}
	out, result, err := m.in(s.Account, s.SandboxID).Run(ctx,
		shell.Script{Text: diffScript, Params: []string{r.Dir, r.Start}})
	if err == nil && result.ReturnCode != 0 {
		err = git.Explain("git failed in the sandbox", result.Stderr+result.Why())
	}
	return out, err
}

// Bundle returns the work branch in the format of `git bundle create`. A repository that has the session's Base can
// fetch WorkBranch from it. Uncommitted changes are in it as a commit "wip: …". Bundle returns Conflict if the agent
// has not changed anything.
func (m *Manager) Bundle(ctx context.Context, account, ref, repository string) ([]byte, error) {
	s, r, _, err := m.withRepository(ctx, account, ref, repository)
	if err != nil {
		return nil, err
	}
	out, result, err := m.in(s.Account, s.SandboxID).Run(ctx,
		shell.Script{Text: bundleScript, Params: []string{r.Dir, s.WorkBranch(), r.Base, s.Title, r.Start}})
	switch {
	case err != nil:
		return nil, err
	case result.ReturnCode == 9:
		return nil, errors.Remedy(errors.Newf(errors.Conflict, "the agent has changed nothing"),
			"see its events: harvest attach %s", s.ID)
	case result.ReturnCode != 0:
		return nil, git.Explain("git failed in the sandbox", result.Stderr+result.Why())
	}
	fault.Point("session.committed")
	return out, nil
}

// leftScript prints the agent's changes that are not handed back, one per line: PROGRAM DIRECTORY…
const leftScript = `
program=$1
shift
for d; do
	cd "$d" || continue
	sh -c "$program" ` + git.ProgramName + ` left | while IFS= read -r text; do printf '%s: %s\n' "${d##*/}" "$text"; done
done`

// Left returns the agent's changes that cannot be handed back: changes in submodules and in other work trees, and
// commits on other branches. It returns nothing for a session without a repository and for one that has ended.
func (m *Manager) Left(ctx context.Context, account, ref string) ([]string, error) {
	s, r, err := m.find(ctx, account, ref)
	if err != nil || r == nil || s.SandboxID == "" || s.Status == Creating {
		return nil, err
	}
	out, result, err := m.in(s.Account, s.SandboxID).Run(ctx,
		shell.Script{Text: leftScript, Params: append([]string{git.Program}, s.dirs()...)})
	if err == nil && result.ReturnCode != 0 {
		err = git.Explain("git failed in the sandbox", result.Stderr+result.Why())
	}
	return strings.FieldsFunc(string(out), func(c rune) bool { return c == '\n' }), err
}

// EndKeeping is like End, but returns Conflict if changes of the agent that Left reports would be lost.
func (m *Manager) EndKeeping(ctx context.Context, account, ref string) error {
	left, err := m.Left(ctx, account, ref)
	// Gone and Conflict mean that the sandbox has ended.
	if kind := errors.KindOf(err); err != nil && kind != errors.Gone && kind != errors.Conflict {
		return err
	}
	if len(left) > 0 {
		return errors.Remedy(errors.Newf(errors.Conflict, "session %s: changes that were not handed back: %s", ref,
			strings.Join(left, "; ")),
			"have the agent push or copy them, or end the session with --discard (discard=true)")
	}
	return m.End(ctx, account, ref)
}

// withRepository returns a session whose repositories are cloned, and the repository with this name, "" for the first.
// NAME/PATH is a submodule.
func (m *Manager) withRepository(ctx context.Context, account, ref, name string) (Session, Repository, *runner, error) {
	r, err := m.live(ctx, account, ref)
	if err != nil {
		return Session{}, Repository{}, nil, err
	}
	s := r.session()
	if s.SandboxID == "" || s.Status == Creating {
		return Session{}, Repository{}, nil,
			errors.Remedy(errors.Newf(errors.Conflict, "the repository is not there yet"),
				"wait until the session is ready")
	}
	name, module, _ := strings.Cut(name, "/")
	repo, _, err := s.repository(name)
	if err == nil && module != "" {
		repo, err = m.submodule(ctx, s, repo, module)
	}
	return s, repo, r, err
}

// moduleScript prints the commit of a submodule at the start of the session, "" if it is new: DIRECTORY START PATH. It
// exits with 9 if there is no such submodule.
var moduleScript = quietGit + `
modules | grep -qxF -- "$3" && [ -e "$3/.git" ] || exit 9
[ -z "$2" ] || plain ls-tree "$2" -- "$3" | sed -n 's/^160000 commit \([0-9a-f]*\).*/\1/p'`

// submodule returns a submodule of a repository as a repository of its own, which can be handed back and not pushed.
func (m *Manager) submodule(ctx context.Context, s Session, repo Repository, name string) (Repository, error) {
	out, result, err := m.in(s.Account, s.SandboxID).Run(ctx,
		shell.Script{Text: moduleScript, Params: []string{repo.Dir, repo.Start, name}})
	switch {
	case err != nil:
		return Repository{}, err
	case result.ReturnCode == 9:
		return Repository{}, errors.Remedy(errors.Newf(errors.NotFound,
			"repository %s has no submodule %.200q that was fetched", repo.Name(), name),
			"begin a session with --submodules; harvest diff shows .gitmodules")
	case result.ReturnCode != 0:
		return Repository{}, git.Explain("git failed in the sandbox", result.Stderr+result.Why())
	}
	commit := strings.TrimSpace(string(out))
	return Repository{Dir: path.Join(repo.Dir, name), Base: commit, Start: commit}, nil
}

// Sync contains the parameters of carrying a session's work forward.
type Sync struct {
	Repository string // "" means the first
	Branch     string // upstream branch; "" means the session's starting branch
	Rewritten  bool   // a person confirmed that the branch was rewritten on purpose
}

// Sync carries the work forward onto upstream commits (Safe-Carry-Forward): snapshot, fetch, rebase. If that fails,
// the repository is restored. The event is published in any case and lists the attempts. Sync returns Conflict while
// the agent is working.
func (m *Manager) Sync(ctx context.Context, account, ref string, req Sync) (git.Event, error) {
	if err := git.CheckBranch(req.Branch); err != nil {
		return git.Event{}, err
	}
	params := []string{"sync"}
	if req.Rewritten {
		params = append(params, "--rewritten")
	}
	if req.Branch != "" {
		params = append(params, req.Branch)
	}
	return m.carry(ctx, account, ref, req.Repository, git.Synced, params)
}

// Push squashes the "wip:" commits and pushes the work branch to its origin. It returns Conflict while the agent is
// working, and if another client has pushed to the branch.
func (m *Manager) Push(ctx context.Context, account, ref, repository string) (git.Event, error) {
	return m.carry(ctx, account, ref, repository, git.Pushed, []string{"push"})
}

// carry runs harvest-git for a session whose agent is idle, and returns the last event of this kind.
func (m *Manager) carry(ctx context.Context, account, ref, name, kind string, params []string) (git.Event, error) {
	s, repo, r, err := m.withRepository(ctx, account, ref, name)
	if err != nil {
		return git.Event{}, err
	}
	if repo.URL == "" {
		return git.Event{}, errors.Remedy(errors.Newf(errors.Conflict, "the repository has no origin"),
			"bring the branch into the local repository with \"harvest checkout\"")
	}
	if err := r.hold(ctx); err != nil {
		return git.Event{}, err
	}
	defer r.letGo(context.WithoutCancel(ctx))
	fresh, err := m.credentials().Refresh(ctx, s.logins(), m.in(s.Account, s.SandboxID))
	if err != nil {
		return git.Event{}, err
	}
	if len(fresh) > 0 {
		r.creds.Take(fresh)
	}
	out, result, err := m.in(s.Account, s.SandboxID).Run(ctx,
		shell.Script{Text: `cd "$1"; shift; export HARVEST_GIT_EVENTS=-; exec /bin/sh -c "$0" ` + git.ProgramName + ` "$@"`,
			Name: git.Program, Params: append([]string{repo.Dir}, params...)})
	if err != nil {
		return git.Event{}, err
	}
	last := git.Event{Dir: repo.Dir, Branch: s.WorkBranch()}
	err = r.call(ctx, func() error {
		for text := range strings.Lines(string(out)) {
			if k, e, ok := git.ParseEvent(text); ok {
				r.gitEvent(k, e)
				if k == kind {
					last = e
				}
			}
		}
		return nil
	})
	if err == nil && result.ReturnCode != 0 && !last.Failed {
		err = git.Explain("git failed in the sandbox", result.Stderr+result.Why())
	}
	return last, err
}

// hold blocks the next prompt. It returns Conflict while the agent is working.
func (r *runner) hold(ctx context.Context) error {
	return r.call(ctx, func() error {
		if r.current != nil || r.held || !r.ready {
			return errors.Remedy(errors.Newf(errors.Conflict, "the agent is at work in the repository"),
				"wait until its turn is done, or stop it")
		}
		r.held = true
		return nil
	})
}

// letGo unblocks the next prompt.
func (r *runner) letGo(ctx context.Context) {
	_ = r.call(ctx, func() error { r.held = false; return nil }) // it fails only if the session has ended
}

// Name returns the name that identifies a repository within a session.
func (r Repository) Name() string { return path.Base(r.Dir) }

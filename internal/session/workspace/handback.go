package workspace

import (
	"context"
	"path"
	"strings"

	"github.com/RelevanceAI/harvest/client/errors"
	"github.com/RelevanceAI/harvest/internal/fleet/commands"
	"github.com/RelevanceAI/harvest/internal/session/git"
	"github.com/RelevanceAI/harvest/internal/session/shell"
)

// quietGit defines functions for scripts that run git in files that an agent wrote: DIRECTORY. staged copies the
// index, adds all files to the copy, including those of nested repositories, and makes it the index of the next
// commands: FILE. tree prints the tree of all files. Neither changes the agent's index.
var quietGit = git.Stage + `
cd "$1"
staged() {
	index=.git/index
	[ -d .git ] || index=$(git rev-parse --git-path index)
	if [ -f "$index" ]; then cp "$index" "$1"; else rm -f "$1"; fi
	export GIT_INDEX_FILE="$1"
	stage
}
tree() {
	copy=$(mktemp)
	(staged "$copy"; git write-tree)
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
copy=$(mktemp)
trap 'rm -f "$copy"' EXIT
staged "$copy" &
from=$(begin "$2")
[ -n "$from" ] || from=$(git hash-object -t tree /dev/null)
wait $!
export GIT_INDEX_FILE="$copy"
plain diff --cached --binary ` + git.PatchFormat + ` "$from"`

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

// Diff returns the agent's changes in a repository since the session began, as a patch for `git apply`. It does not
// include the user's uncommitted changes.
func (t Tree) Diff(ctx context.Context, r Repository) ([]byte, error) {
	out, result, err := t.Run(ctx, shell.Script{Text: diffScript, Params: []string{r.Dir, r.Start}})
	return out, explain(result, err)
}

// explain returns err, or the error of git in a script that failed.
func explain(result commands.Result, err error) error {
	if err == nil && result.ReturnCode != 0 {
		err = git.Explain("git failed in the sandbox", result.Stderr+result.Why())
	}
	return err
}

// noChange is the exit code of bundleScript if there are no changes.
const noChange = 9

// Bundle returns the work branch in the format of `git bundle create`. A repository that has the session's Base can
// fetch Branch from it. Uncommitted changes are in it as a commit "wip: …". Bundle returns Unchanged if the agent has
// not changed anything.
func (t Tree) Bundle(ctx context.Context, r Repository) ([]byte, error) {
	out, result, err := t.Run(ctx, shell.Script{Text: bundleScript,
		Params: []string{r.Dir, Branch(t.Session), r.Base, t.Title, r.Start}})
	if err == nil && result.ReturnCode == noChange {
		return nil, Unchanged(t.Session)
	}
	if err = explain(result, err); err != nil {
		return nil, err
	}
	return out, nil
}

// Unchanged returns the error Conflict for a session whose agent has not changed anything.
func Unchanged(session string) error {
	return errors.Remedy(errors.Newf(errors.Conflict, "the agent has changed nothing"),
		"see its events: harvest attach %s", session)
}

// leftScript prints the agent's changes that are not handed back, one per line: PROGRAM DIRECTORY…
const leftScript = `
program=$1
shift
for d; do
	cd "$d" || continue
	sh -c "$program" ` + git.ProgramName + ` left | while IFS= read -r text; do printf '%s: %s\n' "${d##*/}" "$text"; done
done`

// Left returns the agent's changes in these directories that cannot be handed back: changes in submodules and in other
// work trees, and commits on other branches.
func (t Tree) Left(ctx context.Context, dirs []string) ([]string, error) {
	out, result, err := t.Run(ctx, shell.Script{Text: leftScript, Params: append([]string{git.Program}, dirs...)})
	return strings.FieldsFunc(string(out), func(c rune) bool { return c == '\n' }), explain(result, err)
}

// moduleScript prints the commit of a submodule at the start of the session, "" if it is new: DIRECTORY START PATH. It
// exits with 9 if there is no such submodule.
var moduleScript = quietGit + `
modules | grep -qxF -- "$3" && [ -e "$3/.git" ] || exit 9
[ -z "$2" ] || plain ls-tree "$2" -- "$3" | sed -n 's/^160000 commit \([0-9a-f]*\).*/\1/p'`

// noModule is the exit code of moduleScript if there is no such submodule.
const noModule = 9

// Submodule returns a submodule of a repository as a repository of its own, which can be handed back and not pushed.
func (t Tree) Submodule(ctx context.Context, r Repository, name string) (Repository, error) {
	out, result, err := t.Run(ctx, shell.Script{Text: moduleScript, Params: []string{r.Dir, r.Start, name}})
	if err == nil && result.ReturnCode == noModule {
		return Repository{}, errors.Remedy(errors.Newf(errors.NotFound,
			"repository %s has no submodule %.200q that was fetched", r.Name(), name),
			"start a session with --submodules; harvest diff shows .gitmodules")
	}
	if err = explain(result, err); err != nil {
		return Repository{}, err
	}
	commit := strings.TrimSpace(string(out))
	return Repository{Dir: path.Join(r.Dir, name), Base: commit, Start: commit}, nil
}

// carryScript runs harvest-git, whose text is $0, in a directory and prints its events: DIRECTORY PARAMETER…
const carryScript = `cd "$1"; shift; export HARVEST_GIT_EVENTS=-; exec /bin/sh -c "$0" ` + git.ProgramName + ` "$@"`

// Carry runs harvest-git with these parameters in a repository, and returns its event lines. failed is the error of
// harvest-git itself.
func (t Tree) Carry(ctx context.Context, r Repository, params []string) (lines string, failed, err error) {
	out, result, err := t.Run(ctx, shell.Script{Text: carryScript, Name: git.Program,
		Params: append([]string{r.Dir}, params...)})
	if err != nil {
		return "", nil, err
	}
	return string(out), explain(result, nil), nil
}

// Work is the work on a branch that was pushed.
type Work struct {
	Head     string   // commit
	Subjects []string // of the commits, oldest first
	Stat     string   // output of git diff --stat
	Template string   // the first of the files that Pushed looks for, at the start of the session; "" without one
}

// pushedScript prints the commit, the subjects of the agent's commits, the statistics of its changes, and the
// repository's template for pull requests as of the start of the session, with NUL between them: DIRECTORY START BASE
// PATH….
var pushedScript = quietGit + beginWork + `
from=$(begin "$2")
base=$3
shift 3
git rev-parse HEAD
printf '\0'
plain log --reverse --no-color --max-count=1000 --format=%s ${from:+"$from.."}HEAD -- | cut -c 1-200
printf '\0'
plain diff --stat=100 --no-ext-diff --no-textconv --no-color "${from:-$(git hash-object -t tree /dev/null)}" HEAD | tail -n 100
printf '\0'
for path; do
	text=$(git cat-file blob "$base:$path" 2>/dev/null | head -c 65536 | tr -d '\0')
	if [ -n "$text" ]; then
		printf '%s\n' "$text"
		break
	fi
done`

// Pushed describes the work on the branch of a session. templates are the paths of files that may be the template for
// pull requests.
func (t Tree) Pushed(ctx context.Context, r Repository, templates []string) (Work, error) {
	out, result, err := t.Run(ctx, shell.Script{Text: pushedScript,
		Params: append([]string{r.Dir, r.Start, r.Base}, templates...)})
	parts := strings.SplitN(strings.ToValidUTF8(string(out), ""), "\x00", 4)
	switch {
	case err != nil:
		return Work{}, err
	case len(parts) < 4: // with a template that git does not have, the last command fails
		return Work{}, git.Explain("git failed in the sandbox", result.Stderr+result.Why())
	}
	w := Work{Head: strings.TrimSpace(parts[0]), Stat: parts[2], Template: strings.TrimSpace(parts[3])}
	for line := range strings.Lines(parts[1]) {
		w.Subjects = append(w.Subjects, strings.TrimSpace(line))
	}
	return w, nil
}

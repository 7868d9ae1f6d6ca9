package workspace

import (
	"context"
	"fmt"
	"strings"

	"github.com/RelevanceAI/harvest/client/errors"
	"github.com/RelevanceAI/harvest/internal/session/git"
	"github.com/RelevanceAI/harvest/internal/session/shell"
)

// movedScript brings the submodules and the large files that an image has to the commit of the work tree: otherwise
// they
// would count as the agent's changes. A failure is no reason to stop: git status shows them.
const movedScript = `
	[ ! -d .git/modules ] ||
		GIT_ALLOW_PROTOCOL=https:http:ssh:git git submodule --quiet update --init --recursive >&2 || true
	[ ! -d .git/lfs ] || git lfs pull >&2 || true`

// catchUpScript fetches commits that are newer than the image and fast-forwards to them if the work tree is
// unchanged. It prints how many commits the image is behind, and the starting commit. Its parameters: directory,
// branch, commit of the image.
const catchUpScript = `
cd "$1"
git fetch --quiet --no-tags --no-recurse-submodules origin "+refs/heads/$2:refs/remotes/origin/$2"
new=$(git rev-parse "refs/remotes/origin/$2") base=$3
behind=$(git rev-list --count "$base..$new")
if [ "$new" != "$base" ] && [ "$(git rev-parse HEAD)" = "$base" ] && git diff --quiet HEAD --; then
	if git merge --quiet --ff-only "$new" >&2 || git reset --quiet --keep "$new" >&2; then
		base=$new` + movedScript + `
		git config harvest.base "$base"
		git update-ref refs/harvest/reported "$base"
	fi
fi
echo "$behind"
echo "$base"`

// CatchUp fetches the commits of a branch that are newer than the image of the repository, and fast-forwards to them if
// the work tree is unchanged. It returns how many commits the image is behind, and the starting commit. The agent may
// read meanwhile, and its changes are preserved.
func (t Tree) CatchUp(ctx context.Context, dir, branch, commit string) (behind int, base string, err error) {
	out, err := t.Output(ctx, catchUpScript, dir, branch, commit)
	if err == nil {
		_, err = fmt.Sscan(out, &behind, &base)
	}
	return behind, base, err
}

// startFiles are the files that agents read when they start, as patterns of git. If they have changed, the agent must
// start again.
var startFiles = []string{"CLAUDE*.md", "AGENTS.md", ".mcp.json", ".claude/**", "opencode.json*", ".opencode/**"}

// otherFiles is the exit code of refreshScript if startFiles have changed.
const otherFiles = 9

// refreshScript updates a repository in which no work has begun to its newest commit, or to that of a bundle, and adds
// the user's uncommitted changes. It prints the starting commit and the agent's starting commit. Its parameters are
// startFiles, and environment variables.
const refreshScript = receive + `
cd "$DIR"
if [ -n "$SENT" ]; then
	header
	objects
	new=$head
elif [ -n "$ORIGIN" ]; then
	git fetch --quiet --no-recurse-submodules --no-auto-maintenance origin
	new=refs/remotes/origin/${BRANCH:-HEAD}
else
	new=HEAD
fi
old=$(git rev-parse HEAD)
base=$(git rev-parse "$new^{commit}")
if [ "$base" != "$old" ]; then
	git reset --quiet --hard "$base"` + movedScript + `
fi
start=$base` + applyScript + `
if [ "$start" != "$old" ]; then
	git diff --quiet "$old" "$start" -- "$@" || exit 9
	git update-ref refs/harvest/reported "$start"
	git config harvest.base "$start"
fi
printf %s "$CONFIG" >>.git/config
echo "$base $start"`

// Refresh brings a repository in which no work has begun to the newest commit of origin, or of the user's own state. It
// returns the starting commit and the agent's starting commit, or Conflict if the agent would have to start again.
func (t Tree) Refresh(ctx context.Context, r Repository, origin string, given Given) (base, start string, err error) {
	sent, err := t.send(ctx, given)
	if err != nil {
		return "", "", err
	}
	defer sent.close(ctx)
	var files []string
	for _, pattern := range startFiles {
		files = append(files, ":(glob)**/"+pattern)
	}
	out, result, err := t.Run(ctx, sent.script(shell.Script{Text: refreshScript, Params: files,
		Env: map[string]string{"DIR": r.Dir, "ORIGIN": origin, "BRANCH": r.Branch,
			"CONFIG": configSection([2]string{"title", t.Title}), "GIT_ALLOW_PROTOCOL": protocols}}))
	switch {
	case err != nil:
		return "", "", err
	case result.ReturnCode == otherFiles:
		return "", "", errors.Newf(errors.Conflict, "files that the agent reads when it starts have changed")
	case result.ReturnCode != 0:
		return "", "", git.Explain("cannot update the repository", result.Stderr+result.Why())
	}
	base, start, ok := strings.Cut(strings.TrimSpace(string(out)), " ")
	if !ok {
		return "", "", errors.Errorf("the update of the repository printed %q", out)
	}
	return base, start, nil
}

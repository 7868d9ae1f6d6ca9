package session

import (
	"bytes"
	"context"
	"strings"

	"github.com/RelevanceAI/harvest/errors"
	"github.com/RelevanceAI/harvest/sandbox"
)

// maxBundle is the most that comes back of a session, in bytes.
const maxBundle = 256 << 20

// diffScript prints what differs from the commit that the work began on, files that git does not know yet included, without touching the
// agent's index.
const diffScript = `
cd "$1"
index=$(git rev-parse --git-path index)
GIT_INDEX_FILE=$(mktemp); export GIT_INDEX_FILE
trap 'rm -f "$GIT_INDEX_FILE"' EXIT
if [ -f "$index" ]; then cp "$index" "$GIT_INDEX_FILE"; else rm -f "$GIT_INDEX_FILE"; fi
git -c core.fsmonitor=false -c core.hooksPath=/dev/null add --all
git -c core.quotePath=false diff --cached --binary --no-ext-diff --no-textconv --no-color ${2:+"$2"}`

// bundleScript commits what is not committed yet, and prints the branch of the work as a bundle, which needs the commit that the work
// began on. It exits with 9 if there is nothing.
const bundleScript = `
cd "$1"
if [ -n "$(git status --porcelain)" ]; then
	git -c core.fsmonitor=false -c core.hooksPath=/dev/null add --all
	git -c core.hooksPath=/dev/null -c commit.gpgSign=false commit --quiet --no-verify -m "wip: $4"
fi
git branch --quiet --force "$2" HEAD 2>/dev/null || true
if [ -n "$3" ]; then
	[ "$(git rev-parse "$2")" != "$3" ] || exit 9
	git bundle create --quiet - "$2" "^$3"
else
	git bundle create --quiet - "$2"
fi`

// Diff returns what the agent has changed since the session began, as a patch that `git apply` takes.
func (m *Manager) Diff(ctx context.Context, account, ref string) ([]byte, error) {
	s, err := m.withRepository(ctx, account, ref)
	if err != nil {
		return nil, err
	}
	out, _, err := m.handBack(ctx, s, diffScript, s.Dir, s.Base)
	return out, err
}

// Bundle returns the branch of the work as `git bundle create` makes it; a repository that has the session's Base can fetch WorkBranch
// from it. What is not committed yet is, as "wip: …". Conflict if the agent has changed nothing.
func (m *Manager) Bundle(ctx context.Context, account, ref string) ([]byte, error) {
	s, err := m.withRepository(ctx, account, ref)
	if err != nil {
		return nil, err
	}
	out, nothing, err := m.handBack(ctx, s, bundleScript, s.Dir, s.WorkBranch(), s.Base, s.Title)
	if nothing {
		return nil, errors.Newf(errors.Conflict, "the agent has changed nothing")
	}
	return out, err
}

// withRepository returns a session whose repository is there.
func (m *Manager) withRepository(ctx context.Context, account, ref string) (Session, error) {
	r, err := m.live(ctx, account, ref)
	if err != nil {
		return Session{}, err
	}
	s := r.session()
	if s.SandboxID == "" || s.Status == Creating {
		return Session{}, errors.Remedy(errors.Newf(errors.Conflict, "the repository is not there yet"), "wait until the session is ready")
	}
	return s, nil
}

// handBack runs a script in the sandbox and returns what it printed: git never runs on the host in what an agent wrote.
func (m *Manager) handBack(ctx context.Context, s Session, script string, params ...string) (out []byte, nothing bool, err error) {
	w := &bounded{}
	x, err := m.opts.Fleet.Exec(ctx, s.Account, s.SandboxID, sandbox.ExecRequest{Args: append([]string{"/bin/sh", "-euc", script, "sh"}, params...), Workdir: "/", Stdout: w,
		Env: map[string]string{"GIT_TERMINAL_PROMPT": "0", "LC_ALL": "C.UTF-8"}})
	if err != nil {
		return nil, false, err
	}
	result, err := x.Wait(ctx)
	switch {
	case err != nil:
		return nil, false, err
	case w.over:
		return nil, false, errors.Remedy(errors.Newf(errors.Exhausted, "what the session changed takes more than %d MiB", maxBundle>>20), "copy the files with \"harvest sandbox cp\"")
	case result.ReturnCode == 9:
		return nil, true, nil
	case result.ReturnCode != 0:
		return nil, false, errors.Newf(errors.Unavailable, "git failed in the sandbox: %s", lastLines(result.Stderr, result.Reason))
	}
	return w.Bytes(), false, nil
}

// bounded keeps what is written to it, up to maxBundle.
type bounded struct {
	bytes.Buffer
	over bool
}

func (w *bounded) Write(b []byte) (int, error) {
	if w.over = w.over || w.Len()+len(b) > maxBundle; w.over {
		return len(b), nil
	}
	return w.Buffer.Write(b)
}

// lastLines returns the end of what a script complained about, or else.
func lastLines(stderr, otherwise string) string {
	lines := strings.Split(strings.TrimSpace(strings.ToValidUTF8(stderr, "")), "\n")
	text := strings.Join(lines[max(0, len(lines)-3):], "; ")
	if text == "" {
		text = otherwise
	}
	if text == "" {
		text = "it failed and said nothing"
	}
	return text
}

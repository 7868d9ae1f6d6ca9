// Package worktree carries work between sessions and a repository of this machine: commits and uncommitted changes to a
// session, its branch and its patch back.
package worktree

import (
	"context"
	"io"
	"os"
	"os/exec"
	"strings"

	"github.com/RelevanceAI/harvest/client/errors"
	"github.com/RelevanceAI/harvest/internal/cli/chat"
)

// TopLevel returns the top directory of the user's repository that contains dir; "." is the current directory.
func TopLevel(ctx context.Context, dir string) (string, error) {
	cmd := exec.CommandContext(ctx, "git", "-C", dir, "rev-parse", "--show-toplevel")
	var said strings.Builder
	cmd.Stderr, cmd.Env = &said, append(os.Environ(), "LC_ALL=C")
	out, err := cmd.Output()
	if err != nil {
		name := dir
		if dir == "." {
			name = "the current directory"
		}
		return "", refused(err, strings.TrimSpace(said.String()), dir, name+" is not in a git repository",
			"run the command in the repository of the session")
	}
	return strings.TrimSuffix(string(out), "\n"), nil
}

// gitIn runs git in one of the user's own repositories and returns its output.
func gitIn(ctx context.Context, dir string, in io.Reader, args ...string) ([]byte, error) {
	return gitWith(ctx, dir, nil, in, args...)
}

// gitWith is gitIn with additional environment variables.
func gitWith(ctx context.Context, dir string, env []string, in io.Reader, args ...string) ([]byte, error) {
	cmd := exec.CommandContext(ctx, "git", append([]string{"-C", dir}, args...)...)
	var complaint strings.Builder
	cmd.Stdin, cmd.Stderr = in, &complaint
	cmd.Env = append(append(os.Environ(), "LC_ALL=C"), env...)
	out, err := cmd.Output()
	if err == nil {
		return out, nil
	}
	said := strings.TrimSpace(complaint.String())
	remedy := "run the command in the repository of the session"
	switch {
	case strings.Contains(said, "prerequisite commits"):
		remedy = "the repository lacks commits of the session's repository: git fetch, then try again"
	case strings.Contains(said, "refusing to fetch into"):
		remedy = "the branch is checked out: git switch to another one, or choose a new branch with --branch NAME"
	case strings.Contains(said, "patch does not apply"), strings.Contains(said, "already exists in"),
		strings.Contains(said, "No such file"), strings.Contains(said, "is a directory"),
		strings.Contains(said, "unable to write file"):
		remedy = "nothing was changed; harvest checkout fetches the work as a branch, which can be merged"
	}
	return nil, errors.Remedy(errors.Explainf(err, errors.Conflict, "git failed: %s", chat.Plain(said)), "%s", remedy)
}

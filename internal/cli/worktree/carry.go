package worktree

import (
	"bytes"
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"strings"

	"github.com/RelevanceAI/harvest/client/api"
	"github.com/RelevanceAI/harvest/client/errors"
	"github.com/RelevanceAI/harvest/internal/base/pattern"
	"github.com/RelevanceAI/harvest/internal/cli/chat"
	harvestgit "github.com/RelevanceAI/harvest/internal/session/git"
)

// Carry adds the commits of the repository in dir to a request, and its uncommitted changes unless committed
// is set or the request names a branch. hint gets notes for the user.
func Carry(ctx context.Context, dir string, committed bool, req *api.SessionRequest,
	hint func(format string, args ...any)) error {
	if said, err := commitOf(ctx, dir); err != nil {
		return refused(err, said, dir, dir+": not a git repository with a commit",
			"run the command in a git repository, or give --repo ADDRESS or --repo none")
	}
	// In a subdirectory, git takes "-" as a file name for a bundle. So all git commands run at the top level.
	top, err := gitLine(ctx, dir, "rev-parse", "--show-toplevel")
	if err != nil {
		return errors.Remedy(err, "run the command in a work tree of the repository")
	}
	if req.Subdir, err = gitLine(ctx, dir, "rev-parse", "--show-prefix"); err != nil {
		return err
	}
	req.Subdir = strings.TrimSuffix(req.Subdir, "/")
	if origin, err := gitLine(ctx, top, "remote", "get-url", "origin"); err == nil {
		if strings.Contains(origin, "://") && !strings.Contains(origin, "@") || strings.HasPrefix(origin, "git@") {
			req.Repo = origin
		}
	}
	here := req.Branch == ""
	if here {
		if name, err := gitLine(ctx, top, "symbolic-ref", "--quiet", "--short", "HEAD"); err == nil {
			req.Branch = name
		}
	}
	if err := bundle(ctx, top, req); err != nil {
		return err
	}
	if req.Repo == "" {
		if req.Name = unfit().ReplaceAllString(filepath.Base(top), "-"); strings.Trim(req.Name, "-.") != req.Name {
			req.Name = ""
		}
	}
	return uncommitted(ctx, top, committed || !here, req, hint)
}

// bundle adds the commits of a repository: those of HEAD and of the branch. A shallow repository lacks the
// parents of some commits, which the server has to know.
func bundle(ctx context.Context, top string, req *api.SessionRequest) error {
	refs := []string{"HEAD"}
	if req.Branch != "" {
		refs = append(refs, "refs/heads/"+req.Branch)
	}
	var err error
	if req.Bundle, err = git(ctx, top, append([]string{"bundle", "create", "--quiet", "-"}, refs...)...); err != nil {
		return errors.Explainf(err, errors.Invalid, "cannot read the repository")
	}
	if len(req.Bundle) == 0 {
		return errors.Remedy(errors.Newf(errors.Invalid, "%s: git wrote an empty bundle", top),
			"check the repository with git fsck, or give its address with --repo")
	}
	if len(req.Bundle) > api.MaxBundle {
		return errors.Remedy(errors.Newf(errors.Invalid, "repository: %d MiB is more than the maximum of %d MiB",
			len(req.Bundle)>>20, api.MaxBundle>>20), "give its address with --repo")
	}
	shallow, err := gitLine(ctx, top, "rev-parse", "--path-format=absolute", "--git-path", "shallow")
	if err != nil {
		return err
	}
	if req.Shallow, err = os.ReadFile(shallow); err != nil && !errors.IsNotExist(err) {
		return errors.Explainf(err, errors.Invalid, "cannot read %s: %v", shallow, err)
	}
	return nil
}

// unfit matches the characters that the name of a session's directory must not contain.
var unfit = pattern.New(`[^A-Za-z0-9._-]+`)

// uncommitted adds the uncommitted changes, including untracked files. The repository and its index stay
// unchanged.
func uncommitted(ctx context.Context, top string, leave bool, req *api.SessionRequest,
	hint func(format string, args ...any)) error {
	status, err := git(ctx, top, "status", "--porcelain=v2")
	if err != nil || len(status) == 0 {
		return err
	}
	if leave {
		hint("uncommitted changes (%d files) stay here; the agent sees the last commit",
			bytes.Count(status, []byte{'\n'}))
		return nil
	}
	patch, files, err := patchOf(ctx, top)
	if err != nil {
		return err
	}
	for _, module := range changedModules(string(status)) {
		hint("changes in the submodule %s stay here; push them so that the agent can fetch them", chat.Plain(module))
	}
	if len(patch) == 0 {
		return nil
	}
	by := api.Author{Name: "User", Email: "user@harvest.invalid"}
	for key, value := range map[string]*string{"user.name": &by.Name, "user.email": &by.Email} {
		if text, err := gitLine(ctx, top, "config", key); err == nil && text != "" {
			*value = text
		}
	}
	hint("uncommitted changes (%d files) are sent as a separate commit; --committed leaves them here", files)
	req.Uncommitted = &api.Uncommitted{Patch: patch, Author: by}
	return nil
}

// changedModules returns the submodules that git status --porcelain=v2 shows as changed.
func changedModules(status string) (names []string) {
	for line := range strings.Lines(status) {
		if fields := strings.SplitN(strings.TrimSpace(line), " ", 9); len(fields) == 9 && fields[0] == "1" &&
			strings.HasPrefix(fields[2], "S") {
			names = append(names, fields[8])
		}
	}
	return names
}

// stageScript adds all files to a copy of the index, including those of nested untracked repositories.
var stageScript = harvestgit.Stage + "\nstage HEAD"

// patchOf returns the difference to the last commit and the number of changed files. It leaves out submodules.
func patchOf(ctx context.Context, top string) (patch []byte, files int, err error) {
	dir, err := os.MkdirTemp("", "harvest-index-")
	if err != nil {
		return nil, 0, errors.Explainf(err, errors.Unavailable, "cannot create a temporary copy of the index: %v", err)
	}
	defer os.RemoveAll(dir)
	index, err := gitLine(ctx, top, "rev-parse", "--path-format=absolute", "--git-path", "index")
	if err != nil {
		return nil, 0, err
	}
	own := filepath.Join(dir, "index")
	if text, err := os.ReadFile(index); err == nil {
		if err := os.WriteFile(own, text, 0o600); err != nil {
			return nil, 0, errors.Explainf(err, errors.Unavailable, "cannot copy the index: %v", err)
		}
	}
	env := []string{"GIT_INDEX_FILE=" + own}
	stage := exec.CommandContext(ctx, "/bin/sh", "-euc", stageScript)
	stage.Dir = top
	if _, err := output(stage, env); err != nil {
		return nil, 0, err
	}
	diff := append([]string{"diff", "--cached", "--ignore-submodules", "HEAD"},
		strings.Fields(harvestgit.PatchFormat)...)
	names, err := gitEnv(ctx, top, env, append(diff, "--name-only", "-z")...)
	if err != nil {
		return nil, 0, err
	}
	patch, err = gitEnv(ctx, top, env, append(diff, "--binary")...)
	return patch, bytes.Count(names, []byte{0}), err
}

// git runs git in one of the user's own repositories and returns its output.
func git(ctx context.Context, dir string, args ...string) ([]byte, error) {
	return gitEnv(ctx, dir, nil, args...)
}

// commitOf checks that a directory is in a repository with a commit. It returns git's complaint, and its error.
func commitOf(ctx context.Context, dir string) (string, error) {
	cmd := exec.CommandContext(ctx, "git", "-C", dir, "rev-parse", "--verify", "--quiet", "HEAD")
	var said strings.Builder
	cmd.Stderr, cmd.Env = &said, append(os.Environ(), "LC_ALL=C")
	err := cmd.Run()
	return strings.TrimSpace(said.String()), err
}

// gitLine is git for an output of one line.
func gitLine(ctx context.Context, dir string, args ...string) (string, error) {
	out, err := git(ctx, dir, args...)
	return strings.TrimSuffix(string(out), "\n"), err
}

// gitEnv is git with additional environment variables.
func gitEnv(ctx context.Context, dir string, env []string, args ...string) ([]byte, error) {
	return output(exec.CommandContext(ctx, "git", append([]string{"-C", dir}, args...)...), env)
}

func output(cmd *exec.Cmd, env []string) ([]byte, error) {
	cmd.Env = append(append(os.Environ(), "LC_ALL=C"), env...)
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	if err != nil {
		return nil, errors.Explainf(err, errors.Invalid, "git cannot read the repository: %s",
			strings.TrimSpace(stderr.String()))
	}
	return out, nil
}

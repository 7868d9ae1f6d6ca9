package worktree

import (
	"bytes"
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"

	"github.com/RelevanceAI/harvest/client/api"
	"github.com/RelevanceAI/harvest/client/errors"
	"github.com/RelevanceAI/harvest/internal/base/pattern"
	"github.com/RelevanceAI/harvest/internal/cli/chat"
	harvestgit "github.com/RelevanceAI/harvest/internal/session/git"
	"github.com/RelevanceAI/harvest/internal/session/memory/names"
)

// Carry describes the repository in dir in a request, and returns the part that has to be sent: its commits, and its
// uncommitted changes unless committed is set or the request names a branch. req.Depth limits the history, if it is
// set. hint gets notes for the user. The caller closes the Cargo.
func Carry(ctx context.Context, dir string, committed bool, req *api.SessionRequest,
	hint func(format string, args ...any)) (*Cargo, error) {
	if said, err := commitOf(ctx, dir); err != nil {
		return nil, refused(err, said, dir, dir+": not a git repository with a commit",
			"run the command in a git repository, or give --repo ADDRESS or --repo none")
	}
	// In a subdirectory, git takes "-" as a file name for a bundle. So all git commands run at the top level.
	top, err := gitLine(ctx, dir, "rev-parse", "--show-toplevel")
	if err != nil {
		return nil, errors.Remedy(err, "run the command in a work tree of the repository")
	}
	if req.Subdir, err = gitLine(ctx, dir, "rev-parse", "--show-prefix"); err != nil {
		return nil, err
	}
	req.Subdir = strings.TrimSuffix(req.Subdir, "/")
	if address, err := gitLine(ctx, top, "remote", "get-url", "origin"); err == nil {
		req.Repo = origin(address)
	}
	here := req.Branch == ""
	if here {
		if name, err := gitLine(ctx, top, "symbolic-ref", "--quiet", "--short", "HEAD"); err == nil {
			req.Branch = name
		}
	}
	cargo := &Cargo{top: top, depth: req.Depth, branch: req.Branch}
	req.Depth = 0
	if req.Repo == "" {
		req.Name = directoryName(top)
		if req.Identity, err = identity(ctx, top); err != nil {
			return nil, err
		}
	}
	if err := cargo.uncommitted(ctx, committed || !here, hint); err != nil {
		cargo.Close()
		return nil, err
	}
	return cargo, nil
}

// origin returns the address of an origin without the user's name and password, which a session must not contain: its
// credentials are from secrets. The name stays in addresses for ssh, where it belongs to the server's account. origin
// returns "" for addresses that sessions do not accept, such as directories of this machine.
func origin(address string) string {
	if u, err := url.Parse(address); err == nil && u.User != nil {
		if u.Scheme == "ssh" && u.User.Username() != "" {
			u.User = url.User(u.User.Username())
		} else {
			u.User = nil
		}
		address = u.String()
	}
	if _, err := harvestgit.ParseAddress(address); err != nil {
		return ""
	}
	return address
}

// identity returns a digest that is the same for all work trees of a repository, and different for other repositories:
// of its first commits, and of its path on this machine.
func identity(ctx context.Context, top string) (string, error) {
	dir, err := gitLine(ctx, top, "rev-parse", "--path-format=absolute", "--git-common-dir")
	if err != nil {
		return "", err
	}
	first, err := gitLine(ctx, top, "rev-list", "--max-parents=0", "HEAD")
	if err != nil {
		return "", err
	}
	commits := strings.Fields(first)
	slices.Sort(commits)
	sum := sha256.Sum256([]byte(strings.Join(append(commits, dir), "\n")))
	return hex.EncodeToString(sum[:]), nil
}

// Memory returns the name of the memory of the repository in dir, as a session that is started there has it.
func Memory(ctx context.Context, dir string) (string, error) {
	if said, err := commitOf(ctx, dir); err != nil {
		return "", refused(err, said, dir, dir+": not a git repository with a commit", "name a repository: OWNER/NAME")
	}
	top, err := gitLine(ctx, dir, "rev-parse", "--show-toplevel")
	if err != nil {
		return "", errors.Remedy(err, "run the command in a work tree of the repository")
	}
	if text, err := gitLine(ctx, top, "remote", "get-url", "origin"); err == nil {
		if a, err := harvestgit.ParseAddress(origin(text)); err == nil {
			return names.Of(a.Host, a.Owner(), a.Name()), nil
		}
	}
	id, err := identity(ctx, top)
	return names.Local(cmp.Or(directoryName(top), "work"), id), err
}

// directoryName returns the name of a session's directory for the repository at top; "" if none is like it.
func directoryName(top string) string {
	name := unfit().ReplaceAllString(filepath.Base(top), "-")
	if strings.Trim(name, "-.") != name {
		return ""
	}
	return name
}

// unfit matches the characters that the name of a session's directory must not contain.
var unfit = pattern.New(`[^A-Za-z0-9._-]+`)

// uncommitted finds the uncommitted changes, including untracked files. The repository and its index stay unchanged.
func (c *Cargo) uncommitted(ctx context.Context, leave bool, hint func(format string, args ...any)) error {
	status, err := git(ctx, c.top, "status", "--porcelain=v2")
	if err != nil || len(status) == 0 {
		return err
	}
	if leave {
		hint("uncommitted changes (%s) stay here; the agent sees the last commit",
			chat.Count(bytes.Count(status, []byte{'\n'}), "file"))
		return nil
	}
	for _, module := range changedModules(string(status)) {
		hint("changes in the submodule %s stay here; push them so that the agent can fetch them", chat.Plain(module))
	}
	files, err := c.writePatch(ctx)
	if err != nil || c.patch == "" {
		return err
	}
	c.by = Author(ctx, c.top)
	hint("uncommitted changes (%s) are sent as a separate commit; --committed leaves them here",
		chat.Count(files, "file"))
	return nil
}

// Author returns the author of commits in the repository at top, as git determines it.
func Author(ctx context.Context, top string) api.Author { return author(ctx, top, os.Getenv) }

// author returns the author of commits in a repository, as git determines it: from the environment first.
func author(ctx context.Context, top string, env func(string) string) api.Author {
	by := api.Author{Name: "User", Email: "user@harvest.invalid"}
	for _, v := range []struct {
		env, key string
		value    *string
	}{{"GIT_AUTHOR_NAME", "user.name", &by.Name}, {"GIT_AUTHOR_EMAIL", "user.email", &by.Email}} {
		if text := strings.TrimSpace(env(v.env)); text != "" {
			*v.value = text
		} else if text, err := gitLine(ctx, top, "config", v.key); err == nil && text != "" {
			*v.value = text
		}
	}
	return by
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

// writePatch writes the difference to the last commit to a file, c.patch, unless it is empty, and returns the number of
// changed files. It leaves out submodules.
func (c *Cargo) writePatch(ctx context.Context) (files int, err error) {
	dir, err := c.temporary()
	if err != nil {
		return 0, err
	}
	index, err := gitLine(ctx, c.top, "rev-parse", "--path-format=absolute", "--git-path", "index")
	if err != nil {
		return 0, err
	}
	own := filepath.Join(dir, "index")
	if text, err := os.ReadFile(index); err == nil {
		if err := os.WriteFile(own, text, 0o600); err != nil {
			return 0, errors.Explainf(err, errors.Unavailable, "cannot copy the index: %v", err)
		}
	}
	env := []string{"GIT_INDEX_FILE=" + own}
	stage := exec.CommandContext(ctx, "/bin/sh", "-euc", stageScript)
	stage.Dir = c.top
	if _, err := output(stage, env); err != nil {
		return 0, err
	}
	diff := append([]string{"diff", "--cached", "--ignore-submodules", "HEAD"},
		strings.Fields(harvestgit.PatchFormat)...)
	names, err := gitEnv(ctx, c.top, env, append(diff, "--name-only", "-z")...)
	if err != nil || len(names) == 0 {
		return 0, err
	}
	patch := filepath.Join(dir, "patch")
	if _, err := gitEnv(ctx, c.top, env, append(diff, "--binary", "--output="+patch)...); err != nil {
		return 0, err
	}
	c.patch = patch
	return bytes.Count(names, []byte{0}), nil
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

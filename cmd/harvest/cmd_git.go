package main

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path"
	"strings"

	"github.com/spf13/cobra"

	"github.com/RelevanceAI/harvest/api"
	"github.com/RelevanceAI/harvest/client"
	"github.com/RelevanceAI/harvest/cmd/harvest/chat"
	"github.com/RelevanceAI/harvest/errors"
)

// repositoryFlag adds the flag that selects a repository of a session.
func repositoryFlag(cmd *cobra.Command, name *string) *cobra.Command {
	cmd.Flags().StringVar(name, "repository", "", "name of the repository, if the session has several")
	return cmd
}

func (c *cli) diffCommand() *cobra.Command {
	var repository string
	return repositoryFlag(&cobra.Command{
		Use:     "diff SESSION",
		Short:   "Print the agent's changes as a patch",
		Example: "  harvest diff ses_01jx | less",
		Args:    count(1, 1, "a session"),
		RunE: c.withServer(func(ctx context.Context, server *client.Client, args []string) error {
			patch, err := server.SessionDiff(ctx, args[0], repository)
			if err != nil {
				return err
			}
			defer patch.Close()
			_, err = io.Copy(c.out, patch)
			return err
		}),
	}, &repository)
}

func (c *cli) applyCommand() *cobra.Command {
	var repository string
	return repositoryFlag(&cobra.Command{
		Use:   "apply SESSION",
		Short: "Apply the agent's changes to the files of the current repository",
		Long: `Apply the patch that "harvest diff" prints to the repository of the current directory, with git apply.
Either all of it is applied, or nothing. The command never writes outside of the repository, and
refuses symbolic links that lead out of it.`,
		Example: "  harvest apply ses_01jx",
		Args:    count(1, 1, "a session"),
		RunE: c.withServer(func(ctx context.Context, server *client.Client, args []string) error {
			return c.takeChanges(ctx, server, args[0], repository)
		}),
	}, &repository)
}

// takeChanges applies the changes of a session to the files of the repository of the current directory.
func (c *cli) takeChanges(ctx context.Context, server *client.Client, ref, repository string) error {
	top, err := topLevel(ctx)
	if err != nil {
		return err
	}
	stream, err := server.SessionDiff(ctx, ref, repository)
	if err != nil {
		return err
	}
	defer stream.Close()
	patch, err := io.ReadAll(io.LimitReader(stream, api.MaxBundle))
	if err != nil {
		return err
	}
	if len(patch) == 0 {
		return errors.Remedy(errors.Newf(errors.Conflict, "the agent has changed nothing"), "see its events: harvest attach %s", ref)
	}
	return applyPatch(ctx, top, patch)
}

// applyPatch applies a patch to one of the user's repositories, completely or not at all. git apply itself
// refuses paths outside the repository: those with "..", below .git, or through a symbolic link. It would write
// a symbolic link that leads outside, and a program that follows the link would leave the repository.
// applyPatch reverts such a patch.
func applyPatch(ctx context.Context, top string, patch []byte) error {
	list, err := gitIn(ctx, top, bytes.NewReader(patch), "apply", "--numstat", "-z", "-")
	if err != nil {
		return err
	}
	root, err := os.OpenRoot(top)
	if err != nil {
		return errors.Explainf(err, errors.Denied, "cannot open the repository: %v", err)
	}
	defer root.Close()
	before := map[string]string{}
	for entry := range strings.SplitSeq(string(list), "\x00") {
		if fields := strings.SplitN(entry, "\t", 3); len(fields) == 3 {
			before[fields[2]], _ = root.Readlink(fields[2])
		}
	}
	if _, err := gitIn(ctx, top, bytes.NewReader(patch), "apply", "--whitespace=nowarn", "-"); err != nil {
		return err
	}
	for name, was := range before {
		target, err := root.Readlink(name)
		if err != nil || target == was || staysIn(root, name, target) {
			continue
		}
		if _, err := gitIn(context.WithoutCancel(ctx), top, bytes.NewReader(patch), "apply", "--whitespace=nowarn", "--reverse", "-"); err != nil {
			return err
		}
		return leadsOut(name)
	}
	return nil
}

// staysIn reports whether a symbolic link leads to a file within root, or to nothing. It checks the text of the
// link and its resolved target.
func staysIn(root *os.Root, name, target string) bool {
	to := path.Join(path.Dir(name), target)
	if path.IsAbs(target) || to == ".." || strings.HasPrefix(to, "../") {
		return false
	}
	_, err := root.Stat(name)
	return err == nil || errors.IsNotExist(err)
}

func leadsOut(name string) error {
	return errors.Remedy(errors.Newf(errors.Denied, "the agent has made a symbolic link, %.200s, that leads out of the repository", chat.Plain(name)),
		"look at it with harvest diff; harvest checkout brings it as a branch, and touches no file")
}

func (c *cli) pushCommand() *cobra.Command {
	var req api.PushRequest
	return repositoryFlag(&cobra.Command{
		Use:   "push SESSION",
		Short: "Push the agent's branch to the repository's origin",
		Long: `Fold the "wip:" commits of the session into the others, and push its branch, harvest/ID, from the
sandbox to the origin. The token comes from the account's secrets. Commits that others have pushed
to the branch are never overwritten.`,
		Example: `  harvest secret set github GITHUB_TOKEN
  harvest push ses_01jx`,
		Args: count(1, 1, "a session"),
		RunE: c.withServer(func(ctx context.Context, server *client.Client, args []string) error {
			done, err := server.PushSession(ctx, args[0], req)
			if err != nil {
				return err
			}
			fmt.Fprintln(c.out, chat.Plain(done.Branch))
			return nil
		}),
	}, &req.Repository)
}

func (c *cli) pullCommand() *cobra.Command {
	var req api.PullRequestRequest
	cmd := c.withOutput(&cobra.Command{
		Use:   "pr SESSION [flags]",
		Short: "Push the agent's branch and open a pull request for it",
		Long: `Push the branch of the session, and open a pull request on GitHub. The token in the account's secrets
decides the author. The pull request is a draft, unless --ready. Its text is the repository's
template, if it has one. If the branch already has a pull request, its address is printed.`,
		Example: `  harvest pr ses_01jx
  harvest pr ses_01jx --title "Fix the parser" --ready`,
		Args: count(1, 1, "a session"),
		RunE: c.withServer(func(ctx context.Context, server *client.Client, args []string) error {
			made, err := server.OpenPull(ctx, args[0], req)
			if err != nil {
				return err
			}
			if !made.New {
				c.hint("the pull request was already open")
			}
			return c.show(view{json: made, names: []string{made.URL}, rows: [][]string{{made.URL}}})
		}),
	}, formatName)
	flags := cmd.Flags()
	flags.StringVar(&req.Title, "title", "", "title (default: the session's)")
	flags.StringVar(&req.Body, "body", "", "text (default: the repository's template)")
	flags.StringVar(&req.Base, "base", "", "base branch of the pull request (default: the branch that the session began on)")
	flags.BoolVar(&req.Ready, "ready", false, "open it as ready for review, not as a draft")
	return repositoryFlag(cmd, &req.Repository)
}

func (c *cli) sessionCommand() *cobra.Command {
	return group(&cobra.Command{
		Use:     "session",
		Short:   "Manage the repository of a session",
		Example: "  harvest session sync ses_01jx",
	}, c.syncCommand())
}

func (c *cli) syncCommand() *cobra.Command {
	var req api.SyncRequest
	cmd := c.withOutput(&cobra.Command{
		Use:   "sync SESSION [flags]",
		Short: "Rebase the agent's work onto new upstream commits",
		Long: `Commit everything, fetch, and rebase the work, with at most three attempts. A checkpoint branch is
created first. If the rebase fails, the work is unchanged and the checkpoint branch stays. An upstream
branch whose history was rewritten is refused, unless --rewritten is given.`,
		Example: "  harvest session sync ses_01jx",
		Args:    count(1, 1, "a session"),
		RunE: c.withServer(func(ctx context.Context, server *client.Client, args []string) error {
			done, err := server.SyncSession(ctx, args[0], req)
			if err != nil {
				return err
			}
			if done.Failed {
				text := "not synchronised: " + done.Reason
				if done.Tried != "" {
					text += "\n" + done.Tried
				}
				if done.Checkpoint != "" {
					text += "\nthe checkpoint is the branch " + done.Checkpoint
				}
				return errors.Remedy(errors.Newf(errors.Conflict, "%s", chat.Plain(text)), "nothing has changed; have the agent look at it: harvest send %s \"…\"", args[0])
			}
			return c.show(view{json: done, names: []string{done.Branch}, rows: [][]string{{fmt.Sprintf("%s is on origin/%s, %d commits further", chat.Plain(done.Branch), chat.Plain(done.Onto), done.Commits)}}})
		}),
	}, formatTable)
	cmd.Flags().StringVar(&req.Branch, "onto", "", "base branch of the pull request (default: the branch that the work began on)")
	cmd.Flags().BoolVar(&req.Rewritten, "rewritten", false, "accept that the upstream branch was rewritten")
	return repositoryFlag(cmd, &req.Repository)
}

// topLevel returns the directory of the user's repository.
func topLevel(ctx context.Context) (string, error) {
	out, err := gitIn(ctx, ".", nil, "rev-parse", "--show-toplevel")
	if err != nil {
		return "", errors.Remedy(errors.Explainf(err, errors.Invalid, "the current directory is not in a git repository"), "run the command in the repository of the session")
	}
	return strings.TrimSuffix(string(out), "\n"), nil
}

// gitIn runs git in one of the user's own repositories and returns its output.
func gitIn(ctx context.Context, dir string, in io.Reader, args ...string) ([]byte, error) {
	cmd := exec.CommandContext(ctx, "git", append([]string{"-C", dir}, args...)...)
	var complaint strings.Builder
	cmd.Stdin, cmd.Stderr = in, &complaint
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
	case strings.Contains(said, "patch does not apply"), strings.Contains(said, "already exists in working directory"):
		remedy = "nothing was changed; harvest checkout fetches the work as a branch, which can be merged"
	}
	return nil, errors.Remedy(errors.Explainf(err, errors.Conflict, "git failed: %s", chat.Plain(said)), "%s", remedy)
}

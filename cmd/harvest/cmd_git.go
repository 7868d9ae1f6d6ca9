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
		Short:   "Print what the agent has changed, as a patch",
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
		Short: "Apply what the agent has changed to the files of the current repository",
		Long: `Applies the patch that "harvest diff" prints, with git apply, to the repository of the current directory: all of it, or nothing. It never writes
outside of the repository, and refuses symbolic links that lead out of it.`,
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
		return errors.Explainf(err, errors.Denied, "the repository cannot be opened: %v", err)
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
		Long: `Folds the "wip:" commits of the session into the others and pushes its branch, harvest/ID, from the sandbox to the origin, with the token of
the account's secrets. Nothing that somebody else has pushed there is overwritten.`,
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
		Long: `Pushes the branch of the session and opens a pull request on GitHub, as the user whose token is in the account's secrets; a draft, unless
--ready. Its text is the repository's template, if it has one. If there is one for the branch already, its address is printed.`,
		Example: `  harvest pr ses_01jx
  harvest pr ses_01jx --title "Fix the parser" --ready`,
		Args: count(1, 1, "a session"),
		RunE: c.withServer(func(ctx context.Context, server *client.Client, args []string) error {
			made, err := server.OpenPull(ctx, args[0], req)
			if err != nil {
				return err
			}
			if !made.New {
				c.hint("it was open already")
			}
			return c.show(view{json: made, names: []string{made.URL}, rows: [][]string{{made.URL}}})
		}),
	}, formatName)
	flags := cmd.Flags()
	flags.StringVar(&req.Title, "title", "", "its title (default: the session's)")
	flags.StringVar(&req.Body, "body", "", "its text (default: the repository's template)")
	flags.StringVar(&req.Base, "base", "", "branch that the changes go into (default: the one that the work began on)")
	flags.BoolVar(&req.Ready, "ready", false, "it is no draft")
	return repositoryFlag(cmd, &req.Repository)
}

func (c *cli) sessionCommand() *cobra.Command {
	return group(&cobra.Command{
		Use:     "session",
		Short:   "Work with the repository of a session",
		Example: "  harvest session sync ses_01jx",
	}, c.syncCommand())
}

func (c *cli) syncCommand() *cobra.Command {
	var req api.SyncRequest
	cmd := c.withOutput(&cobra.Command{
		Use:   "sync SESSION [flags]",
		Short: "Carry the agent's work forward onto what others have done",
		Long: `Commits everything, fetches, and rebases the work, from a checkpoint branch and with at most three attempts. If that fails everything is as it was
and the checkpoint stays. A branch of others that was rewritten is not followed unless --rewritten says that it was meant.`,
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
				return errors.Remedy(errors.Newf(errors.Conflict, "%s", chat.Plain(text)), "everything is as it was; have the agent look at it: harvest send %s \"…\"", args[0])
			}
			return c.show(view{json: done, names: []string{done.Branch}, rows: [][]string{{fmt.Sprintf("%s is on origin/%s, %d commits further", chat.Plain(done.Branch), chat.Plain(done.Onto), done.Commits)}}})
		}),
	}, formatTable)
	cmd.Flags().StringVar(&req.Branch, "onto", "", "base branch of the pull request (default: the branch that the work began on)")
	cmd.Flags().BoolVar(&req.Rewritten, "rewritten", false, "that branch was rewritten on purpose")
	return repositoryFlag(cmd, &req.Repository)
}

// topLevel returns the directory of the user's repository.
func topLevel(ctx context.Context) (string, error) {
	out, err := gitIn(ctx, ".", nil, "rev-parse", "--show-toplevel")
	if err != nil {
		return "", errors.Remedy(errors.Explainf(err, errors.Invalid, "the current directory is in no git repository"), "run it in the repository that the session began with")
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
	remedy := "run it in the repository that the session began with"
	switch {
	case strings.Contains(said, "prerequisite commits"):
		remedy = "the repository lacks the commits that the session began with: git fetch, then try again"
	case strings.Contains(said, "refusing to fetch into"):
		remedy = "the branch is checked out: git switch to another one first, or take the work as another branch with --branch NAME"
	case strings.Contains(said, "patch does not apply"), strings.Contains(said, "already exists in working directory"):
		remedy = "nothing was changed; harvest checkout brings the work as a branch that can be merged"
	}
	return nil, errors.Remedy(errors.Explainf(err, errors.Conflict, "git could not take it: %s", chat.Plain(said)), "%s", remedy)
}

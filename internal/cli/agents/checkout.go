package agents

import (
	"context"
	"fmt"
	"io"
	"os"

	"github.com/spf13/cobra"

	"github.com/RelevanceAI/harvest/client"
	"github.com/RelevanceAI/harvest/client/errors"
	"github.com/RelevanceAI/harvest/internal/cli/worktree"
)

func (c commands) checkoutCommand() *cobra.Command {
	var repository, branch string
	cmd := &cobra.Command{
		Use:   "checkout [SESSION] [flags]",
		Short: "Fetch the agent's branch into the local repository",
		Long: `Fetch the branch of the session, harvest/ID, into the repository of the current directory. The session
is by default the newest of this directory; it may have ended. The work tree and the current branch
do not change. To use the branch, run git switch or git merge.

A branch with commits of your own is never moved. In that case, choose another branch name with
--branch.

Entries of the agent's git stash become branches, too: harvest/ID-stash-1 and so on. Restore one
with git stash apply.`,
		Example: `  harvest checkout ses_01jx
  git merge harvest/01jx…
  harvest checkout ses_01jx --branch second-try`,
		Args: optionalSession,
		RunE: c.onSession(func(ctx context.Context, server *client.Client, ref string) error {
			made, stashes, err := c.takeBranch(ctx, server, ".", ref, repository, branch)
			if err != nil {
				return err
			}
			fmt.Fprintln(c.Out, made)
			for _, name := range stashes {
				c.Hint("the agent stashed changes: git stash apply %s", name)
			}
			return nil
		}),
	}
	cmd.Flags().StringVar(&branch, "branch", "", "local branch for the agent's work (default: harvest/ID)")
	return repositoryFlag(cmd, &repository)
}

// takeBranch fetches the branch of a session into the repository that contains dir, as branch or, if that is "",
// under its own name. It returns the local names of that branch and of the branches of the agent's
// stashes.
func (c commands) takeBranch(ctx context.Context, server *client.Client, dir, ref, repository,
	branch string) (made string, stashes []string, err error) {
	top, err := worktree.TopLevel(ctx, dir)
	if err != nil {
		return "", nil, err
	}
	s, err := server.Session(ctx, ref)
	if err != nil {
		return "", nil, err
	}
	bundle, err := server.SessionBundle(ctx, ref, repository)
	if err != nil {
		return "", nil, err
	}
	defer bundle.Close()
	file, err := os.CreateTemp("", "harvest-*.bundle")
	if err != nil {
		return "", nil, errors.Explainf(err, errors.Unavailable,
			"cannot create a temporary file for the branch: %v", err)
	}
	defer os.Remove(file.Name())
	_, err = io.Copy(file, bundle)
	if err := errors.Join(err, file.Close()); err != nil {
		return "", nil, err
	}
	made, stashes, err = worktree.Checkout(ctx, top, s, branch, file.Name())
	if err == nil {
		c.taken(ctx, server, s.ID, repository, bundle.Changes)
	}
	return made, stashes, err
}

package agents

import (
	"context"
	"fmt"
	"io"

	"github.com/spf13/cobra"

	"github.com/RelevanceAI/harvest/client"
	"github.com/RelevanceAI/harvest/client/api"
	"github.com/RelevanceAI/harvest/client/errors"
	"github.com/RelevanceAI/harvest/internal/cli/worktree"
)

func (c commands) applyCommand() *cobra.Command {
	var repository string
	var check, merge bool
	cmd := &cobra.Command{
		Use:   "apply [SESSION] [flags]",
		Short: "Apply the agent's changes to the files of the current repository",
		Long: `Apply the patch that "harvest diff" prints to the files of the current repository: all of it, or
nothing. The index, the branch and all commits stay unchanged. Your uncommitted changes stay, too; if they
conflict with the agent's, nothing is applied; with --3way, the files get conflict markers.

After a later turn of the agent, the command replaces the changes that it applied before. It never writes outside of the
repository, and refuses symbolic links that lead out of it. Changes of submodules are reported, not applied. The
session is by default the newest of this directory; it may have ended.`,
		Example: `  harvest apply --check ses_01jx
  harvest apply ses_01jx`,
		Args: optionalSession,
		RunE: c.onSession(func(ctx context.Context, server *client.Client, ref string) error {
			text, err := c.takeChanges(ctx, server, ".", ref, repository, check, merge)
			if err == nil {
				fmt.Fprintln(c.Out, text)
			}
			return err
		}),
	}
	cmd.Flags().BoolVar(&check, "check", false, "report whether the changes can be applied, and change nothing")
	cmd.Flags().BoolVar(&merge, "3way", false,
		"write conflict markers into files that you have changed in the same places")
	cmd.MarkFlagsMutuallyExclusive("check", "3way")
	return repositoryFlag(cmd, &repository)
}

// takeChanges applies the changes of a session to the files of the repository that contains dir, or only checks whether
// it could. It returns a text for the user.
func (c commands) takeChanges(ctx context.Context, server *client.Client, dir, ref, repository string,
	check, merge bool) (string, error) {
	top, err := worktree.TopLevel(ctx, dir)
	if err != nil {
		return "", err
	}
	s, err := server.Session(ctx, ref)
	if err != nil {
		return "", err
	}
	stream, err := server.SessionDiff(ctx, ref, repository)
	if err != nil {
		return "", err
	}
	defer stream.Close()
	patch, err := io.ReadAll(io.LimitReader(stream, api.MaxPatch+1))
	if err != nil {
		return "", err
	}
	if len(patch) > api.MaxPatch {
		return "", errors.Remedy(errors.Newf(errors.Exhausted, "the changes exceed %d MiB", api.MaxPatch>>20),
			"fetch them as a branch: harvest checkout")
	}
	if merge {
		text, err := worktree.Merge(ctx, top, s.ID, repository, patch)
		if err == nil {
			c.taken(ctx, server, s.ID, repository, stream.Changes)
		}
		return text, err
	}
	text, err := worktree.Apply(ctx, top, s.ID, repository, patch, check)
	if err == nil && !check {
		c.taken(ctx, server, s.ID, repository, stream.Changes)
	}
	return text, err
}

package agents

import (
	"context"
	"fmt"
	"io"

	"github.com/spf13/cobra"

	"github.com/RelevanceAI/harvest/client"
	"github.com/RelevanceAI/harvest/client/api"
	"github.com/RelevanceAI/harvest/client/errors"
	"github.com/RelevanceAI/harvest/internal/cli"
	"github.com/RelevanceAI/harvest/internal/cli/chat"
)

// repositoryFlag adds the flag that selects a repository of a session.
func repositoryFlag(cmd *cobra.Command, name *string) *cobra.Command {
	cmd.Flags().StringVar(name, "repository", "",
		"name of the repository, if the session has several; NAME/PATH is a submodule")
	return cmd
}

func (c commands) diffCommand() *cobra.Command {
	var repository string
	return repositoryFlag(&cobra.Command{
		Use:   "diff [SESSION]",
		Short: "Print the agent's changes as a patch",
		Long: `Print the agent's changes as a patch, of a session that has ended, too. The session is by default
the newest of this directory. If the output is not a terminal, the changes count as taken: harvest end does not warn
of them.`,
		Example: "  harvest diff ses_01jx >agent.patch",
		Args:    optionalSession,
		RunE: c.onSession(func(ctx context.Context, server *client.Client, ref string) error {
			patch, err := server.SessionDiff(ctx, ref, repository)
			if err != nil {
				return err
			}
			defer patch.Close()
			if _, err = io.Copy(c.Out, patch); err != nil {
				return err
			}
			if _, seen := cli.Terminal(c.Out); !seen {
				c.taken(ctx, server, ref, repository, patch.Changes)
			}
			return nil
		}),
	}, &repository)
}

func (c commands) pushCommand() *cobra.Command {
	var req api.PushRequest
	return repositoryFlag(&cobra.Command{
		Use:   "push [SESSION]",
		Short: "Push the agent's branch to the repository's origin",
		Long: `Fold the "wip:" commits of the session into the others, and push its branch, harvest/ID, from the
sandbox to the origin. The token comes from the account's secrets. Commits that others have pushed
to the branch are never overwritten. The session is by default the newest of this directory.`,
		Example: `  harvest secret set github GITHUB_TOKEN
  harvest push ses_01jx`,
		Args: optionalSession,
		RunE: c.onSession(func(ctx context.Context, server *client.Client, ref string) error {
			done, err := server.PushSession(ctx, ref, req)
			if err != nil {
				return err
			}
			fmt.Fprintln(c.Out, chat.Plain(done.Branch))
			return nil
		}),
	}, &req.Repository)
}

func (c commands) pullCommand() *cobra.Command {
	var req api.PullRequestRequest
	cmd := c.WithOutput(&cobra.Command{
		Use:   "pr [SESSION] [flags]",
		Short: "Push the agent's branch and open or update a pull request for it",
		Long: `Push the branch of the session, and open a pull request on GitHub. The token in the account's secrets decides the
author. The pull request is a draft, unless --ready. The agent writes title and text, by the repository's template if it
has one, in a turn of the session that costs as much as any other. If the agent fails, or with --no-summary, the text
lists the commits.

If the branch already has a pull request, the command pushes, and the agent rewrites the text if there are new commits.
Text that a person has changed on GitHub stays. The session is by default the newest of this directory.`,
		Example: `  harvest pr ses_01jx
  harvest pr ses_01jx --title "Fix the parser" --ready`,
		Args: optionalSession,
		RunE: c.onSession(func(ctx context.Context, server *client.Client, ref string) error {
			done := c.Waiting("pushing, and waiting for the agent's summary")
			made, err := server.OpenPull(ctx, ref, req)
			done()
			if err != nil {
				return err
			}
			c.Hint("%s", pullText(made))
			return c.Show(cli.View{JSON: made, Names: []string{made.URL}, Rows: [][]string{{made.URL}}})
		}),
	}, cli.FormatName)
	flags := cmd.Flags()
	flags.StringVar(&req.Title, "title", "", "title (default: the agent's)")
	flags.StringVar(&req.Body, "body", "", "text (default: the agent's)")
	flags.BoolVar(&req.NoSummary, "no-summary", false, "do not ask the agent for the text")
	flags.StringVar(&req.Base, "base", "",
		"base branch of the pull request (default: the branch that the session started from)")
	flags.BoolVar(&req.Ready, "ready", false, "open it as ready for review, not as a draft")
	return repositoryFlag(cmd, &req.Repository)
}

// pullText describes the result of harvest pr.
func pullText(p api.PullRequest) string {
	text := "updated"
	switch {
	case p.New && p.Draft:
		text = "opened as a draft"
	case p.New:
		text = "opened"
	case !p.Updated:
		text = "it was open already, and is up to date"
	}
	if p.Summary == "agent" {
		text += "; the agent wrote its text"
	}
	if p.Note != "" {
		text += "; " + chat.Plain(p.Note)
	}
	return text
}

func (c commands) sessionCommand() *cobra.Command {
	return cli.Group(&cobra.Command{
		Use:     "session",
		Short:   "Manage the repository of a session",
		Example: "  harvest session sync ses_01jx",
	}, c.syncCommand())
}

func (c commands) syncCommand() *cobra.Command {
	var req api.SyncRequest
	cmd := c.WithOutput(&cobra.Command{
		Use:   "sync SESSION [flags]",
		Short: "Rebase the agent's work onto new upstream commits",
		Long: `Commit everything, fetch, and rebase the work, with at most three attempts. A checkpoint branch is
created first. If the rebase fails, the work is unchanged and the checkpoint branch stays. The command
refuses an upstream branch whose history was rewritten, unless --rewritten is given.`,
		Example: "  harvest session sync ses_01jx",
		Args:    cli.Args(1, 1, "a session"),
		RunE: c.WithServer(func(ctx context.Context, server *client.Client, args []string) error {
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
				return errors.Remedy(errors.Newf(errors.Conflict, "%s", chat.Plain(text)),
					"nothing has changed; have the agent look at it: harvest send %s \"…\"", args[0])
			}
			return c.Show(cli.View{JSON: done, Names: []string{done.Branch},
				Rows: [][]string{{fmt.Sprintf("%s is on origin/%s, %s further", chat.Plain(done.Branch),
					chat.Plain(done.Onto), chat.Count(done.Commits, "commit"))}}})
		}),
	}, cli.FormatTable)
	cmd.Flags().StringVar(&req.Branch, "onto", "",
		"base branch of the pull request (default: the branch that the work started from)")
	cmd.Flags().BoolVar(&req.Rewritten, "rewritten", false, "accept that the upstream branch was rewritten")
	return repositoryFlag(cmd, &req.Repository)
}

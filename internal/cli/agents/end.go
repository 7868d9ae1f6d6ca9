package agents

import (
	"bufio"
	"context"
	"fmt"
	"strings"

	"github.com/spf13/cobra"

	"github.com/RelevanceAI/harvest/client"
	"github.com/RelevanceAI/harvest/client/errors"
	"github.com/RelevanceAI/harvest/internal/cli"
	"github.com/RelevanceAI/harvest/internal/cli/chat"
)

// optionalSession accepts at most one session.
var optionalSession = cli.Args(0, 1, "at most one session (default: the newest of this directory)")

// onSession is WithServer for commands of one session, by default the newest of this directory.
func (c commands) onSession(run func(ctx context.Context, server *client.Client,
	ref string) error) func(*cobra.Command, []string) error {
	return c.WithServer(func(ctx context.Context, server *client.Client, args []string) error {
		refs, err := c.orNewest(ctx, args)
		if err != nil {
			return err
		}
		return run(ctx, server, refs[0])
	})
}

// orNewest returns the sessions that are named, or the newest of this directory.
func (c commands) orNewest(ctx context.Context, args []string) ([]string, error) {
	if len(args) > 0 {
		return args, nil
	}
	ref, err := c.newest(ctx)
	return []string{ref}, err
}

// taken records that the user has changes of a session. Best effort: without the record, harvest end warns of them.
func (c commands) taken(ctx context.Context, server *client.Client, ref, repository, changes string) {
	if changes == "" { // of an older server
		return
	}
	_ = server.TakenChanges(context.WithoutCancel(ctx), ref, repository, changes)
}

func (c commands) endCommand() *cobra.Command {
	var discard bool
	cmd := &cobra.Command{
		Use:   "end [SESSION…] [flags]",
		Short: "End sessions and their sandboxes",
		Long: `End sessions and their sandboxes; by default the newest of this directory. If changes of the agent would
be lost, the command names them and asks; without a terminal, the session stays, and the exit code is 5. These are
changes that were not taken with checkout, apply, push, pr or a diff into a file, and changes that these commands do
not cover: files or commits in a submodule or another work tree, or commits of another branch. --discard ends the
session in any case.`,
		Example: `  harvest end
  harvest end --discard ses_01jx`,
		Args: cli.Args(0, -1, "sessions (default: the newest of this directory)"),
		RunE: c.WithServer(func(ctx context.Context, server *client.Client, args []string) error {
			refs, err := c.orNewest(ctx, args)
			if err != nil {
				return err
			}
			answers := bufio.NewScanner(c.In)
			for _, ref := range refs {
				if err := c.end(ctx, server, ref, discard, answers); err != nil {
					return err
				}
			}
			return nil
		}),
	}
	cmd.Flags().BoolVar(&discard, "discard", false, "end the session even if changes are lost")
	return cmd
}

// end ends a session. It asks on a terminal if changes would be lost.
func (c commands) end(ctx context.Context, server *client.Client, ref string, discard bool,
	answers *bufio.Scanner) error {
	if discard {
		return server.EndSession(ctx, ref)
	}
	err := server.EndSessionKeeping(ctx, ref)
	_, in := cli.Terminal(c.In)
	_, out := cli.Terminal(c.Err)
	if errors.KindOf(err) != errors.Conflict || !in || !out {
		return err
	}
	fmt.Fprintf(c.Err, "%s\n%s\nend the session and lose these changes? [y/N] ", chat.Plain(errors.Message(err)),
		chat.Plain(errors.RemedyOf(err)))
	if !answers.Scan() || !strings.EqualFold(strings.TrimSpace(answers.Text()), "y") {
		return errors.Remedy(errors.Newf(errors.Conflict, "session %s: it continues", ref),
			"take its changes: harvest checkout %s", ref)
	}
	return server.EndSession(ctx, ref)
}

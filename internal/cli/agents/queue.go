package agents

import (
	"context"

	"github.com/spf13/cobra"

	"github.com/RelevanceAI/harvest/client"
	"github.com/RelevanceAI/harvest/client/api"
	"github.com/RelevanceAI/harvest/internal/cli"
	"github.com/RelevanceAI/harvest/internal/cli/chat"
)

func (c commands) queueCommand() *cobra.Command {
	return cli.Group(&cobra.Command{
		Use:   "queue",
		Short: "Manage the queued and held prompts of a session",
		Long: `Manage the queued and held prompts of a session. The agent receives queued prompts one after the other.
It receives a held prompt only after its release. "harvest stop --hold" and the page's Stop hold the
queued prompts.`,
		Example: "  harvest queue ls ses_01jx",
	}, c.queueListCommand(), c.queueReleaseCommand(), c.queueRemoveCommand())
}

func (c commands) queueListCommand() *cobra.Command {
	return c.WithOutput(&cobra.Command{
		Use:     "ls SESSION",
		Aliases: []string{"list"},
		Short:   "List the queued and held prompts, oldest first",
		Example: "  harvest queue ls ses_01jx",
		Args:    cli.Args(1, 1, "a session"),
		RunE: c.WithServer(func(ctx context.Context, server *client.Client, args []string) error {
			all, err := server.Messages(ctx, args[0])
			if err != nil {
				return err
			}
			found := []api.Message{}
			for _, m := range all {
				if m.State == "queued" || m.State == "held" {
					found = append(found, m)
				}
			}
			return c.Show(cli.Table(found, []string{"ID", "STATE", "CREATED", "PROMPT"},
				func(m api.Message) (string, []string) {
					return m.ID, []string{m.ID, m.State, cli.Ago(m.Created), chat.FirstLine(m.Prompt)}
				}))
		}),
	}, cli.FormatTable)
}

func (c commands) queueReleaseCommand() *cobra.Command {
	return &cobra.Command{
		Use:     "release SESSION [PROMPT]",
		Short:   "Queue the held prompts, or one of them",
		Example: "  harvest queue release ses_01jx\n  harvest queue release ses_01jx msg_01jx",
		Args:    cli.Args(1, 2, "a session, and optionally the id of a held prompt"),
		RunE: c.WithServer(func(ctx context.Context, server *client.Client, args []string) error {
			message := ""
			if len(args) > 1 {
				message = args[1]
			}
			return server.ReleaseMessages(ctx, args[0], message)
		}),
	}
}

func (c commands) queueRemoveCommand() *cobra.Command {
	return &cobra.Command{
		Use:     "rm SESSION PROMPT...",
		Aliases: []string{"remove"},
		Short:   "Cancel prompts that are queued or held",
		Example: "  harvest queue rm ses_01jx msg_01jx",
		Args:    cli.Args(2, -1, "a session, and the ids of queued or held prompts"),
		RunE: c.WithServer(func(ctx context.Context, server *client.Client, args []string) error {
			for _, id := range args[1:] {
				if err := server.CancelMessage(ctx, args[0], id); err != nil {
					return err
				}
			}
			return nil
		}),
	}
}

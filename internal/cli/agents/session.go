// Package agents has the commands for agents and their sessions: start, follow, steer and compare them, fetch their
// work, and edit their memory of repositories.
package agents

import (
	"context"
	"fmt"
	"strings"

	"github.com/spf13/cobra"

	"github.com/RelevanceAI/harvest/client"
	"github.com/RelevanceAI/harvest/client/api"
	"github.com/RelevanceAI/harvest/internal/cli"
	"github.com/RelevanceAI/harvest/internal/cli/chat"
)

// commands makes the commands of this package.
type commands struct{ *cli.CLI }

// Sessions returns the commands for sessions.
func Sessions(base *cli.CLI) []*cobra.Command {
	c := commands{base}
	return []*cobra.Command{c.sessionsCommand(), c.compareCommand(), c.sendCommand(), c.attachCommand(),
		c.stopCommand(), c.setCommand(), c.queueCommand(), c.inboxCommand(), c.answerCommand(), c.diffCommand(),
		c.applyCommand(), c.checkoutCommand(), c.pushCommand(), c.pullCommand(), c.sessionCommand(), c.memoryCommand(),
		c.endCommand()}
}

func (c commands) sessionsCommand() *cobra.Command {
	var filter api.SessionFilter
	cmd := cli.Listing(c.CLI, &cobra.Command{
		Use:     "sessions",
		Short:   "List sessions, newest first",
		Example: "  harvest sessions --all\n  harvest sessions --all --search 'flaky test'",
	}, []string{"ID", "STATUS", "AGENT", "TURNS", "COST", "ACTIVE", "TITLE"},
		func(ctx context.Context, server *client.Client) ([]api.Session, error) {
			return server.Sessions(ctx, filter)
		},
		func(s api.Session) (string, []string) {
			cost := fmt.Sprintf("$%.2f", s.Usage.Cost)
			if s.Usage.Unpriced {
				cost += "+?"
			}
			return s.ID, []string{s.ID, s.Status, s.Agent, fmt.Sprint(s.Turns), cost,
				cli.Ago(s.Active), chat.Plain(s.Title)}
		})
	flags := cmd.Flags()
	flags.BoolVarP(&filter.All, "all", "a", false, "also list sessions that have ended, without archived ones")
	flags.BoolVar(&filter.Archived, "archived", false, "list only archived sessions")
	flags.BoolVar(&filter.Pinned, "pinned", false, "list only pinned sessions")
	flags.StringVar(&filter.Text, "search", "",
		"list only sessions that mention this text: in the title, the repository, a prompt or the end of a reply; "+
			"with --all archived ones, too")
	return cmd
}

func (c commands) sendCommand() *cobra.Command {
	var format string
	detach := false
	cmd := &cobra.Command{
		Use:   "send [SESSION] PROMPT",
		Short: "Send a prompt to a session, and follow it",
		Long: `Send a prompt to a session, by default the newest of this directory. The prompt waits until the agent
has finished earlier ones. The prompt "-" is read from standard input.

Standard output gets the reply to the prompt, and nothing else. Tool calls, questions, and the texts
of sub-agents and of other turns go to standard error.`,
		Example: `  harvest send "now write a test"
  harvest send ses_01jx "now write a test"`,
		Args: cli.Args(1, 2, "optionally a session (default: the newest of this directory), and a prompt; quote it"),
		RunE: func(cmd *cobra.Command, args []string) error {
			if len(args) == 1 && isSession(args[0]) {
				return cli.Usage(cmd, "session %s: no prompt given", args[0])
			}
			prompt, err := c.prompt(cmd, args[len(args)-1])
			if err != nil {
				return err
			}
			return c.WithServer(func(ctx context.Context, server *client.Client, args []string) error {
				ref := args[0]
				if len(args) == 1 {
					var err error
					if ref, err = c.newest(ctx); err != nil {
						return err
					}
				}
				after, err := chat.LastEvent(ctx, server, ref)
				if err != nil {
					return err
				}
				queued, err := server.Send(ctx, ref, prompt)
				if err != nil || detach {
					return err
				}
				if queued.Position > 0 {
					c.Hint("prompts before it: %d", queued.Position)
				}
				return c.follow(ctx, server, turns{session: ref, after: after, prompt: queued.MessageID}, format)
			})(cmd, args)
		},
	}
	cmd.Flags().BoolVarP(&detach, "detach", "d", false, "do not wait for the answer")
	cmd.Flags().StringVarP(&format, "output", "o", "text", "text, or json for events")
	return cmd
}

func (c commands) attachCommand() *cobra.Command {
	var format string
	cmd := &cobra.Command{
		Use:     "attach SESSION",
		Short:   "Show the events of a session, past and new",
		Example: "  harvest attach ses_01jx",
		Args:    cli.Args(1, 1, "a session"),
		RunE: c.WithServer(func(ctx context.Context, server *client.Client, args []string) error {
			last, err := chat.LastEvent(ctx, server, args[0])
			if err != nil {
				return err
			}
			return c.follow(ctx, server, turns{session: args[0], last: last}, format)
		}),
	}
	cmd.Flags().StringVarP(&format, "output", "o", "text", "text, or json for events")
	return cmd
}

func (c commands) stopCommand() *cobra.Command {
	hold := false
	cmd := &cobra.Command{
		Use:   "stop SESSION [flags]",
		Short: "Interrupt the current turn",
		Long: `Interrupt the current turn. The agent continues with the next queued prompt, unless --hold is given: then
the queued prompts are held until "harvest queue release".`,
		Example: "  harvest stop ses_01jx\n  harvest stop ses_01jx --hold",
		Args:    cli.Args(1, 1, "a session"),
		RunE: c.WithServer(func(ctx context.Context, server *client.Client, args []string) error {
			if hold {
				return server.StopSessionHolding(ctx, args[0])
			}
			return server.StopSession(ctx, args[0])
		}),
	}
	cmd.Flags().BoolVar(&hold, "hold", false, "hold the queued prompts")
	return cmd
}

func (c commands) answerCommand() *cobra.Command {
	var a api.AnswerRequest
	var deny bool
	cmd := &cobra.Command{
		Use:   "answer SESSION QUESTION [flags]",
		Short: "Answer a question of the agent",
		Example: `  harvest answer ses_01jx ask_3 --allow
  harvest answer ses_01jx ask_3 --deny --message "not on main"
  harvest answer ses_01jx ask_3 --answer "Which colour?=blue"`,
		Args: cli.Args(2, 2, "a session and the question's id"),
	}
	flags := cmd.Flags()
	flags.BoolVar(&a.Allow, "allow", false, "allow the tool to run")
	flags.BoolVar(&a.Always, "always", false, "allow it from now on, too")
	flags.BoolVar(&deny, "deny", false, "do not allow the tool to run")
	flags.StringVar(&a.Message, "message", "", "reason, with --deny")
	answers := flags.StringArray("answer", nil, "QUESTION=ANSWER, repeatable")
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		for _, text := range *answers {
			question, answer, ok := strings.Cut(text, "=")
			if !ok {
				return cli.Usage(cmd, "invalid --answer %q: want QUESTION=ANSWER", text)
			}
			if a.Answers == nil {
				a.Answers = map[string]string{}
			}
			a.Answers[question], a.Allow = answer, true
		}
		switch {
		case a.Allow == deny:
			return cli.Usage(cmd, "give --allow, --answer or --deny")
		case a.Message != "" && !deny:
			return cli.Usage(cmd, "--message is the reason of a denial; add --deny, or omit it")
		}
		return c.WithServer(func(ctx context.Context, server *client.Client, args []string) error {
			return server.Answer(ctx, args[0], args[1], a)
		})(cmd, args)
	}
	return cmd
}

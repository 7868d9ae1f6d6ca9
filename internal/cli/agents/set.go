package agents

import (
	"cmp"
	"context"
	"slices"
	"strconv"
	"strings"

	"github.com/spf13/cobra"

	"github.com/RelevanceAI/harvest/client"
	"github.com/RelevanceAI/harvest/client/api"
	"github.com/RelevanceAI/harvest/internal/cli"
	"github.com/RelevanceAI/harvest/internal/cli/chat"
)

// options are the flags for the options that can change between turns, and for the limits.
type options struct {
	model, effort, approval string
	limits                  api.SessionLimits
}

func (o *options) add(cmd *cobra.Command) {
	flags := cmd.Flags()
	flags.StringVar(&o.model, "model", "", "model of the agent (default: the agent's own)")
	flags.StringVar(&o.effort, "effort", "",
		"how much the model thinks, in the agent's words, such as low or high (default: the agent's own)")
	flags.StringVar(&o.approval, "approval", "",
		"actions that need your approval: edits, ask or plan (default: none, the sandbox is the boundary)")
	flags.IntVar(&o.limits.Turns, "max-turns", 0, "maximum number of turns of the session; 0 means no limit")
	flags.Float64Var(&o.limits.Seconds, "max-seconds", 0,
		"maximum duration of a turn, in seconds; 0 means no limit")
	flags.Float64Var(&o.limits.USD, "max-usd", 0, "maximum cost of the session; 0 means no limit")
}

// changeable are the names of the flags.
var changeable = []string{"model", "effort", "approval", "max-turns", "max-seconds", "max-usd"}

// put puts the options into the request for a session.
func (o *options) put(req *api.SessionRequest) {
	req.Model, req.Effort, req.Approval, req.Limits = *chat.Option("model", o.model).Model,
		*chat.Option("effort", o.effort).Effort, *chat.Option("approval", o.approval).Approval, o.limits
}

// change returns the change of a session that the flags describe.
func (o *options) change(cmd *cobra.Command, s api.Session) (change api.SessionChange) {
	given := func(flag string) bool { return cmd.Flags().Changed(flag) }
	if given("model") {
		change.Model = chat.Option("model", o.model).Model
	}
	if given("effort") {
		change.Effort = chat.Option("effort", o.effort).Effort
	}
	if given("approval") {
		change.Approval = chat.Option("approval", o.approval).Approval
	}
	limits := s.Limits
	if given("max-turns") {
		limits.Turns = o.limits.Turns
	}
	if given("max-seconds") {
		limits.Seconds = o.limits.Seconds
	}
	if given("max-usd") {
		limits.USD = o.limits.USD
	}
	if limits != s.Limits {
		change.Limits = &limits
	}
	return change
}

// labels are the flags for what lists show of a session.
type labels struct {
	title            string
	pinned, archived bool
}

func (l *labels) add(cmd *cobra.Command) {
	flags := cmd.Flags()
	flags.StringVar(&l.title, "title", "", "title; \"\" means the beginning of the first prompt")
	flags.BoolVar(&l.pinned, "pin", false, "show the session at the top of the page's list; --pin=false ends that")
	flags.BoolVar(&l.archived, "archive", false,
		"leave a session that has ended out of lists; --archive=false brings it back")
}

// put adds the flags that were given to a change.
func (l *labels) put(cmd *cobra.Command, change *api.SessionChange) {
	given := func(flag string) bool { return cmd.Flags().Changed(flag) }
	if given("title") {
		change.Title = &l.title
	}
	if given("pin") {
		change.Pinned = &l.pinned
	}
	if given("archive") {
		change.Archived = &l.archived
	}
}

func (c commands) setCommand() *cobra.Command {
	var o options
	var l labels
	cmd := &cobra.Command{
		Use:   "set SESSION [flags]",
		Short: "Change the model, the effort, the approval, the limits or the title of a session",
		Long: `Change options of a session that has not ended. Limits hold at once. Model, effort and approval hold from
the next prompt that the agent gets: its program is then started again, and continues the conversation.
Background commands of the agent end with its program.

Title, pin and archive are for lists, and can change after the end of a session, too.

"default" and "none" stand for the agent's own model and effort, and for no approval.`,
		Example: `  harvest set ses_01jx --model opus --effort high
  harvest set ses_01jx --approval ask --max-usd 5
  harvest set ses_01jx --title "Flaky login test" --pin`,
		Args: cli.Args(1, 1, "a session"),
	}
	o.add(cmd)
	l.add(cmd)
	cmd.RunE = c.WithServer(func(ctx context.Context, server *client.Client, args []string) error {
		s, err := server.Session(ctx, args[0])
		if err != nil {
			return err
		}
		change := o.change(cmd, s)
		l.put(cmd, &change)
		known := slices.Concat(changeable, []string{"title", "pin", "archive"})
		if !slices.ContainsFunc(known, cmd.Flags().Changed) {
			return cli.Usage(cmd, "no option given: use one of --%s", strings.Join(known, ", --"))
		}
		if s, err = server.ChangeSession(ctx, s.ID, change); err != nil {
			return err
		}
		return c.Show(cli.View{JSON: s, Names: []string{s.ID},
			Header: []string{"ID", "MODEL", "EFFORT", "APPROVAL", "TURNS", "SECONDS", "USD", "TITLE"},
			Rows: [][]string{{s.ID, cmp.Or(s.Model, "default"), cmp.Or(s.Effort, "default"), cmp.Or(s.Approval, "none"),
				most(float64(s.Limits.Turns)), most(s.Limits.Seconds), most(s.Limits.USD),
				chat.Plain(s.Title)}}})
	})
	return c.WithOutput(cmd, cli.FormatTable)
}

// most describes a limit.
func most(limit float64) string {
	if limit == 0 {
		return "no limit"
	}
	return strconv.FormatFloat(limit, 'g', -1, 64)
}

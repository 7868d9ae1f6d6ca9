package agents

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/RelevanceAI/harvest/client"
	"github.com/RelevanceAI/harvest/client/api"
	"github.com/RelevanceAI/harvest/client/errors"
	"github.com/RelevanceAI/harvest/internal/cli"
	"github.com/RelevanceAI/harvest/internal/cli/chat"
)

func (c commands) inboxCommand() *cobra.Command {
	var all, follow bool
	cmd := &cobra.Command{
		Use:   "inbox",
		Short: "Show and answer what waits for you, in all sessions",
		Long: `Show what waits for you, in all sessions: approvals and questions of agents and their sub-agents, turns
and sessions that have ended, silent agents, and logins that no longer work. A number never changes its
meaning. What needs no answer leaves the inbox once you have seen it: with "harvest inbox seen", on the
page, or when you send the session's next prompt.`,
		Example: `  harvest inbox
  harvest inbox --follow
  harvest inbox answer 3 allow
  harvest inbox seen all`,
		Args: cli.Args(0, 0, "no arguments; harvest inbox --help lists its commands"),
		RunE: c.WithServer(func(ctx context.Context, server *client.Client, _ []string) error {
			found, err := server.Inbox(ctx, all || follow)
			if err != nil {
				return err
			}
			if follow {
				return c.followInbox(ctx, server, found)
			}
			return c.Show(cli.Table(found, []string{"NUMBER", "KIND", "SESSION", "WHO", "WHAT", "SINCE"},
				func(i api.InboxItem) (string, []string) {
					return fmt.Sprint(i.Number), []string{fmt.Sprint(i.Number), inboxKind(i), inboxSession(i),
						inboxWho(i), chat.FirstLine(i.What), cli.Ago(i.Since)}
				}))
		}),
	}
	cmd.Flags().BoolVarP(&all, "all", "a", false, "also list what waits no longer")
	cmd.Flags().BoolVarP(&follow, "follow", "f", false, "also print what is added and closed, until interrupted")
	cmd = c.WithOutput(cmd, cli.FormatTable)
	cmd.AddCommand(c.inboxShowCommand(), c.inboxAnswerCommand(), c.inboxSeenCommand())
	return cmd
}

// inboxKind is the kind of an item, with its state if it waits no longer.
func inboxKind(i api.InboxItem) string {
	kind := i.Kind
	if i.Outcome != "" {
		kind = i.Outcome
	}
	if i.State != api.InboxWaiting {
		kind += ", " + i.State
	}
	return kind
}

func inboxSession(i api.InboxItem) string {
	return cli.OrDash(cli.OrElse(chat.FirstLine(i.Title), i.Session))
}

func inboxWho(i api.InboxItem) string {
	if i.SubAgent != "" {
		return chat.FirstLine(i.SubAgent)
	}
	return cli.OrDash(i.Agent)
}

// followInbox prints the waiting items of found, and then the changes. The stream begins with old events: numbers that
// found has are left out, so that nothing is missed or printed twice.
func (c commands) followInbox(ctx context.Context, server *client.Client, found []api.InboxItem) error {
	last := int64(0)
	waiting := map[int64]bool{}
	for _, i := range slices.Backward(found) {
		last = max(last, i.Number)
		if i.State != api.InboxWaiting {
			continue
		}
		waiting[i.Number] = true
		if err := c.inboxLine(i); err != nil {
			return err
		}
	}
	for i, err := range server.InboxEvents(ctx, client.Follow{}) {
		if ctx.Err() != nil {
			return nil // interrupted
		}
		if err != nil {
			return err
		}
		open := i.State == api.InboxWaiting
		if open && i.Number <= last || !open && !waiting[i.Number] {
			continue
		}
		last, waiting[i.Number] = max(last, i.Number), open
		if err := c.inboxLine(i); err != nil {
			return err
		}
	}
	return nil
}

// inboxLine prints an item on a line.
func (c commands) inboxLine(i api.InboxItem) error {
	switch c.Format {
	case cli.FormatJSON:
		return cli.PrintLine(c.Out, i)
	case cli.FormatName:
		fmt.Fprintln(c.Out, i.Number)
		return nil
	}
	_, err := fmt.Fprintf(c.Out, "%s  %d  %s  %s  %s  %s\n", i.Since.Local().Format(time.DateTime), i.Number,
		inboxKind(i), inboxSession(i), inboxWho(i), chat.FirstLine(i.What))
	return errors.Wrapf(err, "print")
}

// inboxItem returns the item of a number.
func inboxItem(ctx context.Context, server *client.Client, number string) (api.InboxItem, error) {
	n, err := strconv.ParseInt(number, 10, 64)
	if err != nil {
		return api.InboxItem{}, errors.Remedy(errors.Newf(errors.Invalid, "invalid number %.40q", number),
			"list the inbox: harvest inbox")
	}
	found, err := server.Inbox(ctx, true)
	if err != nil {
		return api.InboxItem{}, err
	}
	at := slices.IndexFunc(found, func(i api.InboxItem) bool { return i.Number == n })
	if at < 0 {
		return api.InboxItem{}, errors.Remedy(errors.Newf(errors.NotFound, "inbox item %d: not found", n),
			"list the inbox: harvest inbox")
	}
	return found[at], nil
}

func (c commands) inboxShowCommand() *cobra.Command {
	return c.WithOutput(&cobra.Command{
		Use:     "show NUMBER",
		Short:   "Show an item of the inbox, with all that the decision is about",
		Example: "  harvest inbox show 3",
		Args:    cli.Args(1, 1, "the number of an item"),
		RunE: c.WithServer(func(ctx context.Context, server *client.Client, args []string) error {
			i, err := inboxItem(ctx, server, args[0])
			if err != nil {
				return err
			}
			v := cli.View{JSON: i, Names: []string{fmt.Sprint(i.Number)}, Rows: [][]string{{"kind", inboxKind(i)},
				{"session", cli.OrDash(i.Session)}, {"title", inboxSession(i)}, {"who", inboxWho(i)},
				{"since", cli.Ago(i.Since)}, {"what", chat.Plain(i.What)}}}
			if i.Answer != "" {
				v.Rows = append(v.Rows, []string{"answer", chat.Plain(i.Answer)})
			}
			if err := c.Show(v); err != nil || c.Format != cli.FormatTable {
				return err
			}
			fmt.Fprint(c.Out, inboxDetails(i))
			return nil
		}),
	}, cli.FormatTable)
}

// inboxDetails is what the decision about an item is about.
func inboxDetails(i api.InboxItem) string {
	var b strings.Builder
	if i.Cut {
		fmt.Fprintf(&b, "\nThe rest is too long for the inbox: harvest attach %s\n", i.Session)
	}
	if len(i.Questions) == 0 && len(i.Input) > 0 {
		var text bytes.Buffer
		if json.Indent(&text, i.Input, "", "  ") == nil {
			fmt.Fprintf(&b, "\n%s\n", chat.Plain(text.String()))
		}
	}
	if i.Text != "" {
		fmt.Fprintf(&b, "\n%s\n", chat.Plain(i.Text))
	}
	for _, q := range i.Questions {
		fmt.Fprintf(&b, "\n%s\n", chat.Plain(q.Text))
		for n, o := range q.Options {
			fmt.Fprintln(&b, strings.TrimRight(fmt.Sprintf("  %d. %s  %s", n+1, chat.Plain(o.Label),
				chat.Plain(o.Description)), " "))
		}
	}
	return b.String()
}

func (c commands) inboxAnswerCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "answer NUMBER allow|always|deny [REASON] | NUMBER ANSWER...",
		Short: "Answer an approval or a question of the inbox",
		Long: `Answer an approval or a question of the inbox. An approval takes allow, always (allow the tool from now
on, too) or deny, with an optional reason for the agent. A question takes one answer for each of its parts: the
number or the label of an option, or a text of your own.`,
		Example: `  harvest inbox answer 3 allow
  harvest inbox answer 3 deny "not on main"
  harvest inbox answer 4 2 "a name of my own"`,
		Args: cli.Args(2, -1, "the number of an item, and the answer"),
		RunE: c.WithServer(func(ctx context.Context, server *client.Client, args []string) error {
			i, err := inboxItem(ctx, server, args[0])
			if err != nil {
				return err
			}
			a, err := inboxAnswer(i, args[1:])
			if err != nil {
				return err
			}
			return server.Answer(ctx, i.Session, i.QuestionID, a)
		}),
	}
}

// inboxAnswer converts words to the answer to an item.
func inboxAnswer(i api.InboxItem, words []string) (a api.AnswerRequest, err error) {
	switch {
	case i.Kind != api.InboxApproval && i.Kind != api.InboxQuestion:
		return a, errors.Remedy(errors.Newf(errors.Invalid, "inbox item %d: it needs no answer", i.Number),
			"mark it as seen: harvest inbox seen %d", i.Number)
	case i.State != api.InboxWaiting:
		err = errors.Newf(errors.Conflict, "inbox item %d: it waits no longer: it is %s", i.Number, i.State)
		return a, errors.Remedy(err, "list the inbox: harvest inbox")
	case i.Cut && i.Kind == api.InboxQuestion:
		err = errors.Newf(errors.Unsupported, "inbox item %d: its questions are too long for the inbox", i.Number)
		return a, errors.Remedy(err, "answer it in the session: harvest answer %s %s", i.Session, i.QuestionID)
	case i.Kind == api.InboxQuestion:
		return questionAnswer(i, words)
	}
	switch words[0] {
	case "allow", "always":
		a.Allow, a.Always = true, words[0] == "always"
		if len(words) == 1 {
			return a, nil
		}
	case "deny":
		a.Message = strings.Join(words[1:], " ")
		return a, nil
	}
	return a, errors.Remedy(errors.Newf(errors.Invalid, "inbox item %d: %s asks for approval", i.Number,
		cli.OrElse(chat.Plain(i.Tool), "a tool")), "answer allow, always, or deny with a reason")
}

// questionAnswer has an answer for each part of a question.
func questionAnswer(i api.InboxItem, words []string) (a api.AnswerRequest, err error) {
	if len(words) != len(i.Questions) {
		err = errors.Newf(errors.Invalid, "inbox item %d: %s given, and the question has %s", i.Number,
			chat.Count(len(words), "answer"), chat.Count(len(i.Questions), "part"))
		return a, errors.Remedy(err, "see its parts: harvest inbox show %d; quote answers of several words", i.Number)
	}
	a.Allow, a.Answers = true, map[string]string{}
	for n, q := range i.Questions {
		a.Answers[q.Text] = chat.Choose(q, words[n])
	}
	return a, nil
}

func (c commands) inboxSeenCommand() *cobra.Command {
	return &cobra.Command{
		Use:     "seen NUMBER... | all",
		Short:   "Mark items that need no answer as seen",
		Example: "  harvest inbox seen 3 4\n  harvest inbox seen all",
		Args:    cli.Args(1, -1, "numbers of items, or all"),
		RunE: func(cmd *cobra.Command, args []string) error {
			req := api.InboxSeenRequest{All: len(args) == 1 && args[0] == "all"}
			for _, text := range args {
				if req.All {
					break
				}
				n, err := strconv.ParseInt(text, 10, 64)
				if err != nil {
					return cli.Usage(cmd, "invalid number %.40q", text)
				}
				req.Numbers = append(req.Numbers, n)
			}
			return c.WithServer(func(ctx context.Context, server *client.Client, _ []string) error {
				return server.InboxSeen(ctx, req)
			})(cmd, args)
		},
	}
}

package agents

import (
	"encoding/json"
	"fmt"
	"strings"
	"time"

	"github.com/RelevanceAI/harvest/client/api"
	"github.com/RelevanceAI/harvest/client/errors"
	"github.com/RelevanceAI/harvest/internal/cli"
	"github.com/RelevanceAI/harvest/internal/cli/chat"
)

// turnView shows a session's events, as text for people or as lines of JSON. Of the text, standard output gets the
// reply and nothing else, so that a program can read it; all other lines go to standard error.
type turnView struct {
	c       commands
	session string
	json    bool
	prompt  string // ID of the prompt whose reply is wanted; "" means all prompts
	writing string // ID of the message in progress
	deltas  map[string]bool
	aside   map[string]string // labels of the messages in progress that are not part of a reply
	turns   map[string]string // labels of the turns that answer no prompt of a user
	replied map[string]bool   // IDs of prompts of which standard output has text of the reply
}

func newTurnView(c commands, format, session, prompt string) *turnView {
	return &turnView{c: c, session: session, json: format == cli.FormatJSON, prompt: prompt, deltas: map[string]bool{},
		aside: map[string]string{}, turns: map[string]string{}, replied: map[string]bool{}}
}

// event shows an event and returns its data.
func (v *turnView) event(e api.Event) (api.SessionEvent, error) {
	var data api.SessionEvent
	if err := json.Unmarshal(e.Data, &data); err != nil {
		return data, errors.Explainf(err, errors.Unavailable, "the server sent an invalid event")
	}
	if v.json {
		line, err := json.Marshal(struct {
			ID   int64           `json:"id"`
			Type string          `json:"type"`
			Data json.RawMessage `json:"data"`
		}{e.ID, e.Type, e.Data})
		if err != nil {
			return data, errors.Wrapf(err, "encode an event")
		}
		fmt.Fprintf(v.c.Out, "%s\n", line)
		return data, nil
	}
	v.text(e.Type, data)
	return data, nil
}

// text shows an event as text. Text of the agent is shown without control characters.
func (v *turnView) text(kind string, e api.SessionEvent) {
	switch kind {
	case "session.stage":
		if !v.c.Quiet {
			fmt.Fprintf(v.c.Err, "%s ready in %.0f ms\n", e.Stage.Name, e.Stage.MS)
		}
	case "session.queued":
		v.c.Hint("the sandbox waits to start")
	case "agent.crashed", "agent.continued", "agent.output_lost":
		v.pause()
		if kind == "agent.continued" {
			v.turns[e.MessageID] = "(by itself)"
		}
		v.c.Notef("%s", agentText(kind, e.Reason))
	case "session.output":
		for line := range strings.Lines(chat.Plain(e.Text)) {
			v.c.Hint("%s: %s", chat.Plain(e.ID), strings.TrimRight(line, "\n"))
		}
	case "session.changed":
		v.c.Hint("%s", chat.Changed(e.Changed))
	case "session.recalled":
		v.c.Hint("continues the earlier conversation: %s", e.Text)
	case "repo.synced":
		v.pause()
		v.c.Hint("%s", syncedText(e.Synced))
	case "message.sent":
		v.sent(e.Message)
	case "message.held":
		v.held(e.Message)
	case "message.started", "message.delta", "message.completed":
		v.message(kind, e)
	case "tool.started":
		v.line("▸ %s %s", chat.Plain(e.Tool), chat.ToolInput(e.Input))
	case "tool.completed":
		switch {
		case e.Interrupted:
			v.line("  stopped")
		case e.Failed:
			v.line("  failed: %s", chat.FirstLine(e.Text))
		}
	case "file.changed":
		v.line("  changed %s", chat.Plain(e.Path))
	case "agent.overridden", "agent.notice", "session.notice":
		v.pause()
		v.c.Notef("%s", chat.Plain(e.Text))
	case "agent.silent":
		v.line("%s", chat.Plain(e.Text))
	case "agent.plan":
		v.line("plan: %s", chat.Plan(e.Plan))
	case "agent.retrying":
		v.line("the model's API: %s", chat.Plain(e.Text))
	case "agent.asked":
		v.asked(e)
	case "agent.withdrawn":
		if e.Text != "" {
			v.line("  answered: %s", strings.ReplaceAll(chat.Plain(e.Text), "\n", "\n  "))
		}
	case "git.synced", "git.committed", "git.pushed", "git.panic", "git.stashed", "git.left":
		if e.Git != nil {
			v.line("  %s", gitText(kind, *e.Git))
		}
	case "egress.denied":
		v.pause()
		v.c.Notef("%s", chat.Denied(e.Denial))
	case "done":
		v.done(e)
	}
}

// sent prints a prompt.
func (v *turnView) sent(m *api.Message) {
	switch {
	case m == nil:
	case m.Purpose != "":
		v.turns[m.ID] = "(pull request)"
		v.c.Hint("%s", chat.OwnPrompt)
	default:
		v.c.Hint("> %s", strings.ReplaceAll(chat.Plain(m.Prompt), "\n", "\n> "))
	}
}

// held prints a prompt that is held.
func (v *turnView) held(m *api.Message) {
	if m != nil {
		v.line("  held, not sent: %s", chat.FirstLine(m.Prompt))
		v.c.Hint("send it with: harvest queue release %s", v.session)
	}
}

// label returns the label of a text that is not part of the reply, or "".
func (v *turnView) label(e api.SessionEvent) string {
	switch {
	case e.Thinking:
		return "(thinking)"
	case e.Parent != "":
		return "(sub-agent)"
	case v.prompt != "" && e.MessageID != v.prompt:
		return cli.OrElse(v.turns[e.MessageID], "(other prompt)")
	}
	return v.turns[e.MessageID]
}

// message shows a text of the agent: a reply while it arrives, any other text whole.
func (v *turnView) message(kind string, e api.SessionEvent) {
	label := cli.OrElse(v.aside[e.ID], v.label(e))
	switch {
	case kind == "message.started":
		v.aside[e.ID] = label
	case kind == "message.delta" && label == "":
		v.reply(e, e.ID)
		v.deltas[e.ID] = true
	case kind == "message.completed":
		if label == "" {
			if !v.deltas[e.ID] {
				v.reply(e, e.ID)
			}
			v.endLine()
		} else if text := strings.TrimSpace(chat.Plain(e.Text)); text != "" && !v.c.Quiet {
			v.line("%s %s", label, strings.ReplaceAll(text, "\n", "\n"+label+" "))
		}
		delete(v.aside, e.ID)
		delete(v.deltas, e.ID)
	}
}

// done shows the end of a turn. The reply to a prompt that the agent took up within a turn of its own is only in the
// text of the end.
func (v *turnView) done(e api.SessionEvent) {
	v.endLine()
	if v.label(e) == "" && !v.replied[e.MessageID] && !e.Failed && e.Text != "" {
		v.reply(e, "done")
		v.endLine()
	}
	if u := e.Usage; u != nil && !v.c.Quiet && u.InputTokens+u.OutputTokens > 0 {
		cost := fmt.Sprintf("$%.4f", u.Cost)
		if u.Unpriced {
			cost += " and an unknown cost: the price of the model is not known"
		}
		fmt.Fprintf(v.c.Err, "%d tokens in, %d out, %s\n", u.InputTokens+u.CacheReadTokens+u.CacheWriteTokens,
			u.OutputTokens, cost)
	}
}

// asked prints a question of the agent, with the plan or the choices.
func (v *turnView) asked(e api.SessionEvent) {
	v.line("? %s %s", chat.Plain(e.Tool), chat.ToolInput(e.Input))
	if plan := strings.TrimSpace(chat.Plain(e.Text)); plan != "" {
		v.line("  %s", strings.ReplaceAll(plan, "\n", "\n  "))
	}
	for _, q := range e.Questions {
		v.line("  %s", chat.Plain(q.Text))
		for _, o := range q.Options {
			v.line("   - %s  %s", chat.Plain(o.Label), chat.Plain(o.Description))
		}
	}
	if !e.Deadline.IsZero() {
		v.line("  Without an answer until %s, the agent decides itself.", e.Deadline.Local().Format(time.TimeOnly))
	}
}

// agentText describes an event of the agent's process.
func agentText(kind, reason string) string {
	switch kind {
	case "agent.crashed":
		return chat.Plain(reason) + "; it is restarted"
	case "agent.output_lost":
		return chat.Plain(reason)
	}
	return "the agent continues by itself: " + chat.Plain(cli.OrElse(reason, "no reason given"))
}

// syncedText describes the age of the image of a session's repository.
func syncedText(s *api.RepoSynced) string {
	if s == nil {
		return ""
	}
	age := strings.TrimSuffix(cli.Ago(s.Built), " ago")
	switch {
	case s.Error != "":
		return "image " + age + " old; newer commits could not be fetched: " + chat.FirstLine(s.Error)
	case s.Behind == 1:
		return "image " + age + " old, 1 commit behind"
	}
	return fmt.Sprintf("image %s old, %s behind", age, chat.Count(s.Behind, "commit"))
}

// gitText describes an event of git.
func gitText(kind string, e api.GitEvent) string {
	text := ""
	switch {
	case kind == "git.panic":
		text = "the agent pressed the panic button: " + chat.FirstLine(e.Reason) + "; a person must " +
			chat.FirstLine(e.Need)
	case kind == "git.pushed":
		text = "pushed " + e.Branch
	case kind == "git.stashed":
		text = fmt.Sprintf("stashed %s; harvest checkout fetches them as branches", chat.Count(e.Commits, "change"))
	case kind == "git.left":
		text = "not handed back: " + chat.FirstLine(e.Reason)
	case kind == "git.committed":
		text = "committed " + chat.FirstLine(e.Subject)
	case e.Failed:
		text = "not synchronised: " + chat.FirstLine(e.Reason)
	default:
		text = fmt.Sprintf("synchronised with origin/%s: %s", e.Onto, chat.Count(e.Commits, "commit"))
	}
	return chat.Plain(text)
}

// reply writes text of the reply to a prompt. A message begins on its own line.
func (v *turnView) reply(e api.SessionEvent, id string) {
	if v.writing != id {
		v.endLine()
		v.writing = id
	}
	v.replied[e.MessageID] = true
	fmt.Fprint(v.c.Out, chat.Plain(e.Text))
}

// line writes a line that is not part of a reply.
func (v *turnView) line(format string, args ...any) {
	v.pause()
	fmt.Fprintf(v.c.Err, format+"\n", args...)
}

// pause ends an unfinished line of a reply on a terminal, where the next line of standard error would join it.
func (v *turnView) pause() {
	if _, terminal := cli.Terminal(v.c.Out); terminal {
		v.endLine()
	}
}

func (v *turnView) endLine() {
	if v.writing != "" {
		fmt.Fprintln(v.c.Out)
		v.writing = ""
	}
}

func (v *turnView) close() { v.endLine() }

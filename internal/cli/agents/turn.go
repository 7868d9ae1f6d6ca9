package agents

import (
	"encoding/json"
	"fmt"
	"strings"

	"github.com/RelevanceAI/harvest/client/api"
	"github.com/RelevanceAI/harvest/client/errors"
	"github.com/RelevanceAI/harvest/internal/cli"
	"github.com/RelevanceAI/harvest/internal/cli/chat"
)

// turnView shows a session's events, as text for people or as lines of JSON.
type turnView struct {
	c       commands
	json    bool
	writing string // id of the message in progress
	deltas  map[string]bool
	thought map[string]bool // ids of messages other than the answer
}

func newTurnView(c commands, format string) *turnView {
	return &turnView{c: c, json: format == cli.FormatJSON, deltas: map[string]bool{}, thought: map[string]bool{}}
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
		v.endLine()
		v.c.Notef("%s", agentText(kind, e.Reason))
	case "session.recalled":
		v.c.Hint("continues the earlier conversation: %s", e.Text)
	case "repo.synced":
		v.endLine()
		v.c.Hint("%s", syncedText(e.Synced))
	case "message.sent":
		v.sent(e.Message)
	case "message.started":
		v.thought[e.ID] = e.Thinking
	case "message.delta":
		if v.thought[e.ID] {
			return // shown whole, once it is complete
		}
		v.write(e.ID, e.Text)
		v.deltas[e.ID] = true
	case "message.completed":
		delete(v.thought, e.ID)
		if e.Thinking {
			v.endLine()
			if text := strings.TrimSpace(chat.Plain(e.Text)); text != "" && !v.c.Quiet {
				fmt.Fprintf(v.c.Err, "(thinking) %s\n", strings.ReplaceAll(text, "\n", "\n(thinking) "))
			}
			return
		}
		if !v.deltas[e.ID] {
			v.write(e.ID, e.Text)
		}
		delete(v.deltas, e.ID)
		v.endLine()
	case "tool.started":
		v.endLine()
		fmt.Fprintf(v.c.Out, "▸ %s %s\n", chat.Plain(e.Tool), chat.ToolInput(e.Input))
	case "tool.completed":
		v.endLine()
		if e.Failed {
			fmt.Fprintf(v.c.Out, "  failed: %s\n", chat.FirstLine(e.Text))
		}
	case "file.changed":
		v.endLine()
		fmt.Fprintf(v.c.Out, "  changed %s\n", chat.Plain(e.Path))
	case "agent.overridden":
		v.endLine()
		v.c.Notef("%s", chat.Plain(e.Text))
	case "agent.retrying":
		v.endLine()
		fmt.Fprintf(v.c.Err, "the model's API: %s\n", chat.Plain(e.Text))
	case "agent.asked":
		v.asked(e)
	case "agent.withdrawn":
		if e.Text != "" {
			v.endLine()
			fmt.Fprintf(v.c.Out, "  answered: %s\n", strings.ReplaceAll(chat.Plain(e.Text), "\n", "\n  "))
		}
	case "git.synced", "git.committed", "git.pushed", "git.panic", "git.stashed", "git.left":
		v.endLine()
		if e.Git != nil {
			fmt.Fprintf(v.c.Out, "  %s\n", gitText(kind, *e.Git))
		}
	case "done":
		v.endLine()
		if u := e.Usage; u != nil && !v.c.Quiet && u.InputTokens+u.OutputTokens > 0 {
			fmt.Fprintf(v.c.Err, "%d tokens in, %d out, $%.4f\n", u.InputTokens+u.CacheReadTokens+u.CacheWriteTokens,
				u.OutputTokens, u.Cost)
		}
	}
}

// sent prints a prompt.
func (v *turnView) sent(m *api.Message) {
	switch {
	case m == nil:
	case m.Purpose != "":
		v.c.Hint("%s", chat.OwnPrompt)
	default:
		v.c.Hint("> %s", strings.ReplaceAll(chat.Plain(m.Prompt), "\n", "\n> "))
	}
}

// asked prints a question of the agent, with the plan or the choices.
func (v *turnView) asked(e api.SessionEvent) {
	v.endLine()
	fmt.Fprintf(v.c.Out, "? %s %s\n", chat.Plain(e.Tool), chat.ToolInput(e.Input))
	if plan := strings.TrimSpace(chat.Plain(e.Text)); plan != "" {
		fmt.Fprintf(v.c.Out, "  %s\n", strings.ReplaceAll(plan, "\n", "\n  "))
	}
	for _, q := range e.Questions {
		fmt.Fprintf(v.c.Out, "  %s\n", chat.Plain(q.Text))
		for _, o := range q.Options {
			fmt.Fprintf(v.c.Out, "   - %s  %s\n", chat.Plain(o.Label), chat.Plain(o.Description))
		}
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

// write continues a message, which begins on its own line.
func (v *turnView) write(id, text string) {
	if v.writing != id {
		v.endLine()
		v.writing = id
	}
	fmt.Fprint(v.c.Out, chat.Plain(text))
}

func (v *turnView) endLine() {
	if v.writing != "" {
		fmt.Fprintln(v.c.Out)
		v.writing = ""
	}
}

func (v *turnView) close() { v.endLine() }

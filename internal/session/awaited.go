package session

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"slices"

	"github.com/RelevanceAI/harvest/internal/base/logf"
	"github.com/RelevanceAI/harvest/internal/session/agent"
	"github.com/RelevanceAI/harvest/internal/session/inbox"
	"github.com/RelevanceAI/harvest/internal/session/records"
)

// awaited is what a session has reported to the inbox. Only the loop of the session uses it.
type awaited struct {
	reported bool              // keys is valid: false after a restart
	keys     []string          // of the open items, sorted
	answers  map[string]string // to questions since the last report, by key
	agents   map[string]string // names of sub-agents, by the tool call that runs them
}

// maxAgents is how many names of sub-agents a session remembers.
const maxAgents = 1000

// name records the name of the sub-agent that a tool call starts.
func (a *awaited) name(e agent.Event) {
	var in struct {
		Kind        string `json:"subagent_type"`
		Description string `json:"description"`
	}
	if len(e.Input) == 0 || json.Unmarshal(e.Input, &in) != nil || in.Kind == "" {
		return
	}
	if a.agents == nil || len(a.agents) >= maxAgents {
		a.agents = map[string]string{}
	}
	a.agents[e.ID] = in.Kind
	if in.Description != "" {
		a.agents[e.ID] += ": " + in.Description
	}
}

// subAgent returns the name of the sub-agent of an event; "" for the agent itself.
func (a *awaited) subAgent(e agent.Event) string {
	if e.Parent == "" {
		return ""
	}
	return cmp.Or(a.agents[e.Parent], "sub-agent")
}

// answer records the answer to a question.
func (a *awaited) answer(turn, question, answer string) {
	key := questionKey(turn, question)
	if !slices.Contains(a.keys, key) {
		return // Harvest answered it itself
	}
	if a.answers == nil {
		a.answers = map[string]string{}
	}
	a.answers[key] = answer
}

// questionKey is the key of a question's item. Some agents count their questions anew after a restart.
func questionKey(turn, question string) string { return turn + "/" + question }

// reportAwaited reports the open questions of the session to the inbox if they have changed. It runs on the loop, after
// the questions that Harvest answers itself were answered.
func reportAwaited(r *runner) {
	a := &r.awaited
	if r.behind || r.session().Spare || r.m.ctx.Err() != nil { // it may not know the questions
		return
	}
	items := map[string]inbox.Item{}
	turn := ""
	if r.current != nil {
		turn = r.current.ID
	}
	for id := range r.asked {
		items[questionKey(turn, id)] = questionItem(r, id)
	}
	if s := r.session(); s.Status == records.Hung {
		items[turn+" silent"] = inbox.Item{Kind: inbox.Silent, What: s.Reason, MessageID: turn}
	}
	keys := slices.Sorted(maps.Keys(items))
	if slices.Equal(keys, a.keys) && (a.reported || !r.recovered) {
		return
	}
	var open []inbox.Item
	for _, key := range keys {
		item := items[key]
		item.Key = key
		open = append(open, ofSession(r.session(), item))
	}
	slices.SortStableFunc(open, func(x, y inbox.Item) int { return x.Since.Compare(y.Since) })
	if err := r.m.opts.Inbox.Open(context.WithoutCancel(r.m.ctx), r.account, r.id, open, a.answers); err != nil {
		logf.Errorf(r.m.ctx, "report what session %s waits for: %v", r.id, err)
		return // the next call reports it
	}
	a.reported, a.keys, a.answers = true, keys, nil
}

// ofSession fills in the fields that all items of a session have.
func ofSession(s records.Session, item inbox.Item) inbox.Item {
	item.Account, item.Session, item.Title, item.Agent = s.Account, s.ID, s.Title, s.Agent
	return item
}

func questionItem(r *runner, id string) inbox.Item {
	q := r.asked[id]
	e := q.Event
	item := inbox.Item{Kind: inbox.Approval, Since: q.Opened, SubAgent: r.awaited.subAgent(e), QuestionID: id,
		Tool: e.Tool, Input: e.Input, Text: e.Text, Questions: e.Questions, Deadline: r.deadlineOf(e)}
	switch {
	case len(e.Questions) > 0:
		item.Kind, item.What = inbox.Question, e.Questions[0].Text
		if more := len(e.Questions) - 1; more > 0 {
			item.What = inbox.Line(item.What) + fmt.Sprintf(" (and %d more)", more)
		}
	case e.Text != "":
		item.What = "plan: " + inbox.Line(e.Text)
	default:
		item.What = wanted(e)
	}
	return item
}

// shortInputs are the fields of a tool's input that say what it will do, the most telling one first.
var shortInputs = []string{"command", "file_path", "filePath", "path", "pattern", "url", "query", "description"}

// wanted describes a tool call in a line.
func wanted(e agent.Event) string {
	var in map[string]any
	if json.Unmarshal(e.Input, &in) == nil {
		for _, name := range shortInputs {
			if text, ok := in[name].(string); ok && text != "" {
				return e.Tool + ": " + text
			}
		}
	}
	if len(in) == 0 {
		return e.Tool
	}
	return e.Tool + " " + string(e.Input)
}

// reportTurn reports a turn that has ended to the inbox. It must be called before the end is recorded: a server that
// crashes in between finds the end again.
func reportTurn(r *runner, m records.Message, e agent.Event) {
	if m.Purpose != "" || e.Reason == "joined" || r.over == endedByRequest {
		return
	}
	what := m.Reply
	if m.State != records.Completed {
		what = cmp.Or(what, e.Reason)
	}
	what = cmp.Or(inbox.Line(what), "no text")
	report(r, inbox.Item{Kind: inbox.Finished, Key: m.ID + " ended", MessageID: m.ID, What: what,
		Outcome: string(m.State), Cost: m.Usage.Cost})
}

// reportEnd reports a session that ends without a request to the inbox.
func reportEnd(r *runner) {
	report(r, inbox.Item{Kind: inbox.Finished, Key: "end", What: r.over, Outcome: "ended"})
}

func report(r *runner, item inbox.Item) {
	if err := r.m.opts.Inbox.Add(context.WithoutCancel(r.m.ctx), ofSession(r.session(), item)); err != nil {
		logf.Errorf(r.m.ctx, "report to the inbox of session %s: %v", r.id, err)
	}
}

// seen marks the results of a session as seen by a person; "" means none.
func seen(ctx context.Context, m *Manager, account, session string) {
	if session == "" {
		return
	}
	err := m.opts.Inbox.See(context.WithoutCancel(ctx), account, inbox.Selection{Session: session})
	if err != nil {
		logf.Errorf(ctx, "mark the results of session %s as seen: %v", session, err)
	}
}

// retainInbox withdraws what waits in sessions that are not live.
func retainInbox(ctx context.Context, box *inbox.Box, live []records.Session) error {
	return box.Retain(ctx, func(id string) bool {
		return slices.ContainsFunc(live, func(s records.Session) bool { return s.ID == id })
	})
}

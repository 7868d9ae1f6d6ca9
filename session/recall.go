package session

import (
	"context"
	"fmt"
	"maps"
	"reflect"
	"strings"

	"github.com/RelevanceAI/harvest/agent"
	"github.com/RelevanceAI/harvest/errors"
	"github.com/RelevanceAI/harvest/logf"
	"github.com/RelevanceAI/harvest/session/shell"
	"github.com/RelevanceAI/harvest/session/volumes"
	"github.com/RelevanceAI/harvest/session/workspace"
)

// EventRecalled reports that the agent had no record of the conversation and received the end of it with the prompt.
// Text says so.
const EventRecalled = "session.recalled"

// Limits of the messages that an agent without a record receives (mission E4).
const (
	recallMost  = 10      // messages: prompts and replies
	recallBytes = 8 << 10 // of each
)

// inheritScript copies an agent's state to a session that does not have any: FROM TO.
const inheritScript = `
[ -d "$1" ] && [ -z "$(ls -A "$2" 2>/dev/null)" ] || exit 0
mkdir -p "$2"
cp -a "$1/." "$2/"`

// inherit copies the agent's records of the continued session to this one, so that the agent resumes its own
// conversation. It is a copy, since both sessions may be continued.
func (r *runner) inherit(ctx context.Context) {
	s := r.session()
	if s.Continues == "" || s.Conversation == "" || s.Turns > 0 {
		return
	}
	_, result, err := r.m.in(s.Account, s.SandboxID).Run(ctx,
		shell.Script{Text: inheritScript, Params: []string{volumes.StateDir(s.Continues), volumes.StateDir(s.ID)}})
	if err != nil || result.ReturnCode != 0 { // the agent receives the last messages instead
		logf.Errorf(ctx, "copy the agent's record of session %s: %v, %s", s.Continues, err,
			shell.LastLines(result.Stderr, result.Why()))
	}
}

// resume clears setup.Conversation if the agent has no record of that conversation.
func (r *runner) resume(ctx context.Context, program agent.Agent, setup *agent.Setup) {
	k, ok := program.(agent.Keeper)
	if !ok || setup.Conversation == "" {
		return
	}
	r.inherit(ctx)
	s := r.session()
	env := maps.Clone(setup.Env)
	env["CONVERSATION"] = setup.Conversation
	_, result, err := r.m.in(s.Account, s.SandboxID).Run(ctx,
		shell.Script{Text: `for f in ` + k.Kept() + `; do [ ! -e "$f" ] || exit 0; done; exit 3`, Env: env})
	if err != nil || result.ReturnCode != 3 {
		return // it exists, or that is unknown: the agent reports an error if it cannot resume
	}
	logf.Infof(ctx, "the agent's record of conversation %s is gone", setup.Conversation)
	setup.Conversation = ""
	r.change(func(s *Session) { s.Conversation = "" })
}

// recalled returns a prompt preceded by the end of the conversation, if the agent has no record of it.
func (r *runner) recalled(ctx context.Context, prompt string) string {
	s := r.session()
	if s.Conversation != "" || s.Turns == 0 && s.Continues == "" {
		return prompt
	}
	past, err := r.m.past(ctx, s)
	if err != nil {
		logf.Errorf(ctx, "find the conversation's messages: %v", err)
		return prompt
	}
	if len(past) == 0 {
		return prompt
	}
	text := fmt.Sprintf("the agent has no record of the conversation; it got the last %d messages", len(past))
	r.publish(draft{EventRecalled, Event{Event: agent.Event{Text: text}}})
	return "This continues an earlier conversation, of which you have no record. It ended with these messages, the oldest first:\n\n" +
		strings.Join(past, "\n\n") + "\n\nThis is the user's next message:\n\n" + prompt
}

// past returns the last messages of a session, and of the sessions that it continues, as texts.
func (m *Manager) past(ctx context.Context, s Session) ([]string, error) {
	var all []string
	for seen := map[string]bool{}; !seen[s.ID]; {
		seen[s.ID] = true
		messages, err := m.opts.Store.Messages(ctx, s.ID)
		if err != nil {
			return nil, err
		}
		var texts []string
		for _, msg := range messages {
			if msg.State == Queued || msg.State == Running || msg.State == Cancelled || msg.Purpose != "" {
				continue
			}
			who := "User"
			if msg.Own {
				who = "Notification"
			}
			texts = append(texts, quoted(who, msg.Prompt))
			if msg.Reply != "" {
				texts = append(texts, quoted("You", msg.Reply))
			}
		}
		all = append(texts, all...)
		if len(all) >= recallMost || s.Continues == "" {
			break
		}
		if s, err = m.opts.Store.Session(ctx, s.Continues); errors.KindOf(err) == errors.NotFound {
			break
		} else if err != nil {
			return nil, err
		}
	}
	return all[max(len(all)-recallMost, 0):], nil
}

// quoted returns a message in the form for the agent. Every line is marked as a quotation, so that the agent does not
// take it for a new message of the user.
func quoted(who, text string) string {
	text = strings.TrimSpace(text)
	if len(text) > recallBytes {
		text = strings.ToValidUTF8(text[:recallBytes], "") + "…"
	}
	return who + ":\n> " + strings.ReplaceAll(text, "\n", "\n> ")
}

// goOn fills req from the session that it continues, and returns that session's repositories: their files are in the
// sandbox's image. Kinds: NotFound, Conflict (it has not ended), Invalid, Gone (its files no longer exist).
func (m *Manager) goOn(ctx context.Context, account string, req *Request) ([]workspace.Repository, error) {
	if req.Repo != "" || req.Branch != "" || len(req.Bundle) > 0 || len(req.More) > 0 {
		return nil, errors.Remedy(errors.Newf(errors.Invalid, "a session that continues another uses its repositories"),
			"omit the repository, or the session to continue")
	}
	own := req.Sandbox
	own.Env, own.Image = nil, ""
	if !reflect.ValueOf(own).IsZero() {
		return nil, errors.Remedy(errors.Newf(errors.Invalid,
			"a session that continues another uses the same kind of sandbox"), "give env only, or begin a new session")
	}
	old, running, err := m.find(ctx, account, req.Continues)
	if err != nil {
		return nil, err
	}
	if running != nil {
		return nil, errors.Remedy(errors.Newf(errors.Conflict, "session %s has not ended", old.ID),
			"send it the prompt, or end it first")
	}
	gone := errors.Remedy(errors.Newf(errors.Gone, "the files of session %s no longer exist", old.ID),
		"begin a new session with its repository")
	box, err := m.opts.Fleet.Get(ctx, account, old.SandboxID)
	switch {
	// The session never had a sandbox, or its record was deleted.
	case errors.KindOf(err) == errors.NotFound || errors.KindOf(err) == errors.Invalid:
		return nil, gone
	case err != nil:
		return nil, err
	case !box.Status.Ended():
		return nil, errors.Remedy(errors.Newf(errors.Conflict, "the files of session %s are still being stored",
			old.ID), "try again in a moment")
	case box.SnapshotID == "":
		return nil, gone
	}
	req.Continues, req.title = old.ID, old.Title
	env := req.Sandbox.Env
	req.Sandbox = old.Sandbox
	req.Sandbox.Image, req.Sandbox.Env, req.Sandbox.Name = box.SnapshotID, env, ""
	if req.Agent == "" || req.Agent == old.Agent {
		req.Agent = old.Agent
		if req.Model == "" {
			req.Model = old.Model
		}
		if _, ok := m.opts.Agents[old.Agent].(agent.Keeper); ok {
			req.conversation = old.Conversation
		}
	}
	if req.Approval == "" {
		req.Approval = old.Approval
	}
	if req.Author == (workspace.Author{}) {
		req.Author = old.Author
	}
	if req.Limits == (Limits{}) {
		req.Limits = old.Limits
	}
	if req.Subdir == "" {
		req.Subdir = old.Subdir
	}
	if req.GitSecret == "" {
		req.GitSecret = old.GitSecret
	}
	if len(req.MCP) == 0 {
		req.MCP = old.MCP
	}
	return old.Repositories(), nil
}

package session

import (
	"context"
	"fmt"
	"reflect"

	"github.com/RelevanceAI/harvest/client/errors"
	"github.com/RelevanceAI/harvest/internal/base/logf"
	"github.com/RelevanceAI/harvest/internal/session/agent"
	"github.com/RelevanceAI/harvest/internal/session/past"
	"github.com/RelevanceAI/harvest/internal/session/records"
	"github.com/RelevanceAI/harvest/internal/session/workspace"
)

// resume clears setup.Conversation if the agent has no record of that conversation.
func (r *runner) resume(ctx context.Context, program agent.Agent, setup *agent.Setup) {
	k, ok := program.(agent.Keeper)
	if !ok || setup.Conversation == "" {
		return
	}
	s := r.session()
	box := r.m.in(s.Account, s.SandboxID)
	if s.Continues != "" && s.Conversation != "" && s.Turns == 0 {
		past.Inherit(ctx, box, s.Continues, s.ID)
	}
	if !past.Gone(ctx, box, k, *setup) {
		return
	}
	logf.Infof(ctx, "the agent's record of conversation %s is gone", setup.Conversation)
	setup.Conversation = ""
	r.change(func(s *records.Session) { s.Conversation = "" })
}

// recalled returns a prompt preceded by the end of the conversation, if the agent has no record of it.
func (r *runner) recalled(ctx context.Context, prompt string) string {
	s := r.session()
	if s.Conversation != "" || s.Turns == 0 && s.Continues == "" {
		return prompt
	}
	messages, err := past.Messages(ctx, r.m.opts.Store, s)
	if err != nil {
		logf.Errorf(ctx, "find the conversation's messages: %v", err)
		return prompt
	}
	if len(messages) == 0 {
		return prompt
	}
	text := fmt.Sprintf("the agent has no record of the conversation; it got the last %d messages", len(messages))
	r.publish(draft{records.EventRecalled, records.Event{Event: agent.Event{Text: text}}})
	return past.Prompt(messages, prompt)
}

// goOn fills req from the session that it continues, and returns that session's repositories: their files are in the
// sandbox's image. Kinds: NotFound, Conflict (it has not ended), Invalid, Gone (its files no longer exist).
func (m *Manager) goOn(ctx context.Context, account string, req *Request) ([]workspace.Repository, error) {
	if req.Repo != "" || req.Branch != "" || req.sendsCommits() || len(req.More) > 0 {
		return nil, errors.Remedy(errors.Newf(errors.Invalid, "a session that continues another uses its repositories"),
			"omit the repository, or the session to continue")
	}
	own := req.Sandbox
	own.Env, own.Image = nil, ""
	if !reflect.ValueOf(own).IsZero() {
		return nil, errors.Remedy(errors.Newf(errors.Invalid,
			"a session that continues another uses the same kind of sandbox"), "give env only, or start a new session")
	}
	old, running, err := m.find(ctx, account, req.Continues)
	if err != nil {
		return nil, err
	}
	if running != nil {
		return nil, errors.Remedy(errors.Newf(errors.Conflict, "session %s has not ended", old.ID),
			"send it the prompt, or end it first")
	}
	files, err := m.filesOf(ctx, old)
	if err != nil {
		return nil, err
	}
	req.Continues, req.title = old.ID, old.Title
	env := req.Sandbox.Env
	req.Sandbox = old.Sandbox
	req.Sandbox.Image, req.Sandbox.Env, req.Sandbox.Name = files, env, ""
	if req.Agent == "" || req.Agent == old.Agent {
		req.Agent = old.Agent
		if req.Release == "" {
			req.Release = old.Release
		}
		if req.Model == "" {
			req.Model = old.NextOptions().Model
		}
		if req.Effort == "" {
			req.Effort = old.NextOptions().Effort
		}
		if _, ok := programOf(m, old.Agent).(agent.Keeper); ok {
			req.conversation = old.Conversation
		}
	}
	if req.Approval == "" {
		req.Approval = old.NextOptions().Approval
	}
	if req.Author == (workspace.Author{}) {
		req.Author = old.Author
	}
	if req.Limits == (records.Limits{}) {
		req.Limits = old.Limits
	}
	if req.Subdir == "" {
		req.Subdir = old.Subdir
	}
	req.PerTurn = req.PerTurn || old.PerTurn
	if req.GitSecret == "" {
		req.GitSecret = old.GitSecret
	}
	if len(req.MCP) == 0 {
		req.MCP = old.MCP
	}
	return old.Repositories(), nil
}

package session

import (
	"cmp"
	"math"

	"github.com/RelevanceAI/harvest/internal/base/logf"
	"github.com/RelevanceAI/harvest/internal/session/agent"
	"github.com/RelevanceAI/harvest/internal/session/cause"
	"github.com/RelevanceAI/harvest/internal/session/model"
	"github.com/RelevanceAI/harvest/internal/session/models"
)

// models connects sandboxes with models.
func (m *Manager) models() models.Connector {
	return models.Connector{Fleet: m.opts.Fleet, Gateway: m.opts.Models, Direct: m.opts.DirectModels}
}

// openLine opens the line to the model for the agent's process.
func (r *runner) openLine() {
	s := r.session()
	if r.line != nil || !models.Needed(programOf(r.m, s.Agent)) {
		return
	}
	r.line = r.m.models().Open(logf.With(r.m.ctx, "session_id", r.id), r.account, s.SandboxID, model.Grant{
		ID: r.id, Account: r.account, Secrets: s.Sandbox.Secrets,
		Spend: func(u model.Usage) {
			r.mu.Lock()
			defer r.mu.Unlock()
			r.used.Add(agent.Usage{InputTokens: u.InputTokens, OutputTokens: u.OutputTokens,
				CacheReadTokens: u.CacheReadTokens, CacheWriteTokens: u.CacheWriteTokens, Cost: u.Cost,
				Unpriced: u.Unpriced})
		},
		Left: func() float64 {
			r.mu.Lock()
			defer r.mu.Unlock()
			if r.s.Limits.USD <= 0 {
				return math.Inf(1)
			}
			return r.s.Limits.USD - r.s.Usage.Cost - r.used.Cost
		},
		Answers: &r.answers,
	})
}

// failedTurn returns the text of the failed turn that ends with e, and the cause if the same prompt would fail again.
// overspent is as the method returns it. answer is the failure of the turn's last request to a model; nil if the
// request succeeded, or if the gateway did not see it. Only then do the words of the agent decide.
func failedTurn(e agent.Event, overspent string, answer *model.Failure) (string, cause.Cause) {
	switch {
	case overspent != "":
		return overspent, cause.Cost
	case answer != nil && e.Reason == agent.GaveUp:
		return e.Text, answer.Cause() // the text has the reason of the model's API, and more
	case answer != nil && e.Reason != processEnded:
		return answer.String(), answer.Cause()
	}
	return e.Text, cause.Of(cmp.Or(e.Text, e.Reason))
}

// believed returns the end of a turn as failed if the program's word for its success is not worth much, and the last
// request to the model failed.
func believed(e agent.Event, answer *model.Failure) agent.Event {
	e.Failed = e.Failed || e.Unproven && !e.Interrupted && answer != nil
	return e
}

// usage returns the usage of a turn: that which the agent reports, or else that which the gateway has counted. Some
// agents report tokens only, some the cost only, and some neither.
func (r *runner) usage(reported *agent.Usage) agent.Usage {
	r.mu.Lock()
	defer r.mu.Unlock()
	if reported == nil {
		return r.used
	}
	u := *reported
	if u.InputTokens+u.OutputTokens+u.CacheReadTokens+u.CacheWriteTokens == 0 {
		u = r.used
		u.Cost, u.Unpriced = reported.Cost, reported.Unpriced
	}
	if u.Cost == 0 {
		u.Cost, u.Unpriced = r.used.Cost, r.used.Unpriced
	}
	return u
}

// overspent returns the reason for a failed turn if the cost limit caused the failure.
func (r *runner) overspent() string {
	r.mu.Lock()
	defer r.mu.Unlock()
	if l := r.s.Limits.USD; l > 0 && r.used.Cost > 0 && r.s.Usage.Cost+r.used.Cost >= l {
		return "the session has reached its cost limit"
	}
	return ""
}

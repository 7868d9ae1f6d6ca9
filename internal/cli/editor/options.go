package editor

import (
	"cmp"
	"context"
	"encoding/json"
	"slices"
	"strings"

	"github.com/RelevanceAI/harvest/client/api"
	"github.com/RelevanceAI/harvest/client/errors"
	"github.com/RelevanceAI/harvest/internal/base/jsonrpc"
)

// IDs of the options.
const (
	optionMode   = "mode"
	optionAgent  = "agent"
	optionModel  = "model"
	optionEffort = "effort"
)

// byAgent is the value of an option that the agent chooses.
const byAgent = "default"

// mode is a mode of approval.
type mode struct {
	ID       string `json:"id"`
	Name     string `json:"name"`
	About    string `json:"description"`
	approval string // of Harvest
}

// modes are the modes of approval.
var modes = []mode{
	{"all", "Run all tools", "No tool asks: the sandbox is the boundary", ""},
	{"edits", "Allow edits", "Edits of files run, other tools ask", "edits"},
	{"ask", "Ask", "Each tool that changes something asks", "ask"},
	{"plan", "Plan", "The agent plans, and changes nothing", "plan"},
}

// modeOf returns the ID of the mode of an approval.
func modeOf(approval string) string {
	if at := slices.IndexFunc(modes, func(m mode) bool { return m.approval == approval }); at >= 0 {
		return modes[at].ID
	}
	return approval
}

// choice is a value of an option.
type choice struct {
	Value string `json:"value"`
	Name  string `json:"name"`
	About string `json:"description,omitempty"`
}

// option is an option of a session.
type option struct {
	ID       string   `json:"id"`
	Name     string   `json:"name"`
	About    string   `json:"description,omitempty"`
	Category string   `json:"category,omitempty"`
	Type     string   `json:"type"` // "select"
	Current  string   `json:"currentValue"`
	Choices  []choice `json:"options"`
}

// options are the options of a session.
type options []option

// newOptions returns the options for settings. The agent of a session that has begun is the only one to choose.
func newOptions(s Settings, offers Offers, begun bool) options {
	mode := option{ID: optionMode, Name: "Mode", Category: optionMode, Current: modeOf(s.Approval),
		About: "Actions that need your approval"}
	for _, one := range modes {
		mode.Choices = append(mode.Choices, choice{one.ID, one.Name, one.About})
	}
	agent := option{ID: optionAgent, Name: "Agent", Current: s.Agent, About: "Can change until the first prompt",
		Choices: plainChoices(offers.Agents, s.Agent)}
	if begun {
		agent.Choices = plainChoices(nil, s.Agent)
	}
	model := option{ID: optionModel, Name: "Model", Category: optionModel, Current: s.Model,
		About: "Changes hold from the next prompt", Choices: plainChoices(offers.Models, s.Model)}
	effort := option{ID: optionEffort, Name: "Effort", Category: "thought_level", Current: s.Effort,
		About: "How much the model thinks", Choices: plainChoices(offers.Efforts, s.Effort)}
	for _, o := range []*option{&model, &effort} {
		o.Current = cmp.Or(o.Current, byAgent)
		o.Choices = append([]choice{{Value: byAgent, Name: "The agent's own"}}, o.Choices...)
	}
	all := options{mode, agent, model, effort}
	for i := range all {
		all[i].Type = "select"
	}
	return all
}

// plainChoices returns choices whose names are their values, with the current one.
func plainChoices(values []string, current string) (all []choice) {
	if current != "" && !slices.Contains(values, current) {
		values = append([]string{current}, values...)
	}
	for _, v := range values {
		all = append(all, choice{Value: v, Name: v})
	}
	return all
}

// result returns the fields of an answer about the session. Modes are the older form of the option.
func (o options) result() map[string]any {
	return map[string]any{"configOptions": o, "modes": map[string]any{"currentModeId": o[0].Current,
		"availableModes": modes}}
}

// set returns the settings after a change of an option.
func (o options) set(s Settings, id, value string) (Settings, error) {
	at := slices.IndexFunc(o, func(one option) bool { return one.ID == id })
	if at < 0 {
		return s, errors.Newf(errors.Invalid, "unknown option %.100q", id)
	}
	one := o[at]
	known := slices.ContainsFunc(one.Choices, func(c choice) bool { return c.Value == value })
	switch {
	case !known && id == optionAgent && len(one.Choices) == 1:
		return s, errors.Remedy(errors.Newf(errors.Conflict, "the agent stays %s", one.Current),
			"start a new session in the editor: the agent can change until the first prompt, to one of --agents")
	case !known:
		var values []string
		for _, c := range one.Choices {
			values = append(values, c.Value)
		}
		return s, errors.Remedy(errors.Newf(errors.Invalid, "unknown %s %.100q", id, value), "choose one of %s",
			strings.Join(values, ", "))
	}
	own := value
	if value == byAgent {
		own = ""
	}
	switch id {
	case optionAgent:
		if value != s.Agent {
			s.Agent, s.Model, s.Effort = value, "", "" // these are of an agent
		}
	case optionModel:
		s.Model = own
	case optionEffort:
		s.Effort = own
	case optionMode:
		s.Approval = modes[slices.IndexFunc(modes, func(m mode) bool { return m.ID == value })].approval
	}
	return s, nil
}

// updates tell the editor of the options.
func (o options) updates() []update {
	return []update{{Kind: "config_option_update", Options: o}, {Kind: "current_mode_update", Mode: o[0].Current}}
}

func (f *face) setMode(params json.RawMessage) (work, error) {
	var p struct {
		Session string `json:"sessionId"`
		Mode    string `json:"modeId"`
	}
	jsonrpc.Decode(params, &p)
	return f.set(p.Session, optionMode, p.Mode)
}

func (f *face) setOption(params json.RawMessage) (work, error) {
	var p struct {
		Session string `json:"sessionId"`
		Option  string `json:"configId"`
		Value   string `json:"value"`
	}
	jsonrpc.Decode(params, &p)
	return f.set(p.Session, p.Option, p.Value)
}

// set changes an option of a session. The answer is that of both requests.
func (f *face) set(session, id, value string) (work, error) {
	t, err := f.opened(session)
	if err != nil {
		return nil, err
	}
	return func(ctx context.Context) (any, func(), error) {
		if err := t.change(ctx, id, value); err != nil {
			return nil, nil, err
		}
		return map[string]any{"configOptions": t.options()}, nil, nil
	}, nil
}

// change changes an option. The session changes at once, unless it is one that the next prompt replaces: the agent
// belongs to a session, and a session that has ended cannot change.
func (t *thread) change(ctx context.Context, id, value string) error {
	o := t.options()
	t.mu.Lock()
	was, session, ended := t.record.Settings, t.record.current(), t.ended
	was.Agent = cmp.Or(was.Agent, t.session.Agent)
	t.mu.Unlock()
	s, err := o.set(was, id, value)
	if err != nil || s == was {
		return err
	}
	later := s.Agent != was.Agent || ended
	if !later {
		if _, err := t.server.ChangeSession(ctx, session, difference(was, s)); err != nil {
			return err
		}
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	t.record.Settings, t.record.Changed = s, t.record.Changed || later
	t.save()
	return nil
}

// difference returns the change of a session from one settings to others.
func difference(was, s Settings) (c api.SessionChange) {
	if s.Model != was.Model {
		c.Model = &s.Model
	}
	if s.Effort != was.Effort {
		c.Effort = &s.Effort
	}
	if s.Approval != was.Approval {
		c.Approval = &s.Approval
	}
	return c
}

package bridge

import (
	"encoding/json"
	"slices"
	"strings"

	"github.com/RelevanceAI/harvest/internal/base/jsonrpc"
	"github.com/RelevanceAI/harvest/internal/session/agent"
)

// opened is the answer to session/new, load and resume.
type opened struct {
	Session string   `json:"sessionId"`
	Modes   modes    `json:"modes"`
	Options []option `json:"configOptions"`
	Meta    struct {
		Pi struct {
			Startup string `json:"startupInfo"`
		} `json:"piAcp"`
	} `json:"_meta"`
	Models struct {
		Current string `json:"currentModelId"`
		All     []struct {
			ID   string `json:"modelId"`
			Name string `json:"name"`
		} `json:"availableModels"`
	} `json:"models"`
}

type modes struct {
	Current string `json:"currentModeId"`
	All     []struct {
		ID string `json:"id"`
	} `json:"availableModes"`
}

// option is an option of a session.
type option struct {
	ID       string          `json:"id"`
	Category string          `json:"category"`
	Current  json.RawMessage `json:"currentValue"`
	Values   []value         `json:"options"`
}

type value struct {
	Value string `json:"value"`
	Name  string `json:"name"`
	// Values are those of a group.
	Values []value `json:"options"`
}

// current returns the current value; "" unless it is a text.
func (o option) current() (text string) {
	jsonrpc.Decode(o.Current, &text)
	return text
}

// all returns the values of an option, without groups.
func (o option) all() (all []value) {
	for _, v := range o.Values {
		all = append(append(all, v), v.Values...)
	}
	return all
}

// setting is a step of the configuration.
type setting struct {
	method string
	params map[string]any
	failed func(text string)
	// answered gets the answer; nil ignores it.
	answered func(result json.RawMessage)
}

// configure sets the model, the effort and the mode, one after the other, and then reports that the session is ready.
func (s *session) configure(o opened) {
	s.using = o.Models.Current
	for _, opt := range o.Options {
		if opt.Category == "model" && opt.current() != "" {
			s.using = opt.current()
		}
	}
	rest := func() { s.apply(append(s.chooseEffort(o), s.chooseMode(o)...), s.begun) }
	if s.model == "" || s.model == s.using {
		rest()
		return
	}
	step := s.chooseModel(o)
	step.answered = func(result json.RawMessage) {
		var now struct {
			Options []option `json:"configOptions"` // efforts depend on the model
		}
		if jsonrpc.Decode(result, &now); len(now.Options) > 0 {
			o.Options = now.Options
		}
	}
	s.apply([]setting{step}, rest)
}

// apply takes the steps one after the other, and then calls done.
func (s *session) apply(steps []setting, done func()) {
	if len(steps) == 0 {
		done()
		return
	}
	step := steps[0]
	step.params["sessionId"] = s.id
	s.call(step.method, step.params, optionTime, func(result json.RawMessage, f *jsonrpc.Failure) {
		switch {
		case f != nil:
			step.failed(f.Text())
		case step.answered != nil:
			step.answered(result)
		}
		s.apply(steps[1:], done)
	})
}

// chooseEffort returns the step that sets the effort of the model, if one is wanted. Where it cannot be set, a notice
// says so.
func (s *session) chooseEffort(o opened) []setting {
	if s.effort == "" {
		return nil
	}
	failed := func(text string) {
		s.notice("effort", "%s does not use effort %q: %s", s.name, s.effort, text)
	}
	for _, opt := range o.Options {
		if opt.Category != "thought_level" {
			continue
		}
		var offered []string
		for _, v := range opt.all() {
			if v.Value == s.effort {
				return []setting{{method: "session/set_config_option",
					params: map[string]any{"configId": opt.ID, "value": s.effort}, failed: failed}}
			}
			offered = append(offered, v.Value)
		}
		failed("it offers " + strings.Join(offered, ", "))
		return nil
	}
	failed("it has no such option")
	return nil
}

// chooseModel returns the step that sets the model: as an option of the session, or by the older method.
func (s *session) chooseModel(o opened) setting {
	before := s.using
	s.using = s.model
	failed := func(text string) {
		s.using = before
		s.notice("model", "%s does not use model %q: %s", s.name, s.model, text)
	}
	for _, opt := range o.Options {
		if opt.Category != "model" {
			continue
		}
		for _, v := range opt.all() {
			if v.Name == s.model && v.Value != "" {
				s.using = v.Value
			}
		}
		return setting{method: "session/set_config_option",
			params: map[string]any{"configId": opt.ID, "value": s.using}, failed: failed}
	}
	for _, m := range o.Models.All {
		if m.Name == s.model {
			s.using = m.ID
		}
	}
	return setting{method: "session/set_model", params: map[string]any{"modelId": s.using}, failed: failed}
}

// chooseMode returns the steps that make the agent ask for approval as the session's user wants. Where it cannot be
// set, a notice says so.
func (s *session) chooseMode(o opened) (steps []setting) {
	wanted := s.quirks.modes[s.approval]
	if wanted == nil {
		wanted = []choice{{values: usual[s.approval]}}
	}
	found := false
	for _, w := range wanted {
		if step, ok := s.choose(o, w); ok {
			steps, found = append(steps, step), true
		}
	}
	switch {
	case s.approval == agent.ApproveAll:
	case s.quirks.never:
		s.notice("never_asks", "%s asks nobody for approval: the sandbox is the only limit", s.name)
	case !found:
		s.notice("mode_unknown", "%s has no mode that Harvest knows for approval %q: it may ask for less, and the "+
			"sandbox is the limit", s.name, s.approval)
	}
	return steps
}

// choose returns the step for a choice. It finds the mode as an option or as a mode of the session, since agents offer
// one of them or both.
func (s *session) choose(o opened, c choice) (setting, bool) {
	failed := func(text string) {
		s.mode = ""
		s.notice("mode", "%s did not accept its mode: %s. It may ask for less, and the sandbox is the limit", s.name,
			text)
	}
	if c.option == "" {
		for _, want := range c.values {
			for _, m := range o.Modes.All {
				if short(m.ID) == want {
					s.mode = m.ID
					return setting{method: "session/set_mode", params: map[string]any{"modeId": m.ID},
						failed: failed}, true
				}
			}
		}
	}
	for _, opt := range o.Options {
		if c.option != opt.ID && (c.option != "" || opt.Category != "mode" && opt.ID != "mode") {
			continue
		}
		for _, want := range c.values {
			at := slices.IndexFunc(opt.all(), func(v value) bool { return short(v.Value) == want })
			if at < 0 {
				continue
			}
			chosen := opt.all()[at].Value
			if c.option == "" {
				s.mode = chosen
			}
			params := map[string]any{"configId": opt.ID, "value": chosen}
			return setting{method: "session/set_config_option", params: params, failed: failed}, true
		}
	}
	return setting{}, false
}

// short returns the name of a mode, whose ID may be a URL.
func short(id string) string { return id[strings.LastIndex(id, "#")+1:] }

// changedMode reports a mode that the agent has changed itself.
func (s *session) changedMode(mode string) {
	if !s.ready || s.mode == "" || mode == "" || mode == s.mode {
		return
	}
	s.mode = mode
	s.notice("mode_changed", "%s changed its mode to %s", s.name, short(mode))
}

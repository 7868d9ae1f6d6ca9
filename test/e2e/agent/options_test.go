package agent

import (
	"bytes"
	"encoding/json"
	"strings"
	"testing"

	"github.com/RelevanceAI/harvest/client/api"
	"github.com/RelevanceAI/harvest/internal/base/testenv"
	"github.com/RelevanceAI/harvest/test/host"
	"github.com/RelevanceAI/harvest/test/stubs/modeltest"
)

// TestRealAgentsChangeOptions checks that the next prompt of a session goes to another model, with the earlier
// conversation, after harvest set, and that --continue changes options as well.
//
// mission: E1, E3
func TestRealAgentsChangeOptions(t *testing.T) {
	testenv.Long(t)
	t.Parallel()
	for name, models := range map[string][2]string{
		"claude":   {"claude-haiku-4-5", "claude-opus-4-6"},
		"opencode": {"anthropic/claude-haiku-4-5", "anthropic/claude-opus-4-6"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			stub := modeltest.New(t, host.ModelKey)
			stub.Script("first", modeltest.Step{Say: "It is a walnut."})
			stub.Script("second", modeltest.Step{Say: "Still a walnut."})
			stub.Script("third", modeltest.Step{Say: "And again."})
			h := host.NewCLI(t, stub)
			h.Must("agent", "--agent", name, "--model", models[0], "--repo", "none", "-o", "json", "[first] go")
			id := h.Session()
			out := h.Must("set", id, "--model", models[1], "--effort", "high", "--max-turns", "3", "-o", "json")
			var s api.Session
			if err := json.Unmarshal([]byte(out), &s); err != nil || s.Model != models[1] || s.Effort != "high" ||
				s.Limits.Turns != 3 {
				t.Errorf("%v: %s", err, out)
			}
			before := len(stub.Requests())
			if out := h.Must("send", id, "[second] go"); !strings.Contains(out, "Still a walnut.") {
				t.Errorf("%s; %s", out, h.Log())
			}
			asked(t, stub.Requests()[before:], models[1], "[second]")
			before = len(stub.Requests())
			if out := h.Must("agent", "--continue="+id, "--plain", "--model", models[0], "[third] go"); out == "" {
				t.Error(h.Log())
			}
			asked(t, stub.Requests()[before:], models[0], "[third]")
		})
	}
}

// asked checks that the model was asked with the prompt and the beginning of the conversation.
func asked(t *testing.T, requests []modeltest.Request, model, prompt string) {
	t.Helper()
	_, model, _ = strings.Cut("/"+model, "/")
	if _, after, ok := strings.Cut(model, "/"); ok {
		model = after
	}
	var found []string
	for _, r := range requests {
		if !bytes.Contains(r.Body, []byte(prompt)) || !bytes.Contains(r.Body, []byte("It is a walnut.")) {
			continue
		}
		var body struct{ Model string }
		if err := json.Unmarshal(r.Body, &body); err != nil {
			t.Fatal(err)
		}
		if body.Model == model {
			return
		}
		found = append(found, body.Model)
	}
	t.Errorf("%s: no request to %s with the conversation; those to others: %q", prompt, model, found)
}

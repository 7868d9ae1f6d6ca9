package main

import (
	"strings"
	"testing"

	"github.com/RelevanceAI/harvest/api"
	"github.com/RelevanceAI/harvest/model/modeltest"
)

// Whatever the model's API does, or happens to the program, the turn ends with a sentence, and the next one works.
//
// mission: E1, 4.5
func TestFaultsOfClaude(t *testing.T) {
	t.Parallel()
	stub := modeltest.New(t, modelKey)
	for name, step := range map[string]modeltest.Step{
		"e401": {Status: 401, Kind: "authentication_error"}, "e403": {Status: 403, Kind: "permission_error"}, "e429": {Status: 429, Kind: "rate_limit_error"},
		"e529": {Status: 529, Kind: "overloaded_error"}, "once429": {Status: 429, Kind: "rate_limit_error", Times: 1, Say: "Well."},
		"once529": {Status: 529, Kind: "overloaded_error", Times: 1, Say: "Well."}, "cut": {Cut: true, Times: 1, Say: "Well."}, "hang": {Hang: true},
	} {
		stub.Script(name, step)
	}
	stub.Script("long", modeltest.Step{Call: "Bash", Input: map[string]any{"command": "tail -f /dev/null", "description": "wait"}})
	stub.Script("slow", modeltest.Step{Call: "Bash", Input: map[string]any{"command": "timeout 5 tail -f /dev/null || true", "description": "wait"}}, modeltest.Step{Say: "Awake."})
	stub.Script("hello", modeltest.Step{Say: "Hello."})
	h := newCLIHost(t, stub)
	h.must("agent", "--agent", "claude", "--repo", "none", "-e", "CLAUDE_CODE_MAX_RETRIES=1", "-d", "[hello] you")
	id := h.session()
	after := h.event(id, 0, "done").ID
	// turn sends a prompt, does something meanwhile, and returns how it ended, and whether a request was tried again.
	turn := func(prompt, until string, meanwhile func()) (done api.SessionEvent, again bool) {
		t.Helper()
		h.must("send", "-d", id, prompt)
		if meanwhile != nil {
			h.event(id, after, until)
			meanwhile()
		}
		end := h.event(id, after, "done")
		if retry := h.find(id, after, end.ID, "agent.retrying"); retry {
			again = true
		}
		after = end.ID
		return end.Data, again
	}
	for _, c := range []struct {
		name, want string
		failed     bool
		again      bool
	}{
		{"e401", "403", true, false}, // which the gateway makes of it, so that nobody tries for minutes
		{"e403", "403", true, false},
		{"e429", "429", true, true},
		{"e529", "529", true, true},
		{"once429", "Well.", false, true},
		{"once529", "Well.", false, true},
		{"cut", "Well.", false, false},
	} {
		done, again := turn("["+c.name+"] go", "", nil)
		if done.Failed != c.failed || !strings.Contains(done.Text, c.want) || c.again && !again {
			t.Errorf("%s: %+v, again %t", c.name, done, again)
		}
	}
	done, _ := turn("[hang] go", "agent.ready", func() { h.must("stop", id) })
	if !done.Interrupted {
		t.Errorf("a silent model, stopped: %+v", done)
	}
	done, _ = turn("[long] go", "tool.started", func() {
		h.must("sandbox", "exec", "--user", "0", h.box(), "--", "sh", "-c", `kill -9 $(for p in /proc/[0-9]*; do [ "$(cat $p/comm)" != claude ] || basename $p; done)`)
	})
	if !done.Failed || !strings.Contains(done.Text, "ended with code 137") {
		t.Errorf("killed: %+v", done)
	}
	if done, _ := turn("[hello] again", "", nil); done.Failed || done.Text != "Hello." {
		t.Errorf("after that: %+v", done)
	}
	if done, _ := turn("[hello] "+strings.Repeat("long ", 25000)+"\x1b[31m\a\r\x7f", "", nil); done.Failed || done.Text != "Hello." {
		t.Errorf("a long prompt with control characters: %+v", done)
	}
	// The server goes in the middle of a turn, which goes on; the next server answers the model's requests.
	if done, _ := turn("[slow] go", "tool.started", func() { h.must("down"); h.must("sessions") }); done.Failed || done.Text != "Awake." {
		t.Errorf("over a restart of the server: %+v", done)
	}
	h.must("end", id)

	h.must("agent", "--agent", "claude", "--repo", "none", "--max-usd", "0.001", "-d", "[slow] go")
	id = h.session()
	if done := h.event(id, 0, "done").Data; !done.Failed || !strings.Contains(done.Text, "limit of cost") {
		t.Errorf("a session that may cost nothing: %+v", done)
	}
}

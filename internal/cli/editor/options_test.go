package editor

import (
	"encoding/json"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/RelevanceAI/harvest/client/api"
	"github.com/RelevanceAI/harvest/client/errors"
)

// TestOptions checks the changes of options: to offered values only, and of the agent until the first prompt only.
func TestOptions(t *testing.T) {
	t.Parallel()
	s := Settings{Agent: "claude", Model: "opus", Effort: "max", Approval: "ask"}
	offers := Offers{Agents: []string{"claude", "codex"}, Models: []string{"haiku"}, Efforts: []string{"low"}}
	open, begun := newOptions(s, offers, false), newOptions(s, offers, true)
	for change, want := range map[string]Settings{
		"mode all": {"claude", "opus", "max", ""}, "mode ask": s, "model default": {"claude", "", "max", "ask"},
		"model haiku": {"claude", "haiku", "max", "ask"}, "effort low": {"claude", "opus", "low", "ask"},
		"effort default": {"claude", "opus", "", "ask"}, "agent codex": {"codex", "", "", "ask"}, "agent claude": s,
	} {
		id, value, _ := strings.Cut(change, " ")
		if got, err := open.set(s, id, value); err != nil || got != want {
			t.Errorf("%s: %+v, %v", change, got, err)
		}
		if got, err := begun.set(s, id, value); change != "agent codex" && (err != nil || got != want) {
			t.Errorf("%s of a session that has begun: %+v, %v", change, got, err)
		}
	}
	for _, change := range []string{"mode never", "agent goose", "model sonnet", "effort high", "colour red", " "} {
		id, value, _ := strings.Cut(change, " ")
		if got, err := open.set(s, id, value); errors.KindOf(err) != errors.Invalid || got != s {
			t.Errorf("%s: %+v, %v", change, got, err)
		}
	}
	if _, err := begun.set(s, "agent", "codex"); errors.KindOf(err) != errors.Conflict {
		t.Errorf("%v", err)
	}
	text, err := json.Marshal(begun.result())
	for _, want := range []string{`"currentModeId":"ask"`,
		`{"id":"plan","name":"Plan","description":"The agent plans, and changes nothing"}`,
		`"currentValue":"claude","options":[{"value":"claude","name":"claude"}]`} {
		if err != nil || !strings.Contains(string(text), want) {
			t.Errorf("%s lacks %s, %v", text, want, err)
		}
	}
	empty := newOptions(Settings{}, Offers{}, true)
	if empty[2].Current != byAgent || empty[3].Current != byAgent || len(empty[2].Choices) != 1 {
		t.Errorf("%+v", empty)
	}
}

// TestRecords checks that threads are found after a restart, and which of them are listed.
func TestRecords(t *testing.T) {
	t.Parallel()
	dir := t.TempDir() + "/editor"
	for id, r := range map[string]record{
		"ses_a": {Dir: "/p", Sessions: []string{"ses_a", "ses_b"}, Prompted: true, Settings: Settings{Agent: "pi"}},
		"ses_c": {Dir: "/p", Sessions: []string{"ses_c"}, Prompted: true},
		"ses_d": {Dir: "/q", Sessions: []string{"ses_d"}, Prompted: true},
		"ses_e": {Dir: "/p", Sessions: []string{"ses_e"}}, // without a prompt
		"ses_f": {Dir: "/p", Sessions: []string{"ses_f"}, Prompted: true},
	} {
		if err := r.write(dir, id); err != nil {
			t.Fatal(err)
		}
	}
	at := func(hour int) time.Time { return time.Date(2026, 1, 2, hour, 0, 0, 0, time.UTC) }
	sessions := []api.Session{{ID: "ses_b", Title: "one\ntwo", Active: at(3)}, {ID: "ses_c", Active: at(4)},
		{ID: "ses_d", Active: at(5)}, {ID: "ses_e", Active: at(6)}} // the server does not know ses_f
	records := readRecords(dir)
	for where, want := range map[string]string{"": "ses_d ses_c ses_a", "/p/": "ses_c ses_a", "/x": ""} {
		var got []string
		for _, one := range listed(records, sessions, where) {
			got = append(got, one.ID)
		}
		if strings.Join(got, " ") != want {
			t.Errorf("%q: %v, want %s", where, got, want)
		}
	}
	want := info{ID: "ses_a", Dir: "/p", Title: "one", Updated: "2026-01-02T03:00:00Z", active: at(3)}
	if diff := cmp.Diff(want, listed(records, sessions, "/p")[1], cmp.AllowUnexported(info{})); diff != "" {
		t.Error(diff)
	}
	if got := len(readRecords(dir + "/none")); got != 0 {
		t.Errorf("%d records", got)
	}
	for _, id := range []string{"", "a", "ses_../x", "ses_A", "ses_" + strings.Repeat("x", 100)} {
		if validID(id) {
			t.Errorf("%q is valid", id)
		}
	}
}

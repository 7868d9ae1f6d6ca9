package storetest

import (
	"fmt"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/RelevanceAI/harvest/client/errors"
	"github.com/RelevanceAI/harvest/internal/fleet/record"
	"github.com/RelevanceAI/harvest/internal/fleet/spec"
	"github.com/RelevanceAI/harvest/internal/session/agent"
	"github.com/RelevanceAI/harvest/internal/session/records"
	"github.com/RelevanceAI/harvest/internal/session/workspace"
)

// RunSessions runs the suite of session.Store. open returns a new, empty store.
func RunSessions(t *testing.T, open func(t *testing.T) records.Store) {
	for name, check := range map[string]func(*testing.T, records.Store){
		"a record comes back as it was put":      sessionRoundTrip,
		"lists are by account, age and liveness": sessionLists,
		"messages come back in order":            sessionMessages,
		"a missing record is NotFound":           sessionMissing,
		"totals are of one account":              sessionTotals,
		"spares are in no account":               sessionSpares,
		"texts of prompts and replies are found": sessionMentions,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			check(t, open(t))
		})
	}
}

// FullSession returns a record with every field set.
func FullSession(id string) records.Session {
	return records.Session{
		ID: id, Account: "acme", Title: "Do it", Agent: "claude", Model: "m", Repo: "https://example.org/a/b",
		Branch: "main", Base: "abc", Dir: "/workspace/b",
		Author: workspace.Author{Name: "Ada", Email: "ada@example.org"}, SandboxID: "sbx_1", Conversation: "c",
		Approval: agent.ApproveEdits,
		Limits:   records.Limits{Turns: 1, Seconds: 2.5, USD: 3}, Status: records.Done, Reason: "r", Turns: 4,
		Usage:   agent.Usage{InputTokens: 1, Cost: 0.5},
		Created: day, Active: day.Add(time.Minute), Ended: day.Add(time.Hour), Process: "p1", GitSecret: "github",
		Stopping:   "the user stopped it",
		Deliveries: []records.Delivery{{Message: "msg_1", Process: "p1", At: 7, Size: 5, Text: []byte("text\n")}},
		Repos: []workspace.Repository{{URL: "https://example.org/a/b", Branch: "main", Depth: 7, Dir: "/workspace/b",
			Base: "abc", Start: "abc"}},
		Pinned: true, Archived: true,
		Sandbox: spec.Request{Image: "agent", Secrets: []string{"s"},
			Volumes: []spec.Mount{{Name: "v", Path: "/v"}}, SnapshotOnEnd: true},
	}
}

func putSession(t *testing.T, s records.Store, r records.Session) {
	t.Helper()
	if err := s.PutSession(t.Context(), r); err != nil {
		t.Fatal(err)
	}
}

func sessionRoundTrip(t *testing.T, s records.Store) {
	want := FullSession("ses_1")
	putSession(t, s, want)
	for range 2 {
		got, err := s.Session(t.Context(), "ses_1")
		if diff := cmp.Diff(want, got); err != nil || diff != "" {
			t.Errorf("%v\n%s", err, diff)
		}
		want = records.Session{ID: "ses_1", Account: "acme", Status: records.Thinking}
		putSession(t, s, want)
	}
}

func sessionLists(t *testing.T, s records.Store) {
	for i, account := range []string{"acme", "other", "acme", "acme"} {
		r := FullSession(fmt.Sprintf("ses_%d", i))
		r.Account = account
		if i != 2 {
			r.Ended = time.Time{}
		}
		putSession(t, s, r)
	}
	for _, c := range []struct {
		account string
		live    bool
		before  string
		limit   int
		want    string
	}{
		{"acme", false, "", 0, "[ses_3 ses_2 ses_0]"},
		{"acme", true, "", 0, "[ses_3 ses_0]"},
		{"", true, "", 0, "[ses_3 ses_1 ses_0]"},
		{"acme", false, "ses_3", 1, "[ses_2]"},
		{"acme", false, "ses_0", 5, "[]"},
		{"nobody", false, "", 0, "[]"},
	} {
		list, err := s.Sessions(t.Context(), c.account, c.live, c.before, c.limit)
		ids := []string{}
		for _, r := range list {
			ids = append(ids, r.ID)
		}
		if got := fmt.Sprint(ids); err != nil || got != c.want {
			t.Errorf("%+v: %s, %v", c, got, err)
		}
	}
}

func sessionMessages(t *testing.T, s records.Store) {
	want := []records.Message{
		{ID: "msg_1", Session: "ses_1", Prompt: "a\x01\"", State: records.Completed, Reply: "ü", Created: day,
			Started: day, Ended: day.Add(1), Usage: agent.Usage{OutputTokens: 2}},
		{ID: "msg_3", Session: "ses_1", Prompt: "c", State: records.Queued, Created: day},
	}
	other := records.Message{ID: "msg_2", Session: "ses_2", Prompt: "b", State: records.Queued, Created: day}
	first := want[0]
	first.State = records.Running
	for _, m := range []records.Message{want[1], other, first, want[0]} {
		if err := s.PutMessage(t.Context(), m); err != nil {
			t.Fatal(err)
		}
	}
	got, err := s.Messages(t.Context(), "ses_1")
	if diff := cmp.Diff(want, got); err != nil || diff != "" {
		t.Errorf("%v\n%s", err, diff)
	}
	if got, err := s.Messages(t.Context(), "ses_9"); err != nil || len(got) != 0 {
		t.Errorf("%v, %v", got, err)
	}
}

func sessionMentions(t *testing.T, s records.Store) {
	for i, account := range []string{"acme", "acme", "other", "acme"} {
		r := FullSession(fmt.Sprintf("ses_%d", i))
		r.Account = account
		putSession(t, s, r)
	}
	for i, m := range []records.Message{
		{Session: "ses_0", Prompt: "Mend the Übung"},
		{Session: "ses_1", Prompt: "go on", Reply: "The übung is 100% mended."},
		{Session: "ses_2", Prompt: "the Übung of another account"},
		{Session: "ses_3", Prompt: "write about the Übung", Purpose: records.PurposePull},
		{Session: "ses_3", Prompt: "hello"},
	} {
		m.ID = fmt.Sprintf("msg_%d", i)
		if err := s.PutMessage(t.Context(), m); err != nil {
			t.Fatal(err)
		}
	}
	for text, want := range map[string]map[string]bool{
		"ÜBUNG": {"ses_0": true, "ses_1": true}, "100%": {"ses_1": true}, "_": {}, "hello": {"ses_3": true},
		"msg_": {},
	} {
		got, err := s.Mentioning(t.Context(), "acme", text)
		if diff := cmp.Diff(want, got); err != nil || diff != "" {
			t.Errorf("%q: %v\n%s", text, err, diff)
		}
	}
}

func sessionMissing(t *testing.T, s records.Store) {
	if _, err := s.Session(t.Context(), "ses_x"); errors.KindOf(err) != errors.NotFound {
		t.Error(err)
	}
}

func sessionTotals(t *testing.T, s records.Store) {
	for i, account := range []string{"acme", "other", "acme"} {
		r := FullSession(fmt.Sprintf("ses_%d", i))
		r.Account = account
		putSession(t, s, r)
		r.Turns, r.Usage = 10+i, agent.Usage{InputTokens: 1, OutputTokens: 20, CacheReadTokens: 300,
			CacheWriteTokens: 4000, Cost: 0.25}
		putSession(t, s, r)
	}
	for account, want := range map[string]records.Totals{
		"acme": {Sessions: 2, Turns: 22, Usage: agent.Usage{InputTokens: 2, OutputTokens: 40, CacheReadTokens: 600,
			CacheWriteTokens: 8000, Cost: 0.5}},
		"other": {Sessions: 1, Turns: 11, Usage: agent.Usage{InputTokens: 1, OutputTokens: 20, CacheReadTokens: 300,
			CacheWriteTokens: 4000, Cost: 0.25}},
		"nobody": {},
	} {
		if got, err := s.Totals(t.Context(), account); err != nil || got != want {
			t.Errorf("%s: %+v, %v", account, got, err)
		}
	}
}

func sessionSpares(t *testing.T, s records.Store) {
	older, spare, newer, last := FullSession("ses_1"), FullSession("ses_2"), FullSession("ses_3"), FullSession("ses_4")
	spare.Spare = true
	for _, r := range []records.Session{older, spare, newer} {
		putSession(t, s, r)
	}
	wantSessions(t, s, "acme", "", "[ses_3 ses_1]")
	wantSessions(t, s, "", "", "[ses_3 ses_2 ses_1]")
	if got, err := s.Session(t.Context(), "ses_2"); err != nil || got.Account != "acme" || !got.Spare {
		t.Errorf("%+v, %v", got, err)
	}
	if got, err := s.Totals(t.Context(), "acme"); err != nil || got.Sessions != 2 {
		t.Errorf("%+v, %v", got, err)
	}
	spare.Spare, spare.Place = false, "ses_3a"
	m := records.Message{ID: "msg_1", Session: "ses_2", Prompt: "a", State: records.Queued, Created: day}
	if err := s.TakeSession(t.Context(), spare, []records.Message{m}, record.Sandbox{ID: "sbx_1", Account: "acme",
		Status: record.Running}); err != nil {
		t.Fatal(err)
	}
	putSession(t, s, last)
	wantSessions(t, s, "acme", "", "[ses_4 ses_2 ses_3 ses_1]")
	wantSessions(t, s, "acme", "ses_2", "[ses_3 ses_1]")
	wantSessions(t, s, "acme", "ses_3a", "[ses_3 ses_1]")
	if got, err := s.Totals(t.Context(), "acme"); err != nil || got.Sessions != 4 {
		t.Errorf("%+v, %v", got, err)
	}
	if got, err := s.Messages(t.Context(), "ses_2"); err != nil || len(got) != 1 {
		t.Errorf("%+v, %v", got, err)
	}
	for range 2 {
		if err := s.DropSession(t.Context(), "ses_2"); err != nil {
			t.Fatal(err)
		}
	}
	wantSessions(t, s, "", "", "[ses_4 ses_3 ses_1]")
	if got, err := s.Messages(t.Context(), "ses_2"); err != nil || len(got) != 0 {
		t.Errorf("%+v, %v", got, err)
	}
}

func wantSessions(t *testing.T, s records.Store, account, before, want string) {
	t.Helper()
	list, err := s.Sessions(t.Context(), account, false, before, 0)
	ids := []string{}
	for _, r := range list {
		ids = append(ids, r.ID)
	}
	if got := fmt.Sprint(ids); err != nil || got != want {
		t.Errorf("sessions of %q before %q: %s, %v, want %s", account, before, got, err, want)
	}
}

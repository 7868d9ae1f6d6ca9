package server_test

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"github.com/RelevanceAI/harvest/client/api"
	"github.com/RelevanceAI/harvest/internal/base/account"
	journals "github.com/RelevanceAI/harvest/internal/base/event"
	"github.com/RelevanceAI/harvest/internal/server"
	"github.com/RelevanceAI/harvest/internal/session/agent"
	"github.com/RelevanceAI/harvest/internal/session/inbox"
	"github.com/RelevanceAI/harvest/internal/store/testdb"
)

// withInbox is an option for a server with inboxes.
func withInbox(t *testing.T, box **inbox.Box) func(*server.Options) {
	t.Helper()
	db := testdb.Open(t)
	journal := journals.Open(context.WithoutCancel(t.Context()), journals.Options{Store: db.Events()})
	opened, err := inbox.Open(t.Context(), inbox.Options{Store: db.Inbox(), Journal: journal})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		opened.Close()
		if err := journal.Close(context.Background()); err != nil {
			t.Error(err)
		}
	})
	*box = opened
	return func(o *server.Options) { o.Inbox, o.Events = opened, journal }
}

func addTo(t *testing.T, box *inbox.Box, account string, kinds ...inbox.Kind) {
	t.Helper()
	for n, kind := range kinds {
		if err := box.Add(t.Context(), inbox.Item{Account: account, Session: "ses_1", Kind: kind,
			Key: fmt.Sprintf("%s %d", kind, n), What: fmt.Sprintf("%s of %s", kind, account)}); err != nil {
			t.Fatal(err)
		}
	}
}

// inboxOf returns the items that a request lists, in words, from all pages.
func inboxOf(w *world, query string) (words []string) {
	w.t.Helper()
	for cursor := ""; ; {
		_, body := w.do("GET", api.Inbox+query+"&cursor="+cursor, "")
		page := parse[api.List[api.InboxItem]](w.t, body)
		for _, i := range page.Data {
			words = append(words, fmt.Sprintf("%d %s %s", i.Number, i.What, i.State))
		}
		if cursor = page.NextCursor; cursor == "" {
			return words
		}
	}
}

func wantInbox(w *world, query string, want ...string) {
	w.t.Helper()
	if diff := cmp.Diff(want, inboxOf(w, query), cmpopts.EquateEmpty()); diff != "" {
		w.t.Errorf("%s (-want +got):\n%s", query, diff)
	}
}

func TestInbox(t *testing.T) {
	t.Parallel()
	var box *inbox.Box
	w := start(t, withInbox(t, &box))
	w.want(200, "GET", api.Inbox, "")
	addTo(t, box, "personal", inbox.Approval, inbox.Finished, inbox.Silent, inbox.Login, inbox.Question)
	addTo(t, box, "acme", inbox.Finished, inbox.Approval)
	acme := w.as(account.Request{Account: "acme", Role: account.Admin})

	wantInbox(w, "?limit=2", "5 question of personal waiting", "4 login of personal waiting",
		"3 silent of personal waiting", "2 finished of personal waiting", "1 approval of personal waiting")
	wantInbox(acme, "?limit=1", "2 approval of acme waiting", "1 finished of acme waiting")

	for body, status := range map[string]int{`{}`: 400, `{"numbers":[1]}`: 409, `{"numbers":[9]}`: 404,
		`{"numbers":["x"]}`: 400, `{"other":1}`: 400} {
		w.want(status, "POST", api.InboxSeen, body)
	}
	acme.want(404, "POST", api.InboxSeen, `{"numbers":[4]}`) // of the other account
	acme.want(204, "POST", api.InboxSeen, `{"session_id":"ses_1"}`)
	wantInbox(w, "?limit=9", "5 question of personal waiting", "4 login of personal waiting",
		"3 silent of personal waiting", "2 finished of personal waiting", "1 approval of personal waiting")
	wantInbox(acme, "?all=true", "2 approval of acme waiting", "1 finished of acme seen")
	w.want(204, "POST", api.InboxSeen, `{"numbers":[2]}`)
	wantInbox(w, "?limit=9", "5 question of personal waiting", "4 login of personal waiting",
		"3 silent of personal waiting", "1 approval of personal waiting")
	w.want(204, "POST", api.InboxSeen, `{"all":true}`)
	wantInbox(w, "?limit=9", "5 question of personal waiting", "1 approval of personal waiting")

	reader := w.as(account.Request{Scopes: []account.Scope{account.Read}})
	reader.want(200, "GET", api.Inbox, "")
	reader.want(403, "POST", api.InboxSeen, `{"all":true}`)
	without := start(t)
	for _, rt := range [][2]string{{"GET", api.Inbox}, {"GET", api.InboxEvents}, {"POST", api.InboxSeen}} {
		without.want(501, rt[0], rt[1], `{"all":true}`)
	}
}

// TestInboxEvents checks that a reader gets the events of its own account only, and resumes behind the last one.
func TestInboxEvents(t *testing.T) {
	t.Parallel()
	var box *inbox.Box
	w := start(t, withInbox(t, &box))
	acme := w.as(account.Request{Account: "acme"})
	addTo(t, box, "acme", inbox.Finished)
	addTo(t, box, "personal", inbox.Approval, inbox.Finished)
	w.want(204, "POST", api.InboxSeen, `{"all":true}`)
	follow := func(w *world, n int, query string, header ...string) (got []string) {
		t.Helper()
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		req, err := http.NewRequestWithContext(ctx, "GET", w.url+api.InboxEvents+query, nil)
		if err != nil {
			t.Fatal(err)
		}
		for _, h := range [][]string{w.headers, header} {
			for i := 0; i < len(h); i += 2 {
				req.Header.Set(h[i], h[i+1])
			}
		}
		resp, err := http.DefaultClient.Do(req)
		if err != nil {
			t.Fatal(err)
		}
		defer resp.Body.Close()
		lines := bufio.NewScanner(resp.Body)
		for len(got) < n && lines.Scan() {
			if data, ok := strings.CutPrefix(lines.Text(), "data: "); ok {
				i := parse[api.InboxItem](t, data)
				got = append(got, fmt.Sprintf("%d %s %s", i.Number, i.What, i.State))
			}
		}
		return got
	}
	want := []string{"1 approval of personal waiting", "2 finished of personal waiting", "2 finished of personal seen"}
	if diff := cmp.Diff(want, follow(w, 3, "")); diff != "" {
		t.Errorf("from the beginning (-want +got):\n%s", diff)
	}
	if diff := cmp.Diff(want[2:], follow(w, 1, "", api.HeaderLastEvent, "2")); diff != "" {
		t.Errorf("after the second (-want +got):\n%s", diff)
	}
	if diff := cmp.Diff(want[1:], follow(w, 2, "?tail=2")); diff != "" {
		t.Errorf("the last two (-want +got):\n%s", diff)
	}
	if diff := cmp.Diff([]string{"1 finished of acme waiting"}, follow(acme, 1, "")); diff != "" {
		t.Errorf("of acme (-want +got):\n%s", diff)
	}
	acme.want(400, "GET", api.InboxEvents+"?after=2", "")
}

// TestInboxItemsHaveOneForm checks that an event has the same JSON as the list.
func TestInboxItemsHaveOneForm(t *testing.T) {
	t.Parallel()
	var box *inbox.Box
	w := start(t, withInbox(t, &box))
	item := inbox.Item{Account: "personal", Session: "ses_1", Kind: inbox.Question, Key: "k", What: "what",
		Title: "title", Agent: "claude", SubAgent: "explore", QuestionID: "ask_1", Tool: "Ask",
		Input: json.RawMessage(`{"a":1}`), Text: "plan", MessageID: "msg_1", Outcome: "failed", Cost: 0.5, Secret: "s",
		Questions: []agent.Question{{Text: "q", Header: "h", Multiple: true, Options: []agent.Option{{Label: "l",
			Description: "d"}}}}}
	item.Deadline = item.Deadline.AddDate(2026, 1, 1)
	if err := box.Add(t.Context(), item); err != nil {
		t.Fatal(err)
	}
	_, body := w.do("GET", api.Inbox, "")
	list := parse[api.List[json.RawMessage]](t, body)
	stored, err := box.Items(t.Context(), "personal", inbox.Filter{})
	if err != nil {
		t.Fatal(err)
	}
	event, err := json.Marshal(stored[0])
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(string(event), string(list.Data[0])); diff != "" {
		t.Errorf("the list differs from the event (-event +list):\n%s", diff)
	}
}

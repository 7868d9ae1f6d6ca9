package storetest

import (
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"github.com/RelevanceAI/harvest/internal/session/agent"
	"github.com/RelevanceAI/harvest/internal/session/inbox"
)

// RunInbox runs the suite of inbox.Store. open returns a new, empty store.
func RunInbox(t *testing.T, open func(t *testing.T) inbox.Store) {
	for name, check := range map[string]func(*testing.T, inbox.Store){
		"items come back as they were put":             inboxRoundTrip,
		"a fact has one item":                          inboxOnce,
		"numbers are per account and never used again": inboxNumbers,
		"items are filtered and paged, newest first":   inboxFilter,
		"the oldest closed items are deleted first":    inboxKeep,
		"due items are found until they are delivered": inboxDue,
		"many at once": inboxConcurrent,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			check(t, open(t))
		})
	}
}

func inboxItem(account, session, key string, kind inbox.Kind) inbox.Item {
	return inbox.Item{ID: "inb_" + account + session + key, Account: account, Session: session, Key: key, Kind: kind,
		State: inbox.Waiting, Since: day, What: "né"}
}

func addItem(t *testing.T, s inbox.Store, item inbox.Item, keep int) inbox.Item {
	t.Helper()
	added, ok, err := s.AddItem(t.Context(), item, keep)
	if err != nil || !ok {
		t.Fatalf("add %s: %v, %v", item.Key, ok, err)
	}
	return added
}

func wantItems(t *testing.T, what string, got []inbox.Item, err error, want ...inbox.Item) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(want, got, cmpopts.EquateEmpty()); diff != "" {
		t.Errorf("%s (-want +got):\n%s", what, diff)
	}
}

func inboxRoundTrip(t *testing.T, s inbox.Store) {
	full := inboxItem("acme", "ses_1", "k", inbox.Question)
	full.Closed, full.Title, full.Agent, full.SubAgent = day.Add(time.Minute), "title", "claude", "explore: ü"
	full.Answer, full.QuestionID, full.Tool, full.Input = "no", "ask_1", "Bash", []byte(`{"a":"b"}`)
	full.Text, full.Deadline, full.Cut, full.MessageID = "plan", day.Add(time.Hour), true, "msg_1"
	full.Outcome, full.Cost, full.Secret, full.Due = "failed", 0.25, "s", 5
	full.Questions = []agent.Question{{Text: "q", Options: []agent.Option{{Label: "l", Description: "d"}}}}
	full = addItem(t, s, full, 10)
	found, err := s.Items(t.Context(), "acme", inbox.Filter{})
	wantItems(t, "after AddItem", found, err, full)
	full.State, full.Answer, full.Due = inbox.Answered, "yes", 1
	if err := s.PutItem(t.Context(), full); err != nil {
		t.Fatal(err)
	}
	found, err = s.Items(t.Context(), "acme", inbox.Filter{})
	wantItems(t, "after PutItem", found, err, full)
}

func inboxOnce(t *testing.T, s inbox.Store) {
	first := addItem(t, s, inboxItem("acme", "ses_1", "k", inbox.Approval), 10)
	for range 2 {
		again := first
		again.What = "another"
		if _, added, err := s.AddItem(t.Context(), again, 10); err != nil || added {
			t.Errorf("the same key again: %v, %v", added, err)
		}
		first.State = inbox.Answered // a closed item stays closed
		if err := s.PutItem(t.Context(), first); err != nil {
			t.Fatal(err)
		}
	}
	other := addItem(t, s, inboxItem("acme", "ses_2", "k", inbox.Approval), 10)
	theirs := addItem(t, s, inboxItem("other", "ses_1", "k", inbox.Approval), 10)
	found, err := s.Items(t.Context(), "acme", inbox.Filter{})
	wantItems(t, "of acme", found, err, other, first)
	found, err = s.Items(t.Context(), "other", inbox.Filter{})
	wantItems(t, "of other", found, err, theirs)
}

func inboxNumbers(t *testing.T, s inbox.Store) {
	for n := range int64(5) {
		for _, account := range []string{"acme", "other"} {
			// Each item displaces the one before.
			item := addItem(t, s, inboxItem(account, "", fmt.Sprint(n), inbox.Finished), 1)
			if item.Number != n+1 {
				t.Errorf("item %d of %s has the number %d", n, account, item.Number)
			}
		}
	}
}

func inboxFilter(t *testing.T, s inbox.Store) {
	var newest []inbox.Item
	for n := range 5 {
		session := fmt.Sprintf("ses_%d", n%2)
		newest = append([]inbox.Item{addItem(t, s, inboxItem("acme", session, fmt.Sprint(n), inbox.Finished), 10)},
			newest...)
	}
	theirs := addItem(t, s, inboxItem("other", "ses_0", "0", inbox.Approval), 10)
	newest[1].State = inbox.Seen // number 4, of ses_1
	if err := s.PutItem(t.Context(), newest[1]); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		filter inbox.Filter
		want   []inbox.Item
	}{
		{inbox.Filter{}, newest},
		{inbox.Filter{Waiting: true}, []inbox.Item{newest[0], newest[2], newest[3], newest[4]}},
		{inbox.Filter{Session: "ses_1"}, []inbox.Item{newest[1], newest[3]}},
		{inbox.Filter{Session: "ses_1", Waiting: true}, []inbox.Item{newest[3]}},
		{inbox.Filter{Limit: 2}, newest[:2]},
		{inbox.Filter{Limit: 2, Before: newest[1].Number}, newest[2:4]},
		{inbox.Filter{Session: "ses_9"}, nil},
	} {
		found, err := s.Items(t.Context(), "acme", c.filter)
		wantItems(t, fmt.Sprintf("%+v", c.filter), found, err, c.want...)
	}
	found, err := s.OpenItems(t.Context())
	wantItems(t, "open", found, err, newest[4], newest[3], newest[2], newest[0], theirs)
}

func inboxKeep(t *testing.T, s inbox.Store) {
	add := func(key string, kind inbox.Kind, state inbox.State) {
		t.Helper()
		item := inboxItem("acme", "ses_1", key, kind)
		item.State = state
		addItem(t, s, item, 3)
	}
	want := func(want ...string) {
		t.Helper()
		found, err := s.Items(t.Context(), "acme", inbox.Filter{})
		var keys []string
		for _, i := range found {
			keys = append(keys, i.Key)
		}
		if diff := cmp.Diff(want, keys); err != nil || diff != "" {
			t.Errorf("left (-want +got): %v\n%s", err, diff)
		}
	}
	addItem(t, s, inboxItem("other", "ses_1", "theirs", inbox.Finished), 3)
	add("approval", inbox.Approval, inbox.Waiting)
	add("finished", inbox.Finished, inbox.Waiting)
	add("seen", inbox.Finished, inbox.Seen)
	add("question", inbox.Question, inbox.Waiting)
	want("question", "finished", "approval")
	add("newer", inbox.Finished, inbox.Waiting)
	want("newer", "question", "approval")
	add("third", inbox.Question, inbox.Waiting)
	want("third", "question", "approval")
	add("fourth", inbox.Question, inbox.Waiting)
	want("fourth", "third", "question")
	found, err := s.Items(t.Context(), "other", inbox.Filter{})
	if err != nil || len(found) != 1 {
		t.Errorf("the other account has %d items, %v", len(found), err)
	}
}

func inboxDue(t *testing.T, s inbox.Store) {
	one, two, none := inboxItem("acme", "ses_1", "1", inbox.Approval), inboxItem("other", "ses_1", "2", inbox.Approval),
		inboxItem("acme", "ses_1", "3", inbox.Approval)
	one.Due, two.Due = 3, 2
	one, two = addItem(t, s, one, 10), addItem(t, s, two, 10)
	addItem(t, s, none, 10)
	due := func(bits int, want ...inbox.Item) {
		t.Helper()
		found, err := s.DueItems(t.Context(), bits)
		wantItems(t, fmt.Sprintf("due for %d", bits), found, err, want...)
	}
	due(1, one)
	due(2, one, two)
	due(4)
	if err := s.Delivered(t.Context(), one, 2); err != nil {
		t.Fatal(err)
	}
	one.Due = 1
	due(1, one)
	due(2, two)
	if err := s.Delivered(t.Context(), two, 2); err != nil {
		t.Fatal(err)
	}
	due(2)
}

func inboxConcurrent(t *testing.T, s inbox.Store) {
	const workers, each = 8, 20
	var wg sync.WaitGroup
	for w := range workers {
		wg.Go(func() {
			for i := range each {
				item, added, err := s.AddItem(t.Context(), inboxItem("acme", fmt.Sprintf("ses_%d", w), fmt.Sprint(i),
					inbox.Approval), 1000)
				if err != nil || !added {
					t.Errorf("add: %v, %v", added, err)
					return
				}
				if err := s.PutItem(t.Context(), item); err != nil {
					t.Errorf("put: %v", err)
				}
			}
		})
	}
	wg.Wait()
	found, err := s.Items(t.Context(), "acme", inbox.Filter{})
	if err != nil || len(found) != workers*each || found[0].Number != workers*each {
		t.Errorf("%d items, %v", len(found), err)
	}
}

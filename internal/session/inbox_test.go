package session_test

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"github.com/RelevanceAI/harvest/client/errors"
	"github.com/RelevanceAI/harvest/internal/base/testenv"
	"github.com/RelevanceAI/harvest/internal/session"
	"github.com/RelevanceAI/harvest/internal/session/agent"
	"github.com/RelevanceAI/harvest/internal/session/inbox"
)

// waiting returns the items of the account in words, the oldest first.
func (h *house) waiting(t *testing.T) (words []string) {
	t.Helper()
	found, err := h.inbox.Items(t.Context(), account, inbox.Filter{})
	if err != nil {
		t.Fatal(err)
	}
	for _, i := range slices.Backward(found) {
		text := fmt.Sprintf("%d %s %s: %s", i.Number, i.Kind, i.State, i.What)
		for name, value := range map[string]string{"by": i.SubAgent, "answer": i.Answer, "outcome": i.Outcome} {
			if value != "" {
				text += ", " + name + " " + value
			}
		}
		words = append(words, text)
	}
	return words
}

// awaits waits until the inbox is as wanted.
func (h *house) awaits(t *testing.T, want ...string) {
	t.Helper()
	var got []string
	defer func() {
		t.Helper()
		if t.Failed() {
			t.Logf("the inbox is:\n%s", strings.Join(got, "\n"))
		}
	}()
	testenv.Eventually(t, "the inbox "+strings.Join(want, "; "), func() bool {
		got = h.waiting(t)
		return cmp.Equal(want, got, cmpopts.EquateEmpty())
	})
}

func TestInboxOfASession(t *testing.T) {
	t.Parallel()
	h := newHouse(t, session.Options{})
	s := h.create(t, session.Request{Prompt: "/agent explore /approve echo hi", Approval: agent.ApproveNone})
	asked := "1 approval waiting: Bash: echo hi, by explore: approve echo hi"
	h.awaits(t, asked)

	for range 2 { // the question stays the same for later servers
		h.close(t)
		h.open(t)
		h.awaits(t, asked)
	}
	items, err := h.inbox.Items(t.Context(), account, inbox.Filter{})
	if err != nil {
		t.Fatal(err)
	}
	if i := items[0]; i.Session != s.ID || i.Agent != "scripted" || i.Title != s.Title || i.Tool != "Bash" ||
		string(i.Input) != `{"command":"echo hi"}` || i.QuestionID != "ask_2" || i.MessageID != "" || i.Since.IsZero() {
		t.Errorf("%+v", i)
	}
	if err := h.Answer(t.Context(), account, s.ID, items[0].QuestionID, agent.Answer{Message: "not now"}); err != nil {
		t.Fatal(err)
	}
	answered := "1 approval answered: Bash: echo hi, by explore: approve echo hi, answer denied: not now"
	h.awaits(t, answered, "2 finished waiting: no text, outcome completed")

	h.send(t, s.ID, "/say look\n/fail it is broken")
	seen := "2 finished seen: no text, outcome completed"
	failed := "3 finished waiting: it is broken, outcome failed"
	h.awaits(t, answered, seen, failed)
	h.close(t)
	h.open(t)
	h.awaits(t, answered, seen, failed)
	if err := h.End(t.Context(), account, s.ID); err != nil {
		t.Fatal(err)
	}
	h.awaits(t, answered, seen, strings.Replace(failed, "waiting", "seen", 1))
}

// TestInboxHasOnlyWhatWaits checks that questions that Harvest answers itself are not in the inbox, and that those of a
// stopped turn leave it.
func TestInboxHasOnlyWhatWaits(t *testing.T) {
	t.Parallel()
	h := newHouse(t, session.Options{})
	free := h.create(t, session.Request{Prompt: "/approve true\n/ask Which? | red\n/say done"})
	h.awaits(t, "1 finished waiting: done, outcome completed")
	if err := h.End(t.Context(), account, free.ID); err != nil {
		t.Fatal(err)
	}
	s := h.create(t, session.Request{Prompt: "/ask First? | a || Second?", Approval: agent.ApproveNone})
	first := "1 finished seen: done, outcome completed"
	h.awaits(t, first, "2 question waiting: First? (and 1 more)")
	if err := h.Stop(t.Context(), account, s.ID); err != nil {
		t.Fatal(err)
	}
	stopped := []string{first, "2 question withdrawn: First? (and 1 more)"}
	h.awaits(t, append(stopped, "3 finished waiting: a user stopped it, outcome stopped")...)
	h.send(t, s.ID, "/ask Third?")
	stopped = append(stopped, "3 finished seen: a user stopped it, outcome stopped")
	h.awaits(t, append(stopped, "4 question waiting: Third?")...)
	if err := h.End(t.Context(), account, s.ID); err != nil {
		t.Fatal(err)
	}
	h.awaits(t, append(stopped, "4 question withdrawn: Third?")...)
	if err := h.Answer(t.Context(), account, s.ID, "ask_2", agent.Answer{Allow: true}); !errors.Is(err, errors.Gone) {
		t.Errorf("answer in a session that has ended: %v", err)
	}
}

func TestInboxHasSessionsThatFail(t *testing.T) {
	t.Parallel()
	h := newHouse(t, session.Options{})
	h.create(t, session.Request{Repo: "file:///does/not/exist", Prompt: "/say x"})
	var items []inbox.Item
	testenv.Eventually(t, "the end of the session in the inbox", func() bool {
		var err error
		items, err = h.inbox.Items(t.Context(), account, inbox.Filter{Waiting: true})
		return err == nil && len(items) == 1
	})
	if i := items[0]; i.Kind != inbox.Finished || i.Outcome != "ended" || !strings.HasPrefix(i.What, "repository: ") {
		t.Errorf("%+v", i)
	}
}

package past

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/google/go-cmp/cmp"

	"github.com/RelevanceAI/harvest/client/errors"
	"github.com/RelevanceAI/harvest/internal/session/records"
)

// store has sessions, each with messages.
type store struct {
	records.Store
	sessions map[string]records.Session
	messages map[string][]records.Message
	asked    []string
	err      error
}

func (s *store) Session(_ context.Context, id string) (records.Session, error) {
	if found, ok := s.sessions[id]; ok {
		return found, nil
	}
	if s.err != nil {
		return records.Session{}, s.err
	}
	return records.Session{}, errors.Newf(errors.NotFound, "session %s: not found", id)
}

func (s *store) Messages(_ context.Context, id string) ([]records.Message, error) {
	s.asked = append(s.asked, id)
	return s.messages[id], nil
}

func turns(prefix string, n int) []records.Message {
	var all []records.Message
	for i := range n {
		all = append(all, records.Message{State: records.Completed, Prompt: fmt.Sprint(prefix, "?", i),
			Reply: fmt.Sprint(prefix, "!", i)})
	}
	return all
}

// TestMessagesOfContinuedSessions checks that the last ten messages come from as many earlier sessions as needed, the
// oldest first, and that a session that was deleted, or that continues itself, ends the search.
func TestMessagesOfContinuedSessions(t *testing.T) {
	t.Parallel()
	s := &store{sessions: map[string]records.Session{"b": {ID: "b", Continues: "a"}, "a": {ID: "a", Continues: "gone"},
		"loop": {ID: "loop", Continues: "b2"}, "b2": {ID: "b2", Continues: "loop"}},
		messages: map[string][]records.Message{"c": turns("c", 2), "b": turns("b", 2), "a": turns("a", 9),
			"full": turns("f", 6), "loop": turns("l", 1), "b2": turns("m", 1)}}
	for name, c := range map[string]struct {
		from  records.Session
		asked []string
		first string
		count int
	}{
		"three sessions": {records.Session{ID: "c", Continues: "b"}, []string{"c", "b", "a"}, "User:\n> a?8", 10},
		"one is enough":  {records.Session{ID: "full", Continues: "c"}, []string{"full"}, "User:\n> f?1", 10},
		"one is deleted": {records.Session{ID: "c", Continues: "x"}, []string{"c"}, "User:\n> c?0", 4},
		"a circle":       {s.sessions["loop"], []string{"loop", "b2"}, "User:\n> m?0", 4},
		"none":           {records.Session{ID: "new"}, []string{"new"}, "", 0},
	} {
		s.asked = nil
		got, err := Messages(t.Context(), s, c.from)
		if err != nil || len(got) != c.count || len(got) > 0 && got[0] != c.first {
			t.Errorf("%s: %q, %v", name, got, err)
		}
		if diff := cmp.Diff(c.asked, s.asked); diff != "" {
			t.Errorf("%s: sessions (-want +got):\n%s", name, diff)
		}
	}
	s.err = errors.Newf(errors.Internal, "the disk is broken")
	if _, err := Messages(t.Context(), s, records.Session{ID: "c", Continues: "x"}); !errors.Is(err, errors.Internal) {
		t.Errorf("a store that fails: %v", err)
	}
}

// TestMessagesThatCount checks that prompts that the agent did not see, and Harvest's own, are left out, and how others
// are named.
func TestMessagesThatCount(t *testing.T) {
	t.Parallel()
	s := &store{messages: map[string][]records.Message{"s": {
		{State: records.Completed, Prompt: "\n one \n two\n", Reply: "ok"},
		{State: records.Broken, Prompt: "failed"},
		{State: records.Completed, Prompt: "a task ended", Own: true, Reply: "seen"},
		{State: records.Completed, Prompt: "write a title", Purpose: records.PurposePull, Reply: "a title"},
		{State: records.Cancelled, Prompt: "cancelled"},
		{State: records.Queued, Prompt: "queued"},
		{State: records.Held, Prompt: "held"},
		{State: records.Running, Prompt: "running"},
	}}}
	got, err := Messages(t.Context(), s, records.Session{ID: "s"})
	want := []string{"User:\n>  one \n>  two", "You:\n> ok", "User:\n> failed", "Notification:\n> a task ended",
		"You:\n> seen"}
	if diff := cmp.Diff(want, got); err != nil || diff != "" {
		t.Errorf("%v (-want +got):\n%s", err, diff)
	}
}

// TestLongMessagesAreCut checks that a long message is cut between characters.
func TestLongMessagesAreCut(t *testing.T) {
	t.Parallel()
	got := quoted("You", strings.Repeat("x", recallBytes-1)+"éé")
	if want := "You:\n> " + strings.Repeat("x", recallBytes-1) + "…"; got != want || !utf8.ValidString(got) {
		t.Errorf("%d bytes, ending in %q", len(got), got[len(got)-10:])
	}
	if got := quoted("You", strings.Repeat("x", recallBytes)); strings.HasSuffix(got, "…") {
		t.Error("a message of the maximum length was cut")
	}
}

// TestPrompt checks that the user's message is last, and apart from the quotations.
func TestPrompt(t *testing.T) {
	t.Parallel()
	got := Prompt([]string{"User:\n> a", "You:\n> b"}, "next\nplease")
	if !strings.HasSuffix(got, "\n\nUser:\n> a\n\nYou:\n> b\n\nThis is the user's next message:\n\nnext\nplease") {
		t.Errorf("%q", got)
	}
}

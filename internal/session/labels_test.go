package session_test

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/RelevanceAI/harvest/client/errors"
	"github.com/RelevanceAI/harvest/internal/session"
	"github.com/RelevanceAI/harvest/internal/session/records"
)

// TestLabels checks that the title and the pin of a session can change at any time, that it can be archived after its
// end, and that lists find sessions by what they mention.
//
// mission: 7.4
func TestLabels(t *testing.T) {
	t.Parallel()
	h := newHouse(t, session.Options{})
	s := h.create(t, session.Request{Prompt: "/say The Übung is mended"})
	other := h.create(t, session.Request{Prompt: "/say hello"})
	w := h.watch(s.ID)
	w.status(t, records.Done)
	on, off := true, false
	change := func(title string, pinned, archived *bool) (records.Session, error) {
		return session.Update(t.Context(), h.Manager, account, s.ID,
			session.Change{Title: &title, Pinned: pinned, Archived: archived})
	}
	active := mustGet(t, h, s.ID).Active

	if _, err := change("x", nil, &on); errors.KindOf(err) != errors.Conflict {
		t.Errorf("archived before its end: %v", err)
	}
	for _, bad := range []string{"a\nb", "a\x1b[2J", strings.Repeat("x", 201), "\xff"} {
		if _, err := change(bad, &on, nil); errors.KindOf(err) != errors.Invalid {
			t.Errorf("title %q: %v", bad, err)
		}
	}
	if got := mustGet(t, h, s.ID); got.Title != "/say The Übung is mended" || got.Pinned || got.Archived {
		t.Errorf("after refused changes: %+v", got)
	}
	got, err := change("  Mend it ", &on, nil)
	if err != nil || got.Title != "Mend it" || !got.Pinned || !got.Active.Equal(active) {
		t.Errorf("%+v, %v", got, err)
	}
	wantEqual(t, "event", w.until(t, records.EventRenamed).data.Text, "Mend it")
	h.close(t)
	h.open(t)
	if got := mustGet(t, h, s.ID); got.Title != "Mend it" || !got.Pinned {
		t.Errorf("after a restart: %+v", got)
	}

	if err := h.End(t.Context(), account, s.ID); err != nil {
		t.Fatal(err)
	}
	if got, err := change("", nil, &on); err != nil || got.Title != "/say The Übung is mended" || !got.Archived {
		t.Errorf("%+v, %v", got, err)
	}
	for _, c := range []struct {
		filter session.Filter
		want   []string
	}{
		{session.Filter{}, []string{other.ID}},
		{session.Filter{All: true}, []string{other.ID}},
		{session.Filter{Archived: true}, []string{s.ID}},
		{session.Filter{All: true, Text: "übung"}, []string{s.ID}},
		{session.Filter{Text: "übung"}, nil},
		{session.Filter{All: true, Text: "SCRIPTED"}, []string{other.ID, s.ID}},
		{session.Filter{All: true, Text: s.ID}, []string{s.ID}},
		{session.Filter{Pinned: true}, nil},
		{session.Filter{Pinned: true, Archived: true}, []string{s.ID}},
		{session.Filter{All: true, Text: "nosuch"}, nil},
	} {
		list, err := h.List(t.Context(), account, c.filter)
		var ids []string
		for _, s := range list {
			ids = append(ids, s.ID)
		}
		if err != nil || !slices.Equal(ids, c.want) {
			t.Errorf("%+v: %s, %v, want %s", c.filter, ids, err, c.want)
		}
	}
	if got, err := change("Again", &off, &off); err != nil || got.Pinned || got.Archived ||
		fmt.Sprint(mustGet(t, h, s.ID)) != fmt.Sprint(got) {
		t.Errorf("%+v, %v", got, err)
	}
	if _, err := session.Update(t.Context(), h.Manager, "other", s.ID,
		session.Change{Pinned: &on}); errors.KindOf(err) != errors.NotFound {
		t.Errorf("of another account: %v", err)
	}
}

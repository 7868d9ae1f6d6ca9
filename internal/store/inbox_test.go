package store

import (
	"path/filepath"
	"testing"

	"github.com/RelevanceAI/harvest/client/errors"
	"github.com/RelevanceAI/harvest/internal/session/inbox"
	"github.com/RelevanceAI/harvest/internal/store/storetest"
)

func TestInboxConformance(t *testing.T) {
	t.Parallel()
	storetest.RunInbox(t, func(t *testing.T) inbox.Store { return open(t, filepath.Join(t.TempDir(), "db")).Inbox() })
}

func TestInboxErrors(t *testing.T) {
	t.Parallel()
	db := open(t, filepath.Join(t.TempDir(), "db"))
	s := db.Inbox()
	if _, err := db.write.Exec("INSERT INTO inbox VALUES ('acme', 1, '', 'k', 1, 1, 1, 'no JSON')"); err != nil {
		t.Fatal(err)
	}
	_, err := s.Items(t.Context(), "acme", inbox.Filter{})
	check(t, errors.Message(err), "damaged")
	invalid := inbox.Item{Account: "other", Input: []byte("{")}
	if _, added, err := s.AddItem(t.Context(), invalid, 10); err == nil || added {
		t.Error("an item that is no JSON is added")
	}
	if err := s.PutItem(t.Context(), invalid); err == nil {
		t.Error("an item that is no JSON is stored")
	}
	if err := db.Close(); err != nil {
		t.Fatal(err)
	}
	_, added, adding := s.AddItem(t.Context(), inbox.Item{Account: "acme"}, 10)
	if added {
		t.Error("an item is added to a closed database")
	}
	_, items := s.Items(t.Context(), "acme", inbox.Filter{})
	_, open := s.OpenItems(t.Context())
	_, due := s.DueItems(t.Context(), 1)
	for what, err := range map[string]error{
		"AddItem": adding, "PutItem": s.PutItem(t.Context(), inbox.Item{}), "Items": items, "OpenItems": open,
		"DueItems": due, "Delivered": s.Delivered(t.Context(), inbox.Item{}, 1),
	} {
		if err == nil {
			t.Errorf("%s on a closed database succeeded", what)
		}
	}
}

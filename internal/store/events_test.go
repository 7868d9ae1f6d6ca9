package store

import (
	"path/filepath"
	"testing"
	"time"

	"github.com/RelevanceAI/harvest/internal/base/event"
	"github.com/RelevanceAI/harvest/internal/store/storetest"
)

func TestEventsConformance(t *testing.T) {
	t.Parallel()
	storetest.RunEvents(t, func(t *testing.T) event.Store { return open(t, filepath.Join(t.TempDir(), "db")).Events() })
}

func TestEventsErrors(t *testing.T) {
	t.Parallel()
	db := open(t, filepath.Join(t.TempDir(), "db"))
	if err := db.Close(); err != nil {
		t.Fatal(err)
	}
	s := db.Events()
	_, read := s.Read(t.Context(), "a", 0, 1)
	_, last := s.Last(t.Context(), "a")
	_, prune := s.Prune(t.Context(), "", time.Now())
	for what, err := range map[string]error{"Append": s.Append(t.Context(), []*event.Event{{Stream: "a", ID: 1}}),
		"Read": read, "Last": last, "Prune": prune} {
		if err == nil {
			t.Errorf("%s on a closed database succeeded", what)
		}
	}
}

// TestPruneMany checks that pruning works in pieces, and through all of them.
func TestPruneMany(t *testing.T) {
	t.Parallel()
	s := open(t, filepath.Join(t.TempDir(), "db")).Events()
	events := make([]*event.Event, 2*pruneChunk+1)
	for i := range events {
		events[i] = &event.Event{Stream: "a", ID: int64(i + 1), Type: "x", Time: time.UnixMilli(int64(i)),
			Data: []byte("{}")}
	}
	if err := s.Append(t.Context(), events); err != nil {
		t.Fatal(err)
	}
	if n, err := s.Prune(t.Context(), "", time.UnixMilli(2*pruneChunk)); err != nil || n != 2*pruneChunk {
		t.Errorf("%d pruned, %v", n, err)
	}
	if left, err := s.Read(t.Context(), "a", 0, 10); err != nil || len(left) != 1 {
		t.Errorf("%d left, %v", len(left), err)
	}
}

package session_test

import (
	"testing"

	"github.com/RelevanceAI/harvest/internal/base/testenv"
	"github.com/RelevanceAI/harvest/internal/session"
	"github.com/RelevanceAI/harvest/internal/session/records"
)

// TestSessionsWaitForTheirTurn checks that sessions that begin at the same moment start one after the other, and that
// the waiting ones report this.
//
// mission: E3
func TestSessionsWaitForTheirTurn(t *testing.T) {
	testenv.Long(t)
	t.Parallel()
	h := newHouse(t, session.Options{})
	h.close(t)
	h.boots = 1
	h.open(t)
	var watchers []*watcher
	for range 5 {
		watchers = append(watchers, h.watch(h.create(t, session.Request{Prompt: "/say here"}).ID))
	}
	waited := 0
	for _, w := range watchers {
		if done := w.until(t, "done"); done.data.Failed {
			t.Errorf("%s", w)
		}
		queued := false
		for _, e := range w.all {
			if e.typ == records.EventWaits {
				queued = true
			}
			if e.typ == records.EventStage && e.data.Stage.Name == "sandbox" && queued {
				waited++
			}
		}
	}
	if waited == 0 || waited == len(watchers) {
		t.Errorf("%d of %d waited", waited, len(watchers))
	}
}

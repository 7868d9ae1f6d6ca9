package storetest

import (
	"encoding/json"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"github.com/RelevanceAI/harvest/internal/base/event"
)

// RunEvents runs the suite of event.Store. open returns a new, empty store.
func RunEvents(t *testing.T, open func(t *testing.T) event.Store) {
	for name, check := range map[string]func(*testing.T, event.Store){
		"events come back as they were appended": eventRoundTrip,
		"streams are apart":                      eventStreams,
		"what does not follow is refused":        eventGaps,
		"pages have everything once":             eventPages,
		"pruned ids are not used again":          eventPrune,
		"many readers and one writer":            eventConcurrent,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			check(t, open(t))
		})
	}
}

func happened(stream string, id int64) *event.Event {
	return &event.Event{
		Stream: stream, ID: id, Type: "sandbox.ready",
		Time: day.Truncate(time.Microsecond).Add(time.Duration(id) * time.Second),
		Data: json.RawMessage(fmt.Sprintf(`{"n":%d,"text":"é \" \\ '"}`, id)),
	}
}

func appendEvents(t *testing.T, s event.Store, events ...*event.Event) {
	t.Helper()
	if err := s.Append(t.Context(), events); err != nil {
		t.Fatal(err)
	}
}

func readEvents(t *testing.T, s event.Store, stream string, after int64, limit int, want ...*event.Event) {
	t.Helper()
	got, err := s.Read(t.Context(), stream, after, limit)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(want, got, cmpopts.EquateEmpty(), cmpopts.IgnoreUnexported(event.Event{})); diff != "" {
		t.Errorf("events of %s after %d (-want +got):\n%s", stream, after, diff)
	}
}

func wantLast(t *testing.T, s event.Store, stream string, want int64) {
	t.Helper()
	if got, err := s.Last(t.Context(), stream); err != nil || got != want {
		t.Errorf("the last event of %s is %d, %v, want %d", stream, got, err, want)
	}
}

func eventRoundTrip(t *testing.T, s event.Store) {
	readEvents(t, s, "a", 0, 10)
	wantLast(t, s, "a", 0)
	appendEvents(t, s)
	appendEvents(t, s, happened("a", 1), happened("a", 2))
	appendEvents(t, s, happened("a", 3))
	readEvents(t, s, "a", 0, 10, happened("a", 1), happened("a", 2), happened("a", 3))
	readEvents(t, s, "a", 2, 10, happened("a", 3))
	readEvents(t, s, "a", 3, 10)
	wantLast(t, s, "a", 3)
}

func eventStreams(t *testing.T, s event.Store) {
	appendEvents(t, s, happened("a", 1), happened("b", 1), happened("a", 2), happened("account/x", 1))
	readEvents(t, s, "a", 0, 10, happened("a", 1), happened("a", 2))
	readEvents(t, s, "b", 0, 10, happened("b", 1))
	wantLast(t, s, "account/x", 1)
	wantLast(t, s, "account", 0)
}

func eventGaps(t *testing.T, s event.Store) {
	appendEvents(t, s, happened("a", 1))
	for name, events := range map[string][]*event.Event{
		"a gap":        {happened("a", 2), happened("a", 4)},
		"twice":        {happened("a", 2), happened("a", 2)},
		"again":        {happened("a", 1)},
		"a late start": {happened("b", 2)},
		"one stream":   {happened("b", 1), happened("a", 3)},
	} {
		if err := s.Append(t.Context(), events); err == nil {
			t.Errorf("%s is accepted", name)
		}
	}
	readEvents(t, s, "a", 0, 10, happened("a", 1))
	readEvents(t, s, "b", 0, 10)
	wantLast(t, s, "a", 1)
}

func eventPages(t *testing.T, s event.Store) {
	for i := range 25 {
		appendEvents(t, s, happened("a", int64(i+1)))
	}
	after, total := int64(0), 0
	for {
		page, err := s.Read(t.Context(), "a", after, 10)
		if err != nil {
			t.Fatal(err)
		}
		if len(page) == 0 {
			break
		}
		if page[0].ID != after+1 || len(page) > 10 {
			t.Errorf("a page of %d begins at %d after %d", len(page), page[0].ID, after)
		}
		total += len(page)
		after = page[len(page)-1].ID
	}
	if total != 25 {
		t.Errorf("%d events, want 25", total)
	}
}

func eventPrune(t *testing.T, s event.Store) {
	at := func(n int) time.Time { return day.Truncate(time.Microsecond).Add(time.Duration(n) * time.Second) }
	appendEvents(t, s, happened("a", 1), happened("a", 2), happened("b", 1), happened("b", 2), happened("b", 3))
	for _, c := range []struct {
		stream string
		before time.Time
		want   int
	}{{"a", at(2), 1}, {"", at(3), 3}, {"", at(3), 0}, {"b", at(3600), 1}} {
		if n, err := s.Prune(t.Context(), c.stream, c.before); err != nil || n != c.want {
			t.Errorf("Prune(%q, %s) = %d, %v, want %d", c.stream, c.before, n, err, c.want)
		}
	}
	readEvents(t, s, "a", 0, 10)
	wantLast(t, s, "a", 2)
	appendEvents(t, s, happened("a", 3))
	readEvents(t, s, "a", 0, 10, happened("a", 3))
}

func eventConcurrent(t *testing.T, s event.Store) {
	const total = 200
	var wg sync.WaitGroup
	for range 4 {
		wg.Go(func() {
			after := int64(0)
			for after < total {
				page, err := s.Read(t.Context(), "a", after, 7)
				if err != nil {
					t.Errorf("read: %v", err)
					return
				}
				for _, e := range page {
					if e.ID != after+1 {
						t.Errorf("event %d follows %d", e.ID, after)
						return
					}
					after = e.ID
				}
			}
		})
	}
	for i := int64(1); i <= total; i++ {
		if err := s.Append(t.Context(), []*event.Event{happened("a", i), happened("b", i)}); err != nil {
			t.Errorf("append: %v", err)
			break
		}
	}
	wg.Wait()
}

package event

import (
	"context"
	"fmt"
	"testing"
)

// nowhere is a Store that keeps nothing but ids.
type nowhere struct {
	Store
	last map[string]int64
}

func (n nowhere) Append(_ context.Context, events []*Event) error {
	for _, e := range events {
		n.last[e.Stream] = e.ID
	}
	return nil
}

func (n nowhere) Last(_ context.Context, stream string) (int64, error) { return n.last[stream], nil }

func TestStreamsThatNobodyReadsAreForgotten(t *testing.T) {
	t.Parallel()
	j := Open(t.Context(), Options{Store: nowhere{last: map[string]int64{}}})
	r, err := j.Tail(t.Context(), "read", 0)
	if err != nil {
		t.Fatal(err)
	}
	for round := range 2 {
		for i := range idle + 10 {
			if err := j.Publish(t.Context(), Draft{Stream: fmt.Sprintf("s%d", i), Type: "x"}); err != nil {
				t.Fatal(err)
			}
		}
		if err := j.Publish(t.Context(), Draft{Stream: "read", Type: "x"}); err != nil {
			t.Fatal(err)
		}
		batch, err := r.Next(t.Context())
		if err != nil || batch[0].ID != int64(round+1) {
			t.Errorf("%v, %v", batch, err)
		}
		j.mu.Lock()
		if len(j.streams) > idle || j.streams["read"] == nil {
			t.Errorf("%d streams are remembered", len(j.streams))
		}
		j.mu.Unlock()
	}
	r.Close()
	if r.stream.recent != nil {
		t.Error("events are kept for nobody")
	}
	if err := j.Close(t.Context()); err != nil {
		t.Fatal(err)
	}
}

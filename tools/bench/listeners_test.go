package main

import (
	"fmt"
	"testing"
)

// TestListenersTake checks that listeners read pieces that are cut anywhere, with chunk sizes, comments and the
// beginning of the stream in them.
func TestListenersTake(t *testing.T) {
	t.Parallel()
	text := "c\r\n: \n\n\r\n"
	for id := 1; id <= 5; id++ {
		text += fmt.Sprintf("2f\r\nid: %d\nevent: bench.tick\ndata: {\"at\":%d}\n\n\r\n", id, id*100)
	}
	for cut := range len(text) {
		var one listener
		var got []int64
		add := func(id, at int64) { got = append(got, id, at) }
		one.take([]byte(text[:cut]), add)
		one.take([]byte(text[cut:]), add)
		if fmt.Sprint(got) != "[1 100 2 200 3 300 4 400 5 500]" {
			t.Fatalf("cut at %d: %v", cut, got)
		}
	}
}

func TestWaitAt(t *testing.T) {
	t.Parallel()
	waits := make([]uint32, 100)
	waits[4], waits[9], waits[20] = 50, 49, 1
	for p, want := range map[float64]string{50: "0.05", 99: "0.10", 100: "0.21"} {
		if got := fmt.Sprintf("%.2f", waitAt(waits, 100, p)); got != want {
			t.Errorf("p%.0f is %s, want %s", p, got, want)
		}
	}
	if waitAt(waits, 0, 50) != 0 {
		t.Error("there is a wait without any")
	}
}

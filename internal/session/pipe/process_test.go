package pipe

import (
	"fmt"
	"strings"
	"testing"
)

func TestTail(t *testing.T) {
	t.Parallel()
	var w tail
	for range 100 {
		fmt.Fprint(&w, strings.Repeat("x", 100))
	}
	fmt.Fprint(&w, "the end\n\xff")
	if got := w.String(); len(got) > tailSize || !strings.HasSuffix(got, "xthe end") {
		t.Errorf("%d bytes: …%q", len(got), got[max(0, len(got)-20):])
	}
}

package commands

import (
	"bytes"
	"fmt"
	"strings"
	"testing"
)

func TestCapture(t *testing.T) {
	t.Parallel()
	var all bytes.Buffer
	for i := range 1000 {
		fmt.Fprintf(&all, "%d,", i)
	}
	for _, limit := range []int{1, 2, 7, 64, 100, 3889, 3890, 3891, 10_000} {
		for _, size := range []int{0, 1, 3, 50, 63, 64, 65, 100, 1000, 3890} {
			for _, step := range []int{1, 3, 64, 4000} {
				c := capture{limit: limit}
				input := all.Bytes()[:size]
				for rest := input; len(rest) > 0; {
					n := min(step, len(rest))
					if written, err := c.Write(rest[:n]); written != n || err != nil {
						t.Fatalf("Write = %d, %v", written, err)
					}
					rest = rest[n:]
				}
				want := string(input)
				if size > limit {
					head := limit / 2
					want = string(input[:head]) + fmt.Sprintf("\n[… %d bytes left out …]\n",
						size-limit) + string(input[size-(limit-head):])
				}
				if got := c.text(); got != want {
					t.Errorf("limit %d, %d bytes in steps of %d: %q, want %q", limit, size, step, got, want)
				}
				if c.truncated() != (size > limit) {
					t.Errorf("limit %d, %d bytes: truncated %t", limit, size, c.truncated())
				}
			}
		}
	}
	if !strings.HasPrefix(all.String(), "0,1,2,") || all.Len() != 3890 {
		t.Fatalf("the input has %d bytes", all.Len())
	}
}

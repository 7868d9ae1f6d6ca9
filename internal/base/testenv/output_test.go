package testenv

import (
	"fmt"
	"testing"
	"testing/synctest"
)

// TestOutputCanBeAwaited checks that a waiter sees what arrives in parts, and that one that waits in vain fails with
// the output.
func TestOutputCanBeAwaited(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var out Output
		for _, part := range []string{"on", "e two", " three"} {
			go fmt.Fprint(&out, part)
			synctest.Wait()
		}
		if got := out.Until(t, "one"); got != "one two three" || out.String() != got {
			t.Errorf("the output is %q", got)
		}
		go fmt.Fprint(&out, " four")
		out.Until(t, "four")

		f := &fatal{TB: t}
		defer func() {
			if recover() == nil || f.calls.Load() != 1 {
				t.Errorf("a text that does not come failed the test %d times, want 1", f.calls.Load())
			}
		}()
		out.Until(f, "five")
	})
}

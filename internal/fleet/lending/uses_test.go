package lending

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/RelevanceAI/harvest/internal/fleet/record"
)

// TestEqualUsesAreReportedTogether checks that the first use is reported at once and those that follow with their
// number, that nothing is lost, and that a sandbox that asks for ever new paths fills no stream.
func TestEqualUsesAreReportedTogether(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		var mu sync.Mutex
		var said []string
		reports := func() []string {
			synctest.Wait()
			mu.Lock()
			defer mu.Unlock()
			got := said
			said = nil
			return got
		}
		begin := time.Now()
		s := newUses(ctx, func(u record.Use) {
			mu.Lock()
			defer mu.Unlock()
			said = append(said, fmt.Sprintf("%s %s %d", time.Since(begin), u.Path, u.Count))
		})
		use := func(path string) { s.add(record.Use{Time: time.Now(), Secret: "one", Path: path}) }
		use("/a")
		use("/b")
		use("/a")
		use("/a")
		time.Sleep(usesEvery / 2)
		use("/a")
		time.Sleep(usesEvery)
		use("/a")
		time.Sleep(3 * usesEvery)
		use("/a")
		want := []string{"0s /a 0", "0s /b 0", "10s /a 3", "20s /a 1", "45s /a 0"}
		if got := reports(); !slices.Equal(got, want) {
			t.Errorf("got %q, want %q", got, want)
		}
		for i := range 3 * maxUses {
			use(fmt.Sprint("/", i))
		}
		total := len(reports())
		if total > maxUses+1 {
			t.Errorf("%d different uses have %d reports", 3*maxUses, total)
		}
		time.Sleep(usesEvery)
		for _, one := range reports() {
			var at, path string
			n := 0
			if _, err := fmt.Sscan(one, &at, &n); err != nil {
				if _, err := fmt.Sscan(one, &at, &path, &n); err != nil {
					t.Fatal(err)
				}
			}
			total += n
		}
		if total != 3*maxUses {
			t.Errorf("%d of %d uses are reported", total, 3*maxUses)
		}
		use("/end")
		use("/end")
		reports()
		cancel()
		time.Sleep(2 * usesEvery)
		if got := reports(); len(got) > 0 || len(s.seen) > 0 {
			t.Errorf("after the end: %q, %d are kept", got, len(s.seen))
		}
	})
}

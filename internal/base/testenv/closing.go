package testenv

import (
	"sync"
	"testing"
)

// CloseWhileUsed opens a server a thousand times, or a hundred times in the quick suite, and calls end, which closes
// it, while it calls use. It calls use again afterwards. With the race detector, it finds servers that start work while
// their Close waits.
func CloseWhileUsed(t testing.TB, open func() (use, end func())) {
	t.Helper()
	times := 1000
	if testing.Short() {
		times = 100
	}
	for range times {
		use, end := open()
		var both sync.WaitGroup
		both.Go(use)
		both.Go(end)
		both.Wait()
		use()
		if t.Failed() {
			return
		}
	}
}

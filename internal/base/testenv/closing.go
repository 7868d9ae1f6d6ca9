package testenv

import (
	"sync"
	"testing"
)

// CloseWhileUsed opens a server a thousand times, and closes it while use calls it. use is called again after the end
// of close. With the race detector, it finds servers that start work while their Close waits.
func CloseWhileUsed(t testing.TB, open func() (use, end func())) {
	t.Helper()
	for range 1000 {
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

package testenv

import (
	"sync/atomic"
	"testing"
	"testing/synctest"
)

// fatal counts the calls of Fatalf, which end the goroutine in a real test.
type fatal struct {
	testing.TB
	calls atomic.Int32
}

func (f *fatal) Helper() {}

func (f *fatal) Fatalf(string, ...any) {
	f.calls.Add(1)
	panic(f)
}

func TestEventually(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		tries := 0
		Eventually(t, "three tries", func() bool { tries++; return tries == 3 })
		if tries != 3 {
			t.Errorf("%d tries, want 3", tries)
		}
		f := &fatal{TB: t}
		defer func() {
			if recover() == nil || f.calls.Load() != 1 {
				t.Errorf("a condition that stays false failed the test %d times, want 1", f.calls.Load())
			}
		}()
		Eventually(f, "never", func() bool { return false })
	})
}

func TestLong(t *testing.T) {
	t.Parallel()
	if !testing.Short() {
		Long(t) // must not skip
		return
	}
	t.Run("short", func(t *testing.T) {
		defer func() {
			if !t.Skipped() {
				t.Error("a long test ran with -short")
			}
		}()
		Long(t)
	})
}

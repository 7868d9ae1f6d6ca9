// Package boots admits boots of sandboxes, a bounded number at once.
package boots

import (
	"context"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sync/semaphore"
)

// PerCore is how many sandboxes boot concurrently per core. A boot waits for the disk and for other processes
// about half of its time. Without a bound, all boots of a burst share the cores, and the first one completes hardly
// earlier than the last.
const PerCore = 2

// longestSlot is the maximum time that a boot holds its slot.
const longestSlot = 30 * time.Second

// Queue admits boots in the order of their requests. A nil Queue admits all at once.
type Queue struct {
	slots   *semaphore.Weighted
	waiting atomic.Int64
}

// New returns a Queue that admits n boots at once, or nil if n is not positive.
func New(n int) *Queue {
	if n <= 0 {
		return nil
	}
	return &Queue{slots: semaphore.NewWeighted(int64(n))}
}

// Try takes a slot if one is free and no other boot is queued. done releases the slot; it is nil if Try took none.
func (b *Queue) Try() (done func()) {
	switch {
	case b == nil:
		return func() {}
	case b.slots.TryAcquire(1):
		return b.held()
	}
	return nil
}

// Wait waits for a slot. It returns an error only if ctx ends.
func (b *Queue) Wait(ctx context.Context) (done func(), err error) {
	b.waiting.Add(1)
	defer b.waiting.Add(-1)
	if err := b.slots.Acquire(ctx, 1); err != nil {
		return nil, err
	}
	return b.held(), nil
}

// held returns the function that releases the slot. A timer also releases it: a boot that hangs or reads a large
// snapshot must not block all others.
func (b *Queue) held() (done func()) {
	release := sync.OnceFunc(func() { b.slots.Release(1) })
	timer := time.AfterFunc(longestSlot, release)
	return func() {
		timer.Stop()
		release()
	}
}

// Waiting returns how many boots are queued.
func (b *Queue) Waiting() int64 { return b.waiting.Load() }

package sandbox

import (
	"context"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sync/semaphore"

	"github.com/RelevanceAI/harvest/image"
	"github.com/RelevanceAI/harvest/sandbox/record"
)

// StepQueue is the step that Request.Progress reports while a sandbox is queued for its boot.
const StepQueue = "queue"

// bootsPerCore is how many sandboxes boot concurrently per core. A boot waits for the disk and for other processes
// about half of its time. Without a bound, all boots of a burst share the cores, and the first one completes hardly
// earlier than the last.
const bootsPerCore = 2

// longestSlot is the maximum time that a boot holds its slot.
const longestSlot = 30 * time.Second

// boots admits boots in the order of their requests. A nil boots admits all at once.
type boots struct {
	slots   *semaphore.Weighted
	waiting atomic.Int64
}

func newBoots(n int) *boots {
	if n <= 0 {
		return nil
	}
	return &boots{slots: semaphore.NewWeighted(int64(n))}
}

// try takes a slot if one is free and no other boot is queued. done releases the slot; it is nil if try took none.
func (b *boots) try() (done func()) {
	switch {
	case b == nil:
		return func() {}
	case b.slots.TryAcquire(1):
		return b.held()
	}
	return nil
}

// wait waits for a slot. It returns an error only if ctx ends.
func (b *boots) wait(ctx context.Context) (done func(), err error) {
	b.waiting.Add(1)
	defer b.waiting.Add(-1)
	if err := b.slots.Acquire(ctx, 1); err != nil {
		return nil, err
	}
	return b.held(), nil
}

// held returns the function that releases the slot. A timer also releases it: a boot that hangs or reads a large
// snapshot must not block all others.
func (b *boots) held() (done func()) {
	release := sync.OnceFunc(func() { b.slots.Release(1) })
	timer := time.AfterFunc(longestSlot, release)
	return func() {
		timer.Stop()
		release()
	}
}

// admitBoot waits until the sandbox may boot. If it has to wait, it records the stage "queue". The caller calls done
// after the boot.
func (f *Fleet) admitBoot(ctx context.Context, e *entry, p plan) (done func(), err error) {
	if done = f.boots.try(); done != nil {
		return done, nil
	}
	ahead := f.boots.waiting.Load()
	f.mu.Lock()
	sb := f.snapshot(e)
	f.mu.Unlock()
	f.emit(record.Event{Type: record.EventQueued, Sandbox: sb})
	if p.Progress != nil {
		p.Progress(image.Progress{Step: StepQueue, Done: -1, Message: fmt.Sprintf("%d wait before it", ahead)})
	}
	err = f.stage(e, StepQueue, func() (err error) {
		done, err = f.boots.wait(ctx)
		return err
	})
	return done, err
}

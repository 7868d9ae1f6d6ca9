package sandbox

import (
	"context"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sync/semaphore"

	"github.com/RelevanceAI/harvest/image"
)

// StepQueue is the step of Request.Progress while a sandbox waits for its turn to boot.
const StepQueue = "queue"

// bootsPerCore is how many sandboxes boot at once for each core. A boot waits for the disk and for other processes about half of its time. Without a
// bound all boots of a burst share the cores, and the first of them ends hardly before the last.
const bootsPerCore = 2

// longestSlot is how long a boot may hold its slot.
const longestSlot = 30 * time.Second

// boots admits boots in the order in which they were asked for. A nil boots admits all at once.
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

// try takes a slot if one is free and no other boot waits. The slot is returned by done; nil means that there is none.
func (b *boots) try() (done func()) {
	switch {
	case b == nil:
		return func() {}
	case b.slots.TryAcquire(1):
		return b.held()
	}
	return nil
}

// wait waits for a slot. An error is ctx's.
func (b *boots) wait(ctx context.Context) (done func(), err error) {
	b.waiting.Add(1)
	defer b.waiting.Add(-1)
	if err := b.slots.Acquire(ctx, 1); err != nil {
		return nil, err
	}
	return b.held(), nil
}

// held returns the function that releases the slot. Time releases it, too: boots that hang or read large snapshots must not stop all others.
func (b *boots) held() (done func()) {
	release := sync.OnceFunc(func() { b.slots.Release(1) })
	timer := time.AfterFunc(longestSlot, release)
	return func() {
		timer.Stop()
		release()
	}
}

// admitBoot waits until the sandbox may boot, as the stage "queue" if it has to. The caller calls done after the boot.
func (f *Fleet) admitBoot(ctx context.Context, e *entry, p plan) (done func(), err error) {
	if done = f.boots.try(); done != nil {
		return done, nil
	}
	ahead := f.boots.waiting.Load()
	f.mu.Lock()
	sb := f.snapshot(e)
	f.mu.Unlock()
	f.emit(Event{Type: EventQueued, Sandbox: sb})
	if p.Progress != nil {
		p.Progress(image.Progress{Step: StepQueue, Done: -1, Message: fmt.Sprintf("%d wait before it", ahead)})
	}
	err = f.stage(e, StepQueue, func() (err error) {
		done, err = f.boots.wait(ctx)
		return err
	})
	return done, err
}

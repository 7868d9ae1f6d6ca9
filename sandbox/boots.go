package sandbox

import (
	"context"
	"fmt"
	"sync/atomic"

	"golang.org/x/sync/semaphore"

	"github.com/RelevanceAI/harvest/image"
)

// StepQueue is the step of Request.Progress while a sandbox waits for its turn to boot.
const StepQueue = "queue"

// bootsPerCore is how many sandboxes boot at once for each core. A boot waits for the disk and for other processes about half of its time. Without a
// bound all boots of a burst share the cores, and the first of them ends hardly before the last.
const bootsPerCore = 2

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

// try takes a slot if one is free and no other boot waits.
func (b *boots) try() bool { return b == nil || b.slots.TryAcquire(1) }

// wait waits for a slot. An error is ctx's.
func (b *boots) wait(ctx context.Context) error {
	b.waiting.Add(1)
	defer b.waiting.Add(-1)
	return b.slots.Acquire(ctx, 1)
}

func (b *boots) done() {
	if b != nil {
		b.slots.Release(1)
	}
}

// admitBoot waits until the sandbox may boot, as the stage "queue" if it has to. The caller calls done of f.boots after the boot.
func (f *Fleet) admitBoot(ctx context.Context, e *entry, p plan) error {
	if f.boots.try() {
		return nil
	}
	ahead := f.boots.waiting.Load()
	f.mu.Lock()
	sb := f.snapshot(e)
	f.mu.Unlock()
	f.emit(Event{Type: EventQueued, Sandbox: sb})
	if p.Progress != nil {
		p.Progress(image.Progress{Step: StepQueue, Done: -1, Message: fmt.Sprintf("%d wait before it", ahead)})
	}
	return f.stage(e, StepQueue, func() error { return f.boots.wait(ctx) })
}

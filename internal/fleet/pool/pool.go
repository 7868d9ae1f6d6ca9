// Package pool keeps booted sandboxes, so that requests need not wait for a boot.
package pool

import (
	"context"
	"slices"
	"sync"
	"time"

	"github.com/RelevanceAI/harvest/client/errors"
	"github.com/RelevanceAI/harvest/internal/base/account"
	"github.com/RelevanceAI/harvest/internal/base/logf"
	"github.com/RelevanceAI/harvest/internal/engine"
	"github.com/RelevanceAI/harvest/internal/fleet/boots"
	"github.com/RelevanceAI/harvest/internal/fleet/record"
	"github.com/RelevanceAI/harvest/internal/fleet/spec"
	"github.com/RelevanceAI/harvest/internal/image"
)

// Options of a Pool.
type Options struct {
	Warmer engine.Warmer
	Images image.Builder // of the same engine
	Boots  *boots.Queue
	Limits engine.Limits // of the sandboxes
	Size   int
	WarmUp []string        // command that runs in prepared sandboxes; may be nil
	Tasks  *sync.WaitGroup // counts the pool's goroutines, which end with the context of Open
}

// Pool keeps booted sandboxes with the default limits. Waiting sandboxes get the most recently requested image
// mounted. A nil Pool is always empty.
type Pool struct {
	opts Options
	ctx  context.Context // of background work
	more chan struct{}   // wakes the filler

	mu      sync.Mutex
	waiting []*spare // guarded by mu, oldest first
	// want is guarded by mu; it is the image that the next request is expected to need, without an ID while unknown.
	want image.Image
	// failed is guarded by mu; failures to prepare an image, by its ID: the second attempt is without a warm-up
	failed map[string]int
}

// spare is a waiting sandbox. Its fields are guarded by Pool.mu.
type spare struct {
	warm  engine.Warm
	image image.Image // mounted, or being mounted; without an ID if none
	done  bool        // the image is mounted
}

const (
	longestPause     = time.Minute
	firstRefillPause = 100 * time.Millisecond
	// imageCheck is how often the pool checks whether its mounted images still exist: a deleted image takes disk
	// space while it is mounted.
	imageCheck = time.Minute
	// maxFailures is the number of failures after which an image is no longer prepared.
	maxFailures = 2
)

// Open starts to fill a pool, until ctx ends.
func Open(ctx context.Context, opts Options) *Pool {
	p := &Pool{opts: opts, ctx: ctx, more: make(chan struct{}, 1), failed: map[string]int{}}
	opts.Tasks.Go(p.fill)
	return p
}

// Take returns a suitable warm sandbox, or nil. It never waits. A sandbox with an image of another owner is not
// handed out: isolation must not depend on gVisor forgetting that image. mounts means that the request mounts
// volumes, which a prepared sandbox cannot have.
func (p *Pool) Take(limits engine.Limits, owner string, img image.Image, mounts bool) engine.Warm {
	if p == nil || limits != p.opts.Limits {
		return nil
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	// The image of a suspended sandbox is for that alone.
	once := mounts || img.Snapshot != nil && img.Snapshot.Suspension
	if !once && owner != account.Owner(record.BuildAccount) {
		p.want = img
	}
	best, bestRank := -1, noRank
	for i, s := range p.waiting {
		if r := s.rank(owner, img, mounts); r > bestRank {
			best, bestRank = i, r
		}
	}
	if best < 0 {
		p.dropOldest()
		return nil
	}
	w := p.waiting[best].warm
	p.waiting = slices.Delete(p.waiting, best, best+1)
	return w
}

// Ranks of a waiting sandbox for a request.
const (
	noRank      = iota // not allowed
	otherRank          // its prepared image is discarded
	pendingRank        // wait until the image is mounted, or for the rest of the warm-up
	plainRank
	readyRank
)

func (s *spare) rank(owner string, img image.Image, mounts bool) int {
	switch {
	case s.image.ID == "":
		return plainRank
	case s.image.ID != img.ID && !s.image.VisibleTo(owner), s.outdated(img):
		return noRank
	case mounts || s.image.ID != img.ID:
		return otherRank
	case s.done:
		return readyRank
	}
	return pendingRank
}

// outdated reports whether s has the files of img from before a forced rebuild.
func (s *spare) outdated(img image.Image) bool {
	return s.image.ID == img.ID && !s.image.Built.Equal(img.Built)
}

// dropOldest makes room for a sandbox with another image. p.mu is held.
func (p *Pool) dropOldest() {
	if len(p.waiting) < p.opts.Size {
		return
	}
	p.destroy(p.waiting[0])
	p.waiting = slices.Delete(p.waiting, 0, 1)
}

func (p *Pool) destroy(s *spare) {
	p.opts.Tasks.Go(func() {
		if err := s.warm.Destroy(context.WithoutCancel(p.ctx)); err != nil {
			logf.Errorf(p.ctx, "destroy the warm sandbox %s: %v", s.warm.Handle().Ref, err)
		}
	})
}

// Refill wakes the filler. It is called after a creation has completed, so that booting does not slow the creation
// down.
func (p *Pool) Refill() {
	if p == nil {
		return
	}
	select {
	case p.more <- struct{}{}:
	default:
	}
}

// Counts returns how many sandboxes wait, and how many of them have the most recently requested image.
func (p *Pool) Counts() (warm, prepared int) {
	if p == nil {
		return 0, 0
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, s := range p.waiting {
		if s.done && s.image.ID == p.want.ID {
			prepared++
		}
	}
	return len(p.waiting), prepared
}

// fill boots sandboxes one at a time until the pool is full, prepares those without an image, then waits until one is
// taken.
func (p *Pool) fill() {
	p.expectBase()
	pause := firstRefillPause
	for p.ctx.Err() == nil {
		s, full := p.next()
		switch {
		case s != nil:
			p.prepare(s)
			continue
		case full:
			p.wait()
			continue
		}
		w, err := p.boot()
		if err != nil {
			if p.ctx.Err() == nil {
				logf.Warnf(p.ctx, "boot a warm sandbox (again in %s): %v", pause, err)
			}
			p.pause(pause)
			pause = min(2*pause, longestPause)
			continue
		}
		pause = firstRefillPause
		p.mu.Lock()
		p.waiting = append(p.waiting, &spare{warm: w})
		p.mu.Unlock()
	}
}

// boot boots a sandbox when boots admits it.
func (p *Pool) boot() (engine.Warm, error) {
	done := p.opts.Boots.Try()
	if done == nil {
		var err error
		if done, err = p.opts.Boots.Wait(p.ctx); err != nil {
			return nil, err
		}
	}
	defer done()
	return p.opts.Warmer.Warm(p.ctx, p.opts.Limits)
}

// pause waits, at most until the pool's context ends.
func (p *Pool) pause(d time.Duration) {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-p.ctx.Done():
	case <-timer.C:
	}
}

// expectBase makes the pool expect the base image until the first request.
func (p *Pool) expectBase() {
	img, err := p.opts.Images.Find(p.ctx, spec.BaseImage)
	if err != nil {
		return // the first request will build it
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.want.ID == "" {
		p.want = img
	}
}

// next returns a sandbox to prepare, with its image recorded, or whether the pool is full. Sandboxes are prepared
// only when the pool is full, so that preparation does not delay a request.
func (p *Pool) next() (s *spare, full bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if len(p.waiting) < p.opts.Size {
		return nil, false
	}
	if p.want.ID == "" || p.failed[p.want.ID] >= maxFailures {
		return nil, true
	}
	for _, s := range p.waiting {
		if _, ok := s.warm.(engine.Preparer); ok && s.image.ID == "" {
			s.image = p.want
			return s, true
		}
	}
	return nil, true
}

// prepare mounts the image that is recorded for s. A request that takes s meanwhile waits for that in the engine.
func (p *Pool) prepare(s *spare) {
	id, warmUp := s.image.ID, p.opts.WarmUp
	p.mu.Lock()
	if p.failed[id] > 0 { // the warm-up may have left processes or files behind
		warmUp = nil
	}
	p.mu.Unlock()
	err := s.warm.(engine.Preparer).Prepare(p.ctx, id, warmUp)
	p.mu.Lock()
	defer p.mu.Unlock()
	switch i := slices.Index(p.waiting, s); {
	case err == nil:
		s.done = true
	case p.ctx.Err() == nil && i >= 0: // it was not taken
		logf.Warnf(p.ctx, "a warm sandbox cannot be prepared: %v", err)
		p.failed[id]++
		p.destroy(s)
		p.waiting = slices.Delete(p.waiting, i, i+1)
	}
}

// wait returns when the filler should check again.
func (p *Pool) wait() {
	timer := time.NewTimer(imageCheck)
	defer timer.Stop()
	select {
	case <-p.more:
	case <-p.ctx.Done():
	case <-timer.C:
		p.dropDeleted()
	}
}

// dropDeleted destroys the sandboxes whose image was deleted or rebuilt.
func (p *Pool) dropDeleted() {
	now := map[string]image.Image{}
	p.mu.Lock()
	for _, s := range p.waiting {
		if s.image.ID != "" {
			now[s.image.ID] = s.image
		}
	}
	p.mu.Unlock()
	for id := range now {
		img, err := p.opts.Images.Find(p.ctx, id)
		switch {
		case err == nil:
			now[id] = img
		case errors.Is(err, errors.NotFound):
			now[id] = image.Image{}
		default:
			delete(now, id)
		}
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if img, known := now[p.want.ID]; known {
		p.want = img
	}
	p.waiting = slices.DeleteFunc(p.waiting, func(s *spare) bool {
		img, known := now[s.image.ID]
		gone := known && (img.ID == "" || s.outdated(img))
		if gone {
			p.destroy(s)
		}
		return gone
	})
}

// Drain destroys the warm sandboxes. The filler has ended.
func (p *Pool) Drain(ctx context.Context) error {
	if p == nil {
		return nil
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	var errs []error
	for _, s := range p.waiting {
		if err := s.warm.Destroy(context.WithoutCancel(ctx)); err != nil {
			errs = append(errs, errors.Wrapf(err, "destroy the warm sandbox %s", s.warm.Handle().Ref))
		}
	}
	p.waiting = nil
	return errors.Join(errs...)
}

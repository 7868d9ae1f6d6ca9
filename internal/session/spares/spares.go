// Package spares keeps sessions that are made ahead of the requests for them: which kinds, how many, and for how long.
package spares

import (
	"context"
	"crypto/sha256"
	"sync"
	"time"

	"github.com/RelevanceAI/harvest/internal/base/logf"
	"github.com/RelevanceAI/harvest/internal/base/tasks"
)

const (
	// kindsPerAccount and maxSpares limit sessions made ahead, so that no account can fill the machine with them.
	kindsPerAccount = 4
	maxSpares       = 16

	firstPause   = 5 * time.Second // after a session made ahead was of no use; it doubles each time
	longestPause = 10 * time.Minute
)

// Key identifies the sessions of an account that can replace each other.
type Key [sha256.Size]byte

// Session is a session made ahead.
type Session interface {
	// Warm is closed when the session could take a prompt.
	Warm() <-chan struct{}
	// Gone is closed when the session has ended.
	Gone() <-chan struct{}
	// GiveUp ends the session, unless it became a session of its account, and waits for the end.
	GiveUp(why string)
}

// kind is a kind of sessions that are made ahead. Its fields are guarded by Pool.mu.
type kind[S Session] struct {
	account  string
	make     func(ctx context.Context) (S, error) // starts to make one more
	until    time.Time                            // when those that wait end, unless another request wants the kind
	waiting  []*spare[S]
	making   int
	failures int       // since the last one that was taken
	after    time.Time // when the next one may be made
}

// spare is a session that waits.
type spare[S Session] struct {
	session S
	taken   chan struct{} // closed when no other request can take it
}

// Pool makes sessions ahead. Each waits for a request of its kind, with its agent started. Each belongs to an account
// from the beginning: no secret, volume or setting of one account reaches another.
type Pool[S Session] struct {
	ctx   context.Context
	work  *tasks.Group
	count int           // per kind
	life  time.Duration // of those that wait
	wake  chan struct{}

	mu     sync.Mutex
	kinds  map[Key]*kind[S] // guarded by mu
	closed bool             // guarded by mu
}

// NewPool returns a Pool that keeps count sessions of each kind for life, and runs until ctx ends. work counts its
// goroutines.
func NewPool[S Session](ctx context.Context, work *tasks.Group, count int, life time.Duration) *Pool[S] {
	p := &Pool[S]{ctx: ctx, work: work, count: count, life: life, wake: make(chan struct{}, 1),
		kinds: map[Key]*kind[S]{}}
	work.Go(p.run)
	return p
}

// Want makes sessions of a kind wait for the next request, from after on. create starts to make one.
func (p *Pool[S]) Want(key Key, account string, after time.Time, create func(ctx context.Context) (S, error)) {
	p.mu.Lock()
	defer p.mu.Unlock()
	k := p.kinds[key]
	if k == nil {
		p.makeRoom(account)
		k = &kind[S]{account: account, make: create}
		p.kinds[key] = k
	}
	k.until = time.Now().Add(p.life)
	if after.After(k.after) {
		k.after = after
	}
	p.wakeUp()
}

// makeRoom ends the account's kind that was wanted least recently, if it has too many. p.mu is held.
func (p *Pool[S]) makeRoom(account string) {
	var oldest *kind[S]
	n := 0
	for _, k := range p.kinds {
		if k.account != account || !k.until.After(time.Now()) {
			continue
		}
		n++
		if oldest == nil || k.until.Before(oldest.until) {
			oldest = k
		}
	}
	if n >= kindsPerAccount {
		oldest.until = time.Time{}
	}
}

func (p *Pool[S]) wakeUp() {
	select {
	case p.wake <- struct{}{}:
	default:
	}
}

// run makes sessions ahead, one at a time, and ends those that have waited for too long.
func (p *Pool[S]) run() {
	timer := time.NewTimer(0)
	defer timer.Stop()
	for {
		select {
		case <-p.ctx.Done():
			return
		case <-p.wake:
		case <-timer.C:
		}
		over, k, next := p.next(time.Now())
		for _, s := range over {
			p.work.Go(func() { s.session.GiveUp("no request used it") })
		}
		if k != nil {
			p.work.Go(func() { p.make(k) })
		}
		timer.Reset(next)
	}
}

// next returns the waiting sessions that must end, the kind of which one must be made, and when to look again.
func (p *Pool[S]) next(now time.Time) (over []*spare[S], due *kind[S], pause time.Duration) {
	p.mu.Lock()
	defer p.mu.Unlock()
	pause = time.Hour
	total, making := 0, 0
	for key, k := range p.kinds {
		if !now.Before(k.until) {
			over = append(over, k.waiting...)
			k.waiting = nil
			if k.making == 0 {
				delete(p.kinds, key)
			}
		} else {
			pause = min(pause, k.until.Sub(now))
		}
		total += len(k.waiting) + k.making
		making += k.making
	}
	if making > 0 || total >= maxSpares || p.closed {
		return over, nil, pause // the end of make wakes run
	}
	for _, k := range p.kinds {
		switch wait := k.after.Sub(now); {
		case len(k.waiting) >= p.count || !now.Before(k.until):
		case wait > 0:
			pause = min(pause, wait)
		case due == nil || k.until.After(due.until): // the one that was wanted last
			due = k
		}
	}
	if due != nil {
		due.making++
	}
	return over, due, pause
}

// make makes a session of a kind, and watches it until it is taken or has ended.
func (p *Pool[S]) make(k *kind[S]) {
	one, err := k.make(p.ctx)
	s := &spare[S]{session: one, taken: make(chan struct{})}
	if err == nil {
		select {
		case <-one.Warm():
		case <-one.Gone():
		}
	}
	p.mu.Lock()
	k.making--
	warm := err == nil && isClosed(one.Warm())
	late := p.closed || !time.Now().Before(k.until)
	switch {
	case !warm:
		k.fail(time.Now())
	case !late:
		k.waiting = append(k.waiting, s)
	}
	p.wakeUp()
	p.mu.Unlock()
	switch {
	case err != nil:
		logf.Warnf(p.ctx, "make a spare session: %v", err)
		return
	case !warm:
		return
	case late:
		one.GiveUp("no request used it")
		return
	}
	select {
	case <-s.taken:
	case <-one.Gone():
		p.died(k, s)
	}
}

func isClosed(c <-chan struct{}) bool {
	select {
	case <-c:
		return true
	default:
		return false
	}
}

// fail delays the next session of the kind. Pool.mu is held.
func (k *kind[S]) fail(now time.Time) {
	pause := min(firstPause<<min(k.failures, 10), longestPause)
	k.failures++
	if at := now.Add(pause); at.After(k.after) {
		k.after = at
	}
}

// died records the end of a session that waited, unless run ended it.
func (p *Pool[S]) died(k *kind[S], s *spare[S]) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for i, other := range k.waiting {
		if other == s {
			k.waiting = append(k.waiting[:i:i], k.waiting[i+1:]...)
			k.fail(time.Now())
			p.wakeUp()
		}
	}
}

// Pop removes a waiting session of the kind, the newest, and returns it, or false if none waits. Took must follow.
func (p *Pool[S]) Pop(key Key) (s S, ok bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	k := p.kinds[key]
	if k == nil || len(k.waiting) == 0 || p.closed {
		return s, false
	}
	last := len(k.waiting) - 1
	newest := k.waiting[last]
	k.waiting = k.waiting[:last:last]
	close(newest.taken)
	return newest.session, true
}

// Took records whether a session that Pop returned became a session of the account.
func (p *Pool[S]) Took(key Key, used bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	k := p.kinds[key]
	switch {
	case k == nil:
	case used:
		k.failures = 0
	default:
		k.fail(time.Now())
	}
}

// Counts returns how many sessions wait, and how many are being made. A nil Pool has no sessions.
func (p *Pool[S]) Counts() (waiting, making int) {
	if p == nil {
		return 0, 0
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, k := range p.kinds {
		waiting += len(k.waiting)
		making += k.making
	}
	return waiting, making
}

// Close makes the Pool return and make no more sessions. The caller ends those that wait.
func (p *Pool[S]) Close() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.closed = true
}

// Admit runs f, which makes a session known that is being made, unless the Pool is closed. It reports whether it did.
func (p *Pool[S]) Admit(f func()) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	if !p.closed {
		f()
	}
	return !p.closed
}

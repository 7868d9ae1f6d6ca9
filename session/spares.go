package session

import (
	"context"
	"crypto/sha256"
	"encoding/json"
	"sync"
	"time"

	"github.com/RelevanceAI/harvest/errors"
	"github.com/RelevanceAI/harvest/internal/fault"
	"github.com/RelevanceAI/harvest/internal/ids"
	"github.com/RelevanceAI/harvest/logf"
	"github.com/RelevanceAI/harvest/sandbox"
	"github.com/RelevanceAI/harvest/secret"
	"github.com/RelevanceAI/harvest/session/volumes"
	"github.com/RelevanceAI/harvest/session/workspace"
)

const (
	// kindsPerAccount and maxSpares limit sessions made ahead, so that no account can fill the machine with them.
	kindsPerAccount = 4
	maxSpares       = 16
	// settle is the pause before a session that was taken is replaced: the agent of the new session has priority.
	settle = 2 * time.Second
	// firstSparePause is the pause after a session made ahead was of no use; it doubles each time.
	firstSparePause   = 5 * time.Second
	longestSparePause = 10 * time.Minute
)

// kindKey identifies the sessions of an account that can replace each other.
type kindKey [sha256.Size]byte

// kind is a kind of sessions that are made ahead. Its fields are guarded by spares.mu.
type kind struct {
	account  string
	req      Request   // to make more: without prompt and bundle
	until    time.Time // when those that wait end, unless another request wants the kind
	waiting  []*runner
	making   int
	failures int       // since the last one that was taken
	after    time.Time // when the next one may be made
}

// spares makes sessions ahead. Each waits for a request of its kind, with its agent started. Each belongs to an
// account from the beginning: no secret, volume or setting of one account reaches another. A nil spares has none.
type spares struct {
	m     *Manager
	count int           // per kind
	life  time.Duration // of those that wait
	wake  chan struct{}

	mu     sync.Mutex
	kinds  map[kindKey]*kind // guarded by mu
	closed bool              // guarded by mu
}

// openSpares removes the sessions that an earlier server made ahead, and starts making others.
func (m *Manager) openSpares(ctx context.Context, live []Session) {
	for _, s := range live {
		if s.Spare {
			m.dropSpare(ctx, s)
		}
	}
	if m.opts.Spares > 0 {
		m.spares = &spares{m: m, count: m.opts.Spares, life: m.opts.SpareLife, wake: make(chan struct{}, 1),
			kinds: map[kindKey]*kind{}}
		m.work.Go(m.spares.run)
	}
}

// dropSpare removes the record of a session made ahead, whose sandbox has ended, and its traces: events, and files in
// the account's volume.
func (m *Manager) dropSpare(ctx context.Context, s Session) {
	ctx = context.WithoutCancel(ctx)
	volumes.RemoveState(ctx, m.opts.Volumes, s.Account, s.ID)
	_, err := m.opts.Journal.Prune(ctx, s.ID, time.Now().Add(time.Hour))
	if err := errors.Join(err, m.opts.Store.DropSession(ctx, s.ID)); err != nil {
		logf.Errorf(ctx, "remove spare session %s: %v", s.ID, err)
	}
}

// kindOf returns the kind of a planned session, or false if such sessions are not made ahead: those that differ from
// every other one, and those with resources that another sandbox must not hold.
func (sp *spares) kindOf(ctx context.Context, s Session, req Request) (key kindKey, ok bool) {
	if sp == nil {
		return key, false
	}
	box, first := req.Sandbox, s.Repos[0]
	unlike := req.Continues != "" || len(s.Repos) > 1 || first.Depth != 0 || first.LFS || first.Submodules ||
		len(req.Shallow) > 0 || req.Repo == "" && req.Bundle != nil
	holds := box.Name != "" || box.S3 != nil || box.GPU != "" || len(box.Volumes) > 0
	if unlike || holds {
		return key, false
	}
	name := s.Sandbox.Image
	img := sp.m.repoImage(ctx, s, s.Sandbox)
	if img != nil {
		name = img.Image
	}
	id, err := sp.m.opts.Fleet.ImageID(ctx, s.Account, name)
	if err != nil {
		return key, false // making a session ahead must not be the first to build an image
	}
	var secrets []secret.Secret
	if sp.m.opts.Secrets != nil {
		if secrets, err = sp.m.opts.Secrets.List(ctx, s.Account); err != nil {
			return key, false
		}
	}
	for i := range secrets {
		secrets[i].Used = time.Time{}
	}
	text, err := json.Marshal(struct {
		Account, Agent, Model, Repo, Branch, Dir, Subdir, GitSecret, Image string
		Approval                                                           string
		Author                                                             workspace.Author
		MCP                                                                []byte
		Sandbox                                                            sandbox.Request
		Secrets                                                            []secret.Secret // a changed secret is another kind
	}{s.Account, s.Agent, s.Model, s.Repo, s.Branch, s.Dir, s.Subdir, s.GitSecret, id, string(s.Approval), s.Author,
		s.MCP, box, secrets})
	if err != nil {
		logf.Errorf(ctx, "the kind of a session: %v", err)
		return key, false
	}
	return sha256.Sum256(text), true
}

// want makes the sessions of a kind wait for the next request, from after on.
func (sp *spares) want(key kindKey, account string, req Request, after time.Time) {
	req.Prompt, req.Bundle, req.Uncommitted, req.Limits = "", nil, workspace.Uncommitted{}, Limits{}
	sp.mu.Lock()
	defer sp.mu.Unlock()
	k := sp.kinds[key]
	if k == nil {
		sp.makeRoom(account)
		k = &kind{account: account, req: req}
		sp.kinds[key] = k
	}
	k.until = time.Now().Add(sp.life)
	if after.After(k.after) {
		k.after = after
	}
	sp.wakeUp()
}

// makeRoom ends the account's kind that was wanted least recently, if it has too many. sp.mu is held.
func (sp *spares) makeRoom(account string) {
	var oldest *kind
	n := 0
	for _, k := range sp.kinds {
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

func (sp *spares) wakeUp() {
	select {
	case sp.wake <- struct{}{}:
	default:
	}
}

// run makes sessions ahead, one at a time, and ends those that have waited for too long.
func (sp *spares) run() {
	timer := time.NewTimer(0)
	defer timer.Stop()
	for {
		select {
		case <-sp.m.ctx.Done():
			return
		case <-sp.wake:
		case <-timer.C:
		}
		over, k, next := sp.next(time.Now())
		for _, r := range over {
			sp.m.work.Go(func() { r.giveUp("no request used it") })
		}
		if k != nil {
			sp.m.work.Go(func() { sp.make(sp.m.ctx, k) })
		}
		timer.Reset(next)
	}
}

// next returns the waiting sessions that must end, the kind of which one must be made, and when to look again.
func (sp *spares) next(now time.Time) (over []*runner, due *kind, pause time.Duration) {
	sp.mu.Lock()
	defer sp.mu.Unlock()
	pause = time.Hour
	total, making := 0, 0
	for key, k := range sp.kinds {
		if !now.Before(k.until) {
			over = append(over, k.waiting...)
			k.waiting = nil
			if k.making == 0 {
				delete(sp.kinds, key)
			}
		} else {
			pause = min(pause, k.until.Sub(now))
		}
		total += len(k.waiting) + k.making
		making += k.making
	}
	if making > 0 || total >= maxSpares || sp.closed {
		return over, nil, pause // the end of make wakes run
	}
	for _, k := range sp.kinds {
		switch wait := k.after.Sub(now); {
		case len(k.waiting) >= sp.count || !now.Before(k.until):
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
func (sp *spares) make(ctx context.Context, k *kind) {
	r, err := sp.m.createSpare(ctx, k.account, k.req)
	if err == nil {
		select {
		case <-r.warm:
		case <-r.gone:
		}
	}
	sp.mu.Lock()
	k.making--
	warm := err == nil && isClosed(r.warm)
	late := sp.closed || !time.Now().Before(k.until)
	switch {
	case !warm:
		k.fail(time.Now())
	case !late:
		k.waiting = append(k.waiting, r)
	}
	sp.wakeUp()
	sp.mu.Unlock()
	switch {
	case err != nil:
		logf.Warnf(ctx, "make a spare session: %v", err)
		return
	case !warm:
		return
	case late:
		r.giveUp("no request used it")
		return
	}
	select {
	case <-r.taken:
	case <-r.gone:
		sp.died(k, r)
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

// fail delays the next session of the kind. spares.mu is held.
func (k *kind) fail(now time.Time) {
	pause := min(firstSparePause<<min(k.failures, 10), longestSparePause)
	k.failures++
	if at := now.Add(pause); at.After(k.after) {
		k.after = at
	}
}

// died records the end of a session that waited, unless run ended it.
func (sp *spares) died(k *kind, r *runner) {
	sp.mu.Lock()
	defer sp.mu.Unlock()
	for i, other := range k.waiting {
		if other == r {
			k.waiting = append(k.waiting[:i:i], k.waiting[i+1:]...)
			k.fail(time.Now())
			sp.wakeUp()
		}
	}
}

// pop removes a waiting session of the kind, the newest, and returns it; nil if none waits.
func (sp *spares) pop(key kindKey) *runner {
	sp.mu.Lock()
	defer sp.mu.Unlock()
	k := sp.kinds[key]
	if k == nil || len(k.waiting) == 0 || sp.closed {
		return nil
	}
	last := len(k.waiting) - 1
	r := k.waiting[last]
	k.waiting = k.waiting[:last:last]
	close(r.taken)
	return r
}

// took records whether a session that was popped became a session of the account.
func (sp *spares) took(key kindKey, used bool) {
	sp.mu.Lock()
	defer sp.mu.Unlock()
	k := sp.kinds[key]
	switch {
	case k == nil:
	case used:
		k.failures = 0
	default:
		k.fail(time.Now())
	}
}

// counts returns how many sessions wait, and how many are being made.
func (sp *spares) counts() (waiting, making int) {
	if sp == nil {
		return 0, 0
	}
	sp.mu.Lock()
	defer sp.mu.Unlock()
	for _, k := range sp.kinds {
		waiting += len(k.waiting)
		making += k.making
	}
	return waiting, making
}

// close ends all sessions that nobody has taken.
func (sp *spares) close() {
	if sp == nil {
		return
	}
	sp.mu.Lock()
	sp.closed = true
	sp.mu.Unlock()
	var ends sync.WaitGroup
	for _, r := range sp.m.spareRunners() {
		ends.Go(func() { r.giveUp("the server is shutting down") })
	}
	ends.Wait()
}

// spareRunners returns the sessions made ahead that nobody has taken.
func (m *Manager) spareRunners() (all []*runner) {
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, r := range m.runners {
		if r.session().Spare {
			all = append(all, r)
		}
	}
	return all
}

// createSpare starts making a session ahead.
func (m *Manager) createSpare(ctx context.Context, account string, req Request) (*runner, error) {
	s, err := m.plan(account, req, nil)
	if err != nil {
		return nil, err
	}
	s.Spare = true
	if err := m.opts.Store.PutSession(ctx, s); err != nil {
		return nil, errors.Wrapf(err, "record a spare session")
	}
	fault.Point("spare.recorded")
	r := newRunner(m, s)
	r.env = req.Sandbox.Env
	r.publish(draft{Type: EventCreated, Data: Event{Status: s.Status}})
	if !m.addSpare(r) {
		m.dropSpare(ctx, s)
		return nil, errors.Newf(errors.Unavailable, "the server is shutting down")
	}
	m.work.Go(func() { r.loop(logf.With(m.ctx, "session_id", s.ID)) })
	return r, nil
}

// addSpare adds the runner of a session made ahead, unless the server ends.
func (m *Manager) addSpare(r *runner) bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.spares.mu.Lock()
	defer m.spares.mu.Unlock()
	if !m.spares.closed {
		m.runners[r.id] = r
	}
	return !m.spares.closed
}

// Warm makes sessions like req wait for the next request, if the Manager makes sessions ahead. It returns the errors
// of Create.
func (m *Manager) Warm(ctx context.Context, account string, req Request) error {
	s, err := m.plan(account, req, nil)
	if err != nil {
		return errors.Stage(err, "validate")
	}
	if key, ok := m.spares.kindOf(ctx, s, req); ok {
		m.spares.want(key, account, req, time.Time{})
	}
	return nil
}

// Spares returns how many sessions made ahead wait, and how many are being made.
func (m *Manager) Spares() (waiting, making int) { return m.spares.counts() }

// takeSpare returns a session made ahead that has become the planned session s, or false.
func (m *Manager) takeSpare(ctx context.Context, s Session, req Request) (Session, bool) {
	key, ok := m.spares.kindOf(ctx, s, req)
	if !ok {
		return Session{}, false
	}
	defer func() { m.spares.want(key, s.Account, req, time.Now().Add(settle)) }()
	r := m.spares.pop(key)
	if r == nil {
		return Session{}, false
	}
	begin := time.Now()
	err := r.become(ctx, s, req, begin)
	m.spares.took(key, err == nil)
	if err != nil {
		logf.Infof(ctx, "spare session %s: unusable: %v", r.id, err)
		m.work.Go(func() { r.giveUp("it is unusable") })
		return Session{}, false
	}
	return r.session(), true
}

// placeNow returns the place of a session that begins now.
func placeNow() string { return idPrefix + ids.New() }

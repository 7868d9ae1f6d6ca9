package storage

import (
	"context"
	"sync"
	"time"

	"golang.org/x/sync/semaphore"

	"github.com/RelevanceAI/harvest/errors"
	"github.com/RelevanceAI/harvest/logf"
	"github.com/RelevanceAI/harvest/s3sync"
)

// Job is a sandbox's volume and its place in S3.
type Job struct {
	Sandbox string `json:"sandbox"` // its id
	Account string `json:"-"`
	Volume  string `json:"volume"`
	Where
}

// Unsent is a job whose volume has yet to be sent.
type Unsent struct {
	Job
	Since    time.Time `json:"since"`
	Attempts int       `json:"attempts,omitempty"` // that failed
	Next     time.Time `json:"next"`               // when it is tried again
	Error    string    `json:"error,omitempty"`    // of the last attempt
}

// Store keeps what is unsent, by sandbox. Package store has one on SQLite.
type Store interface {
	// Put inserts or replaces.
	Put(ctx context.Context, u Unsent) error
	// List returns all, the oldest sandbox's first.
	List(ctx context.Context) ([]Unsent, error)
	// Delete removes a sandbox's, if there is one.
	Delete(ctx context.Context, sandbox string) error
}

// Told is the outcome of a Fill or Save.
type Told struct {
	Job
	Direction s3sync.Direction
	Result    Result
	Err       error     // nil if it succeeded, save for the files in Result.Stats.Failures
	Retry     time.Time // when it is tried again; zero if it is not
}

const (
	// lifePatience is how long a request to S3 is tried again while somebody waits for a sandbox.
	lifePatience = 15 * time.Second
	firstRetry   = 5 * time.Second // after a failure; doubled each time
	longestRetry = time.Hour
	retryAtOnce  = 4
)

// later is the part of a Manager that sends what could not be sent.
type later struct {
	tasks sync.WaitGroup
	stop  context.CancelFunc
	wake  chan struct{}
	slots *semaphore.Weighted // for retries under way

	records sync.Mutex // held while records are changed that may be gone by then

	mu      sync.Mutex
	sending map[string]int    // guarded by mu; by sandbox, how many are at it
	guards  map[string]func() // guarded by mu; by sandbox, what keeps its volume from being deleted while it is unsent
}

// Start begins to send what is unsent, until Stop. From then on its volumes are not deleted, save by force.
func (m *Manager) Start(ctx context.Context) {
	ctx, m.later.stop = context.WithCancel(context.WithoutCancel(ctx))
	m.later.wake = make(chan struct{}, 1)
	m.later.slots = semaphore.NewWeighted(retryAtOnce)
	unsent, err := m.opts.Store.List(ctx)
	if err != nil {
		logf.Errorf(ctx, "read what has to be sent to S3: %v", err)
	}
	for _, u := range unsent {
		m.guard(ctx, u.Job)
	}
	m.later.tasks.Go(func() { m.retry(ctx) })
}

// Stop ends what Start began, and waits for it. What is unsent stays written down.
func (m *Manager) Stop() {
	m.later.stop()
	m.later.tasks.Wait()
}

// Check returns what is wrong with a job as far as it can be told without S3: no bucket, no secret, no credentials in it.
func (m *Manager) Check(ctx context.Context, job Job) error {
	b, err := m.bucket(ctx, job.Account, job.Volume, job.Where, false, patience)
	if err != nil {
		return err
	}
	b.close()
	return nil
}

// Fill copies what is in S3 into the volume. What sandboxes that had it before could not send goes there first: it is newer. It fails if
// a single file does, so that nobody works with a part. An empty place is fine.
func (m *Manager) Fill(ctx context.Context, job Job) error {
	unsent, err := m.unsentOf(ctx, job.Account, job.Volume)
	if err != nil {
		return err
	}
	for _, u := range unsent {
		if err := m.send(ctx, u, m.again); err != nil {
			return errors.Explainf(err, errors.KindOf(err), "what the sandbox %s left could not be sent first: %s", u.Sandbox, errors.Message(err))
		}
	}
	// Others may have written there: the list tells, not the manifest.
	res, err := m.sync(ctx, job, Request{Wait: true, Sync: s3sync.Options{Direction: s3sync.Down, List: true}})
	if err == nil {
		err = missing(res.Stats.Failed, res.Stats.Failures)
	}
	m.tell(Told{Job: job, Direction: s3sync.Down, Result: res, Err: err})
	return err
}

// missing is the error for n files that a sync left out, nil for none.
func missing(n int64, files []s3sync.Failure) error {
	if n == 0 {
		return nil
	}
	first := files[0]
	err := errors.Newf(errors.Unavailable, "%d files could not be copied, such as %.200q: %s", n, first.Path, first.Reason)
	if first.Remedy != "" {
		err = errors.Remedy(err, "%s", first.Remedy)
	}
	return err
}

// Note writes down that a volume has to be sent.
func (m *Manager) Note(ctx context.Context, job Job) error {
	now := time.Now().UTC()
	return m.put(context.WithoutCancel(ctx), Unsent{Job: job, Since: now, Next: now.Add(firstRetry)})
}

// Save does Note, and then copies the volume to S3, where nothing is deleted. After an error it is tried again until it succeeds or the
// volume is deleted, also by later processes. Files that S3 refuses are an error; those that cannot be sent at all, such as sockets, are
// told of and are none.
func (m *Manager) Save(ctx context.Context, job Job) error {
	now := time.Now().UTC()
	u := Unsent{Job: job, Since: now, Next: now.Add(firstRetry)}
	rewrite := m.again
	if err := m.put(context.WithoutCancel(ctx), u); err != nil {
		logf.Errorf(ctx, "write down that the volume %s has to be sent to S3, which is sent all the same: %v", u.Volume, err)
		rewrite = m.put
	}
	return m.send(ctx, u, rewrite)
}

// Send copies the volume to S3 as it is now, while somebody works in it. If another sync of the volume is under way, it does nothing. What
// fails is told and not tried again: the next Send or Save does that.
func (m *Manager) Send(ctx context.Context, job Job) error {
	res, err := m.sync(ctx, job, Request{Sync: s3sync.Options{Direction: s3sync.Up}})
	if errors.Is(err, errBusy) {
		return nil
	}
	if st := res.Stats; ctx.Err() == nil && (err != nil || st.Files+st.Updated+st.Deleted+st.Failed > 0) {
		m.tell(Told{Job: job, Direction: s3sync.Up, Result: res, Err: err})
	}
	return errors.Stage(err, "s3 sync")
}

// send sends what is unsent, and writes down what came of it: after a failure by rewrite.
func (m *Manager) send(ctx context.Context, u Unsent, rewrite func(context.Context, Unsent) error) error {
	defer m.begin(u.Sandbox)()
	res, err := m.sync(ctx, u.Job, Request{Wait: true, Sync: s3sync.Options{Direction: s3sync.Up}})
	if err == nil {
		err = missing(int64(len(res.Stats.Refused)), res.Stats.Refused)
	}
	if err != nil && ctx.Err() != nil {
		return errors.Stage(err, "s3 sync")
	}
	told := Told{Job: u.Job, Direction: s3sync.Up, Result: res, Err: err}
	// What came of it must be known, whoever waits.
	ctx = logf.With(context.WithoutCancel(ctx), "sandbox_id", u.Sandbox, "account", u.Account)
	var noted error
	switch {
	case err == nil:
		noted = m.sent(ctx, u.Sandbox)
		logf.Infof(ctx, "the volume %s was sent to %s: %s", u.Volume, res.Place, res.Stats)
	case errors.Is(err, errNoVolume):
		noted = m.sent(ctx, u.Sandbox)
		logf.Errorf(ctx, "the volume %s will not be sent to S3: it was deleted", u.Volume)
	default:
		pause := longestRetry
		if u.Attempts < 10 {
			pause = min(firstRetry<<u.Attempts, longestRetry)
		}
		u.Attempts++
		u.Next, u.Error = time.Now().UTC().Add(pause), errors.Message(err)
		if noted = rewrite(ctx, u); noted == nil {
			told.Retry = u.Next
		}
		logf.Warnf(ctx, "attempt %d to send the volume %s to S3, next in %s: %v", u.Attempts, u.Volume, pause, err)
	}
	if noted != nil {
		logf.Errorf(ctx, "write down what came of sending the volume %s: %v", u.Volume, noted)
	}
	m.tell(told)
	return errors.Stage(err, "s3 sync")
}

// errNoVolume is the volume of a job that is not there any more.
var errNoVolume = errors.Newf(errors.NotFound, "the volume was deleted")

// sync does what a request asks for with a job's volume and place.
func (m *Manager) sync(ctx context.Context, job Job, req Request) (Result, error) {
	vol, err := m.opts.Open(ctx, job.Account, job.Volume)
	if errors.Is(err, errors.NotFound) {
		return Result{}, errNoVolume
	}
	if err != nil {
		return Result{}, err
	}
	req.Where, req.Patience = job.Where, lifePatience
	res, err := m.syncVolume(ctx, job.Account, vol, req)
	if errors.Is(err, errors.NotFound) {
		if _, gone := m.opts.Open(ctx, job.Account, job.Volume); errors.Is(gone, errors.NotFound) {
			return res, errNoVolume // somebody deleted it while this waited for its turn
		}
	}
	return res, err
}

func (m *Manager) tell(t Told) {
	if m.opts.Tell != nil {
		m.opts.Tell(t)
	}
}

// begin notes that somebody sends what a sandbox left; done is to be called at the end, when the loop looks again at what is due.
func (m *Manager) begin(sandbox string) (done func()) {
	m.later.mu.Lock()
	defer m.later.mu.Unlock()
	if m.later.sending == nil {
		m.later.sending = map[string]int{}
	}
	m.later.sending[sandbox]++
	return func() {
		m.later.mu.Lock()
		if m.later.sending[sandbox]--; m.later.sending[sandbox] == 0 {
			delete(m.later.sending, sandbox)
		}
		m.later.mu.Unlock()
		m.wake()
	}
}

func (m *Manager) isSending(sandbox string) bool {
	m.later.mu.Lock()
	defer m.later.mu.Unlock()
	return m.later.sending[sandbox] > 0
}

// wake has the loop look again at when something is due.
func (m *Manager) wake() {
	select {
	case m.later.wake <- struct{}{}:
	default:
	}
}

// retry sends what is due, and at first everything: an earlier process may have ended long ago.
func (m *Manager) retry(ctx context.Context) {
	timer := time.NewTimer(0)
	defer timer.Stop()
	for all := true; ; all = false {
		select {
		case <-ctx.Done():
			return
		case <-m.later.wake:
		case <-timer.C:
		}
		timer.Reset(m.sendDue(ctx, all))
	}
}

// sendDue begins to send what is due, and returns when to look again. A volume that takes long keeps no other one waiting, unless there are
// several of them.
func (m *Manager) sendDue(ctx context.Context, all bool) time.Duration {
	unsent, err := m.opts.Store.List(ctx)
	if err != nil && ctx.Err() == nil {
		logf.Errorf(ctx, "read what has to be sent to S3: %v", err)
	}
	nap := longestRetry
	if err != nil {
		nap = time.Minute
	}
	for _, u := range unsent {
		switch wait := time.Until(u.Next); {
		case m.isSending(u.Sandbox):
		case wait > 0 && !all:
			nap = min(nap, wait)
		default:
			done := m.begin(u.Sandbox)
			m.later.tasks.Go(func() {
				defer done()
				m.sendAgain(ctx, u)
			})
		}
	}
	return nap
}

// sendAgain sends what is due once one of the few who may is done. After a failure it is not looked at for a moment, even if what came of
// it could not be written down.
func (m *Manager) sendAgain(ctx context.Context, u Unsent) {
	if m.later.slots.Acquire(ctx, 1) != nil {
		return
	}
	err := m.send(ctx, u, m.again) // which tells and logs
	m.later.slots.Release(1)
	if err == nil {
		return
	}
	timer := time.NewTimer(firstRetry)
	defer timer.Stop()
	select {
	case <-ctx.Done():
	case <-timer.C:
	}
}

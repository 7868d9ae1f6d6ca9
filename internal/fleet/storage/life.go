package storage

import (
	"context"
	"sync"
	"time"

	"golang.org/x/sync/semaphore"

	"github.com/RelevanceAI/harvest/client/errors"
	"github.com/RelevanceAI/harvest/internal/base/logf"
	"github.com/RelevanceAI/harvest/internal/base/places"
	s3sync "github.com/RelevanceAI/harvest/internal/s3/volsync"
	"github.com/RelevanceAI/harvest/internal/s3/volsync/plan"
)

// Job names the volume of a sandbox and its place in S3.
type Job struct {
	Sandbox string `json:"sandbox"` // sandbox ID
	Account string `json:"-"`
	Volume  string `json:"volume"`
	places.Place
}

// Unsent is a job whose volume has not been uploaded yet.
type Unsent struct {
	Job
	Since    time.Time `json:"since"`
	Attempts int       `json:"attempts,omitempty"` // failed attempts
	Next     time.Time `json:"next"`               // time of the next attempt
	Error    string    `json:"error,omitempty"`    // of the last attempt
}

// Store keeps the unsent jobs, keyed by sandbox. Package store implements it on SQLite.
type Store interface {
	// Put inserts or replaces a job.
	Put(ctx context.Context, u Unsent) error
	// List returns all jobs, oldest sandbox first.
	List(ctx context.Context) ([]Unsent, error)
	// Delete removes the job of a sandbox. It is not an error if there is none.
	Delete(ctx context.Context, sandbox string) error
}

// Told reports the outcome of a Fill or Save.
type Told struct {
	Job
	Direction plan.Direction
	Result    Result
	Err       error     // nil on success; files that failed are in Result.Stats.Failures
	Retry     time.Time // time of the next attempt; zero if there is none
}

const (
	// lifePatience bounds the retries of a request to S3 while a sandbox waits for it.
	lifePatience = 15 * time.Second
	firstRetry   = 5 * time.Second // after a failure; doubled each time
	longestRetry = time.Hour
	retryAtOnce  = 4
)

// later is the part of a Manager that retries failed uploads.
type later struct {
	tasks sync.WaitGroup
	stop  context.CancelFunc
	wake  chan struct{}
	slots *semaphore.Weighted // for retries in progress

	records sync.Mutex // held while updating records that Delete may have removed

	mu      sync.Mutex
	sending map[string]int    // guarded by mu; number of senders by sandbox
	guards  map[string]func() // guarded by mu; by sandbox, releases the hold on its unsent volume
}

// Start retries unsent jobs in the background until Stop. From then on, their volumes can only be
// deleted by force.
func (m *Manager) Start(ctx context.Context) {
	ctx, m.later.stop = context.WithCancel(context.WithoutCancel(ctx))
	m.later.wake = make(chan struct{}, 1)
	m.later.slots = semaphore.NewWeighted(retryAtOnce)
	unsent, err := m.opts.Store.List(ctx)
	if err != nil {
		logf.Errorf(ctx, "read the pending uploads to S3: %v", err)
	}
	for _, u := range unsent {
		m.guard(ctx, u.Job)
	}
	m.later.tasks.Go(func() { m.retry(ctx) })
}

// Stop ends the retries and waits for them. The records of unsent jobs remain in the store.
func (m *Manager) Stop() {
	m.later.stop()
	m.later.tasks.Wait()
}

// Check returns the problems of a job that can be found without asking S3: no bucket, no secret, or
// no credentials in the secret.
func (m *Manager) Check(ctx context.Context, job Job) error {
	b, err := m.bucket(ctx, job.Account, job.Volume, job.Place, false, patience)
	if err != nil {
		return err
	}
	b.close()
	return nil
}

// Fill copies the files in S3 into the volume. It first uploads the changes that earlier sandboxes
// failed to upload, since they are newer than the copy in S3. Fill returns an error if any file
// fails, so that no sandbox works with part of its files. An empty place is not an error.
func (m *Manager) Fill(ctx context.Context, job Job) error {
	unsent, err := m.unsentOf(ctx, job.Account, job.Volume)
	if err != nil {
		return err
	}
	for _, u := range unsent {
		if err := m.send(ctx, u, m.again); err != nil {
			return errors.Explainf(err, errors.KindOf(err), "the files of sandbox %s cannot be sent first: %s",
				u.Sandbox, errors.Message(err))
		}
	}
	// Other writers may have changed the place: list the bucket instead of relying on the manifest.
	res, err := m.sync(ctx, job, Request{Wait: true, Sync: s3sync.Options{Direction: plan.Down, List: true}})
	if err == nil {
		err = missing(res.Stats.Failed, res.Stats.Failures)
	}
	m.tell(Told{Job: job, Direction: plan.Down, Result: res, Err: err})
	return err
}

// missing returns an error for n files that a sync skipped, or nil if n is 0.
func missing(n int64, files []s3sync.Failure) error {
	if n == 0 {
		return nil
	}
	first := files[0]
	err := errors.Newf(errors.Unavailable, "%d files could not be copied, such as %.200q: %s", n,
		first.Path, first.Reason)
	if first.Remedy != "" {
		err = errors.Remedy(err, "%s", first.Remedy)
	}
	return err
}

// Note records that a volume must be uploaded.
func (m *Manager) Note(ctx context.Context, job Job) error {
	now := time.Now().UTC()
	return m.put(context.WithoutCancel(ctx), Unsent{Job: job, Since: now, Next: now.Add(firstRetry)})
}

// Save calls Note and then copies the volume to S3. It deletes nothing there. After an error, this
// process and later ones retry until an attempt succeeds or the volume is deleted. Files that S3
// refuses are an error. Files that cannot be uploaded at all, such as sockets, are only reported.
func (m *Manager) Save(ctx context.Context, job Job) error {
	now := time.Now().UTC()
	u := Unsent{Job: job, Since: now, Next: now.Add(firstRetry)}
	rewrite := m.again
	if err := m.put(context.WithoutCancel(ctx), u); err != nil {
		logf.Errorf(ctx, "write down that the volume %s has to be sent to S3, which is sent all the same: %v",
			u.Volume, err)
		rewrite = m.put
	}
	return m.send(ctx, u, rewrite)
}

// Send copies the current state of the volume to S3 while a sandbox uses it. It does nothing if
// another sync of the volume is in progress. Failures are reported but not retried: the next Send
// or Save uploads the files.
func (m *Manager) Send(ctx context.Context, job Job) error {
	res, err := m.sync(ctx, job, Request{Sync: s3sync.Options{Direction: plan.Up}})
	if errors.Is(err, errBusy) {
		return nil
	}
	if st := res.Stats; ctx.Err() == nil && (err != nil || st.Files+st.Updated+st.Deleted+st.Failed > 0) {
		m.tell(Told{Job: job, Direction: plan.Up, Result: res, Err: err})
	}
	return errors.Stage(err, "s3 sync")
}

// send uploads an unsent job and records the outcome. After a failure it updates the record with
// rewrite.
func (m *Manager) send(ctx context.Context, u Unsent, rewrite func(context.Context, Unsent) error) error {
	defer m.begin(u.Sandbox)()
	res, err := m.sync(ctx, u.Job, Request{Wait: true, Sync: s3sync.Options{Direction: plan.Up}})
	if err == nil {
		err = missing(int64(len(res.Stats.Refused)), res.Stats.Refused)
	}
	if err != nil && ctx.Err() != nil {
		return errors.Stage(err, "s3 sync")
	}
	told := Told{Job: u.Job, Direction: plan.Up, Result: res, Err: err}
	// The outcome must be recorded even if the caller's context is canceled.
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
		logf.Errorf(ctx, "record the result of sending volume %s: %v", u.Volume, noted)
	}
	m.tell(told)
	return errors.Stage(err, "s3 sync")
}

// errNoVolume reports that the volume of a job was deleted.
var errNoVolume = errors.Newf(errors.NotFound, "the volume was deleted")

// sync runs req on the volume and place of a job.
func (m *Manager) sync(ctx context.Context, job Job, req Request) (Result, error) {
	vol, err := m.opts.Open(ctx, job.Account, job.Volume)
	if errors.Is(err, errors.NotFound) {
		return Result{}, errNoVolume
	}
	if err != nil {
		return Result{}, err
	}
	req.Place, req.Patience = job.Place, lifePatience
	res, err := m.syncVolume(ctx, job.Account, vol, req)
	if errors.Is(err, errors.NotFound) {
		if _, gone := m.opts.Open(ctx, job.Account, job.Volume); errors.Is(gone, errors.NotFound) {
			return res, errNoVolume // deleted while this sync waited for its turn
		}
	}
	return res, err
}

func (m *Manager) tell(t Told) {
	if m.opts.Tell != nil {
		m.opts.Tell(t)
	}
}

// begin counts a sender for a sandbox. The caller calls done at the end, which also wakes the retry
// loop.
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

// wake makes the retry loop check for due jobs.
func (m *Manager) wake() {
	select {
	case m.later.wake <- struct{}{}:
	default:
	}
}

// retry uploads due jobs. It starts with all of them, since an earlier process may have ended long
// ago.
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

// sendDue starts the uploads that are due and returns the time until the next check. One slow
// volume does not block the others; retryAtOnce slow ones do.
func (m *Manager) sendDue(ctx context.Context, all bool) time.Duration {
	unsent, err := m.opts.Store.List(ctx)
	if err != nil && ctx.Err() == nil {
		logf.Errorf(ctx, "read the pending uploads to S3: %v", err)
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

// sendAgain uploads a due job once it gets one of the retry slots. After a failure it stays counted
// as a sender for firstRetry, so that the loop does not retry at once if the outcome could not be
// recorded.
func (m *Manager) sendAgain(ctx context.Context, u Unsent) {
	if m.later.slots.Acquire(ctx, 1) != nil {
		return
	}
	err := m.send(ctx, u, m.again) // which reports and logs failures
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

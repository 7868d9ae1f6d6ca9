// Package fleet runs sandboxes on an engine. It implements all policy, such as quotas, time limits, recovery and the
// states of sandboxes. Fleet is the entry point.
//
// A Fleet writes a record before it acts, so that the next server knows the state of every operation.
package fleet

import (
	"cmp"
	"context"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/RelevanceAI/harvest/client/errors"
	"github.com/RelevanceAI/harvest/internal/base/logf"
	"github.com/RelevanceAI/harvest/internal/engine"
	"github.com/RelevanceAI/harvest/internal/fleet/boots"
	"github.com/RelevanceAI/harvest/internal/fleet/carry"
	"github.com/RelevanceAI/harvest/internal/fleet/checkpoint"
	"github.com/RelevanceAI/harvest/internal/fleet/commands"
	"github.com/RelevanceAI/harvest/internal/fleet/denials"
	"github.com/RelevanceAI/harvest/internal/fleet/images"
	"github.com/RelevanceAI/harvest/internal/fleet/leftover"
	"github.com/RelevanceAI/harvest/internal/fleet/lending"
	"github.com/RelevanceAI/harvest/internal/fleet/pool"
	"github.com/RelevanceAI/harvest/internal/fleet/record"
	"github.com/RelevanceAI/harvest/internal/fleet/spec"
	"github.com/RelevanceAI/harvest/internal/fleet/transfer"
	"github.com/RelevanceAI/harvest/internal/fleet/usage"
	"github.com/RelevanceAI/harvest/internal/image"
)

// Fleet runs the sandboxes of one engine. All methods may be called concurrently. A ref is an ID, a unique prefix of
// an ID, or the name of a sandbox that has not ended. For sandboxes of other accounts, methods return NotFound.
type Fleet struct {
	opts        Options
	caps        engine.Capabilities
	rules       spec.Rules               // for requests
	kinds       map[string]engine.Engine // by the kind of isolation; empty if there is no choice
	meters      *usage.Meters
	checkpoints *checkpoint.Store
	pool        *pool.Pool // nil without one
	// boots limits how many sandboxes boot concurrently.
	boots     *boots.Queue
	images    images.Images
	leftovers *leftover.Remover
	transfers *transfer.Server
	lending   *lending.Server

	ctx   context.Context // of background work; ends with Close
	stop  context.CancelFunc
	wake  chan struct{}  // signals the reaper that a deadline may be nearer
	tasks sync.WaitGroup // all work that Close waits for

	// mu is never held during input or output.
	mu       sync.Mutex
	closed   bool              // guarded by mu
	live     map[string]*entry // guarded by mu; by ID: sandboxes that have not ended
	created  int64             // guarded by mu
	warmUsed int64             // guarded by mu
	failed   int64             // guarded by mu
}

// entry is a sandbox that has not ended. Its fields are guarded by Fleet.mu, except where noted.
type entry struct {
	id     string        // never changes
	cpu    float64       // reserved; never changes
	memory int64         // reserved; never changes
	ended  chan struct{} // closed once the record is final
	save   sync.Mutex    // held while the record is changed and written; taken before Fleet.mu

	// These have locks of their own, which are taken after Fleet.mu.
	meter    *usage.Meter
	commands *commands.Set
	denials  *denials.Follower
	loan     *lending.Borrower
	files    *transfer.Files // in S3
	carry    carry.State

	record   record.Sandbox
	box      engine.Sandbox          // nil while creating and while lost
	cancel   context.CancelCauseFunc // of Create; nil afterwards
	releases []func()                // release image and volumes
	endErr   error                   // of Destroy
	watched  engine.Sandbox          // sandbox whose end is awaited
	undo     func()                  // removes its new resources if it never becomes ready; may be nil
	own      map[string]func()       // releases the images in record.Suspension, by their IDs
	waking   *waking                 // nil unless the suspended sandbox is being woken
	up       time.Time               // when it was ready, or woke
	expires  moment                  // record.Expires, as the reaper tracks it
	used     moment                  // record.LastUsed, as the reaper tracks it
	network  sync.Mutex              // held while the network is changed; taken before save
}

// Open recovers the sandboxes of an earlier Fleet on the same engine and store, and starts the reaper and the warm
// pool.
func Open(ctx context.Context, opts Options) (*Fleet, error) {
	opts, err := opts.withDefaults()
	if err != nil {
		return nil, err
	}
	f := &Fleet{
		opts: opts, caps: opts.Engine.Capabilities(), boots: boots.New(opts.Boots),
		wake: make(chan struct{}, 1), live: map[string]*entry{},
		images: images.Images{Engine: opts.Engine, Secrets: opts.Secrets},
	}
	if f.kinds, err = isolations(opts); err != nil {
		return nil, err
	}
	f.caps.Memory = f.caps.Memory && opts.Checkpoints != ""
	_, keeps := opts.Engine.Images().(image.Snapshotter)
	f.rules = spec.Rules{
		Engine: opts.Engine.Name(), Can: f.caps, Snapshots: f.caps.Imager || keeps && f.caps.Snapshot,
		Secrets: opts.Secrets != nil, S3: opts.S3 != nil, Mounts: opts.Mounts != nil,
		Defaults: opts.Defaults, Machine: opts.Machine, Timeouts: opts.Timeouts,
	}
	if len(f.kinds) > 0 {
		f.rules.Isolation, f.rules.Isolations = opts.Isolations[0], map[string]engine.Capabilities{}
		for kind, eng := range f.kinds {
			f.rules.Isolations[kind] = eng.Capabilities()
		}
	}
	f.meters = &usage.Meters{Store: opts.Store, Every: opts.UsageEvery, Now: f.now}
	f.ctx, f.stop = context.WithCancel(context.WithoutCancel(ctx))
	f.lending = lending.New(f.ctx, opts.Secrets, &f.tasks, opts.Roots)
	f.lending.Notify(func(account, name string) { rebind(f, account, name) })
	f.leftovers = leftover.New(f.ctx, opts.Engine, &f.tasks)
	f.transfers = &transfer.Server{S3: opts.S3, Mounts: opts.Mounts, Context: f.ctx, Tasks: &f.tasks, Now: f.now}
	if f.caps.Buckets { // the engine mounts them
		f.transfers.Mounts = nil
	}
	// First: checkpoints have secrets, too.
	f.checkpoints, err = checkpoint.Open(ctx, opts.Checkpoints, opts.Secrets, f.now)
	if err == nil {
		err = f.recover(ctx)
	}
	if err != nil {
		f.stop()
		f.tasks.Wait()
		return nil, errors.Stage(err, "recover")
	}
	f.openPool()
	f.tasks.Go(f.reap)
	return f, nil
}

// Close stops watching. Sandboxes and their commands keep running, except for unclaimed warm sandboxes. Creations in
// progress are canceled. The engine and the store stay open.
func (f *Fleet) Close(ctx context.Context) error {
	f.mu.Lock()
	f.closed = true
	f.mu.Unlock()
	f.stop()
	done := make(chan struct{})
	go func() { f.tasks.Wait(); close(done) }()
	select {
	case <-done:
	case <-ctx.Done():
		return errors.Wrapf(ctx.Err(), "wait for background work of the sandboxes")
	}
	return f.pool.Drain(ctx)
}

// begin registers the caller with f.tasks, so that Close waits for it; the caller calls f.tasks.Done. It returns
// Unavailable after Close.
func (f *Fleet) begin() error {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.closed {
		return errors.Remedy(errors.Newf(errors.Unavailable, "Harvest is shutting down"), "try again when it runs")
	}
	f.tasks.Add(1)
	return nil
}

// openPool starts the warm pool, if Options ask for one.
func (f *Fleet) openPool() {
	eng := isolated(f, f.rules.Isolation)
	warmer, ok := eng.(engine.Warmer)
	if f.opts.Warm == 0 {
		return
	}
	if !ok || !eng.Capabilities().Warm {
		logf.Warnf(f.ctx, "the engine %s has no warm sandboxes on this machine, so none are kept", eng.Name())
		return
	}
	p, err := f.rules.Plan(spec.Request{})
	if err != nil { // unexpected: the defaults were validated
		logf.Errorf(f.ctx, "the limits of warm sandboxes: %v", err)
		return
	}
	f.pool = pool.Open(f.ctx, pool.Options{Warmer: warmer, Images: f.opts.Engine.Images(), Boots: f.boots,
		Limits: p.Limits, Size: f.opts.Warm, WarmUp: f.opts.WarmUp, Tasks: &f.tasks})
}

// Rules returns the rules for requests.
func (f *Fleet) Rules() spec.Rules { return f.rules }

// Within returns the rules for requests that also fit the quotas of an account without other sandboxes: their machine
// is as large as the largest sandbox that it may have.
func Within(f *Fleet) spec.Rules {
	r, q := f.rules, f.opts.Quotas
	if q.CPU > 0 {
		r.Machine.CPU = min(r.Machine.CPU, q.CPU)
	}
	if q.Memory > 0 {
		r.Machine.Memory = min(r.Machine.Memory, q.Memory)
	}
	return r
}

// Checkpoints returns the store of checkpoints.
func (f *Fleet) Checkpoints() *checkpoint.Store { return f.checkpoints }

// Capabilities returns the capabilities of the engine.
func (f *Fleet) Capabilities() engine.Capabilities { return f.caps }

// Get returns the sandbox with this ref. It returns Invalid if ref is ambiguous.
func (f *Fleet) Get(ctx context.Context, account, ref string) (record.Sandbox, error) {
	sb, _, err := f.find(ctx, account, ref)
	return sb, err
}

// List returns sandboxes, newest first.
func (f *Fleet) List(ctx context.Context, account string, filter record.Filter) ([]record.Sandbox, error) {
	if err := filter.Check(); err != nil {
		return nil, err
	}
	if !filter.All && filter.Name == "" && len(filter.Statuses)+len(filter.Tags) == 0 {
		return f.listLive(account, filter), nil
	}
	found, err := f.opts.Store.List(ctx, account, filter)
	if err != nil {
		return nil, err
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	for i, sb := range found {
		if e := f.live[sb.ID]; e != nil {
			found[i] = f.snapshot(e) // includes the cost so far
		}
	}
	return found, nil
}

// listLive is List for sandboxes that have not ended. It does not read the Store: this is the most frequent query.
func (f *Fleet) listLive(account string, filter record.Filter) []record.Sandbox {
	f.mu.Lock()
	defer f.mu.Unlock()
	var ids []string
	for id, e := range f.live {
		if (account == "" || e.record.Account == account) && (filter.Before == "" || id < filter.Before) &&
			e.record.Ended.IsZero() {
			ids = append(ids, id)
		}
	}
	slices.Sort(ids)
	slices.Reverse(ids)
	if filter.Limit > 0 && len(ids) > filter.Limit {
		ids = ids[:filter.Limit]
	}
	found := make([]record.Sandbox, len(ids))
	for i, id := range ids {
		found[i] = f.snapshot(f.live[id])
	}
	return found
}

// find returns the sandbox with this ref, and its entry if it has not ended.
func (f *Fleet) find(ctx context.Context, account, ref string) (record.Sandbox, *entry, error) {
	notFound := errors.Remedy(errors.Newf(errors.NotFound, "sandbox %.100q: not found", ref),
		"list sandboxes, including ended ones, with \"harvest sandbox ls --all\"")
	f.mu.Lock()
	e := f.live[ref]
	if e == nil && ref != "" && !strings.HasPrefix(ref, spec.IDPrefix) {
		for _, other := range f.live {
			if other.record.Name == ref && other.record.Account == account {
				e = other
			}
		}
	}
	if e != nil && account != "" && (e.record.Account == account || e.record.Owner == account) {
		defer f.mu.Unlock()
		return f.snapshot(e), e, nil
	}
	f.mu.Unlock()
	if len(ref) > spec.MaxRefText || ref == "" {
		return record.Sandbox{}, nil, notFound
	}
	if !strings.HasPrefix(strings.ToLower(ref), spec.IDPrefix) {
		return f.findEnded(ctx, account, ref, notFound)
	}
	ref = strings.ToLower(ref)
	found, err := f.opts.Store.Find(ctx, account, ref, 2)
	switch {
	case err != nil:
		return record.Sandbox{}, nil, err
	case len(found) == 0:
		return record.Sandbox{}, nil, notFound
	case len(found) > 1:
		return record.Sandbox{}, nil, errors.Remedy(errors.Newf(errors.Invalid, "%s is ambiguous: %s, %s or more", ref,
			found[0].ID, found[1].ID), "give more characters of the id")
	}
	return f.nowOf(found[0])
}

// nowOf returns the current record of a sandbox that was found in the Store, and its entry unless it has ended.
func (f *Fleet) nowOf(found record.Sandbox) (record.Sandbox, *entry, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if e := f.live[found.ID]; e != nil {
		return f.snapshot(e), e, nil
	}
	return found, nil, nil
}

// findEnded returns the record of the latest sandbox that had this name. Names of sandboxes that have not ended are
// in f.live.
func (f *Fleet) findEnded(ctx context.Context, account, name string, notFound error) (record.Sandbox, *entry, error) {
	found, err := f.opts.Store.List(ctx, account, record.Filter{All: true, Name: name, Limit: 1})
	switch {
	case err != nil:
		return record.Sandbox{}, nil, err
	case len(found) == 0 || account == "":
		return record.Sandbox{}, nil, notFound
	}
	return f.nowOf(found[0])
}

// current returns e's record, as it is stored.
func (f *Fleet) current(e *entry) record.Sandbox {
	f.mu.Lock()
	defer f.mu.Unlock()
	return e.record.Clone()
}

// snapshot returns e's current record, with its commands and the cost so far. f.mu is held.
func (f *Fleet) snapshot(e *entry) record.Sandbox {
	sb := e.record.Clone()
	if !sb.Started.IsZero() && sb.Ended.IsZero() {
		sb.Cost = f.opts.Prices.Cost(e.cpu, e.memory, sb.GPU, sb.Ran(time.Now()))
	}
	sb.Commands = e.commands.Records()
	return sb
}

// update applies change to e's record and stores it. If change returns an error, the record stays as it was. If
// storing fails, the change remains in memory, since it has already happened.
func (f *Fleet) update(ctx context.Context, e *entry, change func(*record.Sandbox) error,
	events ...record.EventType) (changed bool, err error) {
	e.save.Lock()
	defer e.save.Unlock()
	f.mu.Lock()
	sb := e.record.Clone()
	before := sb.Status
	err = change(&sb)
	if err == nil && sb.Status != before && !before.Can(sb.Status) {
		err = errors.Errorf("%s cannot go from %s to %s", sb.ID, before, sb.Status)
	}
	if err != nil {
		f.mu.Unlock()
		return false, err
	}
	e.record = sb
	sb = f.snapshot(e)
	f.mu.Unlock()
	err = f.opts.Store.Put(context.WithoutCancel(ctx), sb)
	for _, event := range events {
		f.emit(record.Event{Type: event, Sandbox: sb})
	}
	return true, errors.Wrapf(err, "record that %s is %s", sb.ID, sb.Status)
}

func (f *Fleet) emit(event record.Event) {
	if f.opts.Event != nil {
		f.opts.Event(event)
	}
}

// finish publishes e's end: its record is final, and waiters continue. It returns false if change returned an error.
func (f *Fleet) finish(ctx context.Context, e *entry, endErr error, change func(*record.Sandbox) error,
	events ...record.EventType) bool {
	changed, err := f.update(ctx, e, func(sb *record.Sandbox) error {
		if err := change(sb); err != nil {
			return err
		}
		sb.Ended = f.now()
		sb.Woken(sb.Ended)
		if !sb.Started.IsZero() {
			sb.Cost = f.opts.Prices.Cost(e.cpu, e.memory, sb.GPU, sb.Ran(sb.Ended))
		}
		return nil
	}, events...)
	if !changed {
		return false
	}
	e.meter.Save(ctx)
	f.mu.Lock()
	sb, releases := e.record, e.releases
	if e.undo != nil && sb.Started.IsZero() {
		releases = append(releases, e.undo)
	}
	e.releases, e.box, e.endErr = nil, nil, errors.Join(endErr, err)
	delete(f.live, e.id)
	if sb.Status == record.Failed {
		f.failed++
	}
	f.mu.Unlock()
	for _, release := range releases {
		release()
	}
	close(e.ended)
	ctx = logContext(ctx, sb)
	if err != nil {
		logf.Errorf(ctx, "the end of a sandbox: %v", err)
	}
	logf.Infof(ctx, "sandbox %s after %s: %s", sb.Status, sb.Ended.Sub(sb.Created).Round(time.Millisecond),
		cmp.Or(sb.Reason, "no reason"))
	return true
}

// Stats returns counts over all accounts.
func (f *Fleet) Stats() Stats {
	f.mu.Lock()
	defer f.mu.Unlock()
	s := Stats{Sandboxes: map[record.Status]int{}, Created: f.created, WarmUsed: f.warmUsed, Failed: f.failed,
		Leftover: f.leftovers.Len(), Used: f.meters.Used()}
	s.Warm, s.Prepared = f.pool.Counts()
	for e := range maps.Values(f.live) {
		s.Sandboxes[e.record.Status]++
		if e.reserves() {
			s.CPU += e.cpu
			s.Memory += e.memory
		}
		s.Commands += e.commands.Len()
		if e.reserves() {
			s.Used.Memory += e.meter.Memory()
		}
	}
	return s
}

// wakeReaper makes the reaper check the deadlines again.
func (f *Fleet) wakeReaper() {
	select {
	case f.wake <- struct{}{}:
	default:
	}
}

// now returns the time for records, without the monotonic clock, which another process could not compare.
func (f *Fleet) now() time.Time { return f.opts.Clock().UTC().Round(0) }

func logContext(ctx context.Context, sb record.Sandbox) context.Context {
	return logf.With(ctx, "sandbox_id", sb.ID, "account", sb.Account)
}

// Package s3sync makes a volume and a prefix of an S3 bucket alike, in either direction or both.
//
// Each file is an object whose key is its path, so that any tool reads them, with metadata in headers that rclone, s3fs and AWS's own
// services understand. Beside them is one object of Harvest's own, the manifest (see ManifestKey), which has what headers cannot say, and
// by which a sync with nothing changed asks one question. A bucket that others filled has none; then a list of its objects does, more slowly.
//
// A sync scans, plans and applies at once, in the order of keys, and holds a few thousand paths at most. What it has done is written
// down as it goes, so that the next continues where one was interrupted. Both sides are taken to be hostile: see Tree and readManifest.
package s3sync

import (
	"context"
	"fmt"
	"os"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sync/errgroup"
	"golang.org/x/sync/semaphore"

	"github.com/RelevanceAI/harvest/errors"
)

// workers is how many requests are under way at most: enough for a server that answers after 20 ms (design: s3.md), with
// maxInFlight bounding what they hold.
const workers = 128

// maxInFlight bounds the bytes of bodies in memory, all files together.
const maxInFlight = 64 << 20

// writers is how many small files are made at once. They are in memory by then: more would only wait for one another in the kernel, for
// the directory that all of them are made in.
const writers = 8

// What was written goes to the disk when it is so much, or so long ago.
const (
	flushBytes = 32 << 20
	flushTime  = time.Second
	flushTick  = 100 * time.Millisecond
)

// ahead is how many paths may be finished before the first of them is; it bounds memory, and what an interrupted sync does again.
const ahead = 4096

// An entry may have attributes and extents of some MiB. Those that are larger than heavyEntry, in bytes, have heavyBytes together while they are among
// the paths ahead.
const (
	heavyEntry = 8 << 10
	heavyBytes = 32 << 20
)

// Options of a Sync.
type Options struct {
	Direction Direction
	// Mirror deletes on the side that changes what the other does not have. Without it nothing is deleted (2.1), save by Both,
	// which takes over deletions.
	Mirror bool
	// Conflicts is for Both; "" is KeepBoth.
	Conflicts Conflicts
	// State is a directory, outside of the tree, in which this machine remembers the last sync of the tree with each place; made if missing.
	// No other tree may have it: Both would take what that one has and this one has not for deleted. With "" nothing is remembered:
	// unchanged files are told by size and time, and Both treats what differs as changed on both sides.
	State string
	// List asks the bucket for all its objects, and sees what others changed there. Without it a manifest is trusted where there is one.
	List bool
	// Contents compares what files hold, and not only their sizes and times.
	Contents bool
	// Owners gives restored files the users and groups they had, if the process may.
	Owners bool
	// SetID restores the setuid and setgid bits: only for buckets that nobody else writes into. Files that were restored without them count as unchanged.
	SetID bool
	// Only limits a sync to what is beneath this path of the tree (3.3); "" is all. Deletions stay beneath it too.
	Only string
	// Packs keeps copies of small files, many in one object, with which empty volumes are filled many times faster. A sync down uses what packs there
	// are, whatever this says.
	Packs bool
	// Plan is called for each action but Keep before anything is done, and DryRun ends there.
	Plan   func(Action)
	DryRun bool
	// DeleteMany allows a sync to delete at least MaxDeleteFiles files that are more than MaxDeletePercent of a side's, or all files of a volume whose
	// place holds nothing. Otherwise it ends with a Conflict before it deletes anything. 0 means the defaults.
	DeleteMany       bool
	MaxDeleteFiles   int
	MaxDeletePercent int
	// Progress is called about ten times a second with what was done so far, and at the end. It must not block.
	Progress func(Stats)

	// from is another prefix that has the version before: what is the same is copied there, and not sent.
	from *Bucket
	// version says that the prefix is one of several versions of the same files.
	version bool
}

// Stats is what a sync did (2.6).
type Stats struct {
	Files     int64 `json:"files"`     // sent or received whole
	Bytes     int64 `json:"bytes"`     // of them
	Updated   int64 `json:"updated"`   // only their metadata changed
	Skipped   int64 `json:"skipped"`   // the same on both sides
	Deleted   int64 `json:"deleted"`   //
	Failed    int64 `json:"failed"`    // Failures has the first of them
	Conflicts int64 `json:"conflicts"` // changed on both sides
	// Seen is how many bytes of files are done, sent or not, and Total how many there are: 0 in the first second and where that is not
	// known. Both are for Options.Progress only.
	Seen     int64         `json:"-"`
	Total    int64         `json:"-"`
	Duration time.Duration `json:"duration_ns"` //
	// There is when all that came was there, to be read and written by anybody; Duration says when it was on the disk too. 0 for Up.
	There    time.Duration `json:"-"`
	Failures []Failure     `json:"failures,omitempty"`
	// Refused are those of Failures that S3 did not take, and may take another time: it is full, or does not allow it.
	Refused []Failure `json:"-"`
	// Unconditional says that the server ignores conditions of writes, so that each was preceded by a look at the object.
	Unconditional bool `json:"unconditional,omitempty"`
	// Decided says what was done about conflicts, for the first thousand.
	Decided []Failure `json:"decided,omitempty"`
}

// Failure is a path and what happened to it.
type Failure struct {
	Path   string `json:"path"`
	Reason string `json:"reason"`
	Remedy string `json:"remedy,omitempty"`
}

// maxNamed is how many failures are named.
const maxNamed = 1000

// Rate is bytes a second.
func (s Stats) Rate() float64 {
	if s.Duration <= 0 {
		return 0
	}
	return float64(s.Bytes) / s.Duration.Seconds()
}

// String is one line for people.
func (s Stats) String() string {
	text := fmt.Sprintf("%d files, %d bytes in %s; %d unchanged", s.Files, s.Bytes, s.Duration.Round(time.Millisecond), s.Skipped)
	for _, more := range []struct {
		n    int64
		what string
	}{{s.Updated, "updated"}, {s.Deleted, "deleted"}, {s.Conflicts, "in conflict"}, {s.Failed, "failed"}} {
		if more.n > 0 {
			text += fmt.Sprintf(", %d %s", more.n, more.what)
		}
	}
	return text
}

// run is a sync under way.
type run struct {
	b     *Bucket
	t     *Tree
	o     Options
	p     policy
	sem   *semaphore.Weighted // bytes of bodies in memory
	room  int64               // how many of them one body can have
	disk  *semaphore.Weighted // small files being made
	heavy *semaphore.Weighted // bytes of heavy entries
	start time.Time

	progress progress
	buffers  pool

	uploads   uploads
	repack    *repack // nil if no packs are kept
	journal   *journal
	unsettled *unsettled // what it says is guarded by mu once files are made

	mu    sync.Mutex // guards what follows
	stats Stats

	links map[[2]uint64]string // inode to the first of its paths
	above []*Entry             // the directories that the last path is in and that stay
	dirs  []*Entry             // whose metadata is set when all is in them
	later []*job               // hard links
	gone  []*Entry             // local directories to remove, parents first
	// goneFiles are files and links of the volume to remove when all is decided.
	goneFiles []Action // guarded by mu
	guard     guard
	way       sync.Mutex  // for making way where both sides have something of another kind
	oncemore  atomic.Bool // what became of conflicts is to be synchronised, too
	// removed is to be deleted when the new manifest is there.
	removed []doomed
}

// Sync makes one side like the other, and returns what it did. Paths that fail are in the statistics, with the reason, and the rest is
// done all the same; the error is for what ends a sync: a bucket that cannot be read, no space for the state, or the context. An
// interrupted sync is continued by the next one with the same State.
//
// Conflict is returned where another sync to the same place ended meanwhile three times over.
func Sync(ctx context.Context, t *Tree, b *Bucket, o Options) (Stats, error) {
	if err := o.check(); err != nil {
		return Stats{}, err
	}
	var done Stats
	for attempt, pass := 1, 1; ; attempt++ {
		r := newRun(t, b, o)
		err := r.sync(ctx)
		r.buffers.close()
		stats := r.finished()
		switch {
		case (errors.Is(err, errOvertaken) || errors.Is(err, errState)) && attempt < 3:
			done = done.then(stats)
			continue
		case err == nil && r.oncemore.Load() && pass < 3:
			done = done.then(stats)
			attempt, pass = 0, pass+1
			continue
		}
		return done.then(stats), err
	}
}

func newRun(t *Tree, b *Bucket, o Options) *run {
	return &run{b: b, t: t, o: o, sem: semaphore.NewWeighted(maxInFlight), room: maxInFlight, disk: semaphore.NewWeighted(writers), heavy: semaphore.NewWeighted(heavyBytes),
		start: time.Now(), links: map[[2]uint64]string{},
		p: policy{dir: o.Direction, mirror: o.Mirror, conflict: o.Conflicts, stamp: time.Now(), checked: o.Contents,
			restores: restoring{owners: o.Owners, setID: o.SetID}, mayOwn: t.owners}}
}

// then is what two syncs did, one after the other. What failed in the first, the second tried again.
func (s Stats) then(next Stats) Stats {
	next.Files += s.Files
	next.Bytes += s.Bytes
	next.Updated += s.Updated
	next.Deleted += s.Deleted
	next.Conflicts += s.Conflicts
	next.Duration += s.Duration
	next.Decided = append(s.Decided[:len(s.Decided):len(s.Decided)], next.Decided...)
	if len(next.Decided) > maxNamed {
		next.Decided = next.Decided[:maxNamed]
	}
	return next
}

func (o *Options) check() error {
	switch o.Direction {
	case Up, Down, Both:
	default:
		return errors.Newf(errors.Invalid, "%q is no direction: use %s, %s or %s", o.Direction, Up, Down, Both)
	}
	switch o.Conflicts {
	case "":
		o.Conflicts = KeepBoth
	case KeepBoth, KeepNewer, KeepLocal, KeepRemote:
	default:
		return errors.Newf(errors.Invalid, "%q is no policy for conflicts: use %s, %s, %s or %s", o.Conflicts, KeepBoth, KeepNewer, KeepLocal, KeepRemote)
	}
	if o.MaxDeleteFiles <= 0 {
		o.MaxDeleteFiles = DefaultMaxDeleteFiles
	}
	if o.MaxDeletePercent <= 0 {
		o.MaxDeletePercent = DefaultMaxDeletePercent
	}
	if o.Only != "" && !ValidPath(o.Only) {
		return errors.Newf(errors.Invalid, "%.200q is no path beneath the volume", o.Only)
	}
	return nil
}

// errOvertaken is what happens to a sync whose manifest another one replaced meanwhile.
var errOvertaken = errors.Remedy(errors.Newf(errors.Conflict, "another sync to the same place ended meanwhile"), "sync again")

func (r *run) finished() Stats {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.stats.Duration, r.stats.Unconditional = time.Since(r.start), r.b.unconditional()
	return r.stats
}

// count changes the statistics.
func (r *run) count(change func(*Stats)) {
	r.mu.Lock()
	defer r.mu.Unlock()
	change(&r.stats)
}

// fail notes that a path failed.
func (r *run) fail(path string, err error) { r.failed(path, err, refusedNow(err)) }

// lack notes that something beside the files failed, all of which are there: nothing is to be sent again for it.
func (r *run) lack(path string, err error) { r.failed(path, err, false) }

func (r *run) failed(path string, err error, refused bool) {
	r.count(func(s *Stats) {
		s.Failed++
		failure := Failure{path, errors.Message(err), errors.RemedyOf(err)}
		if len(s.Failures) < maxNamed {
			s.Failures = append(s.Failures, failure)
		}
		if refused && len(s.Refused) < maxNamed {
			s.Refused = append(s.Refused, failure)
		}
	})
}

// job is an action on its way.
type job struct {
	Action
	out  *Entry // what the bucket has of the path now, and the volume; nil if neither
	err  error
	done chan struct{}

	weight int64 // of heavy that it holds
}

// sync does all.
func (r *run) sync(ctx context.Context) error {
	st, err := openState(r.o.State, r.home(), r.o.Direction)
	if err != nil {
		return err
	}
	defer st.close()
	source := r.b
	if r.o.from != nil {
		source = r.o.from
	}
	if !st.temp {
		r.uploads.dir = st.file(stateUploads)
	}
	if r.unsettled, err = openUnsettled(r.o.State, r.t, source.String()); err != nil {
		return err
	}
	if !r.versions() { // none of them ever loses an object
		st.prefix, st.left, st.kept, st.void = r.b.prefix, st.readDoomed(), map[string]bool{}, map[string]bool{}
	}
	if err := r.recover(ctx, st); err != nil {
		return err
	}
	r.journal = st.journal
	remote, err := source.contents(ctx, st, r.o.List)
	if err != nil {
		return err
	}
	defer remote.close()
	if remote.list && !remote.healed && !r.versions() {
		if err := r.readTombstones(ctx, st); err != nil {
			return err
		}
	}
	if err := r.refuseEmpty(ctx, st, remote); err != nil {
		return err
	}
	if r.o.DryRun {
		return r.plan(ctx, st, remote, func(a Action) error {
			r.announce(a)
			return nil
		})
	}
	stop := r.report(ctx, st, remote)
	defer stop()
	switch {
	case r.o.Direction == Down:
	case r.o.Packs:
		r.repack = &repack{r: r, st: st, made: map[string]bool{}}
	default:
		_ = os.Remove(st.file(statePacked)) // nobody counts what they lack from now on
	}
	if err := r.apply(ctx, st, remote); err != nil {
		return err
	}
	if err := r.guard.check(&r.o, r.b); err != nil {
		return err
	}
	if err := r.finishLocal(ctx); err != nil {
		return err
	}
	if err := st.commit(ctx, r, remote); err != nil {
		return err
	}
	if err := r.deleteRemote(ctx, st); err != nil {
		return err
	}
	if err := r.repack.make(ctx); err != nil {
		return err
	}
	r.sweep(ctx, st)
	return nil
}

// home is what the state of this machine is kept for: the prefix of all versions where there are several.
func (r *run) home() string {
	prefix := r.b.prefix
	if r.versions() {
		prefix = parent(strings.TrimSuffix(prefix, "/")) + "/*"
	}
	return r.b.base.String() + "\x00" + prefix
}

// versions reports whether the prefix is one of several versions of the same files.
func (r *run) versions() bool { return r.o.from != nil || r.o.version }

// sweepEvery is how often the uploads that nobody continues are looked for.
const sweepEvery = 24 * time.Hour

// sweep aborts the uploads that syncs to the same place left and nobody continued: of all versions where there are several. A failure is not
// reported, since who may store objects may not always list uploads; it is tried again after sweepEvery. A whole bucket, without a prefix, may have
// uploads of others, and is never swept.
func (r *run) sweep(ctx context.Context, st *state) {
	b := r.b
	if r.versions() {
		var err error
		if b, err = r.b.At(parent(strings.TrimSuffix(r.b.prefix, "/"))); err != nil {
			return
		}
	}
	if r.o.Direction == Down || b.prefix == "" || !st.sweepDue(sweepEvery) {
		return
	}
	r.uploads.sweep(Stale)
	_, _ = b.Sweep(ctx, Stale)
}

// announce shows an action, and counts it where nothing else will happen.
func (r *run) announce(a Action) {
	if a.Op != Keep && r.o.Plan != nil {
		r.o.Plan(a)
	}
	if !r.o.DryRun {
		return
	}
	if a.Op == Skip {
		r.fail(a.Path, a.Err)
		return
	}
	r.count(func(s *Stats) { s.add(&a) })
}

// add counts an action that was done.
func (s *Stats) add(a *Action) {
	switch a.Op {
	case Keep:
		s.Skipped++
	case Upload, Download:
		if a.Kind != Dir {
			s.Files++
			s.Bytes += a.Size
		}
	case UpdateRemote, UpdateLocal:
		s.Updated++
	case DeleteRemote, DeleteLocal:
		s.Deleted++
	}
	if a.Conflict != "" {
		s.Conflicts++
		if len(s.Decided) < maxNamed {
			s.Decided = append(s.Decided, Failure{Path: a.Path, Reason: a.Conflict})
		}
	}
}

// apply carries the plan out: what can be done at once here, the rest by workers; results are written down in order.
func (r *run) apply(ctx context.Context, st *state, remote *contents) error {
	g, ctx := errgroup.WithContext(ctx)
	packs, err := r.openPacks(ctx, g)
	if err != nil {
		return err
	}
	defer packs.close()
	work, order := make(chan *job), make(chan *job, ahead)
	g.Go(func() error {
		defer close(order)
		defer close(work)
		return r.plan(ctx, st, remote, func(a Action) error {
			r.announce(a)
			j := &job{Action: a, weight: a.weight()}
			if err := r.heavy.Acquire(ctx, j.weight); err != nil {
				return context.Cause(ctx)
			}
			r.atOnce(ctx, j)
			if err := packs.assign(ctx, j); err != nil {
				return err
			}
			if j.done != nil {
				select {
				case work <- j:
				case <-ctx.Done():
					return context.Cause(ctx)
				}
			}
			select {
			case order <- j:
				return nil
			case <-ctx.Done():
				return context.Cause(ctx)
			}
		})
	})
	for range workers {
		g.Go(func() error {
			for j := range work {
				r.transfer(ctx, j)
				j.pack.release()
				close(j.done)
			}
			return nil
		})
	}
	written := make(chan struct{})
	g.Go(func() error {
		defer close(written)
		return r.write(ctx, st, order)
	})
	if r.o.Direction != Up {
		g.Go(func() error { return r.flush(ctx, written) })
	}
	return g.Wait()
}

// flush has the disk write while files are still arriving, so that at the end little is left to wait for.
func (r *run) flush(ctx context.Context, end <-chan struct{}) error {
	tick := time.NewTicker(flushTick)
	defer tick.Stop()
	last := time.Now()
	for {
		select {
		case <-end:
			return nil
		case <-ctx.Done():
			return nil
		case <-tick.C:
		}
		if n := r.t.written.Load(); n == 0 || n < flushBytes && time.Since(last) < flushTime {
			continue
		}
		if err := r.durable(); err != nil {
			return err
		}
		last = time.Now()
	}
}

// write takes finished jobs in order into the new manifest and the new state.
func (r *run) write(ctx context.Context, st *state, order <-chan *job) error {
	for j := range order {
		if j.done != nil {
			select {
			case <-j.done:
			case <-ctx.Done():
				return context.Cause(ctx)
			}
		}
		if j.err != nil && ctx.Err() != nil {
			return context.Cause(ctx)
		}
		if fatal(j.err) {
			return j.err
		}
		if r.concerns(j.local, j.remote) {
			r.progress.done(j, r.o.Direction)
		}
		if j.err != nil {
			r.fail(j.Path, j.err)
		} else if r.timeLost(j) {
			r.lack(j.Path, errTime)
		}
		if j.err != nil {
		} else if j.Op != Skip {
			r.count(func(s *Stats) { s.add(&j.Action) })
		}
		if err := st.add(j); err != nil {
			return err
		}
		r.repack.changes(ctx, j)
		r.heavy.Release(j.weight)
	}
	return nil
}

// fatal reports whether an error will happen to all that follows: then a sync ends, and is continued later. A damaged object is one of many.
func fatal(err error) bool {
	if errors.Is(err, errDamaged) {
		return false
	}
	switch errors.KindOf(err) {
	case errors.Unauthenticated, errors.Unavailable, errors.Canceled:
		return true
	}
	return false
}

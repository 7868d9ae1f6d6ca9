// Package volsync syncs a volume with a prefix of an S3 bucket, in one direction or both.
//
// Each file is an object whose key is its path, so that any tool can read it, with metadata in
// headers that rclone, s3fs and AWS's own services understand. Harvest adds one object of its own,
// the manifest (see package manifest). It holds the data that does not fit into headers, and lets a sync
// without changes finish after one request. A bucket filled by other tools has no manifest; Harvest
// then lists its objects, which is slower.
//
// A sync scans, plans and applies at the same time, in the order of keys, and holds at most a few
// thousand paths in memory. It records its results as it goes, so that the next sync can continue
// an interrupted one. Both sides are treated as hostile: see packages tree and manifest.
package volsync

import (
	"cmp"
	"context"
	"fmt"
	"os"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sync/errgroup"
	"golang.org/x/sync/semaphore"

	"github.com/RelevanceAI/harvest/client/errors"
	"github.com/RelevanceAI/harvest/internal/s3/buffer"
	"github.com/RelevanceAI/harvest/internal/s3/object"
	"github.com/RelevanceAI/harvest/internal/s3/tree"
	"github.com/RelevanceAI/harvest/internal/s3/volsync/pack"
	"github.com/RelevanceAI/harvest/internal/s3/volsync/plan"
	"github.com/RelevanceAI/harvest/internal/s3/volsync/remote"
	"github.com/RelevanceAI/harvest/internal/s3/volsync/state"
)

// writers is the number of small files created at the same time. Their content is in memory by
// then. More writers would only wait for one another in the kernel, for the lock of the directory.
const writers = 8

// Written data is flushed to the disk at this size or age.
const (
	flushBytes = 32 << 20
	flushTime  = time.Second
	flushTick  = 100 * time.Millisecond
)

// ahead is the number of paths that may be finished before an earlier one. It bounds memory, and
// the work that must be repeated after an interruption.
const ahead = 4096

// Options configures a Sync.
type Options struct {
	Direction plan.Direction
	// Mirror deletes entries on the changing side that the other side does not have. Without it
	// nothing is deleted (2.1), except by Both, which propagates deletions.
	Mirror bool
	// Conflicts is the policy of Both; "" is KeepBoth.
	Conflicts plan.Conflicts
	// State is a directory outside of the tree with this machine's records of the last sync of the
	// tree with each place. It is created if missing. Trees must not share it: Both would take
	// files that only the other tree has for deleted. With "" nothing is recorded: unchanged files
	// are recognized by size and mtime, and Both treats any difference as a change on both sides.
	State string
	// List lists all objects of the bucket to find changes by other tools. Without it, the manifest
	// is trusted if there is one.
	List bool
	// Contents compares the content of files, and not only their sizes and times.
	Contents bool
	// Owners restores the users and groups of files, if the process is permitted to.
	Owners bool
	// SetID restores the setuid and setgid bits. Use it only for buckets that nobody else writes
	// to. Files that were restored without these bits count as unchanged.
	SetID bool
	// Only limits a sync, including deletions, to this path of the tree and below (3.3); "" is the
	// whole tree.
	Only string
	// Packs keeps copies of small files, many in one object, which fill empty volumes many times
	// faster. A sync down uses existing packs regardless of this option.
	Packs bool
	// Plan is called for each action but Keep, before any action is done. With DryRun, the sync
	// ends there.
	Plan   func(plan.Action)
	DryRun bool
	// DeleteMany allows a sync to delete MaxDeleteFiles or more files that are more than
	// MaxDeletePercent of a side's files, or all files of a side because the other side has none.
	// Otherwise such a sync fails with Conflict before it deletes anything. 0 selects the defaults.
	DeleteMany       bool
	MaxDeleteFiles   int
	MaxDeletePercent int
	// Progress is called about ten times a second with the statistics so far, and at the end. It
	// must not block.
	Progress func(Stats)

	// from is the prefix of the previous version. Unchanged files are copied from there instead of
	// uploaded.
	from *object.Bucket
	// booted is the time of this boot in tests; the zero time means that of the machine.
	booted time.Time
	// waitAfter replaces the constant in tests.
	waitAfter time.Duration
	// version means that the prefix is one of several versions of the same files.
	version bool
}

// Stats is the result of a sync (2.6).
type Stats struct {
	Files     int64 `json:"files"`     // transferred whole
	Bytes     int64 `json:"bytes"`     // of Files
	Updated   int64 `json:"updated"`   // only their metadata changed
	Skipped   int64 `json:"skipped"`   // the same on both sides
	Deleted   int64 `json:"deleted"`   //
	Failed    int64 `json:"failed"`    // Failures has the first ones
	Conflicts int64 `json:"conflicts"` // changed on both sides
	// Seen is the number of bytes of finished files, transferred or not, and Total that of all
	// files. Total is 0 in the first second and if it is unknown. Both are for Options.Progress
	// only.
	Seen     int64         `json:"-"`
	Total    int64         `json:"-"`
	Duration time.Duration `json:"duration_ns"` //
	// There is the time until all files were in place for readers and writers; Duration also
	// includes the flush to the disk. It is 0 for Up.
	There    time.Duration `json:"-"`
	Failures []Failure     `json:"failures,omitempty"`
	// Refused are those of Failures that S3 refused and may accept later: it is full, or denies
	// access.
	Refused []Failure `json:"-"`
	// Unconditional means that the server ignores conditional writes, so that the object was
	// checked before each write.
	Unconditional bool `json:"unconditional,omitempty"`
	// Refusal is set by a dry run if the sync would fail, because it deletes most files of a side.
	Refusal string `json:"refusal,omitempty"`
	// Ignored are the FIFOs, sockets and devices of the volume, which are no failures. It has the first thousand.
	Ignored []Failure `json:"ignored,omitempty"`
	// Waiting names the server if it has answered nothing for a while. It is for Options.Progress only.
	Waiting string `json:"-"`
	// Decided has the decisions about the first thousand conflicts.
	Decided []Failure `json:"decided,omitempty"`
}

// Failure is a path with the reason for its failure.
type Failure struct {
	Path   string `json:"path"`
	Reason string `json:"reason"`
	Remedy string `json:"remedy,omitempty"`
	// Copy is the path of the copy that the decision about a conflict made.
	Copy string `json:"copy,omitempty"`
}

// maxNamed is the maximum number of failures with a name.
const maxNamed = 1000

// Rate returns the bytes per second.
func (s Stats) Rate() float64 {
	if s.Duration <= 0 {
		return 0
	}
	return float64(s.Bytes) / s.Duration.Seconds()
}

// String returns a line of text for people.
func (s Stats) String() string {
	text := fmt.Sprintf("%d files, %d bytes in %s; %d unchanged", s.Files, s.Bytes,
		s.Duration.Round(time.Millisecond), s.Skipped)
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

// run is a sync in progress.
type run struct {
	b     *object.Bucket
	t     *tree.Tree
	o     Options
	p     plan.Policy
	sem   *semaphore.Weighted // bytes of bodies in memory
	room  int64               // maximum of them for one body
	disk  *semaphore.Weighted // small files being made
	heavy *semaphore.Weighted // bytes of heavy entries
	start time.Time

	progress progress
	buffers  buffer.Pool

	uploads   state.Uploads
	repack    *pack.Repack // nil if no packs are kept
	state     *state.State
	journal   *state.Journal
	unsettled *state.Unsettled // guarded by mu once files are made

	mu    sync.Mutex // guards the fields below
	stats Stats

	links map[[2]uint64]string // inode to the first of its paths
	// relinked are the inodes with several names that this sync changed through one of them, with the metadata that it
	// gave them, or a nil entry: see relink.
	relinked sync.Map
	above    []*tree.Entry // remaining directories above the last path
	lacks    *lacking      // directories above the last path that the volume lacks
	dirs     []*tree.Entry // guarded by mu; to get their metadata once their entries are in place
	later    []*job        // hard links
	gone     []plan.Action // guarded by mu; local directories to remove
	// goneFiles are files and links of the volume to remove once all paths are decided.
	goneFiles []plan.Action // guarded by mu
	overDirs  []*job        // guarded by mu; files to download where the volume has a directory to remove
	guard     plan.Guard
	way       sync.Mutex  // held to make way where the two sides differ in kind
	oncemore  atomic.Bool // sync again, to include the results of conflicts
	relist    bool        // list the bucket then
	pass      int         // 1, and one more for each time that the sync began again
	// removed are objects to delete once the new manifest is stored.
	removed []object.Doomed
}

// Sync makes one side like the other and returns the statistics. Paths that fail are in the
// statistics with the reason, and the sync continues with the rest. The error is for failures that
// end the sync: an unreadable bucket, no space for the state, or the context. The next sync with
// the same State continues an interrupted one.
//
// Sync returns Conflict if another sync to the same place ended meanwhile, three times in a row.
func Sync(ctx context.Context, t *tree.Tree, b *object.Bucket, o Options) (Stats, error) {
	if err := o.check(); err != nil {
		return Stats{}, err
	}
	var done Stats
	for attempt, pass := 1, 1; ; attempt++ {
		r := newRun(t, b, o)
		r.pass = pass
		err := r.sync(ctx)
		r.buffers.Close()
		stats := r.finished()
		switch {
		case (errors.Is(err, object.ErrOvertaken) || errors.Is(err, state.ErrState)) && attempt < 3:
			done = done.then(stats)
			continue
		case err == nil && r.oncemore.Load() && pass < 3:
			done = done.then(stats)
			attempt, pass, o.List = 0, pass+1, o.List || r.relist
			continue
		}
		return done.then(stats), err
	}
}

func newRun(t *tree.Tree, b *object.Bucket, o Options) *run {
	return &run{b: b, t: t, o: o, sem: semaphore.NewWeighted(buffer.MaxInFlight), room: buffer.MaxInFlight,
		disk: semaphore.NewWeighted(writers), heavy: semaphore.NewWeighted(plan.HeavyBytes),
		start: time.Now(), links: map[[2]uint64]string{},
		p: plan.Policy{Dir: o.Direction, Mirror: o.Mirror, Conflict: o.Conflicts, Stamp: time.Now(),
			Checked:  o.Contents,
			Restores: tree.Restoring{Owners: o.Owners, SetID: o.SetID}, MayOwn: t.CanChown()}}
}

// then combines the statistics of two syncs in a row. The second retried the failures of the first.
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
	case plan.Up, plan.Down, plan.Both:
	default:
		return errors.Newf(errors.Invalid, "invalid direction %q: use %s, %s or %s", o.Direction, plan.Up, plan.Down,
			plan.Both)
	}
	switch o.Conflicts {
	case "":
		o.Conflicts = plan.KeepBoth
	case plan.KeepBoth, plan.KeepNewer, plan.KeepLocal, plan.KeepRemote:
	default:
		return errors.Newf(errors.Invalid, "invalid policy for conflicts %q: use %s, %s, %s or %s", o.Conflicts,
			plan.KeepBoth,
			plan.KeepNewer, plan.KeepLocal, plan.KeepRemote)
	}
	if o.MaxDeleteFiles <= 0 {
		o.MaxDeleteFiles = plan.DefaultMaxDeleteFiles
	}
	if o.MaxDeletePercent <= 0 {
		o.MaxDeletePercent = plan.DefaultMaxDeletePercent
	}
	if o.Only != "" && !tree.ValidPath(o.Only) {
		return errors.Remedy(errors.Newf(errors.Invalid, "invalid path %.200q: not below the volume", o.Only),
			"write it relative to the volume, without a slash at the end, such as src/lib")
	}
	return nil
}

func (r *run) finished() Stats {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.stats.Duration, r.stats.Unconditional = time.Since(r.start), r.b.Unconditional()
	return r.stats
}

// count changes the statistics.
func (r *run) count(change func(*Stats)) {
	r.mu.Lock()
	defer r.mu.Unlock()
	change(&r.stats)
}

// fail records the failure of a path.
func (r *run) fail(path string, err error) { r.failed(path, err, object.RefusedNow(err)) }

// notSynced records that an action failed. A FIFO, a socket or a device of the volume is no failure, unless the bucket
// has a file in its place.
func notSynced(r *run, a *plan.Action, err error) {
	if a.Op != plan.Skip || a.Remote != nil || !errors.Is(err, tree.ErrSpecial) {
		r.fail(a.Path, err)
		return
	}
	r.count(func(s *Stats) {
		if len(s.Ignored) < maxNamed {
			s.Ignored = append(s.Ignored, Failure{Path: a.Path, Reason: errors.Message(err)})
		}
	})
}

// lack records a failure that affects no file, so that nothing needs to be sent again.
func (r *run) lack(path string, err error) { r.failed(path, err, false) }

func (r *run) failed(path string, err error, refused bool) {
	r.count(func(s *Stats) {
		s.Failed++
		failure := Failure{Path: path, Reason: errors.Message(err), Remedy: errors.RemedyOf(err)}
		if len(s.Failures) < maxNamed {
			s.Failures = append(s.Failures, failure)
		}
		if refused && len(s.Refused) < maxNamed {
			s.Refused = append(s.Refused, failure)
		}
	})
}

// job is an action in progress.
type job struct {
	plan.Action
	out  *tree.Entry // the path's entry in the bucket and the volume afterwards; nil if there is none
	err  error
	done chan struct{}
	pack *pack.Pack // may hold the file; nil if none
	// lacks are directories above the path that the volume lacks.
	lacks *lacking
	// marker is a directory of the volume whose metadata only the headers of its object have; nil if none or read.
	marker *tree.Entry

	weight int64 // held of heavy
}

// sync runs the whole sync.
func (r *run) sync(ctx context.Context) error {
	measured := make(chan func(context.Context), 1)
	defer r.report(ctx, measured)()
	st, err := state.Open(r.o.State, r.home(), r.o.Direction)
	if err != nil {
		return err
	}
	defer st.Close()
	source := r.b
	if r.o.from != nil {
		source = r.o.from
	}
	if !st.Temp {
		r.uploads.Dir = st.File(state.UploadsDir)
	}
	r.unsettled, err = state.OpenUnsettled(r.o.State, r.t, source.String(), cmp.Or(r.o.booted, state.Booted()))
	if err != nil {
		return err
	}
	if !r.versions() { // versions never lose an object
		st.FinishDeletions(r.b.Prefix())
	}
	if err := r.recover(ctx, st); err != nil {
		return err
	}
	r.state, r.journal = st, st.Journal
	remote, err := remote.Read(ctx, source, st, r.o.List)
	if err != nil {
		return err
	}
	defer remote.Close()
	if remote.List && !remote.Healed && !r.versions() {
		if err := r.readTombstones(ctx, st); err != nil {
			return err
		}
	}
	if err := r.refuseEmpty(ctx, st, remote); err != nil {
		return err
	}
	if r.o.DryRun {
		err := r.plan(ctx, st, remote, func(a plan.Action) error {
			r.announce(a)
			return nil
		})
		if refusal := r.refuseMany(); err == nil && refusal != nil {
			r.stats.Refusal = errors.Message(refusal) + "; " + errors.RemedyOf(refusal)
		}
		return err
	}
	measured <- func(ctx context.Context) { r.measure(ctx, st, remote) }
	switch {
	case r.o.Direction == plan.Down:
	case r.o.Packs:
		r.repack = pack.NewRepack(pack.Packing{B: r.b, From: r.o.from, Versions: r.versions(), T: r.t, St: st,
			Buffers: &r.buffers,
			Memory:  r.buffer, Lack: func(err error) { r.lack(pack.Prefix, err) }})
	default:
		_ = os.Remove(st.File(state.Packed)) // the files missing in packs are no longer counted
	}
	if err := r.apply(ctx, st, remote); err != nil {
		return err
	}
	if err := r.refuseMany(); err != nil {
		return err
	}
	if err := r.finishLocal(ctx); err != nil {
		return err
	}
	if err := r.commit(ctx, st, remote); err != nil {
		return err
	}
	if err := r.deleteRemote(ctx, st); err != nil {
		return err
	}
	if err := r.repack.Make(ctx); err != nil {
		return err
	}
	r.sweep(ctx, st)
	return nil
}

// refuseMany returns an error if the plan deletes most files of a side, and DeleteMany is not set.
func (r *run) refuseMany() error {
	if r.o.DeleteMany || r.versions() {
		return nil
	}
	return r.guard.Check(r.o.MaxDeleteFiles, r.o.MaxDeletePercent, r.b.String())
}

// home identifies the place of the state on this machine. All versions of a volume share one.
func (r *run) home() string {
	prefix := r.b.Prefix()
	if r.versions() {
		prefix = tree.Parent(strings.TrimSuffix(prefix, "/")) + "/*"
	}
	return r.b.URL() + "\x00" + prefix
}

// versions reports whether the prefix is one of several versions of the same files.
func (r *run) versions() bool { return r.o.from != nil || r.o.version }

// sweepEvery is the interval between searches for abandoned uploads.
const sweepEvery = 24 * time.Hour

// sweep aborts the abandoned uploads of syncs to the same place, for all versions if there are
// several. It does not report a failure, since permission to store objects does not always include
// listing uploads, and tries again after sweepEvery. It never sweeps a whole bucket without a
// prefix, which may have uploads of other programs.
func (r *run) sweep(ctx context.Context, st *state.State) {
	b := r.b
	if r.versions() {
		var err error
		if b, err = r.b.At(tree.Parent(strings.TrimSuffix(r.b.Prefix(), "/"))); err != nil {
			return
		}
	}
	if r.o.Direction == plan.Down || b.Prefix() == "" || !st.SweepDue(sweepEvery) {
		return
	}
	r.uploads.Sweep(object.Stale)
	_, _ = b.Sweep(ctx, object.Stale)
}

// announce reports an action to Plan. For a dry run it also counts the action.
func (r *run) announce(a plan.Action) {
	if a.Op != plan.Keep && r.o.Plan != nil {
		r.o.Plan(a)
	}
	if !r.o.DryRun {
		return
	}
	if a.Op == plan.Skip {
		notSynced(r, &a, a.Err)
		return
	}
	r.count(func(s *Stats) { s.add(&a) })
}

// add counts a finished action.
func (s *Stats) add(a *plan.Action) {
	switch a.Op {
	case plan.Keep:
		s.Skipped++
	case plan.Upload, plan.Download:
		if a.Kind != tree.Dir {
			s.Files++
			s.Bytes += a.Size
		}
	case plan.UpdateRemote, plan.UpdateLocal:
		s.Updated++
	case plan.DeleteRemote, plan.DeleteLocal:
		s.Deleted++
	}
	if a.Conflict != "" {
		s.Conflicts++
		if len(s.Decided) < maxNamed {
			s.Decided = append(s.Decided, Failure{Path: a.Path, Reason: a.Conflict, Copy: a.Copy})
		}
	}
}

// apply executes the plan. It does some work at once and passes the rest to workers. The results
// are recorded in order.
func (r *run) apply(ctx context.Context, st *state.State, remote *remote.Contents) error {
	g, ctx := errgroup.WithContext(ctx)
	packs, err := r.openPacks(ctx, g)
	if err != nil {
		return err
	}
	defer packs.Close()
	work, order := make(chan *job), make(chan *job, ahead)
	g.Go(func() error {
		defer close(order)
		defer close(work)
		return r.plan(ctx, st, remote, func(a plan.Action) error {
			r.announce(a)
			j := &job{Action: a, weight: a.Weight()}
			if err := r.heavy.Acquire(ctx, j.weight); err != nil {
				return context.Cause(ctx)
			}
			r.atOnce(ctx, j)
			if j.done != nil && j.Op == plan.Download && j.CopyTo == "" && j.Kind != tree.Dir {
				p, err := packs.Assign(ctx, j.Remote)
				if err != nil {
					return err
				}
				if j.pack = p; p != nil {
					j.Packed = p.Find
				}
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
	for range object.Workers {
		g.Go(func() error {
			for j := range work {
				r.transfer(ctx, j)
				j.pack.Release()
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
	if r.o.Direction != plan.Up {
		g.Go(func() error { return r.flush(ctx, written) })
	}
	return g.Wait()
}

// flush makes the disk write while files still arrive, so that little is left to flush at the end.
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
		if n := r.t.Written.Load(); n == 0 || n < flushBytes && time.Since(last) < flushTime {
			continue
		}
		if err := r.durable(); err != nil {
			return err
		}
		last = time.Now()
	}
}

// write adds finished jobs, in order, to the new manifest and the new state.
func (r *run) write(ctx context.Context, st *state.State, order <-chan *job) error {
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
		if object.Fatal(j.err) {
			return j.err
		}
		if r.concerns(j.Local, j.Remote) {
			r.progress.done(j, r.o.Direction)
		}
		if j.err != nil {
			notSynced(r, &j.Action, j.err)
		} else if r.timeLost(j) {
			r.lack(j.Path, tree.ErrTime)
		}
		if j.err != nil {
		} else if j.Op != plan.Skip {
			r.count(func(s *Stats) { s.add(&j.Action) })
		}
		if err := st.Add(&j.Action, j.out, j.err); err != nil {
			return err
		}
		if j.err == nil {
			r.repack.Changes(ctx, j.Op, j.Remote, j.out)
		}
		r.heavy.Release(j.weight)
	}
	return nil
}

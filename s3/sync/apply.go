package sync

import (
	"io"

	"context"

	"slices"
	"strings"
	"time"

	"golang.org/x/sync/errgroup"
	"golang.org/x/sys/unix"

	"github.com/RelevanceAI/harvest/errors"
	"github.com/RelevanceAI/harvest/internal/pattern"
	"github.com/RelevanceAI/harvest/s3/tree"
)

// atOnce does the work that needs no request or must happen in order. A job with work left for a
// worker gets a channel.
func (r *run) atOnce(ctx context.Context, j *job) {
	r.asRestored(j)
	if j.merge && j.Kind == tree.Dir {
		j.local, j.merge = r.p.merged(j.local, j.base, j.remote), false
		r.dirs = append(r.dirs, j.local)
	}
	r.remember(j)
	switch {
	case j.unsure:
		j.done = make(chan struct{})
		return
	case j.aside:
		j.out = j.remote
		return
	}
	switch j.Op {
	case Skip:
		j.err = j.Err
		if r.elsewhere(j) {
			j.done = make(chan struct{})
		}
	case Keep:
		j.out = kept(j.local, j.remote)
		if r.o.from != nil && j.out != nil && j.out.ETag != "" {
			j.done = make(chan struct{})
		}
	case Download:
		if j.remote.Kind == tree.Dir {
			j.out, j.err = r.makeDir(j)
			return
		}
		if j.remote.Link != "" && j.copyTo == "" {
			// Its other name exists once all files are in place.
			r.later = append(r.later, j)
			j.out = j.remote
			return
		}
		j.done = make(chan struct{})
	case UpdateLocal:
		if j.remote.Kind == tree.Dir {
			r.dirs = append(r.dirs, j.remote)
			j.out = kept(j.local, j.remote)
			return
		}
		j.done = make(chan struct{})
	case DeleteLocal:
		if j.local.Kind == tree.Dir {
			r.gone = append(r.gone, j.local)
			return
		}
		r.deleteLocal(j)
	case DeleteRemote:
		if r.o.from != nil {
			return // the previous version stays unchanged
		}
		if j.first {
			r.deleteFirst(ctx, j)
		} else if j.remote.ETag != "" {
			j.done = make(chan struct{})
		}
	default:
		j.done = make(chan struct{})
	}
}

// remember notes the directories above j. Their times change when an entry in them does, and are
// restored at the end.
func (r *run) remember(j *job) {
	if r.o.Direction == Up {
		return
	}
	for len(r.above) > 0 && !strings.HasPrefix(j.Path, r.above[len(r.above)-1].Path+"/") {
		r.above = r.above[:len(r.above)-1]
	}
	if n := len(r.above); n > 0 && r.above[n-1].Path == tree.Parent(j.Path) &&
		(j.Op == Download || j.Op == UpdateLocal || j.Op == DeleteLocal) {
		if k := len(r.dirs); k == 0 || r.dirs[k-1] != r.above[n-1] {
			r.dirs = append(r.dirs, r.above[n-1])
		}
	}
	switch {
	case j.remote != nil && j.remote.Kind == tree.Dir && j.Op == Keep && !j.remote.Unmarked():
		r.above = append(r.above, j.remote)
	case j.local != nil && j.local.Kind == tree.Dir && (j.Op == UpdateRemote || j.Op == Upload):
		r.above = append(r.above, j.local) // as it is uploaded
	}
}

// kept returns the bucket's entry for a path that stays unchanged on both sides, with the volume's
// inode.
func kept(local, remote *tree.Entry) *tree.Entry {
	if remote == nil || local == nil || remote.Inode == local.Inode && remote.Change == local.Change {
		return remote
	}
	e := *remote
	e.Inode, e.Change = local.Inode, local.Change
	return &e
}

// deleteFirst deletes an object at once, since another one takes its place. If others changed it,
// it is kept as a copy.
func (r *run) deleteFirst(ctx context.Context, j *job) {
	if j.copyTo != "" {
		if j.err = r.saveCopy(ctx, j); j.err != nil {
			return
		}
	}
	key := j.remote.KeyUnder(r.b.Prefix())
	var refused error
	if j.err = r.b.deleteKnown(ctx, []doomed{{key, j.remote.ETag}},
		func(_ string, err error) { refused = err }); j.err == nil {
		j.err = refused
	}
}

// makeDir makes a directory. Its metadata is set once its entries are in place.
func (r *run) makeDir(j *job) (*tree.Entry, error) {
	if r.o.Direction != Up && (r.o.Mirror || r.o.Direction == Both) {
		if now, err := r.t.Lstat(j.Path); err == nil && now != nil && now.Kind != tree.Dir {
			if err := r.outOfTheWay(j.Path, now); err != nil {
				return nil, err
			}
		}
	}
	if _, err := r.t.Mkdir(j.Path); err != nil {
		if r.o.Direction != Both {
			return nil, err
		}
		if err := r.makeWay(j.Path); err != nil {
			return nil, err
		}
	}
	r.dirs = append(r.dirs, j.remote)
	now, err := r.t.Lstat(j.Path)
	return kept(now, j.remote), err
}

// outOfTheWay removes a file where a directory belongs, if the sync goes down only or was to delete
// the file. Otherwise both sides keep it.
func (r *run) outOfTheWay(path string, now *tree.Entry) error {
	r.way.Lock()
	defer r.way.Unlock()
	r.mu.Lock()
	i := slices.IndexFunc(r.goneFiles, func(a Action) bool { return a.Path == path })
	var gone Action
	if i >= 0 {
		gone = r.goneFiles[i]
		r.goneFiles = slices.Delete(r.goneFiles, i, i+1)
	}
	r.mu.Unlock()
	if r.o.Direction == Down || i >= 0 && r.stillIs(&gone, now) == nil {
		return r.t.Remove(path, now.Kind)
	}
	return r.setAside(path)
}

// elsewhere reports whether the object of a path is in the previous version, and not in the new
// one.
func (r *run) elsewhere(j *job) bool {
	return r.o.from != nil && j.remote != nil && j.remote.ETag != ""
}

// transfer does a worker's part of a job. If a file cannot be stored in a new version, the version
// gets the file of the previous one.
func (r *run) transfer(ctx context.Context, j *job) {
	if j.Op != Skip {
		r.attempt(ctx, j)
	}
	if j.err == nil || !r.elsewhere(j) {
		return
	}
	var err error
	if j.was, err = r.b.copy(ctx, r.o.from, j.remote); err != nil {
		if j.was = nil; fatal(err) {
			j.err = err
		}
	}
}

// carryOut carries out the action of a job.
func (r *run) carryOut(ctx context.Context, j *job) {
	if j.copyTo != "" {
		// Both changed: save the bucket's file beside the volume's before it is replaced.
		if j.err = r.saveCopy(ctx, j); j.err != nil {
			return
		}
	}
	if j.merge && j.Op != Download {
		if j.err = r.mergeHere(j); j.err != nil {
			return
		}
	}
	switch j.Op {
	case Upload:
		j.out, j.err = r.upload(ctx, &j.Action)
		if j.err == nil && j.remote != nil && j.out.ETag == j.remote.ETag && j.Kind != tree.Dir {
			j.settle(UpdateRemote)
		}
	case UpdateRemote:
		j.out, j.err = r.updateRemote(ctx, &j.Action)
		if j.err == nil {
			if j.out.ETag != j.remote.ETag && j.Kind != tree.Dir {
				j.Op = Upload
			} else {
				j.settle(UpdateRemote)
			}
		}
	case Keep:
		if j.out = kept(j.local, j.remote); r.o.from != nil {
			r.carry(ctx, j)
		}
		return
	case Download:
		r.bring(ctx, j)
	case UpdateLocal:
		j.out, j.err = r.updateLocal(ctx, j)
	case DeleteLocal:
		r.deleteLocal(j)
	case DeleteRemote:
		if j.err = r.b.holds(ctx, j.remote.KeyUnder(r.b.Prefix()), condition{etag: j.remote.ETag}); j.err == nil {
			r.deleteThere(j)
		}
	}
	if j.out == nil || j.out.ETag == "" || j.err != nil {
		return
	}
	j.Size = j.out.BodySize()
	if from := r.o.from; from != nil && j.remote != nil && j.out.ETag == j.remote.ETag &&
		(j.Op == Keep || j.Op == UpdateRemote) {
		r.carry(ctx, j)
	}
}

// bring downloads a file.
func (r *run) bring(ctx context.Context, j *job) {
	j.out, j.err = r.download(ctx, &j.Action, j.Path)
	if j.err != nil && r.o.Direction == Both && r.t.Shadowed(j.Path) {
		r.way.Lock()
		err := r.makeWay(tree.Parent(j.Path))
		r.way.Unlock()
		if err == nil {
			j.out, j.err = r.download(ctx, &j.Action, j.Path)
		}
	}
	if j.local == nil && passing(j.Path) && errors.Is(j.err, errors.NotFound) {
		j.Op, j.out, j.err = Keep, nil, nil
	}
}

// deleteLocal notes that a file of the volume is to be deleted, once all deletions are known.
func (r *run) deleteLocal(j *job) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.goneFiles = append(r.goneFiles, j.Action)
}

// deleteThere notes that an object is to be deleted once the new manifest is stored.
func (r *run) deleteThere(j *job) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.removed = append(r.removed, doomed{j.remote.KeyUnder(r.b.Prefix()), j.remote.ETag})
}

// passingName matches the names under which versitygw briefly stores an object while it replaces
// another one (backend/posix, linkatOTmpfile).
var passingName = pattern.New(`^\.(.+)\.sgwtmp\.[0-9]{19}$`)

// passing reports whether a path may be a transient entry of a list. It is one only if the object
// is gone when it is fetched.
func passing(path string) bool {
	return passingName().MatchString(path[strings.LastIndexByte(path, '/')+1:])
}

// carry copies an object from the previous version. If that fails, the file is uploaded again.
func (r *run) carry(ctx context.Context, j *job) {
	out, err := r.b.copy(ctx, r.o.from, j.out)
	if err != nil && ctx.Err() == nil && !fatal(err) && j.local != nil {
		again := Action{Op: Upload, Path: j.Path, Kind: j.Kind, local: j.local, empty: true}
		out, err = r.upload(ctx, &again)
	}
	j.out, j.err = out, err
}

// settle notes that at most the metadata changed.
func (j *job) settle(op Op) {
	j.Op = op
	if j.out.Same(j.remote) && (j.out.Extents == nil) == (j.remote.Extents == nil) {
		j.Op = Keep
		j.out = kept(j.out, j.remote)
	}
}

// updateLocal gives a file or link the bucket's metadata, after checking that the content is the
// same.
func (r *run) updateLocal(ctx context.Context, j *job) (*tree.Entry, error) {
	want := j.remote
	if want.Foreign {
		now, err := r.b.stat(ctx, want.KeyUnder(r.b.Prefix()))
		if err != nil {
			return nil, err
		}
		now.Path, now.Key = want.Path, want.Key
		if !now.SameContent(j.local) {
			j.Op = Download
			return r.download(ctx, &j.Action, j.Path)
		}
		want = now
	}
	if j.local.Kind == tree.File {
		have := *j.local
		f, err := r.opened(&have)
		if err != nil {
			return nil, err
		}
		defer f.Close()
		if r.o.Contents || known(j.base) && !j.local.Untouched(j.base) {
			// If the inode changed, size and time prove nothing.
			if have.CRC, err = r.checksum(ctx, f, &have); err != nil {
				return nil, err
			}
			if !has(want, &have, func() string { return md5sum(f) }) {
				j.Op = Download
				return r.download(ctx, &j.Action, j.Path)
			}
		}
		if have.Link = want.Link; have.Same(r.restored(want, &have)) {
			j.Op = Keep
			return kept(j.local, want), nil
		}
	}
	at, err := r.t.SetMeta(want, r.restoring())
	e := *want
	return arrived(&e, at, err)
}

// restored returns the entry that the volume has after e is restored over now.
func (r *run) restored(e, now *tree.Entry) *tree.Entry { return r.p.restored(e, now) }

// asRestored handles effects of restores, which no plan knows. A directory or link that only lacks
// attributes which a restore does not set is up to date. A file that an earlier restore left
// without its setuid and setgid bits gets them if they are restored now.
func (r *run) asRestored(j *job) {
	l, rem := j.local, j.remote
	if r.o.Direction == Up || l == nil || rem == nil || l.Kind != rem.Kind || rem.Foreign || !r.concerns(l, rem) {
		return
	}
	switch {
	case j.Op == Keep && r.o.SetID && l.Mode != rem.Mode && l.Mode == rem.Mode&^tree.SetID:
		j.Op = UpdateLocal
	case j.Op == UpdateLocal && l.Kind != tree.File && l.Same(r.restored(rem, l)):
		j.Op = Keep
	}
}

// finishLocal does the work that must wait until all files are in place: hard links, removal of
// directories, and metadata of those that stay.
func (r *run) finishLocal(ctx context.Context) error {
	for _, j := range r.later {
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		err := r.still(&j.Action)
		if err == nil {
			_, err = r.t.Link(j.remote.Link, j.Path)
		}
		if err != nil {
			// If its other name could not be restored, the file has its own object.
			_, err = r.download(ctx, &j.Action, j.Path)
		}
		if err != nil {
			r.fail(j.Path, err)
		}
	}
	for _, a := range r.goneFiles {
		err := r.still(&a)
		if err == nil {
			err = r.t.Remove(a.Path, a.local.Kind)
		}
		if err != nil {
			r.count(func(s *Stats) { s.Deleted-- })
			r.fail(a.Path, err)
		}
	}
	for i := len(r.gone) - 1; i >= 0; i-- {
		err := r.t.Remove(r.gone[i].Path, tree.Dir)
		if errors.Is(err, unix.ENOTEMPTY) && r.o.Direction == Both {
			r.count(func(s *Stats) { s.Deleted-- })
			r.oncemore.Store(true) // it still holds files: it is uploaded again
			continue
		}
		if err != nil {
			r.fail(r.gone[i].Path, err)
		}
	}
	if err := r.describeDirs(ctx); err != nil {
		return err
	}
	for i := len(r.dirs) - 1; i >= 0; i-- {
		if _, err := r.t.SetMeta(r.dirs[i], r.restoring()); err != nil {
			r.fail(r.dirs[i].Path, err)
		}
	}
	if r.o.Direction == Up {
		return nil
	}
	r.count(func(s *Stats) { s.There = time.Since(r.start) })
	if err := r.durable(); err != nil {
		return err
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.unsettled.settled(r.stats.Failed == 0 && r.o.Only == "")
}

// describeDirs requests the metadata of directories that others stored as objects. Without
// metadata, the entry stays as listed.
func (r *run) describeDirs(ctx context.Context) error {
	g, asking := errgroup.WithContext(ctx)
	g.SetLimit(workers)
	asked := map[*tree.Entry]bool{}
	for _, e := range r.dirs {
		if !e.Foreign || e.Unmarked() || asked[e] {
			continue
		}
		asked[e] = true
		g.Go(func() error {
			err := r.b.describeMarker(asking, e)
			if fatal(err) || asking.Err() != nil {
				return err
			}
			if err != nil {
				r.fail(e.Path, err)
			}
			return nil
		})
	}
	return g.Wait()
}

// durable flushes all written files, or records that they may be incomplete.
func (r *run) durable() error {
	err := r.t.Commit()
	if err != nil {
		err = errors.Join(err, r.unsettled.failed())
	}
	return err
}

// writing must be called before a file is made in the volume.
func (r *run) writing(ctx context.Context) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	return r.unsettled.begin(r.start)
}

// openPacks returns the packs to fill the volume from. It returns nil if there are none, or if the
// volume already has files, so that few may be missing.
func (r *run) openPacks(ctx context.Context, g *errgroup.Group) (*packs, error) {
	if r.o.Direction != Down || r.o.Only != "" {
		return nil, nil
	}
	dir, err := r.t.OpenRoot()
	if err != nil {
		return nil, nil //nolint:nilerr // the scan of the volume reports the error
	}
	_, err = dir.Readdirnames(1)
	dir.Close()
	if !errors.Is(err, io.EOF) {
		return nil, nil //nolint:nilerr // see above
	}
	index, _, err := r.b.index(ctx)
	if fatal(err) {
		return nil, err
	}
	if err != nil || index == nil || len(index.Packs) == 0 {
		return nil, nil //nolint:nilerr // all files are available without packs
	}
	if err := r.sem.Acquire(ctx, packsMemory); err != nil {
		return nil, context.Cause(ctx)
	}
	r.room = maxInFlight - packsMemory // a part of a very large file would wait for all of it forever
	return newPacks(r.b, index, &r.buffers, g)
}

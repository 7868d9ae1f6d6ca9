package volsync

import (
	"context"
	"io"
	"slices"
	"strings"
	"time"

	"golang.org/x/sync/errgroup"
	"golang.org/x/sys/unix"

	"github.com/RelevanceAI/harvest/client/errors"
	"github.com/RelevanceAI/harvest/internal/s3/buffer"
	"github.com/RelevanceAI/harvest/internal/s3/object"
	"github.com/RelevanceAI/harvest/internal/s3/tree"
	"github.com/RelevanceAI/harvest/internal/s3/volsync/pack"
	"github.com/RelevanceAI/harvest/internal/s3/volsync/plan"
	"github.com/RelevanceAI/harvest/internal/s3/volsync/remote"
)

// atOnce does the work that needs no request or must happen in order. A job with work left for a
// worker gets a channel.
func (r *run) atOnce(ctx context.Context, j *job) {
	r.asRestored(j)
	j.lacks, r.lacks = r.lacks.next(j)
	if j.Merge && j.Kind == tree.Dir {
		j.Local, j.Merge = r.p.Merged(j.Local, j.Base, j.Remote), false
		r.atEnd(j.Local)
	}
	r.remember(j)
	switch {
	case j.Unsure:
		j.done = make(chan struct{})
		return
	case j.Aside:
		j.out = j.Remote
		return
	case r.changeDir(j):
		if j.marker != nil {
			j.done = make(chan struct{})
		}
		return
	}
	switch j.Op {
	case plan.Skip:
		j.err = j.Err
		if r.elsewhere(j) {
			j.done = make(chan struct{})
		}
	case plan.Keep:
		j.out = kept(j.Local, j.Remote)
		if r.o.from != nil && j.out != nil && j.out.ETag != "" {
			j.done = make(chan struct{})
		}
	case plan.UpdateLocal:
		if becomesLink(j) {
			r.later = append(r.later, j)
			j.out = j.Remote
			return
		}
		j.done = make(chan struct{})
	case plan.Download:
		if j.Remote.Link != "" && j.CopyTo == "" {
			// Its other name exists once all files are in place.
			r.later = append(r.later, j)
			j.out = j.Remote
			return
		}
		j.done = make(chan struct{})
	case plan.DeleteLocal:
		r.deleteLocal(j)
	case plan.DeleteRemote:
		if r.o.from != nil {
			return // the previous version stays unchanged
		}
		if j.First {
			r.deleteFirst(ctx, j)
		} else if j.Remote.ETag != "" {
			j.done = make(chan struct{})
		}
	default:
		j.done = make(chan struct{})
	}
}

// becomesLink reports whether a file of the volume, whose content stays, becomes another name of a file. The volume has
// the content of its record.
func becomesLink(j *job) bool {
	return j.Kind == tree.File && !j.Merge && j.Remote.Link != "" && j.Remote.Link != j.Local.Link && j.Base != nil &&
		j.Local.Untouched(j.Base)
}

// changeDir carries out an action on a directory of the volume, and reports whether the job is one. The action may come
// from the plan, or from a worker that planned the job again.
func (r *run) changeDir(j *job) bool {
	switch {
	case j.Op == plan.Download && j.Remote.Kind == tree.Dir:
		j.out, j.err = r.makeDir(j)
	case j.Op == plan.UpdateLocal && j.Remote.Kind == tree.Dir:
		j.out = kept(j.Local, r.describedAtEnd(j, j.Remote))
	case j.Op == plan.DeleteLocal && j.Local.Kind == tree.Dir:
		r.mu.Lock()
		defer r.mu.Unlock()
		r.gone = append(r.gone, j.Action)
	default:
		return false
	}
	return true
}

// atEnd notes a directory that gets its metadata once its entries are in place.
func (r *run) atEnd(dir *tree.Entry) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if k := len(r.dirs); k == 0 || r.dirs[k-1] != dir {
		r.dirs = append(r.dirs, dir)
	}
}

// describedAtEnd is atEnd for the directory of a job, of which a list may have shown the object only. It returns the
// directory.
func (r *run) describedAtEnd(j *job, dir *tree.Entry) *tree.Entry {
	if dir.Foreign && !dir.Unmarked() {
		marker := *dir
		j.marker, dir = &marker, &marker
	}
	r.atEnd(dir)
	return dir
}

// describe reads the metadata of a directory from its object, which another program stored, or a sync that has not
// ended.
func (r *run) describe(ctx context.Context, j *job) {
	dir := j.marker
	j.marker = nil
	err := r.b.DescribeMarker(ctx, dir)
	if object.Fatal(err) || ctx.Err() != nil {
		j.err = err
		return
	}
	if err != nil {
		r.fail(j.Path, err)
		return
	}
	dir.Foreign = false
	if j.Op == plan.Download {
		j.err = describeEarly(r, dir)
	}
	out := *dir
	out.Inode, out.Change = j.out.Inode, j.out.Change
	j.out = &out
}

// remember notes the directories above j. Their times change when an entry in them does, and are
// restored at the end.
func (r *run) remember(j *job) {
	if r.o.Direction == plan.Up {
		return
	}
	for len(r.above) > 0 && !strings.HasPrefix(j.Path, r.above[len(r.above)-1].Path+"/") {
		r.above = r.above[:len(r.above)-1]
	}
	if n := len(r.above); n > 0 && r.above[n-1].Path == tree.Parent(j.Path) &&
		(j.Op == plan.Download || j.Op == plan.UpdateLocal || j.Op == plan.DeleteLocal) {
		r.atEnd(r.above[n-1])
	}
	switch {
	case j.Remote != nil && j.Remote.Kind == tree.Dir && j.Op == plan.Keep && !j.Remote.Unmarked():
		r.above = append(r.above, j.Remote)
	case j.Local != nil && j.Local.Kind == tree.Dir && (j.Op == plan.UpdateRemote || j.Op == plan.Upload):
		r.above = append(r.above, j.Local) // as it is uploaded
	}
}

// kept returns the bucket's entry for a path that stays unchanged on both sides, with the volume's
// inode.
func kept(local, remote *tree.Entry) *tree.Entry {
	if local != nil && remote != nil && remote.Unmarked() && local.Kind == tree.Dir {
		return local // no list shows its metadata
	}
	if remote == nil || local == nil || remote.Inode == local.Inode && remote.Change == local.Change {
		return remote
	}
	e := *remote
	e.Inode, e.Change = local.Inode, local.Change
	return &e
}

// deleteFirst deletes an object at once, since another one takes its place. If others changed it,
// it is kept as a copy. Workers may find the same object.
func (r *run) deleteFirst(ctx context.Context, j *job) {
	r.way.Lock()
	defer r.way.Unlock()
	d, again, err := r.doom(ctx, j)
	for n := 1; errors.Is(err, object.ErrChangedObject) && !errors.Is(err, errors.NotFound) && n < replans; n++ {
		var now *tree.Entry
		if now, err = r.now(ctx, j); err == nil && now != nil { // behind the manifest
			j.Remote = now
			d, _, err = r.doom(ctx, j)
			again = true
		} else if err == nil {
			err = errors.NotFound
		}
	}
	if errors.Is(err, errors.NotFound) {
		j.Settled() // nothing is left to keep
		return
	}
	if again {
		j.Keep(plan.KeptAsFile, r.p.Stamp)
	}
	if err == nil && j.CopyTo != "" {
		err = r.saveCopy(ctx, j)
	}
	if j.err = err; err != nil {
		return
	}
	if j.err = r.state.DoomFirst(d); j.err != nil {
		return
	}
	var refused error
	if j.err = r.b.DeleteKnown(ctx, []object.Doomed{d}, func(_ string, err error) { refused = err }); j.err == nil {
		j.err = refused
	}
}

// makeDir makes a directory. Its metadata is set once its entries are in place.
func (r *run) makeDir(j *job) (*tree.Entry, error) {
	if r.o.Direction != plan.Up && (r.o.Mirror || r.o.Direction == plan.Both) {
		if now, err := r.t.Lstat(j.Path); err == nil && now != nil && now.Kind != tree.Dir {
			if err := r.outOfTheWay(j.Path, now); err != nil {
				return nil, err
			}
		}
	}
	fresh, err := r.t.Mkdir(j.Path)
	if err != nil {
		if r.o.Direction != plan.Both {
			return nil, err
		}
		r.way.Lock()
		err = r.makeWay(j.Path)
		r.way.Unlock()
		if err != nil {
			return nil, err
		}
	}
	dir := j.Remote
	if dir.Unmarked() { // a time that all machines give it
		e := *dir
		e.Foreign, e.ModTime = false, tree.At(r.start)
		dir = &e
	}
	dir = r.describedAtEnd(j, dir)
	now, err := r.t.Lstat(j.Path)
	if err != nil || !fresh {
		return kept(now, dir), err
	}
	made := *kept(now, dir)
	made.Unset = true
	if err := r.journal.NoteMade(&made); err != nil {
		return nil, err
	}
	return kept(now, dir), describeEarly(r, dir)
}

// describeEarly gives a new directory its mode and owner before the end of the sync. If the sync is killed, the next
// one then does not take the mode of an unfinished directory for a change. Directories that the process could not write
// to afterwards are left for the end.
func describeEarly(r *run, dir *tree.Entry) error {
	const writable = unix.S_IWUSR | unix.S_IXUSR
	if dir.Foreign || dir.Mode&writable != writable {
		return nil
	}
	_, err := r.t.SetMeta(dir, r.restoring())
	return err
}

// outOfTheWay removes a file where a directory belongs, if the sync was to delete the file. Otherwise both sides keep
// it. A sync down leaves it, and the directory fails.
func (r *run) outOfTheWay(path string, now *tree.Entry) error {
	r.way.Lock()
	defer r.way.Unlock()
	gone, ok := r.takeGone(path, now)
	if !ok && r.o.Direction == plan.Down {
		return nil
	}
	if !ok {
		return r.setAside(path)
	}
	if err := r.removing(gone); err != nil {
		return err
	}
	r.guard.Replaced()
	return r.t.Remove(path, now.Kind)
}

// takeGone returns the deletion of a file that is to be deleted and is unchanged, and drops it from those of the end of
// the sync.
func (r *run) takeGone(path string, now *tree.Entry) (gone plan.Action, ok bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	i := slices.IndexFunc(r.goneFiles, func(a plan.Action) bool { return a.Path == path })
	if i < 0 {
		return plan.Action{}, false
	}
	gone = r.goneFiles[i]
	if ok = r.stillIs(&gone, now) == nil; ok || r.o.Direction != plan.Down {
		r.goneFiles = slices.Delete(r.goneFiles, i, i+1)
	}
	return gone, ok
}

// removing records that files of the volume are about to be deleted.
func (r *run) removing(all ...plan.Action) error {
	if r.versions() {
		return nil // each version is complete, and needs no records
	}
	entries := make([]*tree.Entry, len(all))
	for i := range all {
		entries[i] = all[i].Base
	}
	return r.state.Remove(entries...)
}

// elsewhere reports whether the object of a path is in the previous version, and not in the new
// one.
func (r *run) elsewhere(j *job) bool {
	return r.o.from != nil && j.Remote != nil && j.Remote.ETag != ""
}

// transfer does a worker's part of a job. If a file cannot be stored in a new version, the version
// gets the file of the previous one.
func (r *run) transfer(ctx context.Context, j *job) {
	if j.marker != nil {
		r.describe(ctx, j)
	} else if j.Op != plan.Skip {
		r.attempt(ctx, j)
	}
	if j.err == nil || !r.elsewhere(j) {
		return
	}
	var err error
	if j.Was, err = r.b.CopyEntry(ctx, r.o.from, j.Remote); err != nil {
		if j.Was = nil; object.Fatal(err) {
			j.err = err
		}
	}
}

// carryOut carries out the action of a job.
func (r *run) carryOut(ctx context.Context, j *job) {
	if j.CopyTo != "" {
		// Both changed: save the bucket's file beside the volume's before it is replaced.
		if j.err = r.saveCopy(ctx, j); j.err != nil {
			return
		}
	}
	if j.Merge && j.Op != plan.Download {
		if j.err = r.mergeHere(j); j.err != nil {
			return
		}
	}
	if r.changeDir(j) {
		if j.marker != nil && j.err == nil {
			r.describe(ctx, j)
		}
		return
	}
	switch j.Op {
	case plan.Upload:
		j.out, j.err = r.upload(ctx, &j.Action)
		if j.err == nil && j.Remote != nil && j.out.ETag == j.Remote.ETag && j.Kind != tree.Dir {
			j.settle(plan.UpdateRemote)
		}
	case plan.UpdateRemote:
		j.out, j.err = r.updateRemote(ctx, &j.Action)
		if j.err == nil {
			if j.out.ETag != j.Remote.ETag && j.Kind != tree.Dir {
				j.Op = plan.Upload
			} else {
				j.settle(plan.UpdateRemote)
			}
		}
	case plan.Keep:
		if j.out = kept(j.Local, j.Remote); r.o.from != nil {
			r.carry(ctx, j)
		}
		return
	case plan.Download:
		r.bring(ctx, j)
	case plan.UpdateLocal:
		j.out, j.err = r.updateLocal(ctx, j)
	case plan.DeleteLocal:
		r.deleteLocal(j)
	case plan.DeleteRemote:
		d, again, err := r.doom(ctx, j)
		switch {
		case err != nil:
			j.err = err
		case again:
			j.Base, j.err = nil, object.ErrChangedObject
		default:
			r.deleteThere(d)
		}
	}
	if j.out == nil || j.out.ETag == "" || j.err != nil {
		return
	}
	j.Size = j.out.BodySize()
	if from := r.o.from; from != nil && j.Remote != nil && j.out.ETag == j.Remote.ETag &&
		(j.Op == plan.Keep || j.Op == plan.UpdateRemote) {
		r.carry(ctx, j)
	}
}

// bring downloads a file.
func (r *run) bring(ctx context.Context, j *job) {
	mirrors := r.o.Direction == plan.Down && r.o.Mirror
	// A look at the volume is cheaper than to fetch a large file twice, but not a small one.
	if mirrors && j.Remote.BodySize() > buffer.PartSize && r.overDir(j) {
		return
	}
	if j.out, j.err = r.download(ctx, &j.Action, j.Path); j.err != nil && mirrors && r.overDir(j) {
		return
	}
	if j.lacks.again(r, j.err) {
		j.out, j.err = r.download(ctx, &j.Action, j.Path)
	}
	if j.err != nil && r.o.Direction == plan.Both && r.t.Shadowed(j.Path) {
		r.way.Lock()
		err := r.makeWay(tree.Parent(j.Path))
		r.way.Unlock()
		if err == nil {
			j.out, j.err = r.download(ctx, &j.Action, j.Path)
		}
	}
	if j.Local == nil && remote.Passing(j.Path) && errors.Is(j.err, errors.NotFound) {
		j.Op, j.out, j.err = plan.Keep, nil, nil
	}
}

// overDir defers the download of a file to a place at which the volume has a directory, until the entries of the
// directory are deleted. This machine does not have the file until then.
func (r *run) overDir(j *job) bool {
	now, err := r.t.Lstat(j.Path)
	if err != nil || now == nil || now.Kind != tree.Dir {
		return false
	}
	out := *j.Remote
	out.Inode, out.Change = 0, 0
	j.out, j.err, j.Packed = &out, nil, nil
	r.mu.Lock()
	defer r.mu.Unlock()
	r.overDirs = append(r.overDirs, j)
	return true
}

// deleteLocal notes that a file of the volume is to be deleted, once all deletions are known.
func (r *run) deleteLocal(j *job) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.goneFiles = append(r.goneFiles, j.Action)
}

// deleteThere notes that an object is to be deleted once the new manifest is stored.
func (r *run) deleteThere(d object.Doomed) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.removed = append(r.removed, d)
}

// carry copies an object from the previous version. If that fails, the file is uploaded again.
func (r *run) carry(ctx context.Context, j *job) {
	out, err := r.b.CopyEntry(ctx, r.o.from, j.out)
	if err != nil && ctx.Err() == nil && !object.Fatal(err) && j.Local != nil {
		again := plan.Action{Op: plan.Upload, Path: j.Path, Kind: j.Kind, Local: j.Local, Empty: true}
		out, err = r.upload(ctx, &again)
	}
	j.out, j.err = out, err
}

// settle notes that at most the metadata changed.
func (j *job) settle(op plan.Op) {
	j.Op = op
	if j.out.Same(j.Remote) && (j.out.Extents == nil) == (j.Remote.Extents == nil) {
		j.Op = plan.Keep
		j.out = kept(j.out, j.Remote)
	}
}

// updateLocal gives a file or link the bucket's metadata, after checking that the content is the
// same.
func (r *run) updateLocal(ctx context.Context, j *job) (*tree.Entry, error) {
	want := j.Remote
	if want.Foreign {
		now, err := r.b.Stat(ctx, want.KeyUnder(r.b.Prefix()))
		if err != nil {
			return nil, err
		}
		now.Path, now.Key = want.Path, want.Key
		now = now.Learn(want)
		if !now.SameContent(j.Local) {
			j.Op = plan.Download
			return r.download(ctx, &j.Action, j.Path)
		}
		want = now
	}
	if j.Local.Kind == tree.File {
		have := *j.Local
		f, err := r.opened(&have)
		if err != nil {
			return nil, err
		}
		defer f.Close()
		if r.o.Contents || plan.Known(j.Base) && !j.Local.Untouched(j.Base) {
			// If the inode changed, size and time prove nothing.
			if have.CRC, err = r.checksum(ctx, f, &have); err != nil {
				return nil, err
			}
			if !has(want, &have, func() string { return md5sum(f) }) {
				j.Op = plan.Download
				return r.download(ctx, &j.Action, j.Path)
			}
		}
		if have.Link = want.Link; have.Same(r.restored(want, &have)) {
			j.Op = plan.Keep
			return kept(j.Local, want), nil
		}
	}
	at, err := r.setMeta(want, j.Local)
	e := *want
	return arrived(&e, at, err)
}

// restored returns the entry that the volume has after e is restored over now.
func (r *run) restored(e, now *tree.Entry) *tree.Entry { return r.p.Restored(e, now) }

// asRestored handles effects of restores, which no plan knows. A directory or link that only lacks
// attributes which a restore does not set is up to date. A file that an earlier restore left
// without its setuid and setgid bits gets them if they are restored now. A directory that an interrupted sync made gets
// its metadata.
func (r *run) asRestored(j *job) {
	l, rem := j.Local, j.Remote
	if r.o.Direction == plan.Up || l == nil || rem == nil || l.Kind != rem.Kind || !r.concerns(l, rem) {
		return
	}
	if j.Base != nil && j.Base.Unset { // an interrupted sync made the directory
		if j.Op == plan.Keep {
			j.Op = plan.UpdateLocal
		}
		return
	}
	if rem.Foreign {
		return
	}
	switch {
	case j.Op == plan.Keep && r.o.SetID && l.Mode != rem.Mode && l.Mode == rem.Mode&^tree.SetID:
		j.Op = plan.UpdateLocal
	case j.Op == plan.UpdateLocal && l.Kind != tree.File && l.Same(r.restored(rem, l)):
		j.Op = plan.Keep
	}
}

// finishLocal does the work that must wait until all files are in place: hard links, removal of
// directories, and metadata of those that stay.
func (r *run) finishLocal(ctx context.Context) error {
	if len(r.later) > 0 && r.o.Direction == plan.Both {
		// The record of a link is written before the link exists, so it has no inode. Another pass adds it: without an
		// inode, a deletion of the link by the user would not be noticed.
		r.oncemore.Store(true)
	}
	for _, j := range r.later {
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		err := r.still(&j.Action)
		if err == nil {
			err = r.linkTo(j)
		}
		if err != nil {
			// If its other name could not be restored, the file has its own object.
			_, err = r.download(ctx, &j.Action, j.Path)
		}
		if j.lacks.again(r, err) {
			_, err = r.download(ctx, &j.Action, j.Path)
		}
		if err != nil {
			// The new manifest has the link. If another program deleted its object, a list shows that.
			r.relist = r.relist || object.NoSuchKey(err)
			r.fail(j.Path, err)
		}
	}
	if err := r.removing(slices.Concat(r.goneFiles, r.gone)...); err != nil {
		return err
	}
	for _, a := range r.goneFiles {
		err := r.still(&a)
		if err == nil {
			err = r.t.Remove(a.Path, a.Local.Kind)
		}
		if err != nil {
			r.count(func(s *Stats) { s.Deleted-- })
			r.fail(a.Path, err)
		}
	}
	for _, a := range beneathFirst(r.gone, func(a plan.Action) string { return a.Path }) {
		err := r.t.Remove(a.Path, tree.Dir)
		if errors.Is(err, unix.ENOTEMPTY) && r.o.Direction == plan.Both {
			r.count(func(s *Stats) { s.Deleted-- })
			r.oncemore.Store(true) // it still holds files: it is uploaded again
			continue
		}
		if err != nil {
			r.fail(a.Path, err)
		}
	}
	for _, j := range r.overDirs {
		if _, err := r.download(ctx, &j.Action, j.Path); err != nil {
			r.count(func(s *Stats) { s.Files, s.Bytes = s.Files-1, s.Bytes-j.Size })
			r.fail(j.Path, err)
		}
	}
	r.dirs = beneathFirst(r.dirs, func(e *tree.Entry) string { return e.Path })
	if err := r.describeDirs(ctx); err != nil {
		return err
	}
	for _, dir := range r.dirs {
		if _, err := r.t.SetMeta(dir, r.restoring()); err != nil {
			r.fail(dir.Path, err)
		}
	}
	if r.o.Direction == plan.Up {
		return nil
	}
	r.count(func(s *Stats) { s.There = time.Since(r.start) })
	if err := r.durable(); err != nil {
		return err
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.unsettled.Settle(r.stats.Failed == 0 && r.o.Only == "")
}

// linkTo makes the path of a job another name of a file. It completes the record of the path, which the next state has
// already, in case the sync ends before its manifest is stored.
func (r *run) linkTo(j *job) error {
	if now, err := r.t.Lstat(j.Remote.Link); err == nil && now != nil {
		r.relink(now, nil)
	}
	at, err := r.t.Link(j.Remote.Link, j.Path)
	if err != nil {
		return err
	}
	return r.journal.NoteMade(kept(at, j.Remote))
}

// beneathFirst sorts directories so that each comes after those beneath it. Of several with one path, it keeps the
// last.
func beneathFirst[T any](dirs []T, path func(T) string) []T {
	slices.Reverse(dirs)
	slices.SortStableFunc(dirs, func(a, b T) int { return strings.Compare(path(b), path(a)) })
	return slices.CompactFunc(dirs, func(a, b T) bool { return path(a) == path(b) })
}

// describeDirs requests the metadata of directories that others stored as objects. Without
// metadata, the entry stays as listed.
func (r *run) describeDirs(ctx context.Context) error {
	g, asking := errgroup.WithContext(ctx)
	g.SetLimit(object.Workers)
	for _, e := range r.dirs {
		if !e.Foreign || e.Unmarked() {
			continue
		}
		g.Go(func() error {
			err := r.b.DescribeMarker(asking, e)
			if object.Fatal(err) || asking.Err() != nil {
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
		err = errors.Join(err, r.unsettled.Fail())
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
	return r.unsettled.Begin(r.start)
}

// openPacks returns the packs to fill the volume from. It returns nil without any, or if the
// volume already has files, so that few may be missing.
func (r *run) openPacks(ctx context.Context, g *errgroup.Group) (*pack.Packs, error) {
	if r.o.Direction != plan.Down || r.o.Only != "" {
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
	index, _, err := pack.ReadIndex(ctx, r.b)
	if object.Fatal(err) {
		return nil, err
	}
	if err != nil || index == nil || len(index.Packs) == 0 {
		return nil, nil //nolint:nilerr // all files are available without packs
	}
	if err := r.sem.Acquire(ctx, pack.Memory); err != nil {
		return nil, context.Cause(ctx)
	}
	r.room = buffer.MaxInFlight - pack.Memory // a part of a very large file would wait for all of it forever
	return pack.New(r.b, index, &r.buffers, g)
}

package volsync

import (
	"context"
	"fmt"
	"maps"

	"github.com/RelevanceAI/harvest/client/errors"
	"github.com/RelevanceAI/harvest/internal/s3/object"
	"github.com/RelevanceAI/harvest/internal/s3/tree"
	"github.com/RelevanceAI/harvest/internal/s3/volsync/plan"
)

// replans is how often a path is planned again in one sync because others keep writing to it.
const replans = 8

// attempt does a worker's part of a job as planned. It plans again if the object differs from the
// one that the plan saw.
func (r *run) attempt(ctx context.Context, j *job) {
	for n := 1; ; n++ {
		j.err = nil
		if j.Unsure {
			j.err = r.replan(ctx, j)
		}
		if j.err == nil {
			r.carryOut(ctx, j)
		}
		overDirectory(ctx, r, j)
		beneathFile(ctx, r, j)
		if !errors.Is(j.err, object.ErrChangedObject) || r.o.Direction == plan.Down || r.versions() || n == replans ||
			ctx.Err() != nil {
			r.clears(j)
			return
		}
		j.Unsure = true
	}
}

// overDirectory finds out whether a file could not be stored because the bucket has a directory at its path. Servers
// that store objects as files refuse the file then, as if it had another object (versitygw: 412). In the first pass,
// the bucket's directory may be one that the sync is about to delete. After it, the directory stays, and the file gets
// another name.
func overDirectory(ctx context.Context, r *run, j *job) {
	if j.Kind == tree.Dir || j.Op != plan.Upload && j.Op != plan.UpdateRemote ||
		!errors.Is(j.err, object.ErrChangedObject) && !errors.Is(j.err, object.ErrInTheWay) {
		return
	}
	now, err := r.b.Describe(ctx, j.Path)
	if err != nil || now.Kind != tree.Dir {
		return // a race, or a reason that the next attempt shows
	}
	j.err = object.ErrInTheWay
	if r.o.Direction != plan.Both || r.pass == 1 {
		return
	}
	r.way.Lock()
	defer r.way.Unlock()
	here, err := r.t.Lstat(j.Path)
	if err == nil && here != nil && here.Kind != tree.Dir {
		err = r.setAside(j.Path) // the directory comes with its own mode, once a manifest or a list shows it
	}
	if j.err = err; err == nil {
		j.Op, j.out = plan.Keep, nil // the next pass stores the file under its new name
	}
}

// beneathFile is the reverse of overDirectory: another program has stored a file at the path of a directory, or of one
// above, behind the manifest. Servers that store objects as files refuse the object of the directory then (versitygw:
// 412), and all objects beneath it. In the first pass, the file may be one that the plan has put aside for the second.
// After it, the directory keeps its path, as in a plan that knows both, and the file gets another name.
func beneathFile(ctx context.Context, r *run, j *job) {
	refused := errors.Is(j.err, object.ErrInTheWay) || j.Kind == tree.Dir && errors.Is(j.err, object.ErrChangedObject)
	if r.o.Direction != plan.Both || j.Op != plan.Upload && j.Op != plan.UpdateRemote || !refused {
		return
	}
	dir := j.Path
	if j.Kind != tree.Dir {
		dir = tree.Parent(dir)
	}
	for ; dir != ""; dir = tree.Parent(dir) {
		file := &job{Action: plan.Action{Path: dir, Local: &tree.Entry{Path: dir, Kind: tree.File}}}
		now, err := r.now(ctx, file)
		if err != nil {
			return // a reason that the next attempt shows
		}
		if now == nil {
			continue
		}
		if j.err = object.ErrInTheWay; r.pass == 1 {
			return
		}
		file.Action = plan.Action{Op: plan.DeleteRemote, Path: dir, Kind: now.Kind, Remote: now, First: true}
		file.Keep(plan.KeptAsFile, r.p.Stamp)
		if r.deleteFirst(ctx, file); file.err != nil {
			j.err = file.err
			return
		}
		if file.Conflict != "" { // no other worker has just done it
			r.count(func(s *Stats) { s.add(&file.Action) })
		}
		j.err = object.ErrChangedObject // the place is free
		return
	}
}

// clears asks for another pass if a job could not store a file, because some servers store objects as files: the
// directory at its path may be deleted in the bucket at the end of this one.
func (r *run) clears(j *job) {
	if (r.o.Direction == plan.Both || r.o.Mirror && r.o.Direction == plan.Up) &&
		(j.Op == plan.Upload || j.Op == plan.UpdateRemote) &&
		(errors.Is(j.err, object.ErrInTheWay) || errors.Is(j.err, object.ErrChangedObject)) {
		r.oncemore.Store(true)
	}
}

// replan reads the bucket's current entry of a path and decides again.
func (r *run) replan(ctx context.Context, j *job) error {
	now, err := r.now(ctx, j)
	if err != nil {
		return err
	}
	read, err := r.look(ctx, j.Local, j.Base, now)
	if err != nil {
		return err
	}
	now = r.p.Learn(j.Local, j.Base, now)
	a := plan.Decide(r.p, j.Local, j.Base, now, read)
	conflict := a.Conflict != ""
	if j.CopyTo == "" { // otherwise the conflict of the earlier plan has had no effect yet
		if a.Conflict == "" {
			a.Conflict, a.Copy = j.Conflict, j.Copy
		}
	}
	a.Path, a.Kind, a.Was, a.Empty = j.Path, j.Kind, j.Was, j.Empty
	if a.CopyTo == "" && r.o.Direction == plan.Up && a.Op == plan.Upload && now != nil && now.Kind != tree.Dir &&
		now.Foreign {
		// The volume's side wins, but no plan has seen the object that it replaces.
		a.Keep(plan.KeptUnseen, r.p.Stamp)
	}
	if r.o.Direction == plan.Up && a.Op == plan.DeleteRemote && now.Foreign {
		a.Op, a.Conflict = plan.Keep, "deleted here and changed in the bucket meanwhile: the bucket's is kept"
	}
	if conflict || a.CopyTo != "" {
		if err := r.reconcile(ctx, &a); err != nil {
			return err
		}
	}
	if a.Avoid = j.Avoid; now != nil && j.Was == nil && j.Remote == nil {
		a.Avoid = now.ETag
	}
	if (a.Op == plan.Keep || a.Op == plan.UpdateRemote) && a.Local != nil && a.Kind != tree.Dir && now != nil &&
		now.ETag == a.Avoid {
		a.Op = plan.Upload
	}
	r.guard.Replanned(&j.Action, &a)
	j.Action = a
	return nil
}

// now returns the entry of a path's current object, or nil if there is none.
func (r *run) now(ctx context.Context, j *job) (*tree.Entry, error) {
	var key string
	var like *tree.Entry
	for _, e := range []*tree.Entry{j.Remote, j.Was, j.Base, j.Local} {
		if e != nil {
			like = e
			key = e.KeyUnder(r.b.Prefix())
			break
		}
	}
	now, err := r.b.Stat(ctx, key)
	if errors.KindOf(err) == errors.NotFound {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	for _, e := range []*tree.Entry{j.Base, j.Was, j.Remote} {
		if e != nil && e.ETag == now.ETag && e.Kind == like.Kind && e.KeyUnder(r.b.Prefix()) == key {
			return e, nil
		}
	}
	if like.Kind == tree.Dir {
		if now.Size > 0 {
			return nil, errDirContent
		}
		if now.Kind = tree.Dir; now.Mode == 0o644 { // the mode of objects without metadata
			now.Mode = 0o755
		}
		now.Unknown = 0
	}
	now.Path = j.Path
	if now.Kind == tree.Symlink {
		if err := r.b.ReadTarget(ctx, key, now); err != nil {
			return nil, err
		}
	}
	return now, nil
}

// errDirContent reports an object that cannot be a file, since its key is that of a directory.
var errDirContent = errors.Remedy(errors.Newf(errors.Unsupported,
	"its object has content and a key that ends with a slash, so it cannot be a file; it stays unchanged"),
	"give the object another key")

// freeName returns a name for a copy beside path that is not in use in the volume.
func (r *run) freeName(path string) (string, error) {
	free := path
	for n := 2; ; n++ {
		now, err := r.t.Lstat(free)
		if err != nil || now == nil {
			return free, err
		}
		free = plan.BesideName(path, fmt.Sprintf("-%d", n))
	}
}

// saveCopy copies the bucket's file beside the volume's, and records the name.
func (r *run) saveCopy(ctx context.Context, j *job) error {
	if r.o.Direction == plan.Up {
		return r.saveThere(ctx, j)
	}
	to, err := r.freeName(j.CopyTo)
	if err != nil {
		return err
	}
	if _, err := r.download(ctx, &j.Action, to); errors.KindOf(err) == errors.NotFound {
		return errors.Join(object.ErrChangedObject, err) // the manifest has it without an object
	} else if err != nil {
		return err
	}
	j.Kept(to) // the copy stays even if a later step fails
	r.oncemore.Store(true)
	return nil
}

// saveThere makes the server copy an object beside the one that replaces it.
func (r *run) saveThere(ctx context.Context, j *job) error {
	planned, to, key := j.CopyTo, j.CopyTo, ""
	for n := 2; ; n++ {
		key = (&tree.Entry{Path: to, Kind: tree.File}).KeyUnder(r.b.Prefix())
		err := r.b.Holds(ctx, key, object.Condition{Absent: true})
		if err == nil {
			break
		}
		if !errors.Is(err, object.ErrChangedObject) || n > maxCopies {
			return err
		}
		to = plan.BesideName(planned, fmt.Sprintf("-%d", n))
	}
	if j.Remote.Size > object.MaxCopy {
		return errors.Remedy(errors.Newf(errors.Conflict,
			"another program stored another object of more than 5 GiB meanwhile"),
			"sync again with --list, which replaces it")
	}
	if _, err := r.b.CopyFrom(ctx, r.b, j.Remote.KeyUnder(r.b.Prefix()), key, j.Remote.ETag); err != nil {
		return err
	}
	j.Kept(to)
	return nil
}

// maxCopies is the maximum number of conflict names of one file in one second.
const maxCopies = 100

// setAside renames a file that is in the way of a directory.
func (r *run) setAside(path string) error {
	to, err := r.freeName(plan.ConflictName(path, r.p.Stamp))
	if err != nil {
		return err
	}
	if err := r.t.Rename(path, to); err != nil {
		return err
	}
	r.oncemore.Store(true)
	r.count(func(s *Stats) {
		s.Conflicts++
		if len(s.Decided) < maxNamed {
			s.Decided = append(s.Decided, Failure{Path: path, Reason: plan.KeptAsideDir + to, Copy: to})
		}
	})
	return nil
}

// makeWay makes the directory path and its parents. It renames a file that is in the way and that
// both sides keep.
func (r *run) makeWay(path string) error {
	if path == "" {
		return nil
	}
	if err := r.makeWay(tree.Parent(path)); err != nil {
		return err
	}
	now, err := r.t.Lstat(path)
	if err != nil || now != nil && now.Kind == tree.Dir {
		return err
	}
	if now != nil {
		if err := r.setAside(path); err != nil {
			return err
		}
	}
	if _, err := r.t.Mkdir(path); err != nil {
		return err
	}
	_, err = r.t.SetMeta(&tree.Entry{Path: path, Kind: tree.Dir, Mode: 0o755, Foreign: true}, tree.Restoring{})
	r.oncemore.Store(true)
	return err
}

// mergeHere gives a file of the volume the metadata that changed in the bucket and not here, before
// the upload.
func (r *run) mergeHere(j *job) error {
	have := *j.Local
	if have.Kind == tree.File {
		f, err := r.opened(&have)
		if err != nil {
			return err
		}
		f.Close()
	}
	want := r.p.Merged(&have, j.Base, j.Remote)
	if plan.SameMeta(want, &have) && maps.Equal(want.Xattrs, have.Xattrs) {
		return nil
	}
	if err := r.still(&j.Action); err != nil {
		return err
	}
	at, err := r.setMeta(want, &have)
	if err != nil {
		return err
	}
	at.Target, at.Link, at.Xattrs, at.Unknown = have.Target, have.Link, want.Xattrs, want.Unknown
	j.Local = at
	return nil
}

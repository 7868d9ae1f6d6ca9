package volsync

import (
	"cmp"
	"context"
	"iter"
	"strings"

	"github.com/RelevanceAI/harvest/client/errors"
	"github.com/RelevanceAI/harvest/internal/s3/object"
	"github.com/RelevanceAI/harvest/internal/s3/tree"
	"github.com/RelevanceAI/harvest/internal/s3/volsync/plan"
	"github.com/RelevanceAI/harvest/internal/s3/volsync/remote"
	"github.com/RelevanceAI/harvest/internal/s3/volsync/state"
)

// plan calls do with the action for each path, in the order of keys. It holds at most one entry of
// each side at a time.
func (r *run) plan(ctx context.Context, st *state.State, remote *remote.Contents, do func(plan.Action) error) error {
	agreed := agreement(r, do)
	if r.o.Direction == plan.Both {
		do = agreed.Add
	}
	local := r.local(ctx)
	both := remote.Known && !remote.List && !st.Interrupted()
	baseSeq := st.Read()
	remoteSeq := st.Spared(r.b.Prefix(), remote.Read(ctx, st.Last()))
	if both {
		// The state is the bucket's manifest: read it only once.
		baseSeq = func(func(plan.Remembered) bool) {}
	}
	unread := map[string]bool{} // paths of the volume that could not be read
	err := plan.Merge(local, baseSeq, remoteSeq, func(l *tree.Scanned, base *plan.Remembered, rem *tree.Entry,
		rerr error) error {
		if err := ctx.Err(); err != nil {
			return context.Cause(ctx)
		}
		if base == nil && both && rem != nil {
			base = &plan.Remembered{Entry: rem}
		}
		p := plan.Sides{Scanned: l, Remote: rem, List: remote.List}
		if base != nil {
			p.Base, p.Fresh, p.Added = base.Entry, base.Fresh, base.Added
			p.Contest()
		}
		if p.Base != nil && r.o.Direction == plan.Both && st.Renounced(p.Base, p.Local()) {
			p.Renounce()
		}
		if rerr != nil {
			if !r.about(rem.Path, false) {
				return nil
			}
			return do(plan.Skipped(rem.Path, rerr))
		}
		if rem != nil && rem.Kind != tree.Dir && tree.Temporary(rem.Path) {
			if !r.about(rem.Path, false) {
				return nil
			}
			return do(plan.Skipped(rem.Path, tree.ErrTemporary))
		}
		if rem != nil && rem.Blocked && r.about(rem.Path, true) {
			r.fail(rem.Path+"/", errDirContent)
		}
		if l != nil && l.Err != nil && l.FailedPath == "" {
			return l.Err
		}
		if l != nil && l.Err != nil {
			unread[l.FailedPath] = true
			if !r.about(l.FailedPath, l.OfDirectory) {
				return p.Aside(do)
			}
			a := plan.Skipped(l.FailedPath, l.Err)
			a.Remote, a.Was, a.Base = rem, rem, p.Base
			return do(a)
		}
		le := p.Local()
		if le == nil && rem == nil && !p.Fresh {
			return nil // both sides deleted it
		}
		if le == nil && rem != nil && plan.Beneath(unread, rem.Path) || !r.concerns(le, cmp.Or(rem, p.Base)) {
			return p.Aside(do) // unknown in the volume, or outside of Only
		}
		return r.planned(ctx, &p, remote, do)
	})
	if err != nil {
		return err
	}
	return agreed.Flush()
}

// agreement makes the decisions of a sync of both sides agree along each path, before do.
func agreement(r *run, do func(plan.Action) error) *plan.Agreement {
	g := &plan.Agreement{Do: do}
	if r.pass == 1 && !r.o.DryRun {
		g.Open = func(a *plan.Action) {
			if a.Op == plan.DeleteRemote { // the next pass finds few entries beneath it, and decides
				a.Op, a.Aside = plan.Keep, true
				r.oncemore.Store(true)
			}
		}
	}
	return g
}

// planned decides about one path and passes the action to do.
func (r *run) planned(ctx context.Context, p *plan.Sides, remote *remote.Contents, do func(plan.Action) error) error {
	local, rem, unsure := p.Local(), p.Remote, false
	if p.Fresh && r.o.Direction != plan.Down {
		rem, unsure = p.Resumed(r.b.Prefix())
	}
	if p.Renounced && rem != nil && rem.Kind != tree.Dir {
		unsure = true // the manifest may have it without an object
	}
	if local == nil && rem == nil {
		return nil
	}
	r.t.AdoptTime(local, p.Base, rem)
	rem = r.p.Learn(local, p.Base, rem)
	read, err := r.look(ctx, local, p.Base, rem)
	if err != nil {
		return err
	}
	a := plan.Decide(r.p, local, p.Base, rem, read)
	a.Was, a.Unsure = p.Remote, unsure
	if (a.Op == plan.DeleteLocal || a.Op == plan.DeleteRemote) && strings.HasPrefix(r.o.Only, a.Path+"/") {
		return p.Aside(do) // it may hold files that are not part of the sync
	}
	if r.o.Direction == plan.Both && a.Op == plan.Download && local == nil && rem.Kind != tree.Dir &&
		(!unsure || p.Renounced) {
		// A dry run shows the download: only the sync itself finds out whether the directory goes.
		if here, err := r.t.Lstat(a.Path); err == nil && here != nil && here.Kind == tree.Dir && !r.o.DryRun {
			if r.pass == 1 && p.Remote != nil {
				// If nothing changed in the directory, this pass removes it, and the next one finds its place free.
				r.oncemore.Store(true)
				return p.Aside(do)
			}
			a.Op, a.First, a.Unsure = plan.DeleteRemote, true, false
			a.Keep(plan.KeptAsFile, r.p.Stamp)
		}
	}
	if a.Conflict != "" && !unsure {
		if err := r.reconcile(ctx, &a); err != nil {
			return err
		}
	}
	if a.Op == plan.DeleteLocal && remote.Healed && !remote.Memory {
		a = plan.Skipped(a.Path, errUnlisted)
		a.Was, a.Base = p.Remote, p.Base
		return do(a)
	}
	a.Empty = p.Scanned != nil && p.EmptyDir
	if r.unsettled.Doubts(local) {
		r.unsettled.Again(&a, r.o.Direction)
	}
	r.replaced(&a)
	r.guard.Planned(&a)
	return do(a)
}

// errUnlisted explains why nothing in the volume is deleted because of a bucket with an unreadable
// manifest: a list shows neither sparse files nor those with very long paths.
var errUnlisted = errors.Remedy(errors.Newf(errors.Conflict,
	"the bucket's manifest is damaged, so its deletion in the bucket is unconfirmed: it stays here"),
	"sync up from a volume that has the files, or delete it yourself")

// concerns reports whether the entry at a path, on either side, is part of the sync.
func (r *run) concerns(local, remote *tree.Entry) bool {
	e := local
	if e == nil {
		e = remote
	}
	return e == nil || r.about(e.Path, e.Kind == tree.Dir)
}

// about reports whether a path is part of the sync: all are, unless Only is set. The directories
// above Only are part of it.
func (r *run) about(path string, dir bool) bool {
	only := r.o.Only
	return only == "" || path == only || strings.HasPrefix(path, only+"/") || dir && strings.HasPrefix(only, path+"/")
}

// local yields the volume's entries, with hard links resolved and without incomplete files. A sync
// that may change the volume removes the incomplete files of a killed restore. It cannot hit its
// own, since it makes them in directories that have been listed already.
func (r *run) local(ctx context.Context) iter.Seq[tree.Scanned] {
	return func(yield func(tree.Scanned) bool) {
		for s := range r.t.Scan(ctx) {
			if s.Err == nil && s.Kind != tree.Dir && tree.Temporary(s.Path) {
				if r.o.Direction != plan.Up && !r.o.DryRun {
					r.t.RemoveLeft(s.Path)
				}
				continue
			}
			if s.Err == nil && s.Kind == tree.File && s.Nlink > 1 {
				id := [2]uint64{s.Inode, r.t.Device()}
				if first, ok := r.links[id]; ok {
					s.Link = first
				} else {
					r.links[id] = s.Path
				}
			}
			if !yield(s) {
				return
			}
		}
	}
}

// replaced handles a path of the bucket at which the volume has an entry of another kind, which
// replaces it. A file must be deleted before objects can be stored below its name, since many
// servers store objects as files.
func (r *run) replaced(a *plan.Action) {
	if a.Local != nil || a.Remote == nil || r.o.Direction == plan.Down || a.Op != plan.Keep &&
		a.Op != plan.DeleteRemote {
		return
	}
	here, err := r.t.Lstat(a.Path)
	if err != nil || here == nil && !r.t.Shadowed(a.Path) || here != nil && here.Kind == a.Kind {
		return // made since the scan: left to the next sync
	}
	a.Op = plan.DeleteRemote
	a.First = here != nil && here.Kind == tree.Dir
}

// refuseEmpty returns an error if an empty place would empty the volume.
func (r *run) refuseEmpty(ctx context.Context, st *state.State, remote *remote.Contents) error {
	if !remote.Empty || r.o.DeleteMany {
		return nil
	}
	switch {
	case r.o.Direction == plan.Both:
		for e, err := range st.Last() {
			if err != nil || e.Kind != tree.Dir && plan.Known(e) && r.concerns(nil, e) {
				return errors.Join(err, errEmptyPlace(r.b))
			}
		}
	case r.o.Direction == plan.Down && r.o.Mirror:
		for s := range r.local(ctx) {
			if s.Err == nil && s.Kind != tree.Dir && r.concerns(s.Entry, nil) {
				return errEmptyPlace(r.b)
			}
		}
	}
	return nil
}

// errEmptyPlace returns an error for an empty place of which this machine or the volume has files.
func errEmptyPlace(b *object.Bucket) error {
	return errors.Remedy(errors.Newf(errors.Conflict,
		"%s is empty, without even a manifest: someone emptied it, or this is another server", b),
		"check that it is the right place; to fill it again, sync up; "+
			"to delete the files here, too, sync again with --delete-many")
}

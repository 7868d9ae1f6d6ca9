package sync

import (
	"cmp"
	"context"
	"github.com/RelevanceAI/harvest/errors"
	"github.com/RelevanceAI/harvest/s3/tree"
	"iter"
	"strings"
)

// plan calls do with the action for each path, in the order of keys. It holds at most one entry of
// each side at a time.
func (r *run) plan(ctx context.Context, st *state, remote *contents, do func(Action) error) error {
	local := r.local(ctx)
	both := remote.known && !remote.list && !st.interrupted()
	baseSeq := st.read()
	remoteSeq := st.spared(r.b.Prefix(), remote.read(ctx, st.last()))
	if both {
		// The state is the bucket's manifest: read it only once.
		baseSeq = func(func(remembered) bool) {}
	}
	unread := map[string]bool{} // paths of the volume that could not be read
	return merge(local, baseSeq, remoteSeq, func(l *tree.Scanned, base *remembered, rem *tree.Entry, rerr error) error {
		if err := ctx.Err(); err != nil {
			return context.Cause(ctx)
		}
		if base == nil && both && rem != nil {
			base = &remembered{Entry: rem}
		}
		p := place{Scanned: l, remote: rem, list: remote.list}
		if base != nil {
			p.base, p.fresh, p.added = base.Entry, base.fresh, base.added
		}
		if rerr != nil {
			if !r.about(rem.Path, false) {
				return nil
			}
			return do(skipped(rem.Path, rerr))
		}
		if rem != nil && rem.Kind != tree.Dir && tree.Temporary(rem.Path) {
			if !r.about(rem.Path, false) {
				return nil
			}
			return do(skipped(rem.Path, tree.ErrTemporary))
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
				return p.aside(do)
			}
			a := skipped(l.FailedPath, l.Err)
			a.remote, a.was, a.base = rem, rem, p.base
			return do(a)
		}
		le := p.local()
		if le == nil && rem == nil && !p.fresh {
			return nil // both sides deleted it
		}
		if le == nil && rem != nil && beneath(unread, rem.Path) || !r.concerns(le, cmp.Or(rem, p.base)) {
			return p.aside(do) // unknown in the volume, or outside of Only
		}
		return r.planned(ctx, &p, remote, do)
	})
}

// planned decides about one path and passes the action to do.
func (r *run) planned(ctx context.Context, p *place, remote *contents, do func(Action) error) error {
	local, rem, unsure := p.local(), p.remote, false
	if p.fresh && r.o.Direction != Down {
		rem, unsure = p.resumed(r.b.Prefix())
	}
	if local == nil && rem == nil {
		return nil
	}
	r.t.AdoptTime(local, p.base, rem)
	read, err := r.look(ctx, local, p.base, rem)
	if err != nil {
		return err
	}
	a := decide(r.p, local, p.base, rem, read)
	a.was, a.unsure = p.remote, unsure
	if (a.Op == DeleteLocal || a.Op == DeleteRemote) && strings.HasPrefix(r.o.Only, a.Path+"/") {
		return p.aside(do) // it may hold files that are not part of the sync
	}
	if r.o.Direction == Both && a.Op == Download && local == nil && rem.Kind != tree.Dir && !unsure {
		if here, err := r.t.Lstat(a.Path); err == nil && here != nil && here.Kind == tree.Dir {
			a.Op, a.first = DeleteRemote, true
			a.keep(keptAsFile, r.p.stamp)
		}
	}
	if a.Conflict != "" && !unsure {
		if err := r.reconcile(ctx, &a); err != nil {
			return err
		}
	}
	if a.Op == DeleteLocal && remote.healed && !remote.memory {
		a = skipped(a.Path, errUnlisted)
		a.was, a.base = p.remote, p.base
		return do(a)
	}
	a.empty = p.Scanned != nil && p.EmptyDir
	if r.unsettled.doubts(local) {
		r.unsettled.again(&a, r.o.Direction)
	}
	r.replaced(&a)
	r.guard.planned(&a)
	return do(a)
}

// errUnlisted explains why nothing in the volume is deleted because of a bucket with an unreadable
// manifest: a list shows neither sparse files nor those with very long paths.
var errUnlisted = errors.Remedy(errors.Newf(errors.Conflict,
	"the bucket's manifest is damaged, and only that says which files are gone: it is not deleted here"),
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
				if r.o.Direction != Up && !r.o.DryRun {
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
func (r *run) replaced(a *Action) {
	if a.local != nil || a.remote == nil || r.o.Direction == Down || a.Op != Keep && a.Op != DeleteRemote {
		return
	}
	here, err := r.t.Lstat(a.Path)
	if err != nil || here == nil && !r.t.Shadowed(a.Path) || here != nil && here.Kind == a.Kind {
		return // made since the scan: left to the next sync
	}
	a.Op = DeleteRemote
	a.first = here != nil && here.Kind == tree.Dir
}

// refuseEmpty returns an error if an empty place would empty the volume.
func (r *run) refuseEmpty(ctx context.Context, st *state, remote *contents) error {
	if !remote.empty || r.o.DeleteMany {
		return nil
	}
	switch {
	case r.o.Direction == Both:
		for e, err := range st.last() {
			if err != nil || e.Kind != tree.Dir && known(e) && r.concerns(nil, e) {
				return errors.Join(err, errEmptyPlace(r.b))
			}
		}
	case r.o.Direction == Down && r.o.Mirror:
		for s := range r.local(ctx) {
			if s.Err == nil && s.Kind != tree.Dir && r.concerns(s.Entry, nil) {
				return errEmptyPlace(r.b)
			}
		}
	}
	return nil
}

// errEmptyPlace returns an error for an empty place of which this machine or the volume has files.
func errEmptyPlace(b *Bucket) error {
	return errors.Remedy(errors.Newf(errors.Conflict,
		"%s holds nothing, not even a manifest: somebody emptied it, or this is another server", b),
		"see whether it is the right place; to fill it again, sync up; to delete the files here, too, sync again with --delete-many")
}

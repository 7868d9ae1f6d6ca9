package sync

import (
	"cmp"
	"context"
	"iter"
	"os"
	"strings"

	"github.com/RelevanceAI/harvest/errors"
	"github.com/RelevanceAI/harvest/s3/tree"
)

// plan calls do with the action for each path, in the order of keys. It holds at most one entry of
// each side at a time.
func (r *run) plan(ctx context.Context, st *state, remote *contents, do func(Action) error) error {
	local := r.local(ctx)
	both := remote.known && !remote.list && !st.interrupted()
	baseSeq := st.read()
	remoteSeq := st.spared(r.b.prefix, remote.read(ctx, st.last()))
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

// place is the state of one path on all sides.
type place struct {
	*tree.Scanned // of the volume; nil if there is none
	base, remote  *tree.Entry
	fresh, added  bool // of base: see remembered
	list          bool // remote comes from a list
}

func (p *place) local() *tree.Entry {
	if p.Scanned == nil {
		return nil
	}
	return p.Entry
}

// aside leaves a path unchanged: the bucket keeps its entry, and this machine keeps its record of
// it.
func (p *place) aside(do func(Action) error) error {
	if p.remote == nil {
		return nil
	}
	return do(Action{Op: Keep, Path: p.remote.Path, Kind: p.remote.Kind, remote: p.remote, was: p.remote,
		base: p.base, aside: true})
}

// planned decides about one path and passes the action to do.
func (r *run) planned(ctx context.Context, p *place, remote *contents, do func(Action) error) error {
	local, rem, unsure := p.local(), p.remote, false
	if p.fresh && r.o.Direction != Down {
		rem, unsure = p.resumed(r.b.prefix)
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

// resumed returns the bucket's entry of a path that an interrupted sync left as base, if no
// manifest has it yet. unsure is set if only the object itself can confirm this: others may have
// replaced it since.
func (p *place) resumed(prefix string) (remote *tree.Entry, unsure bool) {
	switch {
	case p.remote != nil && p.remote.ETag == p.base.ETag && p.remote.Foreign:
		return p.base, false
	case p.base.Kind == tree.Dir || p.base.ETag == "":
		if p.remote == nil && p.added {
			return p.base, false // no other machine had the entry and could delete it
		}
		return p.remote, false
	case p.list && !p.base.HiddenUnder(prefix) || p.remote != nil && p.remote.ETag == p.base.ETag:
		return p.remote, false
	}
	return p.base, true
}

// errUnlisted explains why nothing in the volume is deleted because of a bucket with an unreadable
// manifest: a list shows neither sparse files nor those with very long paths.
var errUnlisted = errors.Remedy(errors.Newf(errors.Conflict,
	"the bucket's manifest is damaged, and only that says which files are gone: it is not deleted here"),
	"sync up from a volume that has the files, or delete it yourself")

// beneath reports whether path or a directory above it is one of paths.
func beneath(paths map[string]bool, path string) bool {
	for ; len(paths) > 0 && path != ""; path = tree.Parent(path) {
		if paths[path] {
			return true
		}
	}
	return false
}

// interrupted reports whether an earlier sync left results that no manifest has.
func (s *state) interrupted() bool {
	for range readFile(s.file(stateBefore)) {
		return true
	}
	return false
}

// last yields the entries of the last complete sync. If the state is unreadable, it deletes the
// state and ends with errState.
func (s *state) last() iter.Seq2[*tree.Entry, error] {
	return func(yield func(*tree.Entry, error) bool) {
		for e, err := range readFile(s.file(stateEntries)) {
			if err != nil {
				s.forget()
				yield(nil, errors.Join(errState, err))
				return
			}
			if !yield(e, nil) {
				return
			}
		}
	}
}

// errState reports a damaged state on this machine. The next attempt runs without it.
var errState = errors.Newf(errors.Unavailable, "the state of the last sync on this machine is damaged")

// forget deletes the state, as before the first sync.
func (s *state) forget() {
	for _, name := range []string{stateETag, stateEntries, stateBefore, statePartial} {
		_ = os.Remove(s.file(name))
	}
}

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

// merge walks three ordered streams at once, and calls do for each place with their entries. An
// error of the bucket's stream that comes with an entry belongs to that key; any other ends the
// walk.
func merge(local iter.Seq[tree.Scanned], base iter.Seq[remembered], remote iter.Seq2[*tree.Entry, error],
	do func(*tree.Scanned, *remembered, *tree.Entry, error) error) error {
	nextLocal, stopLocal := iter.Pull(local)
	defer stopLocal()
	nextBase, stopBase := iter.Pull(base)
	defer stopBase()
	nextRemote, stopRemote := iter.Pull2(remote)
	defer stopRemote()
	l, moreLocal := nextLocal()
	b, moreBase := nextBase()
	e, rerr, moreRemote := nextRemote()
	for moreLocal || moreBase || moreRemote {
		if rerr != nil && (e == nil || errors.Is(rerr, errTorn)) {
			return rerr
		}
		var places [3]string
		least, found := "", false
		see := func(i int, place string) {
			places[i] = place
			if !found || tree.CompareKeys(place, least) < 0 {
				least, found = place, true
			}
		}
		if moreLocal {
			see(0, l.Place())
		}
		if moreBase {
			see(1, b.Order())
		}
		if moreRemote {
			place := ""
			if rerr != nil {
				place = e.Path // the key itself
			} else {
				place = e.Order()
			}
			see(2, place)
		}
		var lp *tree.Scanned
		var bp *remembered
		var ep *tree.Entry
		var ferr error
		if moreLocal && places[0] == least {
			cur := l
			lp = &cur
			l, moreLocal = nextLocal()
		}
		if moreBase && places[1] == least {
			cur := b
			bp = &cur
			b, moreBase = nextBase()
		}
		if moreRemote && places[2] == least {
			ep, ferr = e, rerr
			e, rerr, moreRemote = nextRemote()
		}
		if err := do(lp, bp, ep, ferr); err != nil {
			return err
		}
	}
	return nil
}

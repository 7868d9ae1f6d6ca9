package s3sync

import (
	"context"
	"iter"
	"os"
	"strings"

	"github.com/RelevanceAI/harvest/errors"
)

// plan yields what to do with each path, in the order of keys, to do. It holds no more than one entry of each side at a time.
func (r *run) plan(ctx context.Context, st *state, remote *contents, do func(Action) error) error {
	local := r.local(ctx)
	both := remote.known && !remote.list && !st.interrupted()
	baseSeq := st.read()
	remoteSeq := st.spared(r.b.prefix, remote.read(ctx, st.last()))
	if both {
		// The state is the bucket's manifest: reading it once is enough.
		baseSeq = func(func(remembered) bool) {}
	}
	unread := map[string]bool{} // paths of the volume that could not be read
	return merge(local, baseSeq, remoteSeq, func(l *scanned, base *remembered, rem *Entry, rerr error) error {
		if err := ctx.Err(); err != nil {
			return context.Cause(ctx)
		}
		var le, be *Entry
		fresh, empty := false, false
		if base != nil {
			be, fresh = base.Entry, base.fresh
		} else if both {
			be = rem
		}
		// untold leaves a path as it is: the bucket keeps what it has, and this machine remembers of it what it did.
		untold := func() error {
			if rem == nil {
				return nil
			}
			if be != nil && !sameObject(be, rem) {
				be = nil // what the volume has is not what the bucket has now
			}
			return do(Action{Op: Keep, Path: rem.Path, Kind: rem.Kind, local: be, remote: rem})
		}
		if rerr != nil {
			if !r.about(rem.Path, false) {
				return nil
			}
			return do(skipped(rem.Path, rerr))
		}
		if l != nil && l.err != nil && l.path == "" {
			return l.err
		}
		if l != nil && l.err != nil {
			unread[l.path] = true
			if !r.about(l.path, l.isDir) {
				return untold()
			}
			a := skipped(l.path, l.err)
			a.remote = rem
			return do(a)
		}
		if l != nil {
			le, empty = l.Entry, l.empty
		}
		if le == nil && rem == nil {
			return nil // both sides deleted it
		}
		if le == nil && beneath(unread, rem.Path) || !r.concerns(le, rem) {
			return untold() // that the volume has it no more is not known, or nobody asks
		}
		a := decide(r.p, le, be, rem, fresh)
		if (a.Op == DeleteLocal || a.Op == DeleteRemote) && strings.HasPrefix(r.o.Only, a.Path+"/") {
			return untold() // it may hold what the sync is not about
		}
		if a.Conflict != "" {
			if err := r.reconcile(ctx, &a); err != nil {
				return err
			}
		}
		if a.Op == DeleteLocal && remote.healed && !remote.memory {
			return do(skipped(a.Path, errUnlisted))
		}
		a.empty = empty
		if r.unsettled.doubts(le) {
			r.unsettled.again(&a, r.o.Direction)
		}
		r.replaced(&a)
		return do(a)
	})
}

// errUnlisted is why nothing is deleted in a volume because of a bucket whose manifest cannot be read: a list does not show sparse files, nor those
// with very long paths.
var errUnlisted = errors.Remedy(errors.Newf(errors.Conflict, "the bucket's manifest is damaged, and only that says which files are gone: it is not deleted here"),
	"sync up from a volume that has the files, or delete it yourself")

// beneath reports whether path or a directory above it is one of paths.
func beneath(paths map[string]bool, path string) bool {
	for ; len(paths) > 0 && path != ""; path = parent(path) {
		if paths[path] {
			return true
		}
	}
	return false
}

// interrupted reports whether an earlier sync left work that no manifest knows.
func (s *state) interrupted() bool {
	for range readFile(s.file(stateBefore)) {
		return true
	}
	return false
}

// last yields what the last whole sync remembered. A state that cannot be read ends with errState, and is forgotten.
func (s *state) last() iter.Seq2[*Entry, error] {
	return func(yield func(*Entry, error) bool) {
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

// errState is a state on this machine that is damaged. The next attempt does without.
var errState = errors.Newf(errors.Unavailable, "what this machine remembers of the last sync is damaged")

// forget makes the state that of a first sync.
func (s *state) forget() {
	for _, name := range []string{stateETag, stateEntries, stateBefore, statePartial} {
		_ = os.Remove(s.file(name))
	}
}

// concerns reports whether the sync is about what is at a path, on either side.
func (r *run) concerns(local, remote *Entry) bool {
	e := local
	if e == nil {
		e = remote
	}
	return e == nil || r.about(e.Path, e.Kind == Dir)
}

// about reports whether the sync is about a path: always, unless Only says otherwise. The directories above are part of it.
func (r *run) about(path string, dir bool) bool {
	only := r.o.Only
	return only == "" || path == only || strings.HasPrefix(path, only+"/") || dir && strings.HasPrefix(only, path+"/")
}

// local yields the volume's entries, with hard links known as such and without files that are not whole. Those that a killed restore left
// are removed by the next: what this one makes itself is in directories that have been listed by then.
func (r *run) local(ctx context.Context) iter.Seq[scanned] {
	return func(yield func(scanned) bool) {
		for s := range r.t.scan(ctx) {
			if s.err == nil && temporary(s.Path) {
				if r.o.Direction != Up && !r.o.DryRun && s.Kind != Dir {
					r.t.removeLeft(s.Path)
				}
				continue
			}
			if s.err == nil && s.Kind == File && s.nlink > 1 {
				id := [2]uint64{s.Inode, r.t.dev}
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

// replaced handles a path of the bucket whose name is something of another kind in the volume: what goes up takes its place. A file must
// be gone before others can be beneath its name, since many servers keep objects as files.
func (r *run) replaced(a *Action) {
	if a.local != nil || a.remote == nil || r.o.Direction == Down || a.Op != Keep && a.Op != DeleteRemote {
		return
	}
	here, err := r.t.lstat(a.Path)
	if err != nil || here == nil && !r.t.shadowed(a.Path) || here != nil && here.Kind == a.Kind {
		return // the last: made since the scan, and the next sync's
	}
	a.Op = DeleteRemote
	a.first = here != nil && here.Kind == Dir
}

// merge walks three ordered streams at once, and calls do for each place with what they have there. An error of the bucket's stream with
// an entry belongs to that key; without one it ends all.
func merge(local iter.Seq[scanned], base iter.Seq[remembered], remote iter.Seq2[*Entry, error], do func(*scanned, *remembered, *Entry, error) error) error {
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
			if !found || before(place, least) < 0 {
				least, found = place, true
			}
		}
		if moreLocal {
			see(0, l.place())
		}
		if moreBase {
			see(1, b.order())
		}
		if moreRemote {
			place := ""
			if rerr != nil {
				place = e.Path // the key itself
			} else {
				place = e.order()
			}
			see(2, place)
		}
		var lp *scanned
		var bp *remembered
		var ep *Entry
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

// place is the order of what was scanned, or of what could not be.
func (s *scanned) place() string {
	if s.err != nil && s.isDir {
		return EncodePath(s.path) + "/"
	}
	if s.err != nil {
		return EncodePath(s.path)
	}
	return s.order()
}

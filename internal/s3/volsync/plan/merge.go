package plan

import (
	"iter"

	"github.com/RelevanceAI/harvest/client/errors"
	"github.com/RelevanceAI/harvest/internal/s3/manifest"
	"github.com/RelevanceAI/harvest/internal/s3/tree"
)

// Sides is the state of one path on all sides.
type Sides struct {
	*tree.Scanned // of the volume, or nil
	Base, Remote  *tree.Entry
	Fresh, Added  bool // of base: see Remembered
	Renounced     bool // an interrupted sync of this machine deleted base
	List          bool // remote comes from a list
}

// Local returns the volume's entry, or nil.
func (p *Sides) Local() *tree.Entry {
	if p.Scanned == nil {
		return nil
	}
	return p.Entry
}

// Renounce drops base: an interrupted sync of this machine deleted it, so what either side has now is new.
func (p *Sides) Renounce() { p.Base, p.Fresh, p.Added, p.Renounced = nil, false, false, true }

// Contest makes the record that an interrupted sync left of a directory one of the bucket's side only, if that sync had
// no earlier record and the volume still has the directory: then a deletion in the bucket is not newer.
func (p *Sides) Contest() {
	if p.Fresh && p.Base.Contested && p.Local() != nil {
		base := *p.Base
		base.Inode, base.Change = 0, 0
		p.Base = &base
	}
}

// Aside leaves a path unchanged: the bucket keeps its entry, and this machine keeps its record of
// it.
func (p *Sides) Aside(do func(Action) error) error {
	if p.Remote == nil {
		return nil
	}
	return do(Action{Op: Keep, Path: p.Remote.Path, Kind: p.Remote.Kind, Remote: p.Remote, Was: p.Remote,
		Base: p.Base, Aside: true})
}

// Resumed returns the bucket's entry of a path that an interrupted sync left as base, if no
// manifest has it yet. unsure is set if only the object itself can confirm this: others may have
// replaced it since.
func (p *Sides) Resumed(prefix string) (remote *tree.Entry, unsure bool) {
	switch {
	case p.Remote != nil && p.Remote.ETag == p.Base.ETag && p.Remote.Foreign:
		return p.Base, false
	case p.Base.Kind == tree.Dir || p.Base.ETag == "":
		if p.Remote == nil && p.Added && (p.Base.Unsent || p.Base.Contested) {
			// Only its object can have shown it to other machines, which may have deleted it.
			return p.Base, p.Base.ETag != ""
		}
		return p.Remote, false
	case p.List && !p.Base.HiddenUnder(prefix) || p.Remote != nil && p.Remote.ETag == p.Base.ETag:
		return p.Remote, false
	}
	return p.Base, true
}

// Beneath reports whether path or a directory above it is one of paths.
func Beneath(paths map[string]bool, path string) bool {
	for ; len(paths) > 0 && path != ""; path = tree.Parent(path) {
		if paths[path] {
			return true
		}
	}
	return false
}

// Merge walks three ordered streams at once, and calls do for each place with their entries. An
// error of the bucket's stream that comes with an entry belongs to that key; any other ends the
// walk.
func Merge(local iter.Seq[tree.Scanned], base iter.Seq[Remembered], remote iter.Seq2[*tree.Entry, error],
	do func(*tree.Scanned, *Remembered, *tree.Entry, error) error) error {
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
		if rerr != nil && (e == nil || errors.Is(rerr, manifest.ErrTorn)) {
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
		var bp *Remembered
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

// Remembered is an entry of the state. A fresh one comes from a sync that was interrupted before it
// wrote a manifest. It differs from the record of the last complete sync, and may be in no
// manifest.
type Remembered struct {
	*tree.Entry
	Fresh bool
	Added bool // the last complete sync had no entry at the path
}

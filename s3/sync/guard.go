package sync

import (
	"context"
	"sync"

	"github.com/RelevanceAI/harvest/errors"
	"github.com/RelevanceAI/harvest/s3/tree"
)

// Default limits of the guard against mass deletion. A sync deletes fewer than
// DefaultMaxDeleteFiles files, or at most DefaultMaxDeletePercent of the files of a side.
const (
	DefaultMaxDeleteFiles   = 20
	DefaultMaxDeletePercent = 50
)

// guard counts the deletions of a sync. It is safe for concurrent use.
type guard struct {
	mu          sync.Mutex
	here, there side // guarded by mu
}

// side counts the files and links of a side.
type side struct{ files, deleted int64 }

// planned counts the decision about a path.
func (g *guard) planned(a *Action) {
	if a.Kind == tree.Dir {
		return
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	if a.local != nil {
		g.here.files++
	}
	if a.remote != nil {
		g.there.files++
	}
	switch {
	case a.Op == DeleteLocal:
		g.here.deleted++
	case a.Op == DeleteRemote && !a.first:
		g.there.deleted++
	}
}

// check returns an error if a sync would delete more than its options allow. It runs before the
// first deletion.
func (g *guard) check(o *Options, b *Bucket) error {
	g.mu.Lock()
	defer g.mu.Unlock()
	if o.DeleteMany || o.version || o.from != nil {
		return nil
	}
	for _, s := range []struct {
		side
		name string
	}{{g.here, "the volume"}, {g.there, b.String()}} {
		if s.deleted >= int64(o.MaxDeleteFiles) && s.deleted*100 > s.files*int64(o.MaxDeletePercent) {
			return errors.Remedy(errors.Newf(errors.Conflict, "%d of the %d files of %s would be deleted, and none was",
				s.deleted, s.files, s.name),
				"look at both sides; if they are to go, sync again with --delete-many")
		}
	}
	return nil
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

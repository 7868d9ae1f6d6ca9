package plan

import (
	"sync"

	"github.com/RelevanceAI/harvest/client/errors"
	"github.com/RelevanceAI/harvest/internal/s3/tree"
)

// Default limits of the guard against mass deletion. A sync deletes fewer than
// DefaultMaxDeleteFiles files, or at most DefaultMaxDeletePercent of the files of a side.
const (
	DefaultMaxDeleteFiles   = 20
	DefaultMaxDeletePercent = 50
)

// Guard counts the deletions of a sync. It is safe for concurrent use.
type Guard struct {
	mu          sync.Mutex
	here, there side // guarded by mu
}

// side counts the files and links of a side.
type side struct{ files, deleted int64 }

// Planned counts the decision about a path.
func (g *Guard) Planned(a *Action) {
	if a.Kind == tree.Dir {
		return
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	if a.Local != nil {
		g.here.files++
	}
	if a.Remote != nil {
		g.there.files++
	}
	switch {
	case a.Op == DeleteLocal:
		g.here.deleted++
	case a.Op == DeleteRemote && !a.First:
		g.there.deleted++
	}
}

// Replaced takes back a deletion in the volume: a directory replaces the file at once. Files of the bucket that are
// replaced so do not count either.
func (g *Guard) Replaced() {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.here.deleted--
}

// Check returns an error if a sync would delete files or more files that are more than percent of
// the files of a side. there names the bucket's side. It runs before the first deletion.
func (g *Guard) Check(files, percent int, there string) error {
	g.mu.Lock()
	defer g.mu.Unlock()
	for _, s := range []struct {
		side
		name string
	}{{g.here, "the volume"}, {g.there, there}} {
		if s.deleted >= int64(files) && s.deleted*100 > s.files*int64(percent) {
			return errors.Remedy(errors.Newf(errors.Conflict,
				"the sync would delete %d of the %d files of %s, so it deleted none", s.deleted, s.files, s.name),
				"check both sides; to delete the files, sync again with --delete-many")
		}
	}
	return nil
}

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
	g.mu.Lock()
	defer g.mu.Unlock()
	g.add(a, 1)
}

// Replanned counts the decision about a path in place of an earlier one.
func (g *Guard) Replanned(was, a *Action) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.add(was, -1)
	g.add(a, 1)
}

// add counts an action n times.
func (g *Guard) add(a *Action, n int64) {
	if a.Kind == tree.Dir {
		return
	}
	if a.Local != nil {
		g.here.files += n
	}
	if a.Remote != nil {
		g.there.files += n
	}
	switch {
	case a.Op == DeleteLocal:
		g.here.deleted += n
	case a.Op == DeleteRemote && !a.First:
		g.there.deleted += n
	}
}

// Replaced takes back a deletion in the volume: a directory replaces the file at once. Files of the bucket that are
// replaced so do not count either.
func (g *Guard) Replaced() {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.here.deleted--
}

// Check returns an error if a sync would delete all files of a side because the other side has none, or files or more
// files that are more than percent of the files of a side. there names the bucket's side. It runs before the first
// deletion.
func (g *Guard) Check(files, percent int, there string) error {
	g.mu.Lock()
	defer g.mu.Unlock()
	const here = "the volume"
	for _, s := range []struct {
		side
		name, other string
		source      side
	}{{g.here, here, there, g.there}, {g.there, there, here, g.here}} {
		if s.source.files == 0 && s.deleted > 0 && s.deleted >= s.files {
			return errors.Remedy(errors.Newf(errors.Conflict,
				"%s has no files, so the sync would delete %d of the %d files of %s; it deleted none", s.other,
				s.deleted, s.files, s.name), checkSides)
		}
		if s.deleted >= int64(files) && s.deleted*100 > s.files*int64(percent) {
			return errors.Remedy(errors.Newf(errors.Conflict,
				"the sync would delete %d of the %d files of %s, so it deleted none", s.deleted, s.files, s.name),
				checkSides)
		}
	}
	return nil
}

// checkSides is the remedy for a refused deletion.
const checkSides = "check both sides; to delete the files, sync again with --delete-many"

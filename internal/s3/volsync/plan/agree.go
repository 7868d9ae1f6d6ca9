package plan

import (
	"strings"

	"github.com/RelevanceAI/harvest/internal/s3/tree"
)

// Limits of the actions that an Agreement holds back.
const (
	agreeActions = 1024
	agreeBytes   = 4 << 20
)

// Agreement makes the decisions of a sync of both sides agree along each path. A directory that one side deleted stays
// if an entry beneath it stays, because the other side changed it. The Agreement therefore holds back the deletion of a
// directory, and the actions beneath it, until one of them is not a deletion or the directory ends. It holds a limited
// number of actions. Beyond that, it releases the deletion, and calls Open first.
type Agreement struct {
	// Do takes the actions, in order.
	Do func(Action) error
	// Open may change the deletion of a directory about whose entries not everything is known. It may be nil.
	Open func(*Action)

	held []Action
	dirs []int // in held: directories to delete, each beneath the one before
	size int64
}

// Add takes the next action, in the order of keys.
func (g *Agreement) Add(a Action) error {
	for n := len(g.dirs); n > 0 && !strings.HasPrefix(a.Path, g.held[g.dirs[n-1]].Path+"/"); n = len(g.dirs) {
		g.dirs = g.dirs[:n-1]
	}
	if len(g.dirs) == 0 {
		if err := g.Flush(); err != nil {
			return err
		}
	}
	deletesDir := a.Kind == tree.Dir && (a.Op == DeleteLocal || a.Op == DeleteRemote)
	if len(g.dirs) == 0 && !deletesDir {
		return g.Do(a)
	}
	for _, i := range g.dirs {
		if g.held[i].outlives(&a) {
			g.held[i].revive()
		}
	}
	g.held = append(g.held, a)
	for _, e := range []*tree.Entry{a.Local, a.Remote, a.Base} {
		if e != nil {
			g.size += e.MemorySize()
		}
	}
	if deletesDir {
		g.dirs = append(g.dirs, len(g.held)-1)
	}
	if len(g.held) <= agreeActions && g.size <= agreeBytes {
		return nil
	}
	for _, i := range g.dirs {
		if dir := &g.held[i]; g.Open != nil && (dir.Op == DeleteLocal || dir.Op == DeleteRemote) {
			g.Open(dir)
		}
	}
	return g.Flush()
}

// Flush releases all actions.
func (g *Agreement) Flush() error {
	held := g.held
	g.held, g.dirs, g.size = nil, nil, 0
	for _, a := range held {
		if err := g.Do(a); err != nil {
			return err
		}
	}
	return nil
}

// outlives reports whether the directory that a deletes is needed, because an entry beneath it stays. An entry that the
// sync has to ask for again may not stay.
func (a *Action) outlives(beneath *Action) bool {
	switch beneath.Op {
	case DeleteLocal, DeleteRemote:
		return false
	case Skip: // a file of the volume that cannot be synced stays there
		return a.Op == DeleteLocal
	}
	return !beneath.Unsure
}

// revive turns the deletion of a directory on one side into its return on the other.
func (a *Action) revive() {
	switch a.Op {
	case DeleteRemote:
		a.Op = Download
	case DeleteLocal:
		a.Op = Upload
	}
}

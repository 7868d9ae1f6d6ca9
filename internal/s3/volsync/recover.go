package volsync

import (
	"context"
	"os"
	"slices"
	"strings"
	"sync"

	"golang.org/x/sync/errgroup"

	"github.com/RelevanceAI/harvest/client/errors"
	"github.com/RelevanceAI/harvest/internal/s3/object"
	"github.com/RelevanceAI/harvest/internal/s3/tree"
	"github.com/RelevanceAI/harvest/internal/s3/volsync/plan"
	"github.com/RelevanceAI/harvest/internal/s3/volsync/state"
)

// recover checks which steps in the journal of an interrupted sync happened, and adds them to the
// results of that sync.
func (r *run) recover(ctx context.Context, st *state.State) error {
	if st.Temp || r.versions() {
		return nil
	}
	noted := st.OpenJournal()
	if len(noted) == 0 {
		return nil
	}
	var mu sync.Mutex
	var all []*tree.Entry
	g, asking := errgroup.WithContext(ctx)
	g.SetLimit(object.Workers)
	for _, n := range noted {
		g.Go(func() error {
			e, err := r.happened(asking, n)
			if err != nil || e == nil {
				return err
			}
			mu.Lock()
			defer mu.Unlock()
			all = append(all, e)
			return nil
		})
	}
	if err := g.Wait(); err != nil {
		return err
	}
	slices.SortFunc(all, func(a, b *tree.Entry) int { return tree.CompareKeys(a.Order(), b.Order()) })
	if err := st.AddBefore(all); err != nil {
		return err
	}
	return errors.Wrapf(os.Remove(st.File(state.JournalFile)), "record a transfer under way")
}

// happened returns the entry of a step that was completed, as a state has it, or nil.
func (r *run) happened(ctx context.Context, n *state.Journey) (*tree.Entry, error) {
	e, err := n.Entry.Entry()
	if err != nil {
		return nil, nil // it is damaged
	}
	switch n.Step {
	case state.Arrived:
		return e, nil
	case state.Fetching:
		now, err := r.t.Lstat(e.Path)
		if err != nil || now == nil || now.Kind != e.Kind || now.Inode != e.Inode || now.Size != e.Size {
			return nil, nil
		}
		e.Change = 0 // unknown: the file is read before anything depends on it
		return e, nil
	case state.Sending:
		now, err := r.b.Stat(ctx, e.KeyUnder(r.b.Prefix()))
		if errors.KindOf(err) == errors.NotFound {
			return nil, nil
		}
		if err != nil {
			return nil, err
		}
		size := e.BodySize()
		if e.Kind == tree.Symlink {
			size = int64(len(e.Target))
			now.Kind, now.Size = tree.Symlink, size
		}
		if !e.HasCRC || !now.HasCRC || now.CRC != e.CRC || now.Size != size {
			return nil, nil
		}
		e.ETag = now.ETag
		return e, nil
	}
	return nil, nil
}

// noteSending records that the entry of an action is about to be stored, if it is in the volume.
func (r *run) noteSending(a *plan.Action, e *tree.Entry) error {
	if e.Inode == 0 || strings.HasPrefix(e.Key, tree.Reserved+"/packs") {
		return nil
	}
	if e.Kind == tree.Dir {
		e = state.Pending(a, e) // other machines see its metadata in a manifest only
	}
	return r.journal.NoteSending(e)
}

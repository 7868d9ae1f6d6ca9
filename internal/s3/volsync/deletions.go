package volsync

import (
	"bytes"
	"context"
	"os"
	"sync"

	"github.com/minio/crc64nvme"
	"golang.org/x/sync/errgroup"

	"github.com/RelevanceAI/harvest/client/errors"
	"github.com/RelevanceAI/harvest/internal/s3/object"
	"github.com/RelevanceAI/harvest/internal/s3/volsync/plan"
	"github.com/RelevanceAI/harvest/internal/s3/volsync/state"
)

// deleteRemote deletes the objects that the new manifest does not have. Objects that an earlier
// sync left are deleted if they are unchanged.
func (r *run) deleteRemote(ctx context.Context, st *state.State) error {
	if r.o.Mirror && r.o.Direction == plan.Up || r.o.Direction == plan.Both {
		if err := r.deleteLeft(ctx, st); err != nil {
			return err
		}
	} else if len(st.Left) > 0 {
		return nil // wait for a sync that deletes
	}
	refused := false
	for len(r.removed) > 0 {
		some := r.removed[:min(object.DeleteAtOnce, len(r.removed))]
		r.removed = r.removed[len(some):]
		if err := r.b.DeleteKnown(ctx, some, func(key string, err error) {
			refused = true
			r.fail(key, err)
		}); err != nil {
			return err
		}
	}
	if refused {
		return nil
	}
	if err := r.forgetDeletions(ctx, st); err != nil {
		return err
	}
	if err := os.Remove(st.File(state.DoomedFile)); err != nil && !errors.IsNotExist(err) {
		return errors.Wrapf(err, "record a deletion")
	}
	return nil
}

// doom returns the object to delete. again is set if an interrupted sync was to delete an object with
// the same ETag, and this one was stored since: nobody deleted it, although the manifest and this
// machine's record still have the other one.
func (r *run) doom(ctx context.Context, j *job) (d object.Doomed, again bool, err error) {
	d, err = r.b.Doom(ctx, j.Remote.KeyUnder(r.b.Prefix()), j.Remote.ETag)
	t := r.state.Left[d.Key]
	again = err == nil && r.o.Direction == plan.Both && t.ETag == d.ETag && !t.Covers(d)
	return d, again, err
}

// deleteLeft adds the objects that an earlier sync left to those to delete.
func (r *run) deleteLeft(ctx context.Context, st *state.State) error {
	g, asking := errgroup.WithContext(ctx)
	g.SetLimit(object.Workers)
	var mu sync.Mutex
	for key, t := range st.Left {
		if st.Kept[key] {
			continue
		}
		g.Go(func() error {
			res, err := r.b.Head(asking, key)
			if errors.KindOf(err) == errors.NotFound {
				return nil
			}
			if err != nil {
				return err
			}
			if now := object.Identify(key, res.Header); t.Covers(now) {
				mu.Lock()
				defer mu.Unlock()
				r.removed = append(r.removed, now)
			}
			return nil
		})
	}
	return g.Wait()
}

// announceDeletions stores the tombstones of the objects to delete once the manifest is stored.
func (r *run) announceDeletions(ctx context.Context, st *state.State, all []object.Doomed) error {
	if len(all) == 0 || r.versions() {
		return nil
	}
	key, err := st.TombstonesKey()
	if err != nil {
		return err
	}
	body := state.EncodeDoomed(all)
	if _, err = r.b.Put(ctx, key, body, crc64nvme.Checksum(body), nil); err == nil {
		st.Announced = append(st.Announced, key)
	}
	return err
}

// readTombstones adds the unfinished deletions of other machines to those of st.
func (r *run) readTombstones(ctx context.Context, st *state.State) error {
	for o, err := range r.b.Below(r.b.Prefix()+state.TombstonesDir).All(ctx, object.AnyOrder) {
		if err != nil {
			return err
		}
		if o.Size > state.MaxTombstones {
			continue
		}
		key, raw := state.TombstonesDir+o.Key, make([]byte, o.Size)
		_, err := r.b.Get(ctx, key, o.ETag, 0, o.Size, o.Size, raw)
		if errors.KindOf(err) == errors.NotFound || errors.Is(err, object.ErrChangedObject) {
			continue // the other sync has finished or replaced it
		}
		if err != nil {
			return err
		}
		for d := range state.ReadDoomed(bytes.NewReader(raw)) {
			if _, mine := st.Left[d.Key]; !mine && d.ETag != "" {
				st.Left[d.Key] = state.Tombstone{Doomed: d, Until: o.Time}
			}
		}
		st.Announced = append(st.Announced, key)
	}
	return nil
}

// forgetDeletions deletes the tombstones of finished deletions. It keeps those of other machines
// while the manifest still has such objects, since a sync in progress may be about to drop them.
func (r *run) forgetDeletions(ctx context.Context, st *state.State) error {
	if len(st.Announced) == 0 || r.o.Direction == plan.Down {
		return nil
	}
	for key := range st.Kept {
		if !st.Void[key] && !st.OwnOnly() {
			return nil
		}
	}
	return r.b.Delete(ctx, st.Announced, func(string, error) {}) // remains are small and read again
}

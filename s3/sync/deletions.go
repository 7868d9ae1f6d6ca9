package sync

import (
	"bytes"

	"github.com/minio/crc64nvme"

	"context"

	"github.com/RelevanceAI/harvest/errors"
	"golang.org/x/sync/errgroup"
	"net/http"
	"os"
	"sync"
	"time"
)

// deleteRemote deletes the objects that the new manifest does not have. Objects that an earlier
// sync left are deleted if they are unchanged.
func (r *run) deleteRemote(ctx context.Context, st *state) error {
	if r.o.Mirror && r.o.Direction == Up || r.o.Direction == Both {
		if err := r.deleteLeft(ctx, st); err != nil {
			return err
		}
	} else if len(st.left) > 0 {
		return nil // wait for a sync that deletes
	}
	refused := false
	for len(r.removed) > 0 {
		some := r.removed[:min(deleteAtOnce, len(r.removed))]
		r.removed = r.removed[len(some):]
		if err := r.b.deleteKnown(ctx, some, func(key string, err error) {
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
	if err := os.Remove(st.file(stateDoomed)); err != nil && !errors.IsNotExist(err) {
		return errors.Wrapf(err, "record a deletion")
	}
	return nil
}

// deleteLeft adds the objects that an earlier sync left to those to delete.
func (r *run) deleteLeft(ctx context.Context, st *state) error {
	g, asking := errgroup.WithContext(ctx)
	g.SetLimit(workers)
	var mu sync.Mutex
	for key, t := range st.left {
		if st.kept[key] {
			continue
		}
		g.Go(func() error {
			res, err := r.b.head(asking, key)
			if errors.KindOf(err) == errors.NotFound {
				return nil
			}
			if err != nil {
				return err
			}
			stored, err := http.ParseTime(res.header.Get("Last-Modified"))
			if err != nil {
				stored = time.Now()
			}
			if t.covers(unquote(res.header.Get("ETag")), stored) {
				mu.Lock()
				defer mu.Unlock()
				r.removed = append(r.removed, doomed{key, t.etag})
			}
			return nil
		})
	}
	return g.Wait()
}

// announceDeletions stores the tombstones of the objects to delete once the manifest is stored.
func (r *run) announceDeletions(ctx context.Context, st *state, all []doomed) error {
	if len(all) == 0 || r.versions() {
		return nil
	}
	key, err := st.tombstonesKey()
	if err != nil {
		return err
	}
	body := encodeDoomed(all)
	if _, err = r.b.put(ctx, key, body, crc64nvme.Checksum(body), nil); err == nil {
		st.announced = append(st.announced, key)
	}
	return err
}

// readTombstones adds the unfinished deletions of other machines to those of st.
func (r *run) readTombstones(ctx context.Context, st *state) error {
	for o, err := range r.b.at(r.b.Prefix()+tombstonesDir).all(ctx, anyOrder) {
		if err != nil {
			return err
		}
		if o.size > maxTombstones {
			continue
		}
		key, raw := tombstonesDir+o.key, make([]byte, o.size)
		_, err := r.b.get(ctx, key, o.etag, 0, o.size, o.size, raw)
		if errors.KindOf(err) == errors.NotFound || errors.Is(err, errChangedObject) {
			continue // the other sync has finished or replaced it
		}
		if err != nil {
			return err
		}
		for d := range readDoomed(bytes.NewReader(raw)) {
			if _, mine := st.left[d.Key]; !mine && d.ETag != "" {
				st.left[d.Key] = tombstone{d.ETag, o.time}
			}
		}
		st.announced = append(st.announced, key)
	}
	return nil
}

// forgetDeletions deletes the tombstones of finished deletions. It keeps those of other machines
// while the manifest still has such objects, since a sync in progress may be about to drop them.
func (r *run) forgetDeletions(ctx context.Context, st *state) error {
	if len(st.announced) == 0 || r.o.Direction == Down {
		return nil
	}
	for key := range st.kept {
		if !st.void[key] && !st.ownOnly() {
			return nil
		}
	}
	return r.b.delete(ctx, st.announced, func(string, error) {}) // remains are small and read again
}

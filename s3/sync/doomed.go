package sync

import (
	"bufio"
	"context"
	"encoding/json"
	"io"
	"iter"
	"net/http"
	"os"
	"strings"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/RelevanceAI/harvest/errors"
	"github.com/RelevanceAI/harvest/internal/atomicfile"
	"github.com/RelevanceAI/harvest/s3/tree"
)

// doomed is an object that a sync will delete. The list is recorded before the manifest without
// these objects is stored, and the objects are deleted after it. A sync that is interrupted in
// between leaves objects that no manifest has, and a list would bring their files back. The next
// sync finishes the deletion.
type doomed struct {
	Key  string `json:"key"` // relative to the prefix
	ETag string `json:"etag"`
}

// match returns the condition under which the object is deleted.
func (d doomed) match() *string {
	if d.ETag == "" {
		return nil
	}
	etag := `"` + d.ETag + `"`
	return &etag
}

// readDoomed returns the tombstones of an earlier sync, by key. The objects of unreadable ones stay
// in the bucket.
func (s *state) readDoomed() map[string]tombstone {
	left := map[string]tombstone{}
	f, err := os.Open(s.file(stateDoomed))
	if err != nil {
		return left
	}
	defer f.Close()
	for d := range readDoomed(bufio.NewReader(f)) {
		left[d.Key] = tombstone{etag: d.ETag}
	}
	return left
}

// readDoomed yields the recorded objects, up to the end or the first error.
func readDoomed(in io.Reader) iter.Seq[doomed] {
	return func(yield func(doomed) bool) {
		for dec := json.NewDecoder(in); ; {
			var d doomed
			if err := dec.Decode(&d); err != nil || !yield(d) {
				return
			}
		}
	}
}

// doomed returns the objects to delete once the manifest is stored: those of this sync, and those
// that an earlier one left.
func (s *state) doomed(all []doomed) []doomed {
	for key, t := range s.left {
		if !s.kept[key] {
			all = append(all, doomed{key, t.etag})
		}
	}
	return all
}

// doom records the objects to delete.
func (s *state) doom(all []doomed) error {
	if s.temp || len(all) == 0 {
		return nil
	}
	return errors.Wrapf(atomicfile.WriteDurable(s.file(stateDoomed), encodeDoomed(all), 0o600), "record a deletion")
}

// spared omits objects that an earlier sync was to delete, if they are unchanged and in no
// manifest. It also omits directories that exist only through such objects.
func (s *state) spared(prefix string, entries iter.Seq2[*tree.Entry, error]) iter.Seq2[*tree.Entry, error] {
	if len(s.left) == 0 {
		return entries
	}
	return func(yield func(*tree.Entry, error) bool) {
		var held []*tree.Entry // directories above the next entry
		for e, err := range entries {
			if err == nil && e.Foreign {
				key := e.KeyUnder(prefix)
				t, left := s.left[key]
				if left && !t.covers(e.ETag, e.ModTime.Std()) {
					left, s.void[key] = false, true
				}
				if e.Kind == tree.Dir && (left || e.ETag == "") {
					held = append(held, e)
					continue
				}
				if left {
					continue
				}
			}
			for _, dir := range held {
				if err == nil && strings.HasPrefix(e.Path, dir.Path+"/") && !yield(dir, nil) {
					return
				}
			}
			held = nil
			if !yield(e, err) {
				return
			}
		}
	}
}

// keep notes that the bucket's next manifest has a key, even if an earlier sync was to delete it.
func (s *state) keep(e *tree.Entry) {
	if len(s.left) == 0 || e.ETag == "" {
		return
	}
	if key := e.KeyUnder(s.prefix); s.left[key].etag != "" {
		s.kept[key] = true
	}
}

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

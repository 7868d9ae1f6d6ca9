package s3sync

import (
	"bufio"
	"context"
	"encoding/json"
	"iter"
	"os"
	"strings"
	"sync"

	"golang.org/x/sync/errgroup"

	"github.com/RelevanceAI/harvest/errors"
)

// doomed is an object that a sync is to delete. Those are written down before the manifest without them is put, and deleted after it: a sync that is
// interrupted in between leaves objects that no manifest has, and a list would bring their files back. The next one finishes what it began.
type doomed struct {
	Key  string `json:"key"` // relative to the prefix
	ETag string `json:"etag"`
}

// match is the condition under which the object is deleted.
func (d doomed) match() *string {
	if d.ETag == "" {
		return nil
	}
	etag := `"` + d.ETag + `"`
	return &etag
}

// readDoomed returns what an earlier sync left, ETags by keys. What it cannot read is left in the bucket.
func (s *state) readDoomed() map[string]string {
	f, err := os.Open(s.file(stateDoomed))
	if err != nil {
		return nil
	}
	defer f.Close()
	left := map[string]string{}
	for dec := json.NewDecoder(bufio.NewReader(f)); ; {
		var d doomed
		if err := dec.Decode(&d); err != nil {
			return left
		}
		left[d.Key] = d.ETag
	}
}

// doom writes down what will be deleted when the manifest is there: what this sync decided, and what an earlier one left.
func (s *state) doom(all []doomed) error {
	for key, etag := range s.left {
		if !s.kept[key] {
			all = append(all, doomed{key, etag})
		}
	}
	if s.temp || len(all) == 0 {
		return nil
	}
	f, err := os.OpenFile(s.file(stateDoomed), os.O_WRONLY|os.O_CREATE|os.O_TRUNC, 0o600)
	if err != nil {
		return errors.Wrapf(err, "note what is deleted")
	}
	b := bufio.NewWriter(f)
	enc := json.NewEncoder(b)
	for _, d := range all {
		err = errors.Join(err, enc.Encode(d))
	}
	return errors.Wrapf(errors.Join(err, b.Flush(), f.Sync(), f.Close()), "note what is deleted")
}

// spared leaves out what an earlier sync was to delete, if it is still that and no manifest has it, and directories that show nothing else.
func (s *state) spared(prefix string, entries iter.Seq2[*Entry, error]) iter.Seq2[*Entry, error] {
	if len(s.left) == 0 {
		return entries
	}
	return func(yield func(*Entry, error) bool) {
		var held []*Entry // directories above what comes next
		for e, err := range entries {
			if err == nil && e.foreign {
				etag, left := s.left[e.keyUnder(prefix)]
				left = left && etag == e.ETag
				if e.Kind == Dir && (left || e.ETag == "") {
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

// keep notes that a key is one that the bucket has, whatever an earlier sync thought.
func (s *state) keep(e *Entry) {
	if len(s.left) > 0 && e.ETag != "" {
		s.kept[e.keyUnder(s.prefix)] = true
	}
}

// deleteRemote deletes what the new manifest does not have any more. Of what an earlier sync left, it deletes what is as it was then.
func (r *run) deleteRemote(ctx context.Context, st *state) error {
	if r.o.Mirror && r.o.Direction == Up || r.o.Direction == Both {
		if err := r.deleteLeft(ctx, st); err != nil {
			return err
		}
	} else if len(st.left) > 0 {
		return nil // it waits for a sync that deletes
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
	if err := os.Remove(st.file(stateDoomed)); err != nil && !errors.IsNotExist(err) {
		return errors.Wrapf(err, "note what was deleted")
	}
	return nil
}

// deleteLeft adds to what is deleted.
func (r *run) deleteLeft(ctx context.Context, st *state) error {
	g, asking := errgroup.WithContext(ctx)
	g.SetLimit(workers)
	var mu sync.Mutex
	for key, etag := range st.left {
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
			if unquote(res.header.Get("ETag")) == etag {
				mu.Lock()
				defer mu.Unlock()
				r.removed = append(r.removed, doomed{key, etag})
			}
			return nil
		})
	}
	return g.Wait()
}

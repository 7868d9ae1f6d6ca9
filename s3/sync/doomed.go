package sync

import (
	"bufio"
	"encoding/json"
	"io"
	"iter"
	"os"
	"strings"

	"github.com/RelevanceAI/harvest/errors"
	"github.com/RelevanceAI/harvest/internal/atomicfile"
	"github.com/RelevanceAI/harvest/s3/tree"
)

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

// finishDeletions reads the deletions that an earlier sync to the prefix has left.
func (s *state) finishDeletions(prefix string) {
	s.prefix, s.left, s.kept, s.void = prefix, s.readDoomed(), map[string]bool{}, map[string]bool{}
}

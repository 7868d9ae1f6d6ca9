package state

import (
	"bufio"
	"bytes"
	"encoding/json"
	"io"
	"iter"
	"os"
	"slices"
	"strings"

	"github.com/RelevanceAI/harvest/client/errors"
	"github.com/RelevanceAI/harvest/internal/base/atomicfile"
	"github.com/RelevanceAI/harvest/internal/s3/object"
	"github.com/RelevanceAI/harvest/internal/s3/tree"
	"github.com/RelevanceAI/harvest/internal/s3/volsync/plan"
)

// readDoomed returns the tombstones of an earlier sync, by key. The objects of unreadable ones stay
// in the bucket.
func (s *State) readDoomed() map[string]Tombstone {
	left := map[string]Tombstone{}
	f, err := os.Open(s.File(DoomedFile))
	if err != nil {
		return left
	}
	defer f.Close()
	for d := range ReadDoomed(bufio.NewReader(f)) {
		left[d.Key] = Tombstone{Doomed: d}
	}
	return left
}

// ReadDoomed yields the recorded objects, up to the end or the first error.
func ReadDoomed(in io.Reader) iter.Seq[object.Doomed] {
	return func(yield func(object.Doomed) bool) {
		for dec := json.NewDecoder(in); ; {
			var d object.Doomed
			if err := dec.Decode(&d); err != nil || !yield(d) {
				return
			}
		}
	}
}

// ToDelete returns the objects to delete once the manifest is stored: those of this sync, and those
// that an earlier one left.
func (s *State) ToDelete(all []object.Doomed) []object.Doomed {
	again := map[string]bool{}
	for _, d := range all {
		again[d.Key] = true
	}
	for key, t := range s.Left {
		if !s.Kept[key] && !again[key] {
			all = append(all, t.Doomed)
		}
	}
	return all
}

// Doom records the objects to delete.
func (s *State) Doom(all []object.Doomed) error {
	all = slices.Concat(all, s.first)
	if s.Temp || len(all) == 0 {
		return nil
	}
	return errors.Wrapf(atomicfile.WriteDurable(s.File(DoomedFile), EncodeDoomed(all), 0o600), "record a deletion")
}

// DoomFirst records an object that is about to be deleted before the manifest is stored.
func (s *State) DoomFirst(d object.Doomed) error {
	s.first = append(s.first, d)
	return s.appendTo(DoomedFile, EncodeDoomed([]object.Doomed{d}))
}

// Removed is an entry of the volume that a sync was about to delete.
type Removed struct {
	Key, ETag string
	Inode     uint64
	Change    int64 // file systems use inodes again
}

// Remove records that entries of the volume are about to be deleted, until the state has that.
func (s *State) Remove(all ...*tree.Entry) error {
	var b bytes.Buffer
	enc := json.NewEncoder(&b)
	for _, e := range all {
		if plan.Known(e) {
			_ = enc.Encode(Removed{e.KeyUnder(s.prefix), e.ETag, e.Inode, e.Change})
		}
	}
	return s.appendTo(RemovedFile, b.Bytes())
}

// appendTo appends records to a file of the state, durably.
func (s *State) appendTo(name string, records []byte) error {
	if s.Temp || len(records) == 0 {
		return nil
	}
	f, err := os.OpenFile(s.File(name), os.O_WRONLY|os.O_CREATE|os.O_APPEND, 0o600)
	if err == nil {
		_, err = f.Write(records)
		err = errors.Join(err, f.Sync(), f.Close())
	}
	return errors.Wrapf(err, "record a deletion")
}

// readRemoved returns the entries of the volume that an interrupted sync was about to delete, by key.
func (s *State) readRemoved() map[string]Removed {
	all := map[string]Removed{}
	f, err := os.Open(s.File(RemovedFile))
	if err != nil {
		return all
	}
	defer f.Close()
	for dec := json.NewDecoder(bufio.NewReader(f)); ; {
		var r Removed
		if dec.Decode(&r) != nil {
			return all
		}
		all[r.Key] = r
	}
}

// Renounced reports whether base is no record of the path any more: an interrupted sync of this machine was to delete
// it, and ended before it recorded that. Two cases matter. The sync was to delete the object, and the volume has the
// file again: if the bucket does not have it, nobody else deleted it. Or the sync deleted the file of the volume: if
// the bucket has the object again, nobody deleted that file.
func (s *State) Renounced(base, local *tree.Entry) bool {
	if len(s.Left)+len(s.removed) == 0 {
		return false
	}
	key := base.KeyUnder(s.prefix)
	if t := s.Left[key]; local != nil && t.ETag != "" && t.ETag == base.ETag && t.Until.IsZero() {
		return true
	}
	r, ok := s.removed[key]
	return ok && r.ETag == base.ETag && r.Inode == base.Inode && r.Change == base.Change &&
		(local == nil || local.Inode != base.Inode || base.Kind != tree.Dir && !local.Untouched(base))
}

// Spared omits objects that an earlier sync was to delete, if they are unchanged and in no
// manifest. It also omits directories that exist only through such objects.
func (s *State) Spared(prefix string, entries iter.Seq2[*tree.Entry, error]) iter.Seq2[*tree.Entry, error] {
	if len(s.Left) == 0 {
		return entries
	}
	return func(yield func(*tree.Entry, error) bool) {
		var held []*tree.Entry // directories above the next entry
		for e, err := range entries {
			if err == nil && e.Foreign {
				key := e.KeyUnder(prefix)
				t, left := s.Left[key]
				if left && !t.MayCover(e.ETag, e.ModTime.Std()) {
					left, s.Void[key] = false, true
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
func (s *State) keep(e *tree.Entry) {
	if len(s.Left) == 0 || e.ETag == "" {
		return
	}
	if key := e.KeyUnder(s.prefix); s.Left[key].ETag != "" {
		s.Kept[key] = true
	}
}

// FinishDeletions reads the deletions that an earlier sync to the prefix has left.
func (s *State) FinishDeletions(prefix string) {
	s.prefix, s.Left, s.removed = prefix, s.readDoomed(), s.readRemoved()
	s.Kept, s.Void = map[string]bool{}, map[string]bool{}
}

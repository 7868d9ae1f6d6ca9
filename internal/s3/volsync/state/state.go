// Package state keeps this machine's records of syncs: the entries of the last one, the progress of
// an interrupted one, begun uploads, deletions to finish, and restored files that may be damaged.
package state

import (
	"crypto/sha256"
	"encoding/hex"
	"iter"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/RelevanceAI/harvest/client/errors"
	"github.com/RelevanceAI/harvest/internal/base/atomicfile"
	"github.com/RelevanceAI/harvest/internal/s3/manifest"
	"github.com/RelevanceAI/harvest/internal/s3/object"
	"github.com/RelevanceAI/harvest/internal/s3/tree"
	"github.com/RelevanceAI/harvest/internal/s3/volsync/plan"
)

// State is this machine's record of a tree and one place: the entries of the last sync with their
// inodes, and the manifest that they belong to. While a sync runs, the next state and manifest are
// written here too.
type State struct {
	dir          string
	Temp         bool // temporary: nothing is kept
	Down         bool // the bucket's manifest is not written
	ManifestETag string

	entries  *os.File // being written: the next state
	stateOut *manifest.Writer
	Manifest *os.File // being written: the next manifest
	out      *manifest.Writer
	Changed  bool // the bucket's manifest must be written
	apart    bool // the state differs from the manifest
	flushed  time.Time

	prefix  string
	Left    map[string]Tombstone // objects that an earlier sync was to delete and perhaps did not: see ReadDoomed
	first   []object.Doomed      // deleted before the manifest is stored
	Kept    map[string]bool      // those of left that are in the bucket's next manifest
	Void    map[string]bool      // those of left whose keys have another object now; written by the plan
	removed map[string]Removed   // entries of the volume that an interrupted sync was to delete, by key
	Journal *Journal
	// Announced are keys of tombstones in the bucket.
	Announced []string

	done bool
}

// apartMark precedes the ETag of a manifest that differs from the state in some path.
const apartMark = "apart from "

// Files of a state.
const (
	Entries        = "entries"          // a manifest with inodes
	ETag           = "etag"             // of the bucket's manifest for these entries
	Partial        = "entries.partial"  // of a sync in progress or interrupted
	Before         = "entries.before"   // of an earlier interrupted sync, during the next
	Next           = "manifest.next"    //
	Fetched        = "manifest.fetched" //
	UploadsDir     = "uploads"          // a directory: see Uploads
	DoomedFile     = "doomed"           // see ReadDoomed
	RemovedFile    = "removed"          // see Remove
	TombstonesFile = "tombstones"       // name of this machine's tombstones in the bucket
	JournalFile    = "journal"          // see Journal
	Swept          = "swept"            // empty; its mtime is that of the last sweep of the bucket
	Packed         = "packed"           // empty; the bucket's packs are up to date with the last sync
)

// Open opens the state of a place in dir, and removes useless remains of an interrupted sync.
func Open(dir, place string, direction plan.Direction) (*State, error) {
	s := &State{Down: direction == plan.Down}
	if dir == "" {
		temp, err := os.MkdirTemp("", "harvest-s3-")
		if err != nil {
			return nil, errors.Wrapf(err, "make a directory for the state of a sync")
		}
		s.dir, s.Temp = temp, true
	} else {
		sum := sha256.Sum256([]byte(place))
		s.dir = filepath.Join(dir, hex.EncodeToString(sum[:12]))
		if err := os.MkdirAll(s.dir, 0o700); err != nil {
			return nil, errors.Wrapf(err, "make a directory for the state of a sync")
		}
	}
	raw, err := os.ReadFile(s.File(ETag))
	if err != nil && !errors.IsNotExist(err) {
		return nil, errors.Wrapf(err, "read the state of a sync")
	}
	s.ManifestETag = string(raw)
	// Keep the results of an interrupted sync under another name until this sync has processed the
	// same paths.
	if err := s.keepPartial(); err != nil {
		return nil, err
	}
	return s, nil
}

// File returns the path of a file of the state.
func (s *State) File(name string) string { return filepath.Join(s.dir, name) }

// Written returns the file with the entries of the last committed sync.
func (s *State) Written() string {
	if s.Temp {
		return s.File(Partial)
	}
	return s.File(Entries)
}

// keepPartial adds the partial state of an interrupted sync to the one before. The partial state
// has the results for all paths up to its last one. For later paths, the results of an earlier
// interrupted sync are still valid. keepPartial is idempotent, also if it was itself interrupted.
func (s *State) keepPartial() error {
	_, err := os.Stat(s.File(Partial))
	if errors.IsNotExist(err) {
		return nil
	}
	if err != nil {
		return errors.Wrapf(err, "read the state of a sync")
	}
	if _, err := os.Stat(s.File(Before)); err == nil {
		if err := s.mergePartial(); err != nil {
			return err
		}
		return errors.Wrapf(os.Remove(s.File(Partial)), "read the state of a sync")
	}
	return errors.Wrapf(os.Rename(s.File(Partial), s.File(Before)), "read the state of a sync")
}

// mergePartial rewrites the earlier state: the partial state, then the earlier entries after its
// end.
func (s *State) mergePartial() error {
	return s.rewriteBefore(func(add func(*tree.Entry)) {
		var last *tree.Entry
		for e, broken := range manifest.ReadFile(s.File(Partial)) {
			if broken != nil {
				break
			}
			add(e)
			last = e
		}
		for e, broken := range manifest.ReadFile(s.File(Before)) {
			if broken != nil {
				break
			}
			if last == nil || tree.CompareKeys(last.Order(), e.Order()) < 0 {
				add(e)
			}
		}
	})
}

// rewriteBefore replaces the state of interrupted syncs with the entries that fill adds, in order.
func (s *State) rewriteBefore(fill func(add func(*tree.Entry))) error {
	next := s.File(Before + ".next")
	f, err := os.OpenFile(next, os.O_WRONLY|os.O_CREATE|os.O_TRUNC, 0o600)
	if err != nil {
		return errors.Wrapf(err, "read the state of a sync")
	}
	defer f.Close()
	out, err := manifest.NewWriter(f, 0, true)
	if err != nil {
		return err
	}
	fill(func(e *tree.Entry) {
		if err == nil {
			err = out.Add(e)
		}
	})
	if err = errors.Join(err, out.Close()); err != nil {
		return err
	}
	return errors.Wrapf(os.Rename(next, s.File(Before)), "read the state of a sync")
}

// Read yields the state in order: the results of an interrupted sync, and the records of the last
// complete one for all other paths. An unreadable state counts as empty, and everything is compared
// anew.
func (s *State) Read() iter.Seq[plan.Remembered] {
	return func(yield func(plan.Remembered) bool) {
		next, stop := iter.Pull2(s.complete())
		defer stop()
		old, err, more := next()
		for e, broken := range manifest.ReadFile(s.File(Before)) {
			if broken != nil {
				break
			}
			for more && err == nil && tree.CompareKeys(old.Order(), e.Order()) < 0 {
				if !yield(plan.Remembered{Entry: old}) {
					return
				}
				old, err, more = next()
			}
			r := plan.Remembered{Entry: e, Fresh: true, Added: true}
			if more && err == nil && old.Order() == e.Order() {
				if r.Fresh, r.Added = !plan.SameObject(old, e), false; !r.Fresh && !plan.Known(e) {
					r.Entry = old
				}
				if (e.Unsent || e.Unset) && sameContent(old, e) {
					r.Entry, r.Fresh = old, false // the change is still to be made
				}
				old, err, more = next()
			}
			if !yield(r) {
				return
			}
		}
		for more && err == nil && yield(plan.Remembered{Entry: old}) {
			old, err, more = next()
		}
	}
}

// complete yields the entries of the last complete sync, which has set all metadata.
func (s *State) complete() iter.Seq2[*tree.Entry, error] {
	return func(yield func(*tree.Entry, error) bool) {
		for e, err := range manifest.ReadFile(s.File(Entries)) {
			if e != nil {
				e.Unset = false
			}
			if !yield(e, err) {
				return
			}
		}
	}
}

// begin starts the next state and manifest.
func (s *State) begin() error {
	now := time.Now()
	var err error
	if s.entries, err = os.OpenFile(s.File(Partial), os.O_WRONLY|os.O_CREATE|os.O_TRUNC, 0o600); err != nil {
		return errors.Wrapf(err, "write the state of a sync")
	}
	if s.stateOut, err = manifest.NewWriter(s.entries, now.Unix(), true); err != nil {
		return err
	}
	s.flushed = now
	if s.Down {
		return nil
	}
	if s.Manifest, err = os.OpenFile(s.File(Next), os.O_RDWR|os.O_CREATE|os.O_TRUNC, 0o600); err != nil {
		return errors.Wrapf(err, "write a manifest")
	}
	s.out, err = manifest.NewWriter(s.Manifest, now.Unix(), false)
	return err
}

// Add records the result of an action: the path's entry afterwards or nil, or the
// reason why it failed.
func (s *State) Add(a *plan.Action, out *tree.Entry, failed error) error {
	if s.stateOut == nil {
		if err := s.begin(); err != nil {
			return err
		}
	}
	e, mine := out, out // for the manifest, and for this machine
	if failed != nil || a.Op == plan.Skip || a.Aside {
		if !a.Aside {
			e = a.Was
		}
		if mine = a.Base; mine == nil {
			mine = unknown(e)
		}
	}
	s.Journal.done(a.Path)
	if e != a.Was && (e == nil || a.Was == nil || !e.SameRecord(a.Was)) {
		s.Changed = true
	}
	if mine != e && (mine == nil || e == nil || !mine.SameRecord(e)) {
		s.apart = true
	}
	if mine != nil && mine.Path != "" {
		if failed == nil {
			mine = Pending(a, mine)
		} else {
			mine = marked(mine, false, false, false)
		}
		if err := s.stateOut.Add(mine); err != nil {
			return err
		}
	}
	if e == nil || e.Path == "" {
		return nil
	}
	s.keep(e)
	if time.Since(s.flushed) > time.Second {
		s.flushed = time.Now()
		if err := errors.Join(s.stateOut.Flush(), s.Journal.compact()); err != nil {
			return err
		}
	}
	if s.Down {
		return nil
	}
	return s.out.Add(e)
}

// Pending returns the entry of an action for the state, with what is to be done until the end of the sync.
func Pending(a *plan.Action, out *tree.Entry) *tree.Entry {
	return marked(out, unsent(a, out), unset(a, out), contested(a, out))
}

func marked(e *tree.Entry, unsent, unset, contested bool) *tree.Entry {
	if e.Unsent == unsent && e.Unset == unset && e.Contested == contested {
		return e
	}
	out := *e
	out.Unsent, out.Unset, out.Contested = unsent, unset, contested
	return &out
}

// contested reports whether a directory of the volume, of which this machine has no record, replaces the metadata of
// another machine.
func contested(a *plan.Action, out *tree.Entry) bool {
	return out.Kind == tree.Dir && (a.Op == plan.UpdateRemote || a.Op == plan.Upload) && a.Was != nil &&
		!plan.Known(a.Base)
}

// unsent reports whether an action stored no content, and out has metadata that no manifest has until the sync stores
// its own. That is so for a directory that the manifest lacks.
func unsent(a *plan.Action, out *tree.Entry) bool {
	return out.Kind == tree.Dir && a.Was == nil ||
		(a.Op == plan.UpdateRemote || a.Op == plan.Upload) && (out.Unsent || out.Kind == tree.Dir) &&
			sameContent(a.Base, out) && !plan.SameObject(a.Base, out)
}

// unset reports whether a directory of the volume gets the metadata of out at the end of the sync.
func unset(a *plan.Action, out *tree.Entry) bool {
	return out.Kind == tree.Dir && (a.Op == plan.Download || a.Op == plan.UpdateLocal)
}

// sameContent reports whether two entries of the bucket can differ in metadata only, and this machine had the older
// one.
func sameContent(old, e *tree.Entry) bool {
	return plan.Known(old) && old.Kind == e.Kind && (e.Kind == tree.Dir || old.ETag == e.ETag)
}

// unknown returns an entry as if this machine had never had it.
func unknown(e *tree.Entry) *tree.Entry {
	if e == nil || e.Inode == 0 {
		return e
	}
	out := *e
	out.Inode, out.Change = 0, 0
	return &out
}

// SweepDue reports whether the last sweep was longer than age ago, and if so records a new one.
func (s *State) SweepDue(age time.Duration) bool {
	info, err := os.Stat(s.File(Swept))
	if s.Temp || err == nil && time.Since(info.ModTime()) < age {
		return false
	}
	now := time.Now()
	// If the time cannot be recorded, skip the sweep: otherwise each sync would do one.
	return os.WriteFile(s.File(Swept), nil, 0o600) == nil && os.Chtimes(s.File(Swept), now, now) == nil
}

// Close closes the files. The results of an unfinished sync stay for the next one.
func (s *State) Close() {
	if s.stateOut != nil && !s.done {
		_ = s.stateOut.Flush()
	}
	s.Journal.close()
	for _, f := range []*os.File{s.entries, s.Manifest} {
		if f != nil {
			f.Close()
		}
	}
	if s.Temp {
		_ = os.RemoveAll(s.dir)
		return
	}
	for _, name := range []string{Next, Fetched} {
		_ = os.Remove(s.File(name))
	}
}

// Interrupted reports whether an earlier sync left results that no manifest has.
func (s *State) Interrupted() bool {
	for range manifest.ReadFile(s.File(Before)) {
		return true
	}
	return false
}

// Last yields the entries of the last complete sync. If the state is unreadable, it deletes the
// state and ends with ErrState.
func (s *State) Last() iter.Seq2[*tree.Entry, error] {
	return func(yield func(*tree.Entry, error) bool) {
		for e, err := range s.complete() {
			if err != nil {
				s.forget()
				yield(nil, errors.Join(ErrState, err))
				return
			}
			if !yield(e, nil) {
				return
			}
		}
	}
}

// ErrState reports a damaged state on this machine. The next attempt runs without it.
var ErrState = errors.Newf(errors.Unavailable, "the state of the last sync on this machine is damaged")

// forget deletes the state, as before the first sync.
func (s *State) forget() {
	for _, name := range []string{ETag, Entries, Before, Partial} {
		_ = os.Remove(s.File(name))
	}
}

// Finish completes the next state and manifest, after the last path.
func (s *State) Finish() error {
	if s.stateOut == nil {
		if err := s.begin(); err != nil {
			return err
		}
	}
	err := s.stateOut.Close()
	if s.out != nil {
		err = errors.Join(err, s.out.Close())
	}
	return err
}

// Replace makes the next state current. etag is that of the bucket's manifest.
func (s *State) Replace(etag string) error {
	if s.Temp {
		return nil
	}
	if err := s.entries.Sync(); err != nil {
		return errors.Wrapf(err, "write the state of a sync")
	}
	// Until the ETag is written, the entries belong to no manifest, and the next sync reads the
	// bucket's.
	if err := os.Remove(s.File(ETag)); err != nil && !errors.IsNotExist(err) {
		return errors.Wrapf(err, "write the state of a sync")
	}
	if err := os.Rename(s.File(Partial), s.File(Entries)); err != nil {
		return errors.Wrapf(err, "write the state of a sync")
	}
	for _, name := range []string{Before, JournalFile, RemovedFile} {
		if err := os.Remove(s.File(name)); err != nil && !errors.IsNotExist(err) {
			return errors.Wrapf(err, "write the state of a sync")
		}
	}
	s.done = true
	if s.apart && etag != "" && !strings.HasPrefix(etag, apartMark) {
		etag = apartMark + etag
	}
	return errors.Wrapf(atomicfile.Write(s.File(ETag), []byte(etag), 0o600), "write the state of a sync")
}

package sync

import (
	"crypto/sha256"
	"encoding/hex"
	"github.com/RelevanceAI/harvest/internal/atomicfile"
	"iter"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/RelevanceAI/harvest/errors"
	"github.com/RelevanceAI/harvest/s3/tree"
)

// state is this machine's record of a tree and one place: the entries of the last sync with their
// inodes, and the manifest that they belong to. While a sync runs, the next state and manifest are
// written here too.
type state struct {
	dir  string
	temp bool // temporary: nothing is kept
	down bool // the bucket's manifest is not written
	etag string

	entries  *os.File // being written: the next state
	stateOut *manifestWriter
	manifest *os.File // being written: the next manifest
	out      *manifestWriter
	changed  bool // the bucket's manifest must be written
	apart    bool // the state differs from the manifest
	flushed  time.Time

	prefix  string
	left    map[string]tombstone // objects that an earlier sync was to delete and perhaps did not: see doomed
	kept    map[string]bool      // those of left that are in the bucket's next manifest
	void    map[string]bool      // those of left whose keys have another object now; written by the plan
	journal *journal
	// announced are keys of tombstones in the bucket.
	announced []string

	done bool
}

// apartMark precedes the ETag of a manifest that differs from the state in some path.
const apartMark = "apart from "

// Files of a state.
const (
	stateEntries    = "entries"          // a manifest with inodes
	stateETag       = "etag"             // of the bucket's manifest for these entries
	statePartial    = "entries.partial"  // of a sync in progress or interrupted
	stateBefore     = "entries.before"   // of an earlier interrupted sync, during the next
	stateNext       = "manifest.next"    //
	stateRemote     = "manifest.fetched" //
	stateUploads    = "uploads"          // a directory: see uploads
	stateDoomed     = "doomed"           // see doomed
	stateTombstones = "tombstones"       // name of this machine's tombstones in the bucket
	stateJournal    = "journal"          // see journal
	stateSwept      = "swept"            // empty; its mtime is that of the last sweep of the bucket
	statePacked     = "packed"           // empty; the bucket's packs are up to date with the last sync
)

// openState opens the state of a place in dir, and removes useless remains of an interrupted sync.
func openState(dir, place string, direction Direction) (*state, error) {
	s := &state{down: direction == Down}
	if dir == "" {
		temp, err := os.MkdirTemp("", "harvest-s3-")
		if err != nil {
			return nil, errors.Wrapf(err, "make a directory for the state of a sync")
		}
		s.dir, s.temp = temp, true
	} else {
		sum := sha256.Sum256([]byte(place))
		s.dir = filepath.Join(dir, hex.EncodeToString(sum[:12]))
		if err := os.MkdirAll(s.dir, 0o700); err != nil {
			return nil, errors.Wrapf(err, "make a directory for the state of a sync")
		}
	}
	raw, err := os.ReadFile(s.file(stateETag))
	if err != nil && !errors.IsNotExist(err) {
		return nil, errors.Wrapf(err, "read the state of a sync")
	}
	s.etag = string(raw)
	// Keep the results of an interrupted sync under another name until this sync has processed the
	// same paths.
	if err := s.keepPartial(); err != nil {
		return nil, err
	}
	return s, nil
}

func (s *state) file(name string) string { return filepath.Join(s.dir, name) }

// written returns the file with the entries of the last committed sync.
func (s *state) written() string {
	if s.temp {
		return s.file(statePartial)
	}
	return s.file(stateEntries)
}

// keepPartial adds the partial state of an interrupted sync to the one before. The partial state
// has the results for all paths up to its last one. For later paths, the results of an earlier
// interrupted sync are still valid. keepPartial is idempotent, also if it was itself interrupted.
func (s *state) keepPartial() error {
	_, err := os.Stat(s.file(statePartial))
	if errors.IsNotExist(err) {
		return nil
	}
	if err != nil {
		return errors.Wrapf(err, "read the state of a sync")
	}
	if _, err := os.Stat(s.file(stateBefore)); err == nil {
		if err := s.mergePartial(); err != nil {
			return err
		}
		return errors.Wrapf(os.Remove(s.file(statePartial)), "read the state of a sync")
	}
	return errors.Wrapf(os.Rename(s.file(statePartial), s.file(stateBefore)), "read the state of a sync")
}

// mergePartial rewrites the earlier state: the partial state, then the earlier entries after its
// end.
func (s *state) mergePartial() error {
	return s.rewriteBefore(func(add func(*tree.Entry)) {
		var last *tree.Entry
		for e, broken := range readFile(s.file(statePartial)) {
			if broken != nil {
				break
			}
			add(e)
			last = e
		}
		for e, broken := range readFile(s.file(stateBefore)) {
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
func (s *state) rewriteBefore(fill func(add func(*tree.Entry))) error {
	next := s.file(stateBefore + ".next")
	f, err := os.OpenFile(next, os.O_WRONLY|os.O_CREATE|os.O_TRUNC, 0o600)
	if err != nil {
		return errors.Wrapf(err, "read the state of a sync")
	}
	defer f.Close()
	out, err := newManifestWriter(f, 0, true)
	if err != nil {
		return err
	}
	fill(func(e *tree.Entry) {
		if err == nil {
			err = out.add(e)
		}
	})
	if err = errors.Join(err, out.close()); err != nil {
		return err
	}
	return errors.Wrapf(os.Rename(next, s.file(stateBefore)), "read the state of a sync")
}

// read yields the state in order: the results of an interrupted sync, and the records of the last
// complete one for all other paths. An unreadable state counts as empty, and everything is compared
// anew.
func (s *state) read() iter.Seq[remembered] {
	return func(yield func(remembered) bool) {
		next, stop := iter.Pull2(readFile(s.file(stateEntries)))
		defer stop()
		old, err, more := next()
		for e, broken := range readFile(s.file(stateBefore)) {
			if broken != nil {
				break
			}
			for more && err == nil && tree.CompareKeys(old.Order(), e.Order()) < 0 {
				if !yield(remembered{Entry: old}) {
					return
				}
				old, err, more = next()
			}
			r := remembered{Entry: e, fresh: true, added: true}
			if more && err == nil && old.Order() == e.Order() {
				if r.fresh, r.added = !sameObject(old, e), false; !r.fresh && !known(e) {
					r.Entry = old
				}
				old, err, more = next()
			}
			if !yield(r) {
				return
			}
		}
		for more && err == nil && yield(remembered{Entry: old}) {
			old, err, more = next()
		}
	}
}

// begin starts the next state and manifest.
func (s *state) begin() error {
	now := time.Now()
	var err error
	if s.entries, err = os.OpenFile(s.file(statePartial), os.O_WRONLY|os.O_CREATE|os.O_TRUNC, 0o600); err != nil {
		return errors.Wrapf(err, "write the state of a sync")
	}
	if s.stateOut, err = newManifestWriter(s.entries, now.Unix(), true); err != nil {
		return err
	}
	s.flushed = now
	if s.down {
		return nil
	}
	if s.manifest, err = os.OpenFile(s.file(stateNext), os.O_RDWR|os.O_CREATE|os.O_TRUNC, 0o600); err != nil {
		return errors.Wrapf(err, "write a manifest")
	}
	s.out, err = newManifestWriter(s.manifest, now.Unix(), false)
	return err
}

// add records the result of an action: the path's entry afterwards, nil if there is none, or the
// reason why it failed.
func (s *state) add(a *Action, out *tree.Entry, failed error) error {
	if s.stateOut == nil {
		if err := s.begin(); err != nil {
			return err
		}
	}
	e, mine := out, out // for the manifest, and for this machine
	if failed != nil || a.Op == Skip || a.aside {
		if !a.aside {
			e = a.was
		}
		if mine = a.base; mine == nil {
			mine = unknown(e)
		}
	}
	s.journal.done(a.Path)
	if e != a.was && (e == nil || a.was == nil || !e.SameRecord(a.was)) {
		s.changed = true
	}
	if mine != e && (mine == nil || e == nil || !mine.SameRecord(e)) {
		s.apart = true
	}
	if mine != nil && mine.Path != "" {
		if err := s.stateOut.add(mine); err != nil {
			return err
		}
	}
	if e == nil || e.Path == "" {
		return nil
	}
	s.keep(e)
	if time.Since(s.flushed) > time.Second {
		s.flushed = time.Now()
		if err := errors.Join(s.stateOut.flush(), s.journal.compact()); err != nil {
			return err
		}
	}
	if s.down {
		return nil
	}
	return s.out.add(e)
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

// sweepDue reports whether the last sweep was longer than age ago, and if so records a new one.
func (s *state) sweepDue(age time.Duration) bool {
	info, err := os.Stat(s.file(stateSwept))
	if s.temp || err == nil && time.Since(info.ModTime()) < age {
		return false
	}
	now := time.Now()
	// If the time cannot be recorded, skip the sweep: otherwise each sync would do one.
	return os.WriteFile(s.file(stateSwept), nil, 0o600) == nil && os.Chtimes(s.file(stateSwept), now, now) == nil
}

// close closes the files. The results of an unfinished sync stay for the next one.
func (s *state) close() {
	if s.stateOut != nil && !s.done {
		_ = s.stateOut.flush()
	}
	s.journal.close()
	for _, f := range []*os.File{s.entries, s.manifest} {
		if f != nil {
			f.Close()
		}
	}
	if s.temp {
		_ = os.RemoveAll(s.dir)
		return
	}
	for _, name := range []string{stateNext, stateRemote} {
		_ = os.Remove(s.file(name))
	}
}

// interrupted reports whether an earlier sync left results that no manifest has.
func (s *state) interrupted() bool {
	for range readFile(s.file(stateBefore)) {
		return true
	}
	return false
}

// last yields the entries of the last complete sync. If the state is unreadable, it deletes the
// state and ends with errState.
func (s *state) last() iter.Seq2[*tree.Entry, error] {
	return func(yield func(*tree.Entry, error) bool) {
		for e, err := range readFile(s.file(stateEntries)) {
			if err != nil {
				s.forget()
				yield(nil, errors.Join(errState, err))
				return
			}
			if !yield(e, nil) {
				return
			}
		}
	}
}

// errState reports a damaged state on this machine. The next attempt runs without it.
var errState = errors.Newf(errors.Unavailable, "the state of the last sync on this machine is damaged")

// forget deletes the state, as before the first sync.
func (s *state) forget() {
	for _, name := range []string{stateETag, stateEntries, stateBefore, statePartial} {
		_ = os.Remove(s.file(name))
	}
}

// finish completes the next state and manifest, after the last path.
func (s *state) finish() error {
	if s.stateOut == nil {
		if err := s.begin(); err != nil {
			return err
		}
	}
	err := s.stateOut.close()
	if s.out != nil {
		err = errors.Join(err, s.out.close())
	}
	return err
}

// replace makes the next state current. etag is that of the bucket's manifest.
func (s *state) replace(etag string) error {
	if s.temp {
		return nil
	}
	if err := s.entries.Sync(); err != nil {
		return errors.Wrapf(err, "write the state of a sync")
	}
	// Until the ETag is written, the entries belong to no manifest, and the next sync reads the
	// bucket's.
	if err := os.Remove(s.file(stateETag)); err != nil && !errors.IsNotExist(err) {
		return errors.Wrapf(err, "write the state of a sync")
	}
	if err := os.Rename(s.file(statePartial), s.file(stateEntries)); err != nil {
		return errors.Wrapf(err, "write the state of a sync")
	}
	if err := os.Remove(s.file(stateBefore)); err != nil && !errors.IsNotExist(err) {
		return errors.Wrapf(err, "write the state of a sync")
	}
	if err := os.Remove(s.file(stateJournal)); err != nil && !errors.IsNotExist(err) {
		return errors.Wrapf(err, "write the state of a sync")
	}
	s.done = true
	if s.apart && etag != "" && !strings.HasPrefix(etag, apartMark) {
		etag = apartMark + etag
	}
	return errors.Wrapf(atomicfile.Write(s.file(stateETag), []byte(etag), 0o600), "write the state of a sync")
}

package mount

import (
	"context"
	"encoding/json"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/RelevanceAI/harvest/client/errors"
	"github.com/RelevanceAI/harvest/internal/base/atomicfile"
	"github.com/RelevanceAI/harvest/internal/s3/tree"
)

// spool is a file that is being written, kept on this machine until it is stored. While it is not
// stored, a note beside its content holds its path and metadata, so that a later process can store
// it.
type spool struct {
	m    *live
	file *os.File
	name string // of the file; its note has noteSuffix

	body    sync.RWMutex // write lock to change the content, read lock to store it
	sending sync.Mutex   // held while storing it

	mu     sync.Mutex
	node   *node      // guarded by mu; nil for a file of an earlier process
	e      tree.Entry // guarded by mu; the entry to store
	stored bool       // guarded by mu; there is an object at the path, perhaps an older one
	dirty  bool       // guarded by mu; the object differs from this file
	gone   bool       // guarded by mu; removed: it is not stored, but handles still read and write it
	ended  bool       // guarded by mu; stored and dropped: a writer must get a new spool
	used   time.Time  // guarded by mu
	failed time.Time  // guarded by mu; time of the last failure to store it
	told   bool       // guarded by mu; the failure was reported
}

const noteSuffix = ".json"

// note is the record of a file that is not stored.
type note struct {
	Path     string `json:"path"`
	Mode     uint32 `json:"mode"`
	UID      uint32 `json:"uid"`
	GID      uint32 `json:"gid"`
	Modified int64  `json:"modified_ns"` // nanoseconds of the second
	Seconds  int64  `json:"modified_s"`  // since 1970; earlier versions put the whole time in Modified
}

// sortedNames returns the keys of a map in order.
func sortedNames[V any](m map[string]V) []string { return slices.Sorted(maps.Keys(m)) }

// base returns the last element of a path.
func base(path string) string { return path[strings.LastIndexByte(path, '/')+1:] }

// dirOf returns the path without its last element.
func dirOf(path string) string { return strings.TrimSuffix(path[:len(path)-len(base(path))], "/") }

// spool returns the spool at a path, or nil.
func (m *live) spool(path string) *spool {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.spools[path]
}

// entry returns the current entry of the file.
func (s *spool) entry() *tree.Entry {
	s.mu.Lock()
	defer s.mu.Unlock()
	e := s.e
	return &e
}

// addSpooled adds the spooled files of a directory to names.
func (m *live) addSpooled(dir string, names map[string]uint32) {
	m.mu.Lock()
	defer m.mu.Unlock()
	for path := range m.spools {
		if dirOf(path) == dir {
			names[base(path)] = syscall.S_IFREG
		}
	}
}

// newSpool makes an empty spool file for e.
func (m *live) newSpool(e tree.Entry, stored bool) (*spool, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.last++
	name := filepath.Join(m.spoolDir, strconv.FormatInt(m.last, 10))
	f, err := os.OpenFile(name, os.O_CREATE|os.O_EXCL|os.O_RDWR, 0o600)
	if err != nil {
		return nil, errors.Wrapf(err, "make a file for written data")
	}
	return &spool{m: m, file: f, name: name, e: e, stored: stored, used: time.Now()}, nil
}

// publish makes s the spool at its path. If there is one already, publish drops s and returns the
// other.
func (m *live) publish(s *spool) *spool {
	m.mu.Lock()
	defer m.mu.Unlock()
	if other := m.spools[s.e.Path]; other != nil {
		s.file.Close()
		os.Remove(s.name)
		m.used -= s.e.Size
		return other
	}
	m.spools[s.e.Path] = s
	return s
}

// reserve takes room for n more bytes. It returns ENOSPC if there is not enough.
func (m *live) reserve(n int64) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	if n > 0 && m.used+n > m.limit {
		return syscall.ENOSPC
	}
	m.used += n
	return nil
}

// fetch fills s with the content of the object from.
func (s *spool) fetch(ctx context.Context, from *tree.Entry) error {
	const step = 8 << 20
	if err := s.m.reserve(from.Size); err != nil {
		return err
	}
	g, ctx := errgroup.WithContext(ctx)
	g.SetLimit(4)
	for at := int64(0); at < from.Size && ctx.Err() == nil; at += step {
		g.Go(func() error {
			buf := make([]byte, min(step, from.Size-at))
			if err := s.m.b.ReadObject(ctx, from, buf, at); err != nil {
				return err
			}
			_, err := s.file.WriteAt(buf, at)
			return err
		})
	}
	err := g.Wait()
	if err == nil {
		err = context.Cause(s.m.ctx)
	}
	if err != nil {
		return errors.Join(err, s.m.reserve(-from.Size))
	}
	s.e.Size = from.Size
	return nil
}

// errEnded reports that the spool was dropped meanwhile.
var errEnded = errors.Errorf("the file was dropped")

// change runs f, which changes the content or metadata, and marks the file to be stored later.
func (s *spool) change(size int64, f func(e *tree.Entry) error) error {
	s.body.Lock()
	defer s.body.Unlock()
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.ended {
		return errEnded
	}
	grow := int64(0)
	if size >= 0 {
		grow = size - s.e.Size
	}
	if err := s.m.reserve(grow); err != nil {
		return err
	}
	if err := f(&s.e); err != nil {
		return errors.Join(err, s.m.reserve(-grow))
	}
	s.e.Size += grow
	s.used = time.Now()
	if s.dirty && size >= 0 {
		return nil // the note does not depend on the content
	}
	s.dirty = true
	return s.write()
}

// write writes the note. s.mu is held.
func (s *spool) write() error {
	if s.gone || !s.dirty {
		return nil
	}
	text, err := json.Marshal(note{s.e.Path, s.e.Mode, s.e.UID, s.e.GID, int64(s.e.ModTime.Nsec), s.e.ModTime.Sec})
	if err == nil {
		err = atomicfile.Write(s.name+noteSuffix, text, 0o600)
	}
	return errors.Wrapf(err, "record a write")
}

// pwrite writes at an offset.
func (s *spool) pwrite(p []byte, at int64) error {
	s.mu.Lock()
	size := max(s.e.Size, at+int64(len(p)))
	s.mu.Unlock()
	return s.change(size, func(e *tree.Entry) error {
		_, err := s.file.WriteAt(p, at)
		e.ModTime = tree.Now()
		return err
	})
}

func (s *spool) truncate(size int64) error {
	return s.change(size, func(e *tree.Entry) error {
		e.ModTime = tree.Now()
		return s.file.Truncate(size)
	})
}

// store stores the file if it is dirty, and waits for the end.
func (s *spool) store(ctx context.Context) (*tree.Entry, error) {
	s.sending.Lock()
	defer s.sending.Unlock()
	s.body.RLock()
	defer s.body.RUnlock()
	s.mu.Lock()
	e, skip := s.e, !s.dirty || s.gone
	s.mu.Unlock()
	if skip {
		return &e, nil
	}
	if err := ctx.Err(); err != nil {
		return nil, context.Cause(ctx)
	}
	if err := s.m.b.WriteObject(ctx, &e, s.file); err != nil {
		s.notStored(ctx, err)
		return nil, err
	}
	s.mu.Lock()
	n, err := s.node, s.isStored(&e)
	s.mu.Unlock()
	if n != nil && err == nil {
		n.stored(&e)
		n.changed()
	}
	return &e, err
}

// notStored records a failure and reports the first one.
func (s *spool) notStored(ctx context.Context, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.failed = time.Now()
	if !s.told && ctx.Err() == nil {
		s.told = true
		s.m.failed(s.e.Path, err)
	}
}

// isStored notes that the object is e. The metadata may have changed meanwhile. s.mu is held.
func (s *spool) isStored(e *tree.Entry) error {
	s.used = time.Now()
	s.e.ETag, s.stored, s.told, s.failed = e.ETag, true, false, time.Time{}
	if !sameMeta(&s.e, e) {
		return nil
	}
	s.dirty = false
	if err := os.Remove(s.name + noteSuffix); err != nil && !errors.IsNotExist(err) {
		return errors.Wrapf(err, "record an upload")
	}
	return nil
}

// drop deletes the spool file, because it is stored or not needed.
func (s *spool) drop() {
	s.m.mu.Lock()
	if s.m.spools[s.e.Path] == s {
		delete(s.m.spools, s.e.Path)
	}
	s.m.used -= s.e.Size
	s.m.mu.Unlock()
	os.Remove(s.name + noteSuffix)
	os.Remove(s.name)
}

// tend stores files after a pause in writing, and retries failed ones. It drops stored files and
// windows that are no longer used.
func (m *live) tend(now time.Time) {
	m.windows.tend(now)
	m.mu.Lock()
	all := slices.Collect(maps.Values(m.spools))
	m.mu.Unlock()
	for _, s := range all {
		s.mu.Lock()
		retry := s.dirty && now.Sub(s.used) > settled && now.Sub(s.failed) > retryAfter
		idle := !s.dirty && now.Sub(s.used) > idleSpool
		s.mu.Unlock()
		if retry {
			_, _ = s.store(m.ctx) // which reports failures
		}
		if idle && s.sending.TryLock() {
			s.body.Lock()
			s.mu.Lock()
			if !s.dirty && !s.gone {
				s.ended = true
				s.drop()
			}
			s.mu.Unlock()
			s.body.Unlock()
			s.sending.Unlock()
		}
	}
}

// Unsent is a file that could not be stored.
type Unsent struct {
	Path   string `json:"path"`   // in the mount
	File   string `json:"file"`   // path of its content on this machine
	Reason string `json:"reason"` // one sentence
}

// flush stores all unstored files. Once S3 is unavailable for one file, it does not try the others.
func (m *live) flush(ctx context.Context) []Unsent {
	m.mu.Lock()
	paths := sortedNames(m.spools)
	m.mu.Unlock()
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	var mu sync.Mutex
	var left []Unsent
	var g errgroup.Group
	g.SetLimit(8)
	for _, path := range paths {
		s := m.spool(path)
		if s == nil {
			continue
		}
		g.Go(func() error {
			_, err := s.store(ctx)
			if err == nil {
				return nil
			}
			if k := errors.KindOf(err); k == errors.Unavailable || k == errors.Timeout {
				cancel(err)
			}
			mu.Lock()
			defer mu.Unlock()
			left = append(left, Unsent{Path: path, File: s.name, Reason: errors.Message(err)})
			return nil
		})
	}
	_ = g.Wait()
	return left
}

// adopt takes over the unstored files of an earlier process.
func (m *live) adopt() error {
	notes, err := filepath.Glob(filepath.Join(m.spoolDir, "*"+noteSuffix))
	if err != nil {
		return errors.Wrapf(err, "look for pending files")
	}
	for _, file := range notes {
		n, err := readNote(file)
		if err != nil {
			return err
		}
		name := strings.TrimSuffix(file, noteSuffix)
		f, err := os.OpenFile(name, os.O_RDWR, 0)
		if err != nil {
			return errors.Wrapf(err, "open a pending file")
		}
		st, err := f.Stat()
		if err != nil {
			return errors.Wrapf(err, "stat a pending file")
		}
		m.spools[n.Path] = &spool{m: m, file: f, name: name, dirty: true, used: time.Now(),
			e: tree.Entry{Path: n.Path, Kind: tree.File, Mode: n.Mode, UID: n.UID, GID: n.GID, ModTime: n.time(),
				Size: st.Size()}}
		m.used += st.Size()
		if i, err := strconv.ParseInt(filepath.Base(name), 10, 64); err == nil {
			m.last = max(m.last, i)
		}
	}
	return nil
}

// time returns the modification time of the file.
func (n *note) time() tree.Time {
	t := tree.Nano(n.Modified)
	t.Sec += n.Seconds
	return t
}

func readNote(file string) (note, error) {
	text, err := os.ReadFile(file)
	if err != nil {
		return note{}, errors.Wrapf(err, "read a pending file")
	}
	return parseNote(text)
}

// parseNote reads a note and rejects values that no caller of newSpool would use.
func parseNote(text []byte) (note, error) {
	var n note
	if err := json.Unmarshal(text, &n); err != nil {
		return n, errors.Explainf(err, errors.Invalid, "the note of a file that is not stored is damaged")
	}
	if !tree.ValidPath(n.Path) || n.Mode&^0o7777 != 0 {
		return n, errors.Newf(errors.Invalid, "the note of a file that is not stored is damaged")
	}
	return n, nil
}

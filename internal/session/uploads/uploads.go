// Package uploads keeps files that clients send ahead of their sessions: the commits of a repository, and uncommitted
// changes. A file is streamed to the disk and is never in memory as a whole.
//
// An upload waits for sessions until it expires or is removed. A session that uses it claims it: it gets a hard link of
// its own, which outlives the upload and the server, until the session releases it.
package uploads

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"sync"
	"syscall"
	"time"

	"github.com/RelevanceAI/harvest/client/errors"
	"github.com/RelevanceAI/harvest/internal/base/ids"
	"github.com/RelevanceAI/harvest/internal/base/pattern"
)

const (
	// DefaultLimit is the maximum size of an upload if Options do not give one.
	DefaultLimit = 4 << 30
	// Life is how long an upload waits for its sessions.
	Life = time.Hour
	// together is how many uploads of the maximum size an account may have at once.
	together = 4

	waiting = "waiting" // below it: ACCOUNT/ID
	claimed = "claimed" // below it: SESSION/NAME
	partial = ".part"   // ends the names of files that are being written
)

// idPattern matches IDs, which are names of files, too.
var idPattern = pattern.New(`^upl_[0-9a-z]{1,64}$`)

// Store keeps uploads in a directory. All methods may be called concurrently.
type Store struct {
	dir   string
	limit int64
	life  time.Duration

	mu     sync.Mutex
	used   map[string]int64       // guarded by mu; bytes of the uploads of an account, by its directory
	timers map[string]*time.Timer // guarded by mu; by the path of an upload; nil after Close
}

// Upload is a file that waits for sessions.
type Upload struct {
	ID      string
	Size    int64
	Expires time.Time
}

// Open returns a Store in a directory, which it creates. It removes files of which a server has received only a part.
// limit is the maximum size of an upload in bytes; 0 means DefaultLimit.
func Open(dir string, limit int64) (*Store, error) { return open(dir, limit, Life) }

func open(dir string, limit int64, life time.Duration) (*Store, error) {
	if limit == 0 {
		limit = DefaultLimit
	}
	s := &Store{dir: dir, limit: limit, life: life, used: map[string]int64{}, timers: map[string]*time.Timer{}}
	for _, name := range []string{waiting, claimed} {
		if err := os.MkdirAll(filepath.Join(dir, name), 0o700); err != nil {
			return nil, errors.Wrapf(err, "create the directory of uploads")
		}
	}
	err := filepath.WalkDir(filepath.Join(dir, waiting), func(path string, e fs.DirEntry, err error) error {
		if err != nil || e.IsDir() {
			return err
		}
		info, err := e.Info()
		if err != nil {
			return err
		}
		if filepath.Ext(path) == partial {
			return os.Remove(path)
		}
		s.used[filepath.Dir(path)] += info.Size()
		s.expire(path, info.Size(), time.Until(info.ModTime().Add(s.life)))
		return nil
	})
	return s, errors.Wrapf(err, "read the directory of uploads")
}

// Close stops the Store. The uploads stay for the next one.
func (s *Store) Close() {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, timer := range s.timers {
		timer.Stop()
	}
	s.timers = nil
}

// of returns the directory of an account's uploads.
func (s *Store) of(account string) string {
	sum := sha256.Sum256([]byte(account))
	return filepath.Join(s.dir, waiting, hex.EncodeToString(sum[:16]))
}

// Add stores the content of r. If r fails, nothing is kept. Kinds: Invalid (it is empty, or larger than the limit),
// Exhausted (the account has too many uploads, or the disk is full), and the errors of r.
func (s *Store) Add(ctx context.Context, account string, r io.Reader) (_ Upload, err error) {
	dir := s.of(account)
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return Upload{}, explain(err, "create the directory of uploads")
	}
	id := "upl_" + ids.New()
	f, err := os.OpenFile(filepath.Join(dir, id+partial), os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return Upload{}, explain(err, "create an upload")
	}
	w := &writer{s: s, dir: dir, f: f}
	defer func() {
		if err != nil {
			_ = f.Close() // it may be closed
			err = errors.Join(err, os.Remove(f.Name()))
			s.count(dir, -w.size)
		}
	}()
	if _, err := io.Copy(w, reader{ctx, r}); err != nil {
		return Upload{}, err
	}
	if w.size == 0 {
		return Upload{}, errors.Remedy(errors.Newf(errors.Invalid, "the upload is empty"), "send the file as the body")
	}
	// Without fsync: after a crash of the machine, git finds a damaged file by its checksum.
	path := filepath.Join(dir, id)
	if err := errors.Join(f.Close(), os.Rename(f.Name(), path)); err != nil {
		return Upload{}, explain(err, "store an upload")
	}
	s.expire(path, w.size, s.life)
	return Upload{ID: id, Size: w.size, Expires: time.Now().Add(s.life)}, nil
}

// reader is a Reader that ends with a context.
type reader struct {
	ctx context.Context
	io.Reader
}

func (r reader) Read(p []byte) (int, error) {
	if err := r.ctx.Err(); err != nil {
		return 0, errors.Wrapf(err, "receive an upload")
	}
	return r.Reader.Read(p)
}

// writer writes an upload within the limits.
type writer struct {
	s    *Store
	dir  string
	f    *os.File
	size int64
}

func (w *writer) Write(p []byte) (int, error) {
	n := int64(len(p))
	if w.size+n > w.s.limit {
		return 0, errors.Remedy(errors.Newf(errors.Invalid, "the upload exceeds %d MiB", w.s.limit>>20),
			"send fewer commits with --depth, give the repository's address with --repo, or raise agents.upload_bytes "+
				"in the configuration of the server")
	}
	if !w.s.count(w.dir, n) {
		return 0, errors.Remedy(errors.Newf(errors.Exhausted, "the account's uploads exceed %d MiB together",
			together*w.s.limit>>20), "try again when the other sessions have begun")
	}
	w.size += n
	written, err := w.f.Write(p)
	return written, explain(err, "store an upload")
}

// explain returns an error of the disk for clients.
func explain(err error, what string) error {
	if errors.Is(err, syscall.ENOSPC) || errors.Is(err, syscall.EDQUOT) {
		return errors.Remedy(errors.Explainf(err, errors.Exhausted, "no space left on the server's disk"),
			"free some space, or send fewer commits with --depth")
	}
	return errors.Wrapf(err, "%s", what)
}

// count changes the size of an account's uploads. It reports false, and changes nothing, if they would be too large.
func (s *Store) count(dir string, n int64) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if n > 0 && s.used[dir]+n > together*s.limit {
		return false
	}
	if s.used[dir] += n; s.used[dir] <= 0 {
		delete(s.used, dir)
	}
	return true
}

// expire removes an upload after a time.
func (s *Store) expire(path string, size int64, after time.Duration) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.timers != nil {
		s.timers[path] = time.AfterFunc(max(after, 0), func() {
			_ = s.remove(path, size) // if it fails, the next server tries again
		})
	}
}

// remove removes an upload, once.
func (s *Store) remove(path string, size int64) error {
	s.mu.Lock()
	timer := s.timers[path]
	delete(s.timers, path)
	s.mu.Unlock()
	if timer == nil {
		return missing()
	}
	timer.Stop()
	s.count(filepath.Dir(path), -size)
	return errors.Wrapf(os.Remove(path), "remove an upload")
}

// Remove removes an upload. Sessions that have claimed it keep it. It returns NotFound if there is no such upload.
func (s *Store) Remove(account, id string) error {
	path, size, err := s.find(account, id)
	if err != nil {
		return err
	}
	return s.remove(path, size)
}

// find returns the path and the size of an upload.
func (s *Store) find(account, id string) (path string, size int64, err error) {
	if !idPattern().MatchString(id) {
		return "", 0, missing()
	}
	path = filepath.Join(s.of(account), id)
	info, err := os.Stat(path)
	if err != nil {
		return "", 0, missing()
	}
	return path, info.Size(), nil
}

func missing() error {
	return errors.Remedy(errors.Newf(errors.NotFound, "the upload does not exist, or has expired"), "send it again")
}

// Check returns NotFound if there is no such upload.
func (s *Store) Check(account, id string) error {
	_, _, err := s.find(account, id)
	return err
}

// Claim gives a session an upload under a name, and returns its path.
func (s *Store) Claim(account, id, session, name string) (string, error) {
	path, _, err := s.find(account, id)
	if err != nil {
		return "", err
	}
	to, err := s.place(session, name)
	if err != nil {
		return "", err
	}
	switch err := os.Link(path, to); {
	case errors.Is(err, fs.ErrNotExist): // it has just expired
		return "", missing()
	case err != nil && !errors.Is(err, fs.ErrExist):
		return "", explain(err, "keep an upload for a session")
	}
	return to, nil
}

// Put gives a session a file with this content, and returns its path.
func (s *Store) Put(session, name string, content []byte) (string, error) {
	to, err := s.place(session, name)
	if err != nil {
		return "", err
	}
	return to, explain(os.WriteFile(to, content, 0o600), "keep a file for a session")
}

// place returns the path of a session's file, and creates its directory.
func (s *Store) place(session, name string) (string, error) {
	to := s.Path(session, name)
	return to, explain(os.MkdirAll(filepath.Dir(to), 0o700), "create a directory for a session")
}

// Path returns the path of a file that a session may have.
func (s *Store) Path(session, name string) string {
	return filepath.Join(s.dir, claimed, filepath.Base(session), name)
}

// Release removes the files of a session.
func (s *Store) Release(session string) error {
	return errors.Wrapf(os.RemoveAll(filepath.Dir(s.Path(session, "-"))), "remove the uploads of a session")
}

// Retain releases the files of all sessions that keep does not name.
func (s *Store) Retain(keep map[string]bool) error {
	entries, err := os.ReadDir(filepath.Join(s.dir, claimed))
	for _, e := range entries {
		if !keep[e.Name()] {
			err = errors.Join(err, s.Release(e.Name()))
		}
	}
	return errors.Wrapf(err, "remove the uploads of earlier sessions")
}

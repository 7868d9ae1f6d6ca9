// Package blobs stores the files that clients upload, by the SHA-256 of their content. The files of each account are
// apart from those of all others, so that a digest alone gives no access. Content is verified when it comes in and
// when it is copied out. A blob that was not used for a while is removed by Sweep.
package blobs

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"io"
	"os"
	"path/filepath"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/RelevanceAI/harvest/client/errors"
	"github.com/RelevanceAI/harvest/internal/base/pattern"
)

// Limits bounds a Store. Zero values have defaults.
type Limits struct {
	Blob    int64         // bytes of one blob: 64 GiB
	Account int64         // bytes of all blobs and uploads of one account: 200 GiB
	Uploads int           // unfinished uploads of one account: 1,000
	Life    time.Duration // of a blob that is not used: 7 days
	Upload  time.Duration // of an upload that does not continue: 6 hours
	Free    int64         // bytes of the disk that stay free: 256 MiB
}

// released is how long a blob lives whose content was copied elsewhere.
const released = 10 * time.Minute

// Store keeps blobs in a directory, which no other process may use. All methods may be called concurrently.
type Store struct {
	dir    string
	limits Limits

	completing sync.Mutex // held while the parts of an upload become a blob

	mu       sync.Mutex
	accounts map[string]*usage // guarded by mu
}

// usage is what an account occupies.
type usage struct {
	bytes   int64
	uploads int
}

// Directories of an account.
const (
	blobDir   = "blobs"
	uploadDir = "uploads"
	tempDir   = "temp" // emptied by Open
)

var (
	sumPattern     = pattern.New(`^[0-9a-f]{64}$`)
	accountPattern = pattern.New(`^[A-Za-z0-9][A-Za-z0-9._@+-]{0,127}$`)
)

// Open opens the store in dir, and removes what an earlier process has not finished.
func Open(dir string, limits Limits) (*Store, error) {
	set := func(have *int64, standard int64) {
		if *have == 0 {
			*have = standard
		}
	}
	set(&limits.Blob, 64<<30)
	set(&limits.Account, 200<<30)
	set((*int64)(&limits.Life), int64(7*24*time.Hour))
	set((*int64)(&limits.Upload), int64(6*time.Hour))
	set(&limits.Free, 256<<20)
	if limits.Uploads == 0 {
		limits.Uploads = 1000
	}
	s := &Store{dir: dir, limits: limits, accounts: map[string]*usage{}}
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, errors.Wrapf(err, "make the directory of blobs")
	}
	entries, err := os.ReadDir(dir)
	if err != nil {
		return nil, errors.Wrapf(err, "read the directory of blobs")
	}
	for _, e := range entries {
		if e.IsDir() {
			if err := s.load(e.Name()); err != nil {
				return nil, errors.Wrapf(err, "read the blobs of an account")
			}
		}
	}
	return s, nil
}

// load counts what an account occupies.
func (s *Store) load(account string) error {
	u := &usage{}
	s.accounts[account] = u
	if err := os.RemoveAll(s.path(account, tempDir)); err != nil {
		return err
	}
	stored, err := os.ReadDir(s.path(account, blobDir))
	if err != nil && !errors.IsNotExist(err) {
		return err
	}
	for _, e := range stored {
		if info, err := e.Info(); err == nil {
			u.bytes += info.Size()
		}
	}
	begun, err := os.ReadDir(s.path(account, uploadDir))
	if err != nil && !errors.IsNotExist(err) {
		return err
	}
	for _, e := range begun {
		up, err := s.upload(account, e.Name())
		if err != nil { // killed before it was recorded
			if err := os.RemoveAll(s.path(account, uploadDir, e.Name())); err != nil {
				return err
			}
			continue
		}
		u.uploads++
		u.bytes += up.Size
	}
	return nil
}

func (s *Store) path(account string, parts ...string) string {
	return filepath.Join(append([]string{s.dir, account}, parts...)...)
}

// check returns Invalid for names that cannot be those of an account and a digest.
func check(account, sum string) error {
	if !accountPattern().MatchString(account) {
		return errors.Newf(errors.Invalid, "invalid account %.100q", account)
	}
	if !sumPattern().MatchString(sum) {
		return errors.Newf(errors.Invalid, "%.100q is not a SHA-256 in hexadecimal digits", sum)
	}
	return nil
}

// reserve counts bytes, and refuses those beyond the limits. The caller releases them with a negative number.
func (s *Store) reserve(account string, size int64, uploads int) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	u := s.accounts[account]
	if u == nil {
		u = &usage{}
		s.accounts[account] = u
	}
	if size > 0 && u.bytes+size > s.limits.Account {
		err := errors.Newf(errors.Exhausted,
			"the account's uploaded files would have %d bytes, more than the maximum of %d",
			u.bytes+size, s.limits.Account)
		return errors.Remedy(err, "wait until files that are not used expire, or put large ones into a volume")
	}
	if uploads > 0 && u.uploads+uploads > s.limits.Uploads {
		return errors.Remedy(errors.Newf(errors.Exhausted, "the account has %d unfinished uploads", u.uploads),
			"finish some of them first")
	}
	u.bytes += size
	u.uploads += uploads
	return nil
}

// room returns Exhausted if the disk lacks space for size more bytes.
func (s *Store) room(size int64) error {
	var st unix.Statfs_t
	if err := unix.Statfs(s.dir, &st); err != nil {
		return errors.Wrapf(err, "check the free space")
	}
	if free := int64(st.Bavail) * st.Bsize; free-size < s.limits.Free {
		return errors.Newf(errors.Exhausted, "there is no space left for a file of %d bytes", size)
	}
	return nil
}

// allowed returns an error for a blob that is too large.
func (s *Store) allowed(size int64) error {
	if size < 0 {
		return errors.Newf(errors.Invalid, "a file cannot have %d bytes", size)
	}
	if size > s.limits.Blob {
		return errors.Newf(errors.Exhausted, "a file of %d bytes is too large: the maximum is %d", size, s.limits.Blob)
	}
	return s.room(size)
}

// Has reports whether the account has a blob, and extends the blob's life.
func (s *Store) Has(account, sum string) bool {
	if check(account, sum) != nil {
		return false
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	now := time.Now()
	return os.Chtimes(s.path(account, blobDir, sum), now, now) == nil
}

// Release records that the content was copied elsewhere: the blob is removed soon unless it is used again.
func (s *Store) Release(account, sum string) {
	if check(account, sum) != nil {
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	at := time.Now().Add(released - s.limits.Life)
	_ = os.Chtimes(s.path(account, blobDir, sum), at, at) // otherwise it is removed later
}

// Size returns the size of a blob, or NotFound.
func (s *Store) Size(account, sum string) (int64, error) {
	if err := check(account, sum); err != nil {
		return 0, err
	}
	info, err := os.Stat(s.path(account, blobDir, sum))
	if err != nil {
		return 0, lost(err, sum)
	}
	return info.Size(), nil
}

// Open opens a blob for reading, or returns NotFound.
func (s *Store) Open(account, sum string) (*os.File, error) {
	if !s.Has(account, sum) {
		return nil, lost(os.ErrNotExist, sum)
	}
	f, err := os.Open(s.path(account, blobDir, sum))
	return f, lost(err, sum)
}

func lost(err error, sum string) error {
	if errors.IsNotExist(err) {
		err := errors.Explainf(err, errors.NotFound, "there is no uploaded file with the SHA-256 %.64s", sum)
		return errors.Remedy(err, "upload it again")
	}
	return errors.Wrapf(err, "open a blob")
}

// Copy writes a blob to w. A blob that is damaged, as after a failure of the machine, is removed and reported as
// Unavailable: the client uploads it again. w has then received wrong content.
func (s *Store) Copy(ctx context.Context, account, sum string, w io.Writer) error {
	f, err := s.Open(account, sum)
	if err != nil {
		return err
	}
	defer f.Close()
	h := sha256.New()
	if _, err := io.Copy(io.MultiWriter(w, h), reader{ctx, f}); err != nil {
		return errors.Wrapf(err, "copy a blob")
	}
	if hex.EncodeToString(h.Sum(nil)) == sum {
		return nil
	}
	s.drop(account, sum)
	return errors.Remedy(errors.Newf(errors.Unavailable, "an uploaded file was damaged, and was removed"),
		"upload it again")
}

// reader fails once its context has ended.
type reader struct {
	ctx context.Context
	r   io.Reader
}

func (r reader) Read(p []byte) (int, error) {
	if err := context.Cause(r.ctx); err != nil {
		return 0, err
	}
	return r.r.Read(p)
}

// drop removes a blob.
func (s *Store) drop(account, sum string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.dropLocked(account, sum)
}

func (s *Store) dropLocked(account, sum string) {
	name := s.path(account, blobDir, sum)
	if info, err := os.Stat(name); err == nil && os.Remove(name) == nil && s.accounts[account] != nil {
		s.accounts[account].bytes -= info.Size()
	}
}

// Put stores the content of r as the blob with that digest, unless the account already has the blob. Invalid if the
// content has another digest, or more than most bytes.
func (s *Store) Put(ctx context.Context, account, sum string, most int64, r io.Reader) error {
	if err := check(account, sum); err != nil {
		return err
	}
	if s.Has(account, sum) {
		return nil
	}
	got, err := s.take(ctx, account, sum, most, r)
	if err == nil && got != sum {
		err = errors.Newf(errors.Invalid, "the content has the SHA-256 %s, not %s", got, sum)
	}
	return err
}

// Add stores the content of r, up to the limit of a blob, and returns its digest.
func (s *Store) Add(ctx context.Context, account string, r io.Reader) (sum string, err error) {
	if !accountPattern().MatchString(account) {
		return "", errors.Newf(errors.Invalid, "invalid account %.100q", account)
	}
	return s.take(ctx, account, "", s.limits.Blob, r)
}

// take writes r to a file, and keeps it as a blob if it has the digest want, or if want is "".
func (s *Store) take(ctx context.Context, account, want string, most int64, r io.Reader) (sum string, err error) {
	for _, dir := range []string{tempDir, blobDir} {
		if err := os.MkdirAll(s.path(account, dir), 0o700); err != nil {
			return "", errors.Wrapf(err, "make the directory of blobs")
		}
	}
	if err := s.room(0); err != nil {
		return "", err
	}
	f, err := os.CreateTemp(s.path(account, tempDir), "put-")
	if err != nil {
		return "", errors.Wrapf(err, "write a blob")
	}
	defer os.Remove(f.Name()) // the blob has another name by then
	defer f.Close()
	h := sha256.New()
	size, err := io.Copy(io.MultiWriter(f, h), io.LimitReader(reader{ctx, r}, most+1))
	if err != nil {
		return "", full(err)
	}
	if size > most {
		return "", errors.Newf(errors.Invalid, "the content has more than %d bytes", most)
	}
	sum = hex.EncodeToString(h.Sum(nil))
	if want != "" && want != sum {
		return sum, nil
	}
	if err := s.allowed(size); err != nil {
		return "", err
	}
	if err := s.reserve(account, size, 0); err != nil {
		return "", err
	}
	return sum, s.keep(account, sum, f.Name(), size)
}

// keep gives the complete file the name of a blob. Its size is reserved.
func (s *Store) keep(account, sum, temp string, size int64) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	name := s.path(account, blobDir, sum)
	if info, err := os.Stat(name); err == nil { // another one was faster
		s.accounts[account].bytes -= info.Size()
	}
	if err := os.Rename(temp, name); err != nil {
		s.accounts[account].bytes -= size
		return errors.Wrapf(err, "keep a blob")
	}
	return nil
}

func full(err error) error {
	if errors.Is(err, syscall.ENOSPC) || errors.Is(err, syscall.EDQUOT) {
		return errors.Explainf(err, errors.Exhausted, "there is no space left for an uploaded file")
	}
	return errors.Wrapf(err, "write a blob")
}

// Sweep removes the blobs that were not used for their life and that keep does not want, and uploads that do not
// continue.
func (s *Store) Sweep(now time.Time, keep func(account, sum string) bool) {
	s.mu.Lock()
	names := make([]string, 0, len(s.accounts))
	for name := range s.accounts {
		names = append(names, name)
	}
	s.mu.Unlock()
	for _, account := range names {
		stored, _ := os.ReadDir(s.path(account, blobDir)) // unreadable entries stay
		for _, e := range stored {
			if keep(account, e.Name()) {
				continue
			}
			s.mu.Lock() // so that no use comes between the look and the removal
			if info, err := os.Stat(s.path(account, blobDir, e.Name())); err == nil &&
				now.Sub(info.ModTime()) > s.limits.Life {
				s.dropLocked(account, e.Name())
			}
			s.mu.Unlock()
		}
		s.sweepUploads(now, account)
	}
}

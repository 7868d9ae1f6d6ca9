// Package localfiles keeps mounts: lists of files that clients have uploaded as blobs, with the paths at which images
// and sandboxes get them. Equal lists of an account are one mount. A mount may have a name.
package localfiles

import (
	"archive/tar"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"io"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/RelevanceAI/harvest/client/errors"
	"github.com/RelevanceAI/harvest/internal/base/atomicfile"
	"github.com/RelevanceAI/harvest/internal/base/pattern"
	"github.com/RelevanceAI/harvest/internal/modal/blobs"
)

// Limits of mounts.
const (
	mostFiles    = 200_000
	longestPath  = 4096
	life         = 7 * 24 * time.Hour // of a mount without a name that is not used
	mountEnd     = ".mount"
	namesEnd     = ".names"
	standardMode = 0o644
)

// File is a file of a mount.
type File struct {
	Path string `json:"path"` // absolute and clean
	Sum  string `json:"sha256"`
	Mode uint32 `json:"mode"` // permission bits
	Size int64  `json:"size"`
}

// Mount is a list of files, sorted by path.
type Mount struct {
	ID    string `json:"id"`
	Sum   string `json:"sha256"` // of the list
	Files []File `json:"files"`
}

// Store keeps mounts in a directory, which no other process may use. All methods may be called concurrently.
type Store struct {
	dir   string
	blobs *blobs.Store

	mu sync.Mutex
}

// Open opens the store in dir. Its files are in b.
func Open(dir string, b *blobs.Store) (*Store, error) {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, errors.Wrapf(err, "make the directory of mounts")
	}
	return &Store{dir: dir, blobs: b}, nil
}

var (
	idPattern      = pattern.New(`^[0-9a-f]{40}$`)
	accountPattern = pattern.New(`^[A-Za-z0-9][A-Za-z0-9._@+-]{0,127}$`)
)

func (s *Store) path(account, rest string) string { return filepath.Join(s.dir, account+"~"+rest) }

// Check returns Invalid if name is not the path of a file of a mount: it must be absolute, without "." and "..".
func Check(name string) error {
	if !strings.HasPrefix(name, "/") || path.Clean(name) != name || name == "/" || strings.ContainsRune(name, 0) ||
		len(name) > longestPath {
		return errors.Remedy(errors.Newf(errors.Invalid, "invalid path of a local file: %.200q", name),
			"use an absolute path without '.' and '..'")
	}
	return nil
}

// Create returns the mount of the account with these files, and makes it if it does not exist. NotFound if the content
// of a file was not uploaded.
func (s *Store) Create(account string, files []File) (Mount, error) {
	if !accountPattern().MatchString(account) {
		return Mount{}, errors.Newf(errors.Invalid, "invalid account %.100q", account)
	}
	if len(files) > mostFiles {
		return Mount{}, errors.Newf(errors.Exhausted, "%d local files, more than the maximum of %d", len(files),
			mostFiles)
	}
	files, err := s.complete(account, files)
	if err != nil {
		return Mount{}, err
	}
	text, err := json.Marshal(files)
	if err != nil {
		return Mount{}, errors.Wrapf(err, "encode a mount")
	}
	sum := sha256.Sum256(text)
	m := Mount{Sum: hex.EncodeToString(sum[:]), Files: files}
	m.ID = m.Sum[:40]
	s.mu.Lock()
	defer s.mu.Unlock()
	return m, write(s.path(account, m.ID+mountEnd), m)
}

// complete sorts files, checks them, and fills in their sizes.
func (s *Store) complete(account string, files []File) ([]File, error) {
	files = slices.Clone(files)
	slices.SortFunc(files, func(a, b File) int { return strings.Compare(a.Path, b.Path) })
	seen := map[string]bool{}
	for i := range files {
		f := &files[i]
		if err := Check(f.Path); err != nil {
			return nil, err
		}
		if seen[f.Path] {
			return nil, errors.Newf(errors.Invalid, "duplicate path %.200q", f.Path)
		}
		seen[f.Path] = true
		if f.Mode &= 0o777; f.Mode == 0 {
			f.Mode = standardMode
		}
		size, err := s.blobs.Size(account, f.Sum)
		if err != nil || !s.blobs.Has(account, f.Sum) {
			return nil, errors.Explainf(err, errors.NotFound, "the content of %.200q was not uploaded", f.Path)
		}
		f.Size = size
	}
	for _, f := range files {
		for dir := path.Dir(f.Path); dir != "/"; dir = path.Dir(dir) {
			if seen[dir] {
				return nil, errors.Newf(errors.Invalid, "%.200q is a file and a directory", dir)
			}
		}
	}
	return files, nil
}

// Get returns a mount and extends its life, or returns NotFound.
func (s *Store) Get(account, id string) (m Mount, err error) {
	if !idPattern().MatchString(id) || !accountPattern().MatchString(account) {
		return m, missing(id)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	name := s.path(account, id+mountEnd)
	if err := read(name, &m); err != nil {
		if errors.IsNotExist(err) {
			return m, missing(id)
		}
		return m, err
	}
	now := time.Now()
	_ = os.Chtimes(name, now, now) // otherwise it ends earlier
	return m, nil
}

func missing(id string) error {
	return errors.Remedy(errors.Newf(errors.NotFound, "there is no mount %.60q", id),
		"run the program again: it uploads its files")
}

// SetName gives a mount a name, which an earlier mount loses. With fresh, it returns Conflict if the name is taken.
func (s *Store) SetName(account, name, id string, fresh bool) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	names, err := s.names(account)
	if err != nil {
		return err
	}
	if fresh && names[name] != "" {
		return errors.Newf(errors.Conflict, "Mount '%.100s' already exists", name)
	}
	names[name] = id
	return write(s.path(account, namesEnd), names)
}

// Named returns the mount with a name, or NotFound.
func (s *Store) Named(account, name string) (Mount, error) {
	s.mu.Lock()
	names, err := s.names(account)
	s.mu.Unlock()
	if err != nil {
		return Mount{}, err
	}
	if names[name] == "" {
		return Mount{}, errors.Newf(errors.NotFound, "Mount '%.100s' not found", name)
	}
	return s.Get(account, names[name])
}

// names reads the names of an account's mounts. s.mu is held.
func (s *Store) names(account string) (map[string]string, error) {
	names := map[string]string{}
	if err := read(s.path(account, namesEnd), &names); err != nil && !errors.IsNotExist(err) {
		return nil, err
	}
	return names, nil
}

// Pack writes the files of a mount to tw, with paths relative to the root, except those that skip selects.
func (s *Store) Pack(ctx context.Context, account string, m Mount, tw *tar.Writer, at time.Time,
	skip func(name string) bool) error {
	for _, f := range m.Files {
		name := strings.TrimPrefix(f.Path, "/")
		if skip != nil && skip(name) {
			continue
		}
		if err := tw.WriteHeader(&tar.Header{Name: name, Typeflag: tar.TypeReg, Mode: int64(f.Mode), Size: f.Size,
			ModTime: at}); err != nil {
			return errors.Wrapf(err, "pack local files")
		}
		if err := s.blobs.Copy(ctx, account, f.Sum, tw); err != nil {
			return err
		}
	}
	return nil
}

// Tar returns the files of a mount as a tar stream. The caller closes it.
func (s *Store) Tar(ctx context.Context, account string, m Mount) io.ReadCloser {
	from, to := io.Pipe()
	go func() {
		tw := tar.NewWriter(to)
		err := s.Pack(ctx, account, m, tw, time.Now(), nil)
		if err == nil {
			err = tw.Close()
		}
		to.CloseWithError(err)
	}()
	return from
}

// Sweep removes mounts without a name that were not used for their life, and returns a function that reports whether a
// remaining mount needs a blob.
func (s *Store) Sweep(now time.Time) (needs func(account, sum string) bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	entries, err := os.ReadDir(s.dir)
	if err != nil {
		return func(string, string) bool { return true }
	}
	named, used := map[string]bool{}, map[string]bool{}
	for _, e := range entries {
		if account, rest, _ := strings.Cut(e.Name(), "~"); rest == namesEnd {
			names, err := s.names(account)
			if err != nil {
				return func(string, string) bool { return true }
			}
			for _, id := range names {
				named[account+" "+id] = true
			}
		}
	}
	for _, e := range entries {
		account, id, _ := strings.Cut(strings.TrimSuffix(e.Name(), mountEnd), "~")
		info, err := e.Info()
		if !strings.HasSuffix(e.Name(), mountEnd) || err != nil {
			continue
		}
		if !named[account+" "+id] && now.Sub(info.ModTime()) > life {
			_ = os.Remove(filepath.Join(s.dir, e.Name())) // the next sweep tries again
			continue
		}
		var m Mount
		if err := read(filepath.Join(s.dir, e.Name()), &m); err != nil {
			continue
		}
		for _, f := range m.Files {
			used[account+" "+f.Sum] = true
		}
	}
	return func(account, sum string) bool { return used[account+" "+sum] }
}

func read(name string, to any) error {
	text, err := os.ReadFile(name)
	if err == nil {
		err = json.Unmarshal(text, to)
	}
	return errors.Wrapf(err, "read a mount")
}

func write(name string, from any) error {
	text, err := json.Marshal(from)
	if err == nil {
		err = atomicfile.Write(name, text, 0o600)
	}
	return errors.Wrapf(err, "write a mount")
}

package image

import (
	"cmp"
	"context"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"syscall"
	"time"

	"github.com/RelevanceAI/harvest/client/errors"
	"github.com/RelevanceAI/harvest/internal/base/logf"
)

// Collector is a Builder that can remove unused data.
type Collector interface {
	// Collect removes unused images and the caches of sources. It never removes an image that is in
	// use, that has a name, or that is a snapshot, since a snapshot cannot be rebuilt.
	Collect(ctx context.Context, what Collection) (Collected, error)
}

// Collection selects the data to remove.
type Collection struct {
	Age  time.Duration // remove data unused for this long; 0 removes all unused data
	Size int64         // then remove the longest unused data above this total; 0 means no limit
	All  bool          // also named images of registries, which can be pulled again
	Dry  bool          // only report
}

// Collected reports the removed data.
type Collected struct {
	Images []Image // without their names
	Freed  int64   // bytes of images and caches
	Left   int64   // bytes
}

// Cache is a Source that keeps data for later builds.
type Cache interface {
	// Collect removes the data last used before that time. Then, unless size is negative, it
	// removes the longest unused data until at most size bytes are left. With dry, it only reports.
	// It keeps data that a build in progress uses.
	Collect(ctx context.Context, before time.Time, size int64, dry bool) (freed, left int64, err error)
}

// grace protects an image from removal for size after its last use, so that a new image is not
// removed before its sandbox starts.
const grace = 10 * time.Minute

// Collect implements Collector. It removes caches before images, since caches only save time.
func (l *Library) Collect(ctx context.Context, what Collection) (done Collected, err error) {
	var all error
	before := time.Now().Add(-what.Age)
	candidates, total, err := l.candidates(ctx, what.All)
	if err != nil {
		return done, err
	}
	remove := func(c candidate) error {
		if err := ctx.Err(); err != nil {
			return errors.Wrapf(err, "collect images")
		}
		ok, err := l.collect(ctx, c.image, what.Dry)
		if ok {
			done.Images = append(done.Images, c.image)
			done.Freed, total = done.Freed+c.size, total-c.size
		}
		return err
	}
	var rest []candidate
	for _, c := range candidates {
		if c.used.After(before) {
			rest = append(rest, c)
			continue
		}
		all = errors.Join(all, remove(c))
	}
	size := int64(-1)
	if what.Size > 0 {
		size = max(0, what.Size-total)
	}
	kept := int64(0)
	for _, s := range l.caches() {
		freed, left, err := s.Collect(ctx, before, size, what.Dry)
		all, done.Freed, kept = errors.Join(all, err), done.Freed+freed, kept+left
		if size >= 0 {
			size = max(0, size-left)
		}
	}
	for _, c := range rest {
		if what.Size <= 0 || total+kept <= what.Size || time.Since(c.used) < grace {
			break
		}
		all = errors.Join(all, remove(c))
	}
	done.Left = total + kept
	return done, all
}

func (l *Library) caches() []Cache {
	var all []Cache
	for _, s := range []Source{l.sources.Dockerfile, l.sources.Registry} {
		if c, ok := s.(Cache); ok {
			all = append(all, c)
		}
	}
	return all
}

// candidate is an image that may be removed.
type candidate struct {
	image Image
	used  time.Time
	size  int64 // freed by deleting it
}

// candidates returns the images that may be removed, longest unused first, and the size of all
// images.
func (l *Library) candidates(ctx context.Context, named bool) (found []candidate, total int64, err error) {
	list, err := l.List(ctx)
	if err != nil {
		return nil, 0, err
	}
	seen := map[uint64]bool{}
	for _, img := range list {
		own, err := usage(l.path(hexOf(img.Digest)), seen, &total)
		info, statErr := os.Stat(l.path(hexOf(img.Digest), manifestFile))
		if err = errors.Join(err, statErr); err != nil {
			if errors.IsNotExist(err) { // deleted meanwhile
				continue
			}
			return nil, 0, errors.Wrapf(err, "measure image %s", img.ID)
		}
		snapshot := img.Snapshot != nil
		if snapshot && img.Snapshot.Suspension {
			_, err := os.Stat(l.path(hexOf(img.Digest), keptFile))
			snapshot = !errors.IsNotExist(err)
		}
		if snapshot || len(img.Names) > 0 && !(named && l.pulled(img)) {
			continue
		}
		found = append(found, candidate{img, info.ModTime(), own})
	}
	slices.SortFunc(found, func(a, b candidate) int {
		return cmp.Or(a.used.Compare(b.used),
			cmp.Compare(a.image.ID, b.image.ID))
	})
	return found, total, nil
}

// usage returns the disk space that only this directory uses, and adds its total to total. Files in
// seen are not counted again.
func usage(dir string, seen map[uint64]bool, total *int64) (own int64, err error) {
	err = filepath.WalkDir(dir, func(_ string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		info, err := d.Info()
		if err != nil {
			return err
		}
		st, ok := info.Sys().(*syscall.Stat_t)
		if !ok || d.IsDir() {
			return nil
		}
		if size := st.Blocks * 512; !seen[st.Ino] {
			*total += size
			seen[st.Ino] = true
			if st.Nlink == 1 {
				own += size
			}
		}
		return nil
	})
	return own, err
}

// collect removes an image unless it is in use.
func (l *Library) collect(ctx context.Context, img Image, dry bool) (bool, error) {
	if dry {
		l.mu.Lock()
		defer l.mu.Unlock()
		lock, err := tryLock(l.path(hexOf(img.Digest), manifestFile))
		if lock == nil || err != nil {
			return false, err
		}
		return len(l.uses[img.ID]) == 0, lock.Close()
	}
	err := l.Delete(ctx, img.ID)
	if errors.Is(err, errors.Conflict) || errors.Is(err, errors.NotFound) {
		return false, nil
	}
	return err == nil, err
}

// touch marks an image as used now. A failure is only logged: the image may then be removed sooner.
func (l *Library) touch(ctx context.Context, img Image) {
	now := time.Now()
	if err := os.Chtimes(l.path(hexOf(img.Digest), manifestFile), now, now); err != nil && !errors.IsNotExist(err) {
		logf.Warnf(ctx, "mark image %s as used: %v", img.ID, err)
	}
}

// BuildCache lists and removes the cached results of an account's builds. Those of other accounts
// are invisible.
type BuildCache interface {
	// Kept returns the results, last used first.
	Kept(ctx context.Context, owner string) ([]Kept, error)
	// Forget removes the result with that id, or a unique beginning of it. It returns NotFound if
	// there is none, and Conflict while a build may use it.
	Forget(ctx context.Context, owner, id string) (Kept, error)
}

// Kept is a cached result of a build.
type Kept struct {
	ID   string // hex digits
	Kind KeptKind
	Text string    // its instruction; the id of a mount
	Size int64     // bytes freed by removing it
	Used time.Time // last use
}

// KeptKind is the type of a Kept.
type KeptKind string

// The kinds.
const (
	KeptLayer KeptKind = "layer" // the changes of an instruction
	KeptMount KeptKind = "mount" // the files of a RUN --mount=type=cache
)

// BuildCache returns the cache of Dockerfile builds, or nil if there is none.
func (l *Library) BuildCache() BuildCache {
	c, _ := l.sources.Dockerfile.(BuildCache)
	return c
}

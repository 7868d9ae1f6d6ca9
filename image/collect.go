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

	"github.com/RelevanceAI/harvest/errors"
	"github.com/RelevanceAI/harvest/logf"
)

// Collector is a Builder that can remove what nobody needs.
type Collector interface {
	// Collect removes images that nobody uses, and what sources keep for later builds. It never removes an image that is in use,
	// that has a name, or that is a snapshot, since nothing could make that again.
	Collect(ctx context.Context, what Collection) (Collected, error)
}

// Collection is what to collect.
type Collection struct {
	Age  time.Duration // what was not used for so long; 0 means whatever is not in use
	Size int64         // and, while all is larger than this, what was not used for the longest time; 0 means no limit
	All  bool          // also images of registries that have a name: they can be fetched again
	Dry  bool          // only say what would be removed
}

// Collected is what was removed.
type Collected struct {
	Images []Image // without their names
	Freed  int64   // bytes, of images and of what sources keep
	Left   int64   // bytes
}

// Cache is a Source that keeps something for later builds.
type Cache interface {
	// Collect removes what was last used before that time, then what was not used for the longest time until at most size bytes are left,
	// unless size is negative. If dry, it only says what it would remove. What a build uses now stays.
	Collect(ctx context.Context, before time.Time, size int64, dry bool) (freed, left int64, err error)
}

// grace is how long an image is safe from being collected for its size after it was used, so that what was just built is not taken away
// before its sandbox has it.
const grace = 10 * time.Minute

// Collect implements Collector. Caches give way to images, for they only save time.
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

// candidate is an image that may be collected.
type candidate struct {
	image Image
	used  time.Time
	size  int64 // that deleting it frees
}

// candidates returns the images that may be collected, the longest unused first, and the size of all images.
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
		if img.Snapshot != nil || len(img.Names) > 0 && !(named && l.pulled(img)) {
			continue
		}
		found = append(found, candidate{img, info.ModTime(), own})
	}
	slices.SortFunc(found, func(a, b candidate) int { return cmp.Or(a.used.Compare(b.used), cmp.Compare(a.image.ID, b.image.ID)) })
	return found, total, nil
}

// usage returns the bytes on the disk that a directory has alone, and adds all of them to total, those of files that are seen again excepted.
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

// collect removes an image unless somebody uses it.
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

// touch marks an image as used now. That it cannot be marked is no reason to refuse the image: then it is collected sooner.
func (l *Library) touch(ctx context.Context, img Image) {
	now := time.Now()
	if err := os.Chtimes(l.path(hexOf(img.Digest), manifestFile), now, now); err != nil && !errors.IsNotExist(err) {
		logf.Warnf(ctx, "mark image %s as used: %v", img.ID, err)
	}
}

// BuildCache shows an account what its builds have left for later ones, and removes it. What others' builds have left is as if it were not there.
type BuildCache interface {
	// Kept returns what there is, the last used first.
	Kept(ctx context.Context, owner string) ([]Kept, error)
	// Forget removes what has that id, or the only one whose id begins so. NotFound if there is none, Conflict while a build may use it.
	Forget(ctx context.Context, owner, id string) (Kept, error)
}

// Kept is something that a build has left.
type Kept struct {
	ID   string // hex digits
	Kind KeptKind
	Text string    // the instruction that has made it; of a mount its id
	Size int64     // bytes that removing it gives back
	Used time.Time // for the last time
}

// KeptKind says what a Kept is.
type KeptKind string

// The kinds.
const (
	KeptLayer KeptKind = "layer" // what an instruction has changed
	KeptMount KeptKind = "mount" // the files of a RUN --mount=type=cache
)

// BuildCache returns what its builds of Dockerfiles keep, nil if they keep nothing.
func (l *Library) BuildCache() BuildCache {
	c, _ := l.sources.Dockerfile.(BuildCache)
	return c
}

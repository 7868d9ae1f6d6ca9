package dockerfile

import (
	"cmp"
	"context"
	"encoding/json"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/RelevanceAI/harvest/client/errors"
	"github.com/RelevanceAI/harvest/internal/base/atomicfile"
	"github.com/RelevanceAI/harvest/internal/base/tarfs"
	"github.com/RelevanceAI/harvest/internal/image"
)

// Cache mounts are volumes, which the Runner stores. A file KEY.mount of the cache records the
// owner of each, and its mtime the last use.

// mountExt is the extension of the record of a cache mount.
const mountExt = "mount"

// mountEntry is the record of a cache mount.
type mountEntry struct {
	Owner  string `json:"owner,omitempty"`
	ID     string `json:"id"`
	Volume string `json:"volume"`
	Filled bool   `json:"filled,omitempty"` // it has all files with which it begins
}

// kept is a result that an account, or Collect, may remove.
type kept struct {
	image.Kept
	owner  string
	volume string // of a mount
}

// noteMount records that an account uses a cache mount now, and whether it has the files with which it begins.
func (c *Cache) noteMount(owner string, m mount, filled bool) error {
	text, err := json.Marshal(mountEntry{owner, m.CacheOpt.ID, m.volume(owner), filled})
	if err == nil {
		err = atomicfile.Write(c.mountPath(owner, m), text, 0o600)
	}
	return tarfs.Explain(err, "the build cache")
}

// filled reports whether a cache mount has the files with which it begins.
func (c *Cache) filled(owner string, m mount) bool {
	var e mountEntry
	text, err := os.ReadFile(c.mountPath(owner, m))
	return err == nil && json.Unmarshal(text, &e) == nil && e.Filled
}

func (c *Cache) mountPath(owner string, m mount) string {
	return c.path(hash(append([]string{"mount"}, m.identity(owner)...)...), mountExt)
}

// layers returns the layers of the cache, with the root file systems made from them.
func (c *Cache) layers() ([]kept, error) {
	all, _, err := c.items()
	roots := map[string]int64{}
	for _, it := range all {
		if it.ext == rootExt {
			roots[it.key] += it.size
		}
	}
	var list []kept
	for _, it := range all {
		if e, err := c.read(it.key); it.ext == entryExt && err == nil && e.Memo == "" {
			list = append(list, kept{image.Kept{ID: it.key, Kind: image.KeptLayer, Text: e.Text,
				Size: it.size + roots[it.key], Used: it.used}, e.Owner, ""})
		}
	}
	return list, err
}

// mounts returns the cache mounts. A volume without a record has the owner nobody, and its age is
// that of the volume.
func (c *Cache) mounts(ctx context.Context, runner Runner) ([]kept, error) {
	volumes, err := runner.Volumes(ctx)
	if err != nil {
		return nil, errors.Wrapf(err, "list the volumes of cache mounts")
	}
	names, err := filepath.Glob(filepath.Join(c.dir, "*."+mountExt))
	if err != nil {
		return nil, errors.Wrapf(err, "list the cache mounts")
	}
	known := map[string]kept{}
	for _, name := range names {
		var m mountEntry
		text, err := os.ReadFile(name)
		info, statErr := os.Stat(name)
		if err != nil || statErr != nil || json.Unmarshal(text, &m) != nil {
			continue
		}
		key := strings.TrimSuffix(filepath.Base(name), "."+mountExt)
		known[m.Volume] = kept{image.Kept{ID: key, Kind: image.KeptMount, Text: m.ID, Used: info.ModTime()},
			m.Owner, m.Volume}
	}
	var list []kept
	for _, v := range volumes {
		k, ok := known[v.Name]
		if !ok {
			k = kept{image.Kept{ID: hash("volume", v.Name), Kind: image.KeptMount, Text: v.Name, Used: v.Created},
				nobody, v.Name}
		}
		k.Size = v.Size
		list = append(list, k)
	}
	return list, nil
}

// nobody owns the volumes without a record. No account has this name.
const nobody = "?"

// removeMount removes a cache mount and its files. The record goes first: it must not call an empty volume filled.
func (s *Source) removeMount(ctx context.Context, runner Runner, k kept) error {
	unlock, err := s.lock(ctx, fillLock(k.volume))
	if err != nil {
		return err
	}
	defer unlock()
	record, aside := s.opts.Cache.path(k.ID, mountExt), s.opts.Cache.path(k.ID, "gone")
	if err := os.Rename(record, aside); err != nil && !errors.IsNotExist(err) {
		return errors.Wrapf(err, "remove a cache mount")
	}
	if err := runner.RemoveVolume(ctx, k.volume); err != nil && errors.KindOf(err) != errors.NotFound {
		_ = os.Rename(aside, record) // without it, the volume belongs to no account, and is filled again
		return err
	}
	if err := os.Remove(aside); err != nil && !errors.IsNotExist(err) {
		return errors.Wrapf(err, "remove a cache mount")
	}
	return nil
}

// kept returns all results, last used first.
func (s *Source) kept(ctx context.Context, owner string) ([]kept, Runner, error) {
	_, runner, err := s.connected()
	if err != nil {
		return nil, nil, err
	}
	all, err := s.opts.Cache.layers()
	if err != nil {
		return nil, nil, err
	}
	mounts, err := s.opts.Cache.mounts(ctx, runner)
	if err != nil {
		return nil, nil, err
	}
	all = slices.DeleteFunc(append(all, mounts...), func(k kept) bool { return k.owner != owner })
	slices.SortFunc(all, func(a, b kept) int { return cmp.Or(b.Used.Compare(a.Used), cmp.Compare(a.ID, b.ID)) })
	return all, runner, nil
}

// Kept implements image.BuildCache.
func (s *Source) Kept(ctx context.Context, owner string) ([]image.Kept, error) {
	all, _, err := s.kept(ctx, owner)
	list := make([]image.Kept, len(all))
	for i, k := range all {
		list[i] = k.Kept
	}
	return list, err
}

// Forget implements image.BuildCache.
func (s *Source) Forget(ctx context.Context, owner, id string) (image.Kept, error) {
	all, runner, err := s.kept(ctx, owner)
	if err != nil {
		return image.Kept{}, err
	}
	all = slices.DeleteFunc(all, func(k kept) bool { return id == "" || !strings.HasPrefix(k.ID, id) })
	switch {
	case len(all) == 0:
		err := errors.Newf(errors.NotFound, "the build cache has nothing with the id %.100q", id)
		return image.Kept{}, errors.Remedy(err, "use an entry of \"harvest image cache ls\"")
	case len(all) > 1:
		return image.Kept{}, errors.Remedy(errors.Newf(errors.Invalid, "%.100q is ambiguous: %d ids start with it", id,
			len(all)), "give more characters of the id")
	}
	k := all[0]
	if k.Kind == image.KeptMount {
		return k.Kept, s.removeMount(ctx, runner, k)
	}
	return k.Kept, s.opts.Cache.forget(k.ID)
}

// forget removes a layer and the root file systems made from it.
func (c *Cache) forget(key string) error {
	all, keep, err := c.items()
	if err != nil {
		return err
	}
	all = slices.DeleteFunc(all, func(it item) bool { return it.key != key })
	if slices.ContainsFunc(all, func(it item) bool { return it.ext == entryExt && !it.used.Before(keep) }) {
		return errors.Remedy(errors.Newf(errors.Conflict, "a build that is under way may use the layer %.12s", key),
			"try again when it has ended")
	}
	for _, it := range all {
		if err := it.remove(); err != nil && !errors.IsNotExist(err) {
			return errors.Wrapf(err, "remove a layer")
		}
	}
	return nil
}

// Collect implements image.Cache.
func (s *Source) Collect(ctx context.Context, before time.Time, size int64, dry bool) (freed, left int64, err error) {
	freed, left, err = s.opts.Cache.Collect(ctx, before, size, dry)
	_, runner, notYet := s.connected()
	if err != nil || notYet != nil {
		return freed, left, err
	}
	mounts, err := s.opts.Cache.mounts(ctx, runner)
	if err != nil {
		return freed, left, err
	}
	var all []item
	for _, k := range mounts {
		left += k.Size
		all = append(all, item{key: k.ID, size: k.Size, used: k.Used,
			remove: func() error { return s.removeMount(ctx, runner, k) }})
	}
	slices.SortFunc(all, byUse)
	more, left, err := collect(ctx, all, left, before, size, dry)
	return freed + more, left, err
}

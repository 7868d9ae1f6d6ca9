package dockerfile

import (
	"cmp"
	"context"
	"crypto/rand"
	"encoding/hex"
	"encoding/json"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/RelevanceAI/harvest/errors"
	"github.com/RelevanceAI/harvest/internal/tarfs"
	"github.com/RelevanceAI/harvest/logf"
)

// Cache keeps what instructions have made, by what went into them. One process at a time uses its directory. A layer is a file
// KEY.tar and, once that is on the disk, KEY.json beside it; KEY.erofs is a whole root file system up to there. A key has the account's name
// in it: no account is served what another one's builds have made.
type Cache struct {
	dir string
	max int64 // bytes

	mu     sync.Mutex
	builds map[int]time.Time   // guarded by mu; when the builds began that are under way
	next   int                 // guarded by mu
	roots  map[string]Prepared // guarded by mu; by id
}

// Prepared is a root file system for a machine: an EROFS file and, if not "", a layer over it.
type Prepared struct{ Root, Layer string }

// rootPrefix begins the ids of roots that the cache has prepared for machines.
const rootPrefix = "bld_"

// entry is what is known of a layer.
type entry struct {
	Size    int64     `json:"size_bytes"` // of KEY.tar, 0 if the instruction changed nothing
	Created time.Time `json:"created_at"`
	Owner   string    `json:"owner,omitempty"` // the account whose build has made it, and whose builds alone find it
	Text    string    `json:"text"`            // the instruction
	Memo    string    `json:"memo,omitempty"`
}

// OpenCache opens the cache in dir, which is made if missing. It keeps at most max bytes of what no build under way uses. What an
// interrupted build has left there is removed.
func OpenCache(dir string, max int64) (*Cache, error) {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, tarfs.Explain(err, dir)
	}
	c := &Cache{dir: dir, max: max, builds: map[int]time.Time{}, roots: map[string]Prepared{}}
	names, err := os.ReadDir(dir)
	if err != nil {
		return nil, errors.Wrapf(err, "list the build cache")
	}
	for _, n := range names {
		key, ext, _ := strings.Cut(n.Name(), ".")
		_, statErr := os.Stat(c.path(key, "json"))
		if isKey(key) && (ext == "json" || ext == "erofs" || ext == mountExt || ext == "tar" && statErr == nil) {
			continue
		}
		if err := os.RemoveAll(filepath.Join(dir, n.Name())); err != nil {
			return nil, errors.Wrapf(err, "clear the build cache")
		}
	}
	return c, nil
}

func isKey(key string) bool {
	b, err := hex.DecodeString(key)
	return err == nil && len(b) == 32
}

func (c *Cache) path(key, ext string) string { return filepath.Join(c.dir, key+"."+ext) }

// begin counts a build as under way until end is called: what it uses is not removed.
func (c *Cache) begin() (end func()) {
	c.mu.Lock()
	defer c.mu.Unlock()
	n := c.next
	c.next++
	c.builds[n] = time.Now()
	return func() {
		c.mu.Lock()
		defer c.mu.Unlock()
		delete(c.builds, n)
	}
}

// get returns the layer of that key and notes that it is used.
func (c *Cache) get(key string) (entry, bool) {
	var e entry
	b, err := os.ReadFile(c.path(key, "json"))
	if err != nil || json.Unmarshal(b, &e) != nil {
		return entry{}, false
	}
	if e.Size > 0 {
		info, err := os.Stat(c.path(key, "tar"))
		if err != nil || info.Size() != e.Size {
			return entry{}, false
		}
	}
	now := time.Now()
	return e, os.Chtimes(c.path(key, "json"), now, now) == nil
}

// put makes a layer known. Its file, if it has one, is KEY.tar already.
func (c *Cache) put(key string, e entry) error {
	e.Created = time.Now().UTC()
	if e.Size > 0 {
		if err := syncFile(c.path(key, "tar")); err != nil {
			return tarfs.Explain(err, "a layer")
		}
	}
	b, err := json.Marshal(e)
	if err != nil {
		return errors.Wrapf(err, "encode a layer's description")
	}
	temp := c.path(key, "new")
	if err := os.WriteFile(temp, b, 0o600); err != nil {
		return tarfs.Explain(err, "a layer's description")
	}
	return tarfs.Explain(os.Rename(temp, c.path(key, "json")), "a layer's description")
}

func syncFile(name string) error {
	f, err := os.Open(name)
	if err != nil {
		return err
	}
	return errors.Join(f.Sync(), f.Close())
}

// root returns the file of a whole root file system, and whether there is one.
func (c *Cache) root(key string) (string, bool) {
	name := c.path(key, "erofs")
	now := time.Now()
	return name, os.Chtimes(name, now, now) == nil
}

// dropRoot forgets the root file system of a key whose layer is made anew, by force or because it was gone: it has what the layer had before.
func (c *Cache) dropRoot(key string) error {
	if err := os.Remove(c.path(key, "erofs")); err != nil && !errors.IsNotExist(err) {
		return tarfs.Explain(err, "a root file system")
	}
	return nil
}

// makeRoot has fill write a root file system, unless there is one.
func (c *Cache) makeRoot(key string, fill func(f *os.File) error) error {
	name, ok := c.root(key)
	if ok {
		return nil
	}
	f, err := os.CreateTemp(c.dir, key+".*.new")
	if err != nil {
		return tarfs.Explain(err, "a root file system")
	}
	err = errors.Join(fill(f), f.Close())
	if err == nil {
		err = tarfs.Explain(os.Rename(f.Name(), name), "a root file system")
	}
	if err != nil {
		return errors.Join(err, os.Remove(f.Name()))
	}
	return nil
}

// adopt keeps a root file system that was written elsewhere, by another name of the same file. Where that cannot be had, it is not kept.
func (c *Cache) adopt(key string, f *os.File) {
	_ = os.Link(f.Name(), c.path(key, "erofs"))
}

// prepare gives a root file system an id, by which an engine finds it until release is called.
func (c *Cache) prepare(p Prepared) (id string, release func()) {
	c.mu.Lock()
	defer c.mu.Unlock()
	id = rootPrefix + strings.ToLower(rand.Text())
	c.roots[id] = p
	return id, func() {
		c.mu.Lock()
		defer c.mu.Unlock()
		delete(c.roots, id)
	}
}

// Owns reports whether id names what the cache has prepared for a machine, and not an image of the library.
func (c *Cache) Owns(id string) bool { return strings.HasPrefix(id, rootPrefix) }

// Prepared returns what the cache has prepared under that id. NotFound if there is nothing.
func (c *Cache) Prepared(id string) (Prepared, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	p, ok := c.roots[id]
	if !ok {
		return p, errors.Newf(errors.NotFound, "the build cache has no root file system %.100q", id)
	}
	return p, nil
}

// Usage of a Cache.
type Usage struct {
	Bytes  int64 `json:"size_bytes"` // that removing all of it would give back
	Layers int   `json:"layers"`
}

// item is a file of the cache.
type item struct {
	name string
	size int64
	used time.Time
}

// items lists what can be removed as one, the longest unused first. Whether a build under way may use it is told by keep.
func (c *Cache) items() (all []item, keep time.Time, err error) {
	c.mu.Lock()
	keep = time.Now()
	for _, began := range c.builds {
		if began.Before(keep) {
			keep = began
		}
	}
	c.mu.Unlock()
	names, err := os.ReadDir(c.dir)
	if err != nil {
		return nil, keep, errors.Wrapf(err, "list the build cache")
	}
	for _, n := range names {
		key, ext, _ := strings.Cut(n.Name(), ".")
		if !isKey(key) || ext != "json" && ext != "erofs" {
			continue
		}
		info, err := n.Info()
		if err != nil {
			continue // it has just been removed
		}
		it := item{name: n.Name(), size: sizeOf(info), used: info.ModTime()}
		if layer, err := os.Stat(c.path(key, "tar")); ext == "json" && err == nil {
			it.size += sizeOf(layer)
		}
		all = append(all, it)
	}
	slices.SortFunc(all, func(a, b item) int { return cmp.Or(a.used.Compare(b.used), cmp.Compare(a.name, b.name)) })
	return all, keep, nil
}

// sizeOf is what removing a file gives back: nothing if it has other names.
func sizeOf(info fs.FileInfo) int64 {
	if st, ok := info.Sys().(*syscall.Stat_t); ok {
		if st.Nlink > 1 {
			return 0
		}
		return st.Blocks * 512
	}
	return info.Size()
}

// Usage returns how much the cache holds.
func (c *Cache) Usage() (Usage, error) {
	all, _, err := c.items()
	u := Usage{}
	for _, it := range all {
		u.Bytes += it.size
		if strings.HasSuffix(it.name, ".json") {
			u.Layers++
		}
	}
	return u, err
}

// Collect removes what was last used before that time, and then the longest unused until at most max bytes are left, unless max is
// negative. What a build under way may use stays. If dry, it only says what it would remove.
func (c *Cache) Collect(ctx context.Context, before time.Time, max int64, dry bool) (freed, left int64, err error) {
	all, keep, err := c.items()
	if err != nil {
		return 0, 0, err
	}
	for _, it := range all {
		left += it.size
	}
	for _, it := range all {
		if !it.used.Before(keep) || !it.used.Before(before) && (max < 0 || left <= max) {
			continue
		}
		if err := context.Cause(ctx); err != nil {
			return freed, left, err
		}
		if !dry {
			if err := c.remove(it.name); err != nil {
				return freed, left, errors.Wrapf(err, "collect the build cache")
			}
		}
		freed, left = freed+it.size, left-it.size
	}
	if freed > 0 && !dry {
		logf.Infof(ctx, "build cache: %d bytes removed, %d left", freed, left)
	}
	return freed, left, nil
}

func (c *Cache) remove(name string) error {
	err := os.Remove(filepath.Join(c.dir, name))
	if key, ok := strings.CutSuffix(name, ".json"); ok && err == nil {
		if err = os.Remove(c.path(key, "tar")); errors.IsNotExist(err) {
			err = nil
		}
	}
	return err
}

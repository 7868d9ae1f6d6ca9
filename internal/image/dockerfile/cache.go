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

	"github.com/RelevanceAI/harvest/client/errors"
	"github.com/RelevanceAI/harvest/internal/base/atomicfile"
	"github.com/RelevanceAI/harvest/internal/base/logf"
	"github.com/RelevanceAI/harvest/internal/base/tarfs"
)

// Cache stores the results of instructions, keyed by their input. Only one process may use its
// directory. A layer is a file KEY.MADE.tar and, once that is on the disk, KEY.json beside it. A
// forced build replaces a layer of the same key. MADE distinguishes the versions, and the replaced
// one stays while builds are in progress. KEY.MADE.erofs is a whole root file system up to that
// layer, built from the layers that MADE identifies. A key includes the account's name, so that no
// account gets results of another one's builds.
type Cache struct {
	dir string
	max int64 // bytes

	mu     sync.Mutex
	builds map[*time.Time]bool // guarded by mu; start times of the builds in progress
	roots  map[string]Prepared // guarded by mu; by id
	stale  []string            // guarded by mu; replaced layers and their root file systems
}

// Prepared is a root file system for a machine: an EROFS file and, if not "", a layer over it.
type Prepared struct{ Root, Layer string }

// rootPrefix begins the ids of root file systems prepared for machines.
const rootPrefix = "bld_"

// entry describes a layer.
type entry struct {
	Size  int64  `json:"size_bytes"`      // of the file, 0 if the instruction changed nothing
	Owner string `json:"owner,omitempty"` // account of the build; only its builds use the layer
	Text  string `json:"text"`            // the instruction
	Memo  string `json:"memo,omitempty"`
	Made  string `json:"made,omitempty"` // random, new each time the layer is made
	Over  string `json:"over,omitempty"` // chain.made of the layers below
}

// OpenCache opens the cache in dir, which it creates if missing. The cache keeps at most max bytes
// besides those of builds in progress. OpenCache removes the remains of interrupted builds.
func OpenCache(dir string, max int64) (*Cache, error) {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, tarfs.Explain(err, dir)
	}
	c := &Cache{dir: dir, max: max, builds: map[*time.Time]bool{}, roots: map[string]Prepared{}}
	names, err := os.ReadDir(dir)
	if err != nil {
		return nil, errors.Wrapf(err, "list the build cache")
	}
	for _, n := range names {
		key, made, ext := split(n.Name())
		if isKey(key) && (ext == entryExt || ext == mountExt || ext == rootExt && made != "") {
			continue
		}
		if e, err := c.read(key); err == nil && ext == layerExt && made == e.Made {
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

// Extensions of the files of a layer: its description, the layer, and root file systems up to it.
const (
	entryExt = "json"
	layerExt = "tar"
	rootExt  = "erofs"
)

// split returns the parts of a file's name. made is "" if the name has no such part.
func split(name string) (key, made, ext string) {
	key, ext, _ = strings.Cut(name, ".")
	if first, rest, ok := strings.Cut(ext, "."); ok {
		return key, first, rest
	}
	return key, "", ext
}

// rootName returns the file name of a chain's root file system.
func (c *Cache) rootName(of chain) string { return c.path(of.key, of.made+"."+rootExt) }

// layerName returns the file name of a layer.
func (c *Cache) layerName(key string, e entry) string { return c.path(key, e.Made+"."+layerExt) }

func (c *Cache) path(key, ext string) string { return filepath.Join(c.dir, key+"."+ext) }

// begin counts a build as in progress until end is called. The data that it uses is not removed.
func (c *Cache) begin() (end func()) {
	c.mu.Lock()
	defer c.mu.Unlock()
	began := time.Now()
	c.builds[&began] = true
	return func() {
		c.mu.Lock()
		defer c.mu.Unlock()
		delete(c.builds, &began)
		if len(c.builds) > 0 {
			return
		}
		for _, name := range c.stale {
			_ = os.Remove(name) // otherwise it is removed after a while without use
		}
		c.stale = nil
	}
}

// read returns the description of a layer.
func (c *Cache) read(key string) (e entry, err error) {
	b, err := os.ReadFile(c.path(key, entryExt))
	if err == nil {
		err = json.Unmarshal(b, &e)
	}
	return e, err
}

// get returns the layer of that key and marks it as used.
func (c *Cache) get(key string) (entry, bool) {
	e, err := c.read(key)
	if err != nil {
		return entry{}, false
	}
	if e.Size > 0 {
		info, err := os.Stat(c.layerName(key, e))
		if err != nil || info.Size() != e.Size {
			return entry{}, false
		}
	}
	now := time.Now()
	return e, os.Chtimes(c.path(key, entryExt), now, now) == nil
}

// replace makes a complete file the layer of a key, which has no description until put. The files
// of the replaced layer are removed once the builds that may use them have ended.
func (c *Cache) replace(key string, e entry, file string) error {
	if err := os.Remove(c.path(key, entryExt)); err != nil && !errors.IsNotExist(err) {
		return tarfs.Explain(err, "a layer's description")
	}
	old, err := c.made(key, layerExt, rootExt)
	if err != nil {
		return err
	}
	c.mu.Lock()
	c.stale = append(c.stale, old...)
	c.mu.Unlock()
	return tarfs.Explain(os.Rename(file, c.layerName(key, e)), "a layer")
}

// made returns the files KEY.MADE.EXT of a key.
func (c *Cache) made(key string, exts ...string) (all []string, err error) {
	for _, ext := range exts {
		names, err := filepath.Glob(c.path(key, "*."+ext))
		if err != nil {
			return nil, errors.Wrapf(err, "look for the files of a layer")
		}
		all = append(all, names...)
	}
	return all, nil
}

// put adds the description of a layer, whose file is there already.
func (c *Cache) put(key string, e entry) error {
	if e.Size > 0 {
		if err := syncFile(c.layerName(key, e)); err != nil {
			return tarfs.Explain(err, "a layer")
		}
	}
	b, err := json.Marshal(e)
	if err == nil {
		err = atomicfile.Write(c.path(key, entryExt), b, 0o600)
	}
	return tarfs.Explain(err, "a layer's description")
}

func syncFile(name string) error {
	f, err := os.Open(name)
	if err != nil {
		return err
	}
	return errors.Join(f.Sync(), f.Close())
}

// root returns the file name of a chain's whole root file system, and whether it exists.
func (c *Cache) root(of chain) (string, bool) {
	name := c.rootName(of)
	now := time.Now()
	return name, os.Chtimes(name, now, now) == nil
}

// makeRoot returns the file name of a chain's root file system. It makes fill write it, unless it exists.
func (c *Cache) makeRoot(of chain, fill func(f *os.File) error) (string, error) {
	name, ok := c.root(of)
	if ok {
		return name, nil
	}
	f, err := os.CreateTemp(c.dir, of.key+".*.new")
	if err != nil {
		return "", tarfs.Explain(err, "a root file system")
	}
	err = errors.Join(fill(f), f.Close())
	if err == nil {
		err = tarfs.Explain(os.Rename(f.Name(), name), "a root file system")
	}
	if err != nil {
		return "", errors.Join(err, os.Remove(f.Name()))
	}
	return name, nil
}

// prepare gives a root file system an id, by which engines find it until release is called.
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

// Owns reports whether id is that of a root file system prepared by the cache, and not of an image
// of the library.
func (c *Cache) Owns(id string) bool { return strings.HasPrefix(id, rootPrefix) }

// Prepared returns the root file system prepared under that id, or NotFound.
func (c *Cache) Prepared(id string) (Prepared, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	p, ok := c.roots[id]
	if !ok {
		return p, errors.Newf(errors.NotFound, "the build cache has no root file system %.100q", id)
	}
	return p, nil
}

// item is a part of the cache that can be removed.
type item struct {
	key, ext string // of a file
	size     int64
	used     time.Time
	remove   func() error
}

// items lists the removable files, longest unused first. A build in progress may use those used
// after keep.
func (c *Cache) items() (all []item, keep time.Time, err error) {
	c.mu.Lock()
	keep = time.Now()
	for began := range c.builds {
		if began.Before(keep) {
			keep = *began
		}
	}
	c.mu.Unlock()
	names, err := os.ReadDir(c.dir)
	if err != nil {
		return nil, keep, errors.Wrapf(err, "list the build cache")
	}
	layers := map[string]int64{}
	for _, n := range names {
		key, _, ext := split(n.Name())
		info, err := n.Info()
		switch {
		case !isKey(key) || err != nil: // not a result, or removed just now
		case ext == layerExt:
			layers[key] += sizeOf(info)
		case ext == entryExt || ext == rootExt:
			all = append(all, item{key, ext, sizeOf(info), info.ModTime(), func() error { return c.remove(n.Name()) }})
		}
	}
	for i, it := range all {
		if it.ext == entryExt {
			all[i].size += layers[it.key]
		}
	}
	slices.SortFunc(all, byUse)
	return all, keep, nil
}

// byUse orders items by their last use, the longest unused first.
func byUse(a, b item) int { return cmp.Or(a.used.Compare(b.used), cmp.Compare(a.key, b.key)) }

// sizeOf returns the space freed by removing a file: none if it has other names.
func sizeOf(info fs.FileInfo) int64 {
	if st, ok := info.Sys().(*syscall.Stat_t); ok {
		if st.Nlink > 1 {
			return 0
		}
		return st.Blocks * 512
	}
	return info.Size()
}

// Collect removes the data last used before that time. Then, unless max is negative, it removes the
// longest unused data until at most max bytes are left. It keeps data that a build in progress may
// use. With dry, it only reports.
func (c *Cache) Collect(ctx context.Context, before time.Time, max int64, dry bool) (freed, left int64, err error) {
	all, keep, err := c.items()
	if err != nil {
		return 0, 0, err
	}
	for _, it := range all {
		left += it.size
	}
	all = slices.DeleteFunc(all, func(it item) bool { return !it.used.Before(keep) })
	freed, left, err = collect(ctx, all, left, before, max, dry)
	if freed > 0 && !dry && err == nil {
		logf.Infof(ctx, "build cache: %d bytes removed, %d left", freed, left)
	}
	return freed, left, errors.Wrapf(err, "collect the build cache")
}

// collect removes items, which are sorted by their last use, as Cache.Collect does. left is the size of all data.
func collect(ctx context.Context, all []item, left int64, before time.Time, max int64, dry bool) (freed, rest int64,
	err error) {
	for _, it := range all {
		if !it.used.Before(before) && (max < 0 || left <= max) {
			break
		}
		if err := context.Cause(ctx); err != nil {
			return freed, left, err
		}
		if !dry {
			err := it.remove()
			if errors.KindOf(err) == errors.Conflict { // in use by a build
				continue
			}
			if err != nil {
				return freed, left, err
			}
		}
		freed, left = freed+it.size, left-it.size
	}
	return freed, left, nil
}

func (c *Cache) remove(name string) error {
	err := os.Remove(filepath.Join(c.dir, name))
	key, _, ext := split(name)
	if err != nil || ext != entryExt {
		return err
	}
	layers, err := c.made(key, layerExt)
	for _, name := range layers {
		err = errors.Join(err, os.Remove(name))
	}
	return err
}

package image

import (
	"cmp"
	"context"
	"crypto/rand"
	"encoding/json"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"

	"github.com/RelevanceAI/harvest/client/errors"
	"github.com/RelevanceAI/harvest/internal/base/logf"
	"github.com/RelevanceAI/harvest/internal/base/tarfs"
)

// Names within a Library's directory. The directory of an image is named by the digits of its
// digest.
const (
	newPrefix    = ".new-" // with the digits: a build in progress, or its remains
	lockDir      = ".locks"
	trashDir     = ".trash"
	namesDir     = ".names"
	manifestFile = "image.json"
	rootFile     = "root.erofs"
)

// Library is a Builder that stores images in a directory. Several processes may share it: each
// image is built once, and no process deletes an image that another one uses.
type Library struct {
	dir     string
	sources Sources

	mu      sync.Mutex
	flights map[string]*flight  // guarded by mu; builds in progress, by digest
	uses    map[string][]string // guarded by mu; users of an image, by its id

	manifests sync.Map // by the digits of a digest: a decoded of read
}

// decoded is a decoded image description. A description is immutable: a changed one is a new file.
type decoded struct {
	file os.FileInfo
	img  Image
}

// OpenLibrary opens the library in dir, which it creates if missing. It removes the remains of
// interrupted builds.
func OpenLibrary(dir string, sources Sources) (*Library, error) {
	dir, err := filepath.Abs(dir)
	if err != nil {
		return nil, errors.Wrapf(err, "find the images' directory")
	}
	for _, d := range []string{dir, filepath.Join(dir, lockDir), filepath.Join(dir, trashDir),
		filepath.Join(dir, namesDir)} {
		if err := os.MkdirAll(d, 0o700); err != nil {
			return nil, tarfs.Explain(err, d)
		}
	}
	l := &Library{dir: dir, sources: sources, flights: map[string]*flight{}, uses: map[string][]string{}}
	if err := l.clear(); err != nil {
		return nil, errors.Wrapf(err, "clear the images' directory")
	}
	return l, nil
}

// Look is Find for the library in dir without opening it: it changes nothing in dir.
func Look(ctx context.Context, dir, ref string) (Image, error) {
	if _, err := os.Stat(dir); errors.IsNotExist(err) {
		return Image{}, errors.Remedy(errors.Newf(errors.NotFound, "there is no image %.100q", ref), "build it")
	}
	return (&Library{dir: dir}).Find(ctx, ref)
}

// clear removes remains and logs unreadable images.
func (l *Library) clear() error {
	entries, err := os.ReadDir(l.dir)
	if err != nil {
		return err
	}
	for _, e := range entries {
		if digits, ok := strings.CutPrefix(e.Name(), newPrefix); ok {
			if err := l.clearBuild(digits); err != nil {
				return err
			}
			continue
		}
		if isHex(e.Name()) {
			if _, err := l.read(e.Name()); err != nil {
				logf.Errorf(context.Background(), "an image is damaged and will be built again when it is needed: %v",
					err)
			}
		}
	}
	trash, err := os.ReadDir(l.path(trashDir))
	for _, e := range trash {
		err = errors.Join(err, os.RemoveAll(l.path(trashDir, e.Name())))
	}
	return err
}

// clearBuild removes the remains of a build, unless its process still runs.
func (l *Library) clearBuild(digits string) error {
	lock, err := tryLock(l.path(lockDir, digits))
	if err != nil || lock == nil {
		return err
	}
	defer lock.Close()
	if strings.HasPrefix(digits, snapshotPrefix) { // the lock of a snapshot is never used again
		err = os.Remove(l.path(lockDir, digits))
	}
	return errors.Join(err, os.RemoveAll(l.path(newPrefix+digits)))
}

func (l *Library) path(names ...string) string {
	return filepath.Join(append([]string{l.dir}, names...)...)
}

// Root returns the path of the image's root file system, an EROFS image.
func (l *Library) Root(img Image) string { return l.path(hexOf(img.Digest), rootFile) }

// manifest returns the image from its description. Each creation of a sandbox reads all images
// several times, so the description is decoded once. The maps and slices of the image are shared
// and must not be changed.
func (l *Library) manifest(digits string) (Image, error) {
	path := l.path(digits, manifestFile)
	info, err := os.Stat(path)
	if err != nil {
		l.manifests.Delete(digits)
		return Image{}, errors.Explainf(err, errors.NotFound, "there is no image %s", digits)
	}
	if known, ok := l.manifests.Load(digits); ok {
		if d := known.(decoded); os.SameFile(d.file, info) && d.file.ModTime().Equal(info.ModTime()) &&
			d.file.Size() == info.Size() {
			return d.img, nil
		}
	}
	var img Image
	text, err := os.ReadFile(path)
	if err != nil {
		return Image{}, errors.Explainf(err, errors.NotFound, "there is no image %s", digits)
	}
	if err := json.Unmarshal(text, &img); err != nil {
		return Image{}, errors.Explainf(err, errors.NotFound, "the description of image %s is damaged", digits)
	}
	l.manifests.Store(digits, decoded{info, img})
	return img, nil
}

// read returns the image whose digest has those digits. It returns NotFound if the image is missing
// or damaged.
func (l *Library) read(digits string) (Image, error) {
	img, err := l.manifest(digits)
	if err != nil {
		return Image{}, err
	}
	info, err := os.Stat(l.path(digits, rootFile))
	if err != nil {
		return Image{}, errors.Explainf(err, errors.NotFound, "image %s has no root file system", digits)
	}
	if img.Digest != digestPrefix+digits || img.Size != info.Size() {
		return Image{}, errors.Newf(errors.NotFound, "image %s does not match its description", digits)
	}
	if img.Snapshot != nil {
		if info, err := os.Stat(l.path(digits, layerFile)); err != nil || info.Size() != img.Snapshot.Size {
			return Image{}, errors.Newf(errors.NotFound, "the layer of image %s is damaged", digits)
		}
	}
	img.ID = idOf(img.Digest)
	return img, nil
}

// List implements Builder.
func (l *Library) List(context.Context) ([]Image, error) {
	names, err := l.names()
	if err != nil {
		return nil, errors.Wrapf(err, "list the names of images")
	}
	entries, err := os.ReadDir(l.dir)
	if err != nil {
		return nil, errors.Wrapf(err, "list the images")
	}
	list := []Image{}
	for _, e := range entries {
		if !isHex(e.Name()) {
			continue
		}
		if img, err := l.read(e.Name()); err == nil { // damaged ones are reported when the library is opened
			list = append(list, img)
		}
	}
	slices.SortFunc(list, func(a, b Image) int {
		return cmp.Or(b.Built.Compare(a.Built), cmp.Compare(a.ID, b.ID))
	})
	names.give(list)
	return list, nil
}

// Find implements Builder. It returns Invalid if ref is the beginning of several ids.
func (l *Library) Find(ctx context.Context, ref string) (Image, error) {
	list, err := l.List(ctx)
	if err != nil {
		return Image{}, err
	}
	var found []Image
	for _, img := range list {
		if ref == img.ID || ref == img.Digest || slices.Contains(img.Names, ref) {
			return img, nil
		}
		if len(ref) > len(idPrefix) && strings.HasPrefix(img.ID, ref) {
			found = append(found, img)
		}
	}
	switch len(found) {
	case 0:
		return Image{}, errors.Remedy(errors.Newf(errors.NotFound, "there is no image %.100q", ref),
			"list the images, or build it; %s", l.bases())
	case 1:
		return found[0], nil
	}
	var ids []string
	for _, img := range found {
		ids = append(ids, img.ID)
	}
	return Image{}, errors.Remedy(errors.Newf(errors.Invalid, "%q is ambiguous: %d images start with it: %s", ref,
		len(ids), strings.Join(ids, ", ")), "give more characters of the id")
}

// bases lists the bases that can be built.
func (l *Library) bases() string {
	can := slices.Sorted(maps.Keys(l.sources.Named))
	if l.sources.Registry != nil {
		can = append(can, "images of registries")
	}
	return "available: " + strings.Join(can, ", ")
}

// Use marks the image as used by who, for all processes, until release is called. release may be
// called more than once. Use returns NotFound if there is no image of that id.
func (l *Library) Use(id, who string) (release func(), err error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	img, err := l.byID(id)
	if err != nil {
		return nil, err
	}
	lock, err := shareLock(l.path(hexOf(img.Digest), manifestFile))
	if err != nil {
		return nil, errors.Wrapf(err, "lock image %s", id)
	}
	l.uses[id] = append(l.uses[id], who)
	l.touch(context.Background(), img)
	return sync.OnceFunc(func() {
		l.mu.Lock()
		defer l.mu.Unlock()
		l.touch(context.Background(), img)
		lock.Close()
		users := l.uses[id]
		if i := slices.Index(users, who); i >= 0 {
			l.uses[id] = slices.Delete(users, i, i+1)
		}
		if len(l.uses[id]) == 0 {
			delete(l.uses, id)
		}
	}), nil
}

func (l *Library) byID(id string) (Image, error) {
	list, err := l.List(context.Background())
	if err != nil {
		return Image{}, err
	}
	i := slices.IndexFunc(list, func(img Image) bool { return img.ID == id })
	if i < 0 {
		return Image{}, errors.Remedy(errors.Newf(errors.NotFound, "there is no image %.100q", id), "list the images")
	}
	return list[i], nil
}

// Delete implements Builder.
func (l *Library) Delete(ctx context.Context, id string) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	img, err := l.byID(id)
	if err != nil {
		return err
	}
	users := slices.Compact(slices.Sorted(slices.Values(l.uses[id]))) // the Fleet and the engine hold it
	lock, err := tryLock(l.path(hexOf(img.Digest), manifestFile))
	if err != nil {
		return errors.Wrapf(err, "lock image %s", id)
	}
	if lock == nil && len(users) == 0 {
		users = []string{"another process"}
	}
	if lock != nil {
		defer lock.Close()
	}
	if len(users) > 0 {
		return errors.Remedy(errors.Newf(errors.Conflict, "image %s is in use by %s", id, strings.Join(users, ", ")),
			"end its users first")
	}
	if err := l.discard(hexOf(img.Digest)); err != nil {
		return errors.Wrapf(err, "delete image %s", id)
	}
	if err := l.unname(hexOf(img.Digest)); err != nil {
		return errors.Wrapf(err, "delete the names of image %s", id)
	}
	logf.Infof(ctx, "image %s deleted", id)
	return nil
}

// discard removes a directory, so that a partly removed one is never visible.
func (l *Library) discard(name string) error {
	trash := l.path(trashDir, rand.Text())
	if err := os.Rename(l.path(name), trash); err != nil {
		return err
	}
	return os.RemoveAll(trash)
}

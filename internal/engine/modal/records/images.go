// Package records keeps records of the images and volumes at Modal: its SDK cannot list volumes, and does not report an
// image's defaults for commands.
package records

import (
	"encoding/json"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"

	"github.com/RelevanceAI/harvest/client/errors"
	"github.com/RelevanceAI/harvest/internal/base/atomicfile"
	"github.com/RelevanceAI/harvest/internal/image"
)

// write stores the record of something.
func write(path string, record any, of string) error {
	data, err := json.Marshal(record)
	if err == nil {
		err = atomicfile.Write(path, data, 0o600)
	}
	return errors.Wrapf(err, "record %s", of)
}

// read returns the record of something.
func read[T any](path, of string) (record T, err error) {
	data, err := os.ReadFile(path)
	if err == nil {
		err = json.Unmarshal(data, &record)
	}
	return record, errors.Wrapf(err, "read the record of %s", of)
}

// readAll returns the records whose paths match pattern.
func readAll[T any](pattern, of string) ([]T, error) {
	paths, err := filepath.Glob(pattern)
	if err != nil {
		return nil, errors.Wrapf(err, "list the records of %s", of)
	}
	var all []T
	for _, path := range paths {
		record, err := read[T](path, of)
		if errors.IsNotExist(err) {
			continue // it was deleted meanwhile
		}
		if err != nil {
			return nil, err
		}
		all = append(all, record)
	}
	return all, nil
}

// Images are the records of images, a file each.
type Images struct {
	Dir string // must exist

	mu sync.Mutex // held while records are written or read
}

// Image is the record of an image.
type Image struct {
	image.Image
	Modal string `json:"modal"` // Modal's ID
}

func (i *Images) path(id string) string { return filepath.Join(i.Dir, id+".json") }

// Write stores a record, and replaces an earlier one.
func (i *Images) Write(r Image) error {
	i.mu.Lock()
	defer i.mu.Unlock()
	return i.write(r)
}

// write is Write with mu held.
func (i *Images) write(r Image) error { return write(i.path(r.ID), r, "an image") }

// Named stores r with names, which it takes away from the owner's other images, and returns the image.
func (i *Images) Named(r Image, names []string) (image.Image, error) {
	i.mu.Lock()
	defer i.mu.Unlock()
	all, err := i.read()
	if err != nil {
		return image.Image{}, err
	}
	for _, name := range names {
		if !slices.Contains(r.Names, name) {
			r.Names = append(r.Names, name)
		}
	}
	for _, other := range all {
		kept := slices.DeleteFunc(slices.Clone(other.Names),
			func(name string) bool { return slices.Contains(r.Names, name) })
		if other.ID != r.ID && other.Spec.Owner == r.Spec.Owner && len(kept) != len(other.Names) {
			other.Names = kept
			if err := i.write(other); err != nil {
				return image.Image{}, err
			}
		}
	}
	return r.Image, i.write(r)
}

// All returns all records, newest first.
func (i *Images) All() ([]Image, error) {
	i.mu.Lock()
	defer i.mu.Unlock()
	return i.read()
}

// read is All with mu held.
func (i *Images) read() ([]Image, error) {
	all, err := readAll[Image](filepath.Join(i.Dir, "img_*.json"), "an image")
	slices.SortFunc(all, func(a, b Image) int { return b.Built.Compare(a.Built) })
	return all, err
}

// Find returns the record of an image by ID, unique beginning of an ID, digest or name. NotFound without a match.
func (i *Images) Find(ref string) (Image, error) {
	all, err := i.All()
	if err != nil {
		return Image{}, err
	}
	var found []Image
	for _, r := range all {
		if ref != "" && (r.ID == ref || r.Digest == ref || slices.Contains(r.Names, ref)) {
			return r, nil
		}
		if strings.HasPrefix(ref, "img_") && strings.HasPrefix(r.ID, ref) {
			found = append(found, r)
		}
	}
	if len(found) == 1 {
		return found[0], nil
	}
	return Image{}, errors.Remedy(errors.Newf(errors.NotFound, "there is no image %.100q", ref),
		"build it, or name one of a registry")
}

// Remove removes a record, if there is one.
func (i *Images) Remove(id string) error {
	i.mu.Lock()
	defer i.mu.Unlock()
	if err := os.Remove(i.path(id)); err != nil && !errors.IsNotExist(err) {
		return errors.Wrapf(err, "remove the record of an image")
	}
	return nil
}

package image

import (
	"context"
	"crypto/rand"
	"maps"
	"net/url"
	"os"
	"slices"

	"github.com/RelevanceAI/harvest/client/errors"
	"github.com/RelevanceAI/harvest/internal/base/atomicfile"
	"github.com/RelevanceAI/harvest/internal/base/logf"
	"github.com/RelevanceAI/harvest/internal/base/pattern"
	"github.com/RelevanceAI/harvest/internal/base/tarfs"
)

// Names are symbolic links to the digits of images in a separate directory. Moving a name to
// another image is therefore atomic in all processes.

// maxLink is the maximum length of a file name.
const maxLink = 255

// namePattern matches valid names, including those of registries.
var namePattern = pattern.New(`^[A-Za-z0-9][A-Za-z0-9._:@/-]*$`)

// CheckName returns an Invalid error if a name is not valid for an image, or nil.
func CheckName(name string) error {
	switch {
	case !namePattern().MatchString(name) || len(linkOf(name)) > maxLink:
		err := errors.Newf(errors.Invalid, "invalid image name %.100q", name)
		return errors.Remedy(err,
			"begin with a letter or digit, use letters, digits and . _ - : / @, and keep it short, as in team/app:1.2")
	case len(name) >= len(idPrefix) && name[:len(idPrefix)] == idPrefix || len(name) >= len(digestPrefix) &&
		name[:len(digestPrefix)] == digestPrefix:
		return errors.Remedy(errors.Newf(errors.Invalid, "the name %.100q could be mistaken for an id", name),
			"begin it with something else")
	}
	return nil
}

// checkNames checks names chosen by a user. The names of Harvest's own images are reserved.
func (l *Library) checkNames(names []string) ([]string, error) {
	for _, name := range names {
		if err := CheckName(name); err != nil {
			return nil, err
		}
		if l.sources.Named[name] != nil {
			return nil, errors.Remedy(errors.Newf(errors.Invalid,
				"%q is the name of an image that Harvest builds itself", name), "choose another name")
		}
	}
	return slices.Clone(names), nil
}

func linkOf(name string) string { return url.PathEscape(name) }

// named gives the image the names, and returns it with all its names.
func (l *Library) named(img Image, names []string) (Image, error) {
	for _, name := range names {
		if err := l.name(name, hexOf(img.Digest)); err != nil {
			return Image{}, errors.Wrapf(err, "name image %s", img.ID)
		}
	}
	all, err := l.names()
	if err != nil {
		return Image{}, errors.Wrapf(err, "list the names of images")
	}
	list := []Image{img}
	all.give(list)
	return list[0], nil
}

// name makes the name refer to the image with those digits. It writes nothing if it already does.
func (l *Library) name(name, digits string) error {
	link := l.path(namesDir, linkOf(name))
	if now, err := os.Readlink(link); err == nil && now == digits {
		return nil
	}
	temp := l.path(namesDir, "."+rand.Text()) // no name begins with a dot
	if err := os.Symlink(digits, temp); err != nil {
		return tarfs.Explain(err, name)
	}
	if err := os.Rename(temp, link); err != nil {
		return errors.Join(tarfs.Explain(err, name), os.Remove(temp))
	}
	return atomicfile.SyncDir(l.path(namesDir))
}

// Unname implements Unnamer.
func (l *Library) Unname(ctx context.Context, stored string) error {
	err := os.Remove(l.path(namesDir, linkOf(stored)))
	if errors.IsNotExist(err) {
		return errors.Newf(errors.NotFound, "the image name %.100q no longer exists", shown(stored))
	}
	if err == nil {
		err = atomicfile.SyncDir(l.path(namesDir))
	}
	logf.Infof(ctx, "image name %q removed", stored)
	return errors.Wrapf(err, "remove a name of an image")
}

// unname removes all names of the image with those digits.
func (l *Library) unname(digits string) error {
	all, err := l.names()
	for name, of := range all {
		if of == digits {
			err = errors.Join(err, os.Remove(l.path(namesDir, linkOf(name))))
		}
	}
	return err
}

// nameTable maps each name to the digits of its image.
type nameTable map[string]string

func (l *Library) names() (nameTable, error) {
	entries, err := os.ReadDir(l.path(namesDir))
	if err != nil {
		return nil, err
	}
	table := nameTable{}
	for _, e := range entries {
		name, err := url.PathUnescape(e.Name())
		if err != nil || CheckName(shown(name)) != nil {
			continue
		}
		if digits, err := os.Readlink(l.path(namesDir, e.Name())); err == nil && isHex(digits) {
			table[name] = digits
		}
	}
	return table, nil
}

func (t nameTable) of(digits string) []string {
	names := []string{}
	for _, name := range slices.Sorted(maps.Keys(t)) {
		if t[name] == digits {
			names = append(names, name)
		}
	}
	return names
}

// give sets the names of all images, which are sorted by age, newest first. Images of the first
// releases have their names in their description. Such a name belongs to the newest of them.
func (t nameTable) give(list []Image) {
	taken := map[string]bool{}
	for name := range t {
		taken[name] = true
	}
	for i := range list {
		names := t.of(hexOf(list[i].Digest))
		for j := range names {
			names[j] = shown(names[j])
		}
		for _, name := range list[i].Names {
			if !taken[name] {
				taken[name] = true
				names = append(names, name)
			}
		}
		list[i].Names = names
	}
}

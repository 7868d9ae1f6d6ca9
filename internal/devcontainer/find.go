package devcontainer

import (
	"path"
	"slices"
	"strings"

	"github.com/RelevanceAI/harvest/client/errors"
)

const (
	folder   = ".devcontainer"
	fileName = "devcontainer.json"
)

// Location is a configuration in a repository.
type Location struct {
	// Name is the directory below .devcontainer; "" for the configuration of the whole repository.
	Name string
	Path string // in the repository
}

// Find returns the configurations among the paths of a repository's files. Those of the whole repository are first, by
// precedence: .devcontainer/devcontainer.json, .devcontainer.json. Those in directories below .devcontainer follow,
// sorted by name.
func Find(files []string) []Location {
	var own, named []Location
	for _, name := range []string{folder + "/" + fileName, "." + fileName} {
		if slices.Contains(files, name) {
			own = append(own, Location{Path: name})
		}
	}
	for _, name := range files {
		dir, base := path.Split(name)
		below, ok := strings.CutPrefix(strings.TrimSuffix(dir, "/"), folder+"/")
		if ok && base == fileName && !strings.Contains(below, "/") {
			named = append(named, Location{Name: below, Path: name})
		}
	}
	slices.SortFunc(named, func(a, b Location) int { return strings.Compare(a.Name, b.Name) })
	return append(own, named...)
}

// Choose returns the configuration of that name, which may also be its path. "" means that of the whole repository, or
// the only one. The error is NotFound without one of that name, and Invalid if a name is needed; both list the
// names.
func Choose(all []Location, name string) (Location, error) {
	if len(all) == 0 {
		err := errors.Newf(errors.NotFound, "the repository has no %s", fileName)
		return Location{}, errors.Remedy(err, "add %s/%s", folder, fileName)
	}
	if name == "" && (all[0].Name == "" || len(all) == 1) {
		return all[0], nil
	}
	var names []string
	for _, l := range all {
		if name != "" && (l.Name == name || l.Path == path.Clean(name)) {
			return l, nil
		}
		if l.Name == "" {
			names = append(names, l.Path)
		} else {
			names = append(names, l.Name)
		}
	}
	has := strings.Join(names, ", ")
	if name == "" {
		err := errors.Newf(errors.Invalid, "the repository has several dev container configurations: %s", has)
		return Location{}, errors.Remedy(err, "choose one by its name")
	}
	err := errors.Newf(errors.NotFound, "the repository has no dev container configuration %.100q, but: %s", name, has)
	return Location{}, errors.Remedy(err, "choose one of these names")
}

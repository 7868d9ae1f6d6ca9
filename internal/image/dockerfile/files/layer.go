package files

import (
	"archive/tar"
	"os"
	"path"
	"strconv"
	"strings"
	"time"

	"github.com/moby/buildkit/solver/pb"

	"github.com/RelevanceAI/harvest/client/errors"
	"github.com/RelevanceAI/harvest/internal/base/tarfs"
)

// Layer records the changes of a file operation to a tree.
type Layer struct {
	over  *Tree     // with the changes so far
	temp  string    // directory for unpacked files
	Epoch time.Time // mtime of files without one; zero: the time of writing
	names []string  // of the changes, without symbolic links
	seen  map[string]bool
}

// NewLayer returns an empty layer over a tree, which gets its files, too. temp is a directory for unpacked archives.
func NewLayer(over *Tree, temp string) *Layer {
	return &Layer{over: over, temp: temp, seen: map[string]bool{}}
}

// Put puts a file at a path without symbolic links, whose directory exists. A directory keeps its children.
func (l *Layer) Put(at string, f *File) error {
	if len(path.Base(at)) > 255 || len(at) > 4095 {
		return errors.Newf(errors.Invalid, "the name %.200q… is too long", at)
	}
	if at == "/" {
		l.over.Root.adopt(f)
		return nil
	}
	dir, _, err := l.over.Lookup(path.Dir(at), false)
	if err != nil {
		return err
	}
	if dir == nil || !dir.IsDir() {
		return errors.Newf(errors.Invalid, "%.200q is not a directory", path.Dir(at))
	}
	if err := l.over.set(dir, path.Base(at), f); err != nil {
		return err
	}
	if !l.seen[at] {
		l.seen[at] = true
		l.names = append(l.names, at)
	}
	return nil
}

// mkdir makes a directory, and with all also those above it, unless it exists. It follows symbolic links.
func (l *Layer) mkdir(name string, mode int64, own *owner, mtime time.Time, all bool) error {
	old, real, err := l.over.Lookup(name, true)
	if err != nil {
		return err
	}
	if old != nil {
		if !old.IsDir() {
			return errors.Newf(errors.Invalid, "%.200q is not a directory", name)
		}
		return nil
	}
	if above := path.Dir(real); all && above != "/" {
		if err := l.mkdir(above, mode, own, mtime, true); err != nil {
			return err
		}
	}
	dir := NewDir(mode)
	dir.ModTime = mtime
	own.give(dir)
	return l.Put(real, dir)
}

// Write writes the layer as a tar file, which is empty if the layer has no files.
func (l *Layer) Write(to *os.File) error {
	if len(l.names) == 0 {
		return nil
	}
	tw := tar.NewWriter(to)
	first := map[*File]string{}
	for _, name := range l.names {
		f, _, err := l.over.Lookup(name, false)
		if err != nil || f == nil {
			continue // a later action replaced it
		}
		hdr := f.header(strings.TrimPrefix(name, "/"))
		if f.ModTime.IsZero() && !l.Epoch.IsZero() {
			hdr.ModTime = l.Epoch
		}
		if target, again := first[f]; again {
			hdr.Typeflag, hdr.Linkname, hdr.Size, hdr.PAXRecords = tar.TypeLink, target, 0, nil
		} else if !f.IsDir() {
			first[f] = hdr.Name
		}
		if err := writeFile(tw, hdr, f); err != nil {
			return tarfs.Explain(err, "a layer")
		}
	}
	return tarfs.Explain(tw.Close(), "a layer")
}

// owner is an owner that an operation sets. A nil owner changes nothing.
type owner struct{ uid, gid int }

func (o *owner) give(f *File) {
	if o != nil {
		f.UID, f.GID = o.uid, o.gid
	}
}

// findOwner looks up the names of an owner in a tree.
func findOwner(in *Tree, opt *pb.ChownOpt) (*owner, error) {
	if opt == nil {
		return nil, nil
	}
	user, err := numbers(in, opt.User, "user", "/etc/passwd")
	if err != nil {
		return nil, err
	}
	o := &owner{user[0], user[1]}
	if opt.Group != nil {
		group, err := numbers(in, opt.Group, "group", "/etc/group")
		if err != nil {
			return nil, err
		}
		o.gid = group[0]
	}
	return o, nil
}

// numbers returns the numbers of a user and its group, or of a group.
func numbers(in *Tree, opt *pb.UserOpt, what, name string) ([2]int, error) {
	switch u := opt.GetUser().(type) {
	case *pb.UserOpt_ByID:
		return [2]int{int(u.ByID), int(u.ByID)}, nil
	case *pb.UserOpt_ByName:
		return named(in, what, name, u.ByName)
	}
	return [2]int{}, nil
}

// named returns the numbers of a user or group.
func named(in *Tree, what, name string, opt *pb.NamedUserOpt) (numbers [2]int, err error) {
	if opt.Input < 0 {
		return numbers, errors.Remedy(errors.Newf(errors.Invalid,
			"with --link, the %s %.100q cannot be looked up: the files of the image are not used", what, opt.Name),
			"give its number, or leave --link out")
	}
	line := entryOf(in.Read(name), opt.Name)
	if line == nil {
		return numbers, errors.Remedy(errors.Newf(errors.Invalid, "the image has no %s %.100q", what, opt.Name),
			"make it first with RUN %sadd, or give its number", what)
	}
	for i := range numbers {
		number, err := strconv.ParseUint(line[2+i], 10, 32)
		if err != nil && i == 0 {
			return numbers, errors.Newf(errors.Invalid, "the image's %s has no number for %.100q", name, opt.Name)
		}
		numbers[i] = int(number)
	}
	return numbers, nil
}

// entryOf returns the fields of the line for a name in a file such as /etc/passwd.
func entryOf(text, name string) []string {
	for line := range strings.Lines(text) {
		if fields := strings.Split(strings.TrimSpace(line), ":"); fields[0] == name && len(fields) >= 4 {
			return fields
		}
	}
	return nil
}

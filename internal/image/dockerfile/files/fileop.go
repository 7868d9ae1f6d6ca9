package files

import (
	"archive/tar"
	"io/fs"
	"maps"
	"path"
	"slices"
	"strings"
	"time"

	"github.com/moby/buildkit/solver/pb"
	"github.com/moby/patternmatcher"
	mode "github.com/tonistiigi/dchapes-mode"

	"github.com/RelevanceAI/harvest/client/errors"
)

// The rules of file operations are those of BuildKit (solver/llbsolver/file and fsutil/copy), which execute them on
// mounted directories. Here they change trees in memory.

// defaultMode is the mode of directories that operations make.
const defaultMode = 0o755

// Source is a tree to copy from, and its name in errors.
type Source struct {
	*Tree
	Name string
}

// Find returns a file, through symbolic links, to mount it.
func (s Source) Find(name string) (*File, error) {
	f, _, err := s.Lookup(name, true)
	if err == nil && f == nil {
		err = errors.Remedy(errors.Newf(errors.NotFound, "there is no %.200q to mount in %s", name, s.Name),
			"correct the name, or check whether %s excludes it", ignoreName)
	}
	return f, err
}

// Copied is the hash of all files that an operation copies. It copies them into an empty directory, without unpacking
// archives.
func Copied(op *pb.FileOp, sources []Source) (string, error) {
	var sums []string
	for _, action := range op.Actions {
		act := action.GetCopy()
		if act == nil {
			continue
		}
		act = act.CloneVT()
		act.Dest, act.Owner, act.Mode, act.ModeStr = "/", nil, -1, ""
		l := NewLayer(NewTree(), "")
		a := &actions{l: l, sources: sources, plain: true}
		if err := a.action(&pb.FileAction{SecondaryInput: action.SecondaryInput,
			Action: &pb.FileAction_Copy{Copy: act}}); err != nil {
			return "", err
		}
		sum, err := l.over.Root.Digest()
		if err != nil {
			return "", err
		}
		sums = append(sums, sum)
	}
	return strings.Join(sums, " "), nil
}

// Apply executes a file operation. sources are its inputs; those that it does not copy from may be empty.
func (l *Layer) Apply(op *pb.FileOp, sources []Source) error {
	return (&actions{l: l, sources: sources}).run(op)
}

// actions applies the actions of a file operation to a tree, as a layer.
type actions struct {
	l       *Layer
	sources []Source // by input; nil trees for unused ones
	plain   bool     // do not unpack archives
	several bool     // there are several sources
}

func (a *actions) run(op *pb.FileOp) error {
	a.several = len(op.Actions) > 1
	for i, action := range op.Actions {
		if i > 0 && action.Input != int64(len(a.sources)+i-1) {
			return errors.Newf(errors.Unsupported, "the actions of a file operation are not a sequence")
		}
		if err := a.action(action); err != nil {
			return err
		}
	}
	return nil
}

func (a *actions) action(action *pb.FileAction) error {
	switch f := action.Action.(type) {
	case *pb.FileAction_Copy:
		if action.SecondaryInput < 0 || action.SecondaryInput >= int64(len(a.sources)) {
			return errors.Newf(errors.Unsupported, "a copy from another action is not supported")
		}
		return a.copy(a.sources[action.SecondaryInput], f.Copy)
	case *pb.FileAction_Mkdir:
		own, err := findOwner(a.l.over, f.Mkdir.Owner)
		if err != nil {
			return err
		}
		return a.l.mkdir(f.Mkdir.Path, int64(f.Mkdir.Mode)&0o777, own, stamp(f.Mkdir.Timestamp), f.Mkdir.MakeParents)
	case *pb.FileAction_Mkfile:
		file := NewFile(f.Mkfile.Data, int64(f.Mkfile.Mode)&0o777, 0, 0)
		return a.l.create(f.Mkfile.Path, file, f.Mkfile.Owner, f.Mkfile.Timestamp)
	case *pb.FileAction_Symlink:
		link := &File{Type: tar.TypeSymlink, Mode: 0o777, Link: f.Symlink.Oldpath}
		return a.l.create(f.Symlink.Newpath, link, f.Symlink.Owner, f.Symlink.Timestamp)
	}
	return errors.Newf(errors.Unsupported, "the file action %T is not supported", action.Action)
}

// create puts a new file at a path, through symbolic links.
func (l *Layer) create(name string, f *File, opt *pb.ChownOpt, ns int64) error {
	own, err := findOwner(l.over, opt)
	if err != nil {
		return err
	}
	own.give(f)
	f.ModTime = stamp(ns)
	_, real, err := l.over.Lookup(name, true)
	if err != nil {
		return err
	}
	return l.Put(real, f)
}

// stamp returns the time of an action, or zero if it sets none.
func stamp(ns int64) time.Time {
	if ns == -1 {
		return time.Time{}
	}
	return time.Unix(ns/1e9, ns%1e9)
}

// copy executes the copy action of LLB.
func (a *actions) copy(from Source, act *pb.FileActionCopy) error {
	c := &copier{l: a.l, several: a.several, mtime: stamp(act.Timestamp)}
	if err := c.configure(act); err != nil {
		return err
	}
	for _, name := range act.RequiredPaths {
		if f, _, err := from.Lookup(name, true); err != nil || f == nil {
			return missing(name, from.Name)
		}
	}
	names := []string{clean(act.Src)}
	if act.AllowWildcard && hasWildcard(act.Src) {
		var err error
		if names, err = from.wildcard(clean(act.Src)); err != nil {
			return err
		}
		if len(names) == 0 && !act.AllowEmptyWildcard {
			return missing(act.Src, from.Name)
		}
	}
	for _, name := range names {
		c.inodes = map[*File]*File{} // each match of a wildcard is copied by itself
		f, real, err := from.Lookup(name, act.FollowSymlink)
		if err != nil {
			return err
		}
		if f == nil {
			return absent(from, name)
		}
		if c.exclude != nil && !f.IsDir() {
			if out, err := c.exclude.MatchesOrParentMatches(path.Base(name)); err != nil || out {
				continue
			}
		}
		if act.AttemptUnpackDockerCompatibility && !a.plain {
			if done, err := c.unpack(f, act.Dest); done || err != nil {
				if err != nil {
					return err
				}
				continue
			}
		}
		if err := c.file(f, base(name, real), act); err != nil {
			return err
		}
	}
	return nil
}

// base returns the last element of a name, or "/" for the root.
func base(name, real string) string {
	if real == "/" {
		return "/"
	}
	return path.Base(name)
}

// clean makes a name absolute. It keeps a slash or a dot at the end, which make it a directory.
func clean(name string) string {
	full := path.Join("/", name)
	switch {
	case full == "/":
		return full
	case strings.HasSuffix(name, "/."):
		return full + "/."
	case strings.HasSuffix(name, "/"):
		return full + "/"
	}
	return full
}

func missing(name, what string) error {
	err := errors.Newf(errors.NotFound, "there is no %.200q in %s", strings.TrimLeft(name, "/"), what)
	return errors.Remedy(err, "correct the name, or check whether %s excludes it", ignoreName)
}

// absent explains why a source does not exist.
func absent(from Source, name string) error {
	if link, _, err := from.Lookup(name, false); err == nil && link != nil {
		err := errors.Newf(errors.NotFound, "%.200q is a dangling symbolic link in %s", name, from.Name)
		return errors.Remedy(err, "copy its target as well")
	}
	return missing(name, from.Name)
}

func hasWildcard(name string) bool {
	for i := 0; i < len(name); i++ {
		switch name[i] {
		case '\\':
			i++
		case '*', '?', '[':
			return true
		}
	}
	return false
}

// wildcard returns the sorted names that match a pattern. The part before the first wildcard may contain symbolic
// links.
func (t *Tree) wildcard(pattern string) ([]string, error) {
	all := parts(pattern)
	first := slices.IndexFunc(all, hasWildcard)
	top := "/" + path.Join(all[:first]...)
	dir, _, err := t.Lookup(top, true)
	if err != nil || dir == nil || !dir.IsDir() {
		return nil, err
	}
	found := map[string]*File{top: dir}
	for _, part := range all[first:] {
		next := map[string]*File{}
		for name, dir := range found {
			for child, f := range dir.children {
				ok, err := path.Match(part, child)
				if err != nil {
					return nil, errors.Remedy(errors.Newf(errors.Invalid, "invalid pattern %.200q", pattern),
						`use *, ? and [a-z]; put a backslash before these characters to match them`)
				}
				if ok {
					next[path.Join(name, child)] = f
				}
			}
		}
		found = next
	}
	return slices.Sorted(maps.Keys(found)), nil
}

// copier executes one copy action.
type copier struct {
	l        *Layer
	several  bool // there are several sources
	own      *owner
	mode     *int64 // of all files, if not nil
	set      *mode.Set
	mtime    time.Time // of all files; zero: their own
	inodes   map[*File]*File
	include  *matcher // nil: all
	exclude  *matcher // nil: nothing
	replaces bool
	above    []parent
}

// parent is a directory of the source on the way to a file. It is made when a file below it is included.
type parent struct {
	f    *File
	at   string
	made bool
}

func (c *copier) configure(act *pb.FileActionCopy) error {
	var err error
	if c.own, err = findOwner(c.l.over, act.Owner); err != nil {
		return err
	}
	c.replaces = act.AlwaysReplaceExistingDestPaths
	switch {
	case act.ModeStr != "":
		set, err := mode.ParseWithUmask(act.ModeStr, 0)
		if err != nil {
			return errors.Explainf(err, errors.Invalid, "invalid mode %.100q", act.ModeStr)
		}
		c.set = &set
	case act.Mode != -1:
		bits := int64(act.Mode) & 0o7777
		c.mode = &bits
	}
	if len(act.IncludePatterns) > 0 {
		if c.include, err = newMatcher("pattern", act.IncludePatterns); err != nil {
			return err
		}
	}
	if len(act.ExcludePatterns) > 0 {
		c.exclude, err = newMatcher("--exclude", act.ExcludePatterns)
	}
	return err
}

// dirMode is the mode of directories above the destination.
func (c *copier) dirMode() int64 {
	if c.mode != nil {
		return *c.mode & 0o777
	}
	return defaultMode
}

// file copies a source to the destination of an action.
func (c *copier) file(f *File, name string, act *pb.FileActionCopy) error {
	dest := clean(act.Dest)
	dir := dest
	if !strings.HasSuffix(dest, "/") && !strings.HasSuffix(dest, "/.") {
		dir = path.Dir(dest)
	}
	if err := c.l.mkdir(dir, c.dirMode(), c.own, c.mtime, true); err != nil {
		return err
	}
	old, real, err := c.l.over.Lookup(dest, true)
	if err != nil {
		return err
	}
	if c.several && !f.IsDir() && dir != dest && (old == nil || !old.IsDir()) {
		return errors.Remedy(errors.Newf(errors.Invalid, "several files cannot be copied to one file, %.200q", dest),
			"end the destination with a slash")
	}
	contents := act.DirCopyContents && f.IsDir()
	if old != nil && (f.IsDir() && !contents || !f.IsDir() && old.IsDir()) {
		real, old = path.Join(real, name), nil
	}
	above := path.Dir(real)
	if contents && old == nil {
		above = real
	}
	if err := c.l.mkdir(above, c.dirMode(), c.own, c.mtime, true); err != nil {
		return err
	}
	return c.copy(f, "", real, false, patternmatcher.MatchInfo{}, patternmatcher.MatchInfo{})
}

// copy copies a file, or a directory with everything below it, to a path without symbolic links. rel is its path below
// the source. inner is true below the source: existing directories get the owner and mode of the source's.
func (c *copier) copy(f *File, rel, at string, inner bool, in, out patternmatcher.MatchInfo) error {
	included := true
	if rel != "" {
		var err error
		var excluded bool
		if c.include != nil {
			if included, in, err = c.include.match(rel, in); err != nil {
				return err
			}
		}
		if c.exclude != nil {
			if excluded, out, err = c.exclude.match(rel, out); err != nil {
				return err
			}
			included = included && !excluded
		}
	}
	if included {
		if err := c.parents(); err != nil {
			return err
		}
	}
	if !f.IsDir() {
		if !included {
			return nil
		}
		return c.put(f, at)
	}
	if included {
		if err := c.dir(f, at, inner); err != nil {
			return err
		}
	}
	c.above = append(c.above, parent{f, at, included})
	for _, name := range slices.Sorted(maps.Keys(f.children)) {
		if err := c.copy(f.children[name], path.Join(rel, name), path.Join(at, name), true, in, out); err != nil {
			return err
		}
	}
	c.above = c.above[:len(c.above)-1]
	return nil
}

// parents makes the directories on the way to an included file.
func (c *copier) parents() error {
	for i, p := range c.above {
		if p.made {
			continue
		}
		if err := c.dir(p.f, p.at, false); err != nil {
			return err
		}
		c.above[i].made = true
	}
	return nil
}

// dir makes a directory like f. An existing one gets the owner and mode of f if also is true.
func (c *copier) dir(f *File, at string, also bool) error {
	old, _, err := c.l.over.Lookup(at, false)
	if err != nil {
		return err
	}
	if old != nil && !old.IsDir() {
		if !c.replaces {
			return errors.Newf(errors.Invalid, "a directory cannot replace the file %.200q", at)
		}
		old = nil
	}
	if old != nil && !also {
		return nil
	}
	dir := f.twin()
	dir.children = map[string]*File{}
	c.dress(dir)
	return c.l.Put(at, dir)
}

// put copies a file that is not a directory. A second name of the same file becomes a hard link.
func (c *copier) put(f *File, at string) error {
	old, _, err := c.l.over.Lookup(at, false)
	if err != nil {
		return err
	}
	if old != nil && old.IsDir() && !c.replaces {
		return errors.Newf(errors.Invalid, "the file cannot replace the directory %.200q", at)
	}
	twin := c.inodes[f]
	if twin == nil {
		twin = f.twin()
		c.dress(twin)
		c.inodes[f] = twin
	}
	return c.l.Put(at, twin)
}

// dress sets the owner, mode and time that the action gives.
func (c *copier) dress(f *File) {
	c.own.give(f)
	switch {
	case f.Type == tar.TypeSymlink:
	case c.set != nil:
		f.Mode = unixMode(c.set.Apply(f.header("").FileInfo().Mode()))
	case c.mode != nil:
		f.Mode = *c.mode
	}
	if !c.mtime.IsZero() {
		f.ModTime = c.mtime
	}
}

// unixMode returns a mode of package os as tar headers have it.
func unixMode(m fs.FileMode) int64 {
	mode := int64(m.Perm())
	for bit, flag := range map[int64]fs.FileMode{0o4000: fs.ModeSetuid, 0o2000: fs.ModeSetgid, 0o1000: fs.ModeSticky} {
		if m&flag != 0 {
			mode |= bit
		}
	}
	return mode
}

package dockerfile

import (
	"archive/tar"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"io"
	"maps"
	"os"
	"path"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/moby/patternmatcher"
	mode "github.com/tonistiigi/dchapes-mode"

	"github.com/RelevanceAI/harvest/errors"
	"github.com/RelevanceAI/harvest/internal/pattern"
	"github.com/RelevanceAI/harvest/internal/tarfs"
)

var sumPattern = pattern.New(`^sha256:[0-9a-f]{64}$`)

// parseMode parses --chmod: octal digits, or symbolic modes of chmod. It returns nil for "".
func parseMode(text string) (func(f *file), error) {
	if text == "" {
		return nil, nil
	}
	if bits, err := strconv.ParseUint(text, 8, 32); err == nil && bits <= 0o7777 {
		return func(f *file) { f.mode = int64(bits) }, nil
	}
	set, err := mode.Parse(text)
	if err != nil || text[0] >= '0' && text[0] <= '9' {
		return nil, errors.Remedy(errors.Newf(errors.Invalid, "invalid mode %.100q", text),
			"write --chmod=755 or --chmod=u=rwX,go=rX")
	}
	return func(f *file) {
		m := os.FileMode(f.mode & 0o777)
		if f.isDir() {
			m |= os.ModeDir
		}
		f.mode = f.mode&^0o777 | int64(set.Apply(m).Perm())
	}, nil
}

// picked is a source of a COPY: a file, or a directory whose content is copied.
type picked struct {
	name  string // its name if the destination is a directory
	at    string // with --parents: its path below the destination
	f     *file
	plain bool // not unpacked even if it is an archive
}

// pick returns the sources of a COPY in a tree. what names the tree in errors.
func (c *copying) pick(from *tree, what string) ([]picked, error) {
	var all []picked
	for _, in := range c.Inline {
		name := path.Base("/" + in.Path)
		all = append(all, picked{name: name, plain: true,
			f: &file{typ: tar.TypeReg, mode: 0o644, size: int64(len(in.Data)), content: text(in.Data)}})
	}
	for _, source := range c.Sources {
		pivot, pattern := "", source
		if c.Parents {
			if before, after, ok := strings.Cut(source, "/./"); ok {
				pivot, pattern = before, after
			}
		}
		found, err := from.glob(path.Join("/", pivot, pattern))
		if err != nil {
			return nil, err
		}
		if len(found) == 0 && !strings.ContainsAny(source, "*?[") {
			err := errors.Newf(errors.NotFound, "there is no %.200q in %s", strings.TrimLeft(source, "/"), what)
			return nil, errors.Remedy(err, "correct the name, or see whether %s leaves it out", ignoreName)
		}
		for _, name := range found {
			f, real, err := from.lookup(name, true)
			if err != nil || f == nil {
				return nil, errors.Remedy(errors.Newf(errors.NotFound, "%.200q is a symbolic link to nothing in %s",
					name, what), "copy its target as well")
			}
			p := picked{name: path.Base(name), f: f}
			if name == "/" || real == "/" {
				p.name = "/"
			}
			if c.Parents {
				p.at = strings.TrimPrefix(name, path.Clean("/"+pivot))
			}
			all = append(all, p)
		}
	}
	return c.filter(all)
}

// glob returns the sorted names that match a pattern. It follows symbolic links in directories.
func (t *tree) glob(pattern string) ([]string, error) {
	names := []string{"/"}
	for _, part := range parts(pattern) {
		var next []string
		for _, dir := range names {
			f, _, err := t.lookup(dir, true)
			if err != nil || f == nil || !f.isDir() {
				continue
			}
			for _, name := range slices.Sorted(maps.Keys(f.children)) {
				ok, err := path.Match(part, name)
				if err != nil {
					return nil, errors.Remedy(errors.Newf(errors.Invalid, "invalid pattern %.200q", pattern),
						`use *, ? and [a-z], and a backslash before what stands for itself`)
				}
				if ok || name == part {
					next = append(next, path.Join(dir, name))
				}
			}
		}
		names = next
	}
	return names, nil
}

// filter removes the sources that --exclude matches.
func (c *copying) filter(all []picked) ([]picked, error) {
	if len(c.Exclude) == 0 {
		return all, nil
	}
	pm, err := patternmatcher.New(c.Exclude)
	if err != nil {
		return nil, errors.Explainf(err, errors.Invalid, "invalid --exclude: %s", clip(err.Error()))
	}
	m := &matcher{pm}
	var kept []picked
	for _, p := range all {
		if p.f.isDir() {
			p.f = p.f.clone()
			if err := m.prune("", p.f, patternmatcher.MatchInfo{}); err != nil {
				return nil, err
			}
		} else if out, err := pm.MatchesOrParentMatches(p.name); err != nil || out {
			continue
		}
		kept = append(kept, p)
	}
	return kept, nil
}

// clone returns a deep copy of a directory that shares its files.
func (f *file) clone() *file {
	if !f.isDir() {
		return f
	}
	twin := *f
	twin.children = make(map[string]*file, len(f.children))
	for name, child := range f.children {
		twin.children[name] = child.clone()
	}
	return &twin
}

// digest is the hash of all files that a COPY copies, and of its options.
func (c *copying) digest(all []picked) (string, error) {
	h := sha256.New()
	how, err := json.Marshal(c)
	if err != nil {
		return "", errors.Wrapf(err, "encode an instruction")
	}
	h.Write(how)
	for _, p := range all {
		sum, err := p.f.digest()
		if err == nil && p.f.isDir() {
			sum, err = p.f.treeDigest()
		}
		if err != nil {
			return "", err
		}
		for _, part := range []string{p.name, p.at, strconv.FormatInt(p.f.mode, 8), strconv.Itoa(p.f.uid),
			strconv.Itoa(p.f.gid), sum} {
			io.WriteString(h, part)
			h.Write([]byte{0})
		}
	}
	return hex.EncodeToString(h.Sum(nil)), nil
}

// layer collects the files that an instruction adds to a tree, and writes them.
type layer struct {
	over  *tree
	temp  string // directory for unpacked files
	own   *owner
	chmod func(f *file)
	epoch time.Time // mtime of files without one; zero: the time of writing
	names []string
	files map[string]*file
	first map[*file]string // of files with several names
	twins map[*file]*file  // copies with another owner or mode
}

// owner is the value of --chown.
type owner struct{ uid, gid int }

func newLayer(over *tree, temp string) *layer {
	return &layer{over: over, temp: temp, files: map[string]*file{}, first: map[*file]string{},
		twins: map[*file]*file{}}
}

// lay copies the sources to the destination by the rules of COPY.
func (c *copying) lay(over *tree, all []picked, temp string) (*layer, error) {
	l := newLayer(over, temp)
	var err error
	if l.own, err = findOwner(over, c.Chown); err != nil {
		return nil, err
	}
	if l.chmod, err = parseMode(c.Chmod); err != nil {
		return nil, err
	}
	dest, real, err := over.lookup(c.Dest, true)
	if err != nil {
		return nil, err
	}
	into := strings.HasSuffix(c.Dest, "/") || dest != nil && dest.isDir() || c.Parents
	if !into && len(all) > 1 {
		return nil, errors.Remedy(errors.Newf(errors.Invalid, "several files cannot be copied to the one name %.200q",
			c.Dest), "end the destination with a slash")
	}
	for _, p := range all {
		switch {
		case p.at != "":
			err = l.copy(path.Join(real, p.at), p.f)
		case p.f.isDir():
			err = l.copy(real, p.f)
		default:
			var unpacked bool
			if c.Unpack && !p.plain {
				if unpacked, err = l.unpack(real, p.f); unpacked || err != nil {
					break
				}
			}
			name := real
			if into {
				name = path.Join(real, p.name)
			}
			err = l.copy(name, p.f)
		}
		if err != nil {
			return nil, err
		}
	}
	return l, nil
}

// findOwner parses an owner and looks up names in the image.
func findOwner(in *tree, text string) (*owner, error) {
	if text == "" {
		return nil, nil
	}
	user, group, hasGroup := strings.Cut(text, ":")
	o := &owner{}
	uid, err := strconv.ParseUint(user, 10, 32)
	if err != nil {
		line := entryOf(in.read("/etc/passwd"), user)
		if line == nil {
			return nil, errors.Remedy(errors.Newf(errors.Invalid, "the image has no user %.100q", user),
				"make it first with RUN useradd, or give its number")
		}
		if uid, err = strconv.ParseUint(line[2], 10, 32); err != nil {
			return nil, errors.Newf(errors.Invalid, "the image's /etc/passwd has no number for %.100q", user)
		}
		if gid, err := strconv.ParseUint(line[3], 10, 32); err == nil {
			o.gid = int(gid)
		}
	} else {
		o.gid = int(uid) // for numbers, as in BuildKit
	}
	o.uid = int(uid)
	if !hasGroup {
		return o, nil
	}
	gid, err := strconv.ParseUint(group, 10, 32)
	if err != nil {
		line := entryOf(in.read("/etc/group"), group)
		if line == nil {
			return nil, errors.Remedy(errors.Newf(errors.Invalid, "the image has no group %.100q", group),
				"make it first with RUN groupadd, or give its number")
		}
		if gid, err = strconv.ParseUint(line[2], 10, 32); err != nil {
			return nil, errors.Newf(errors.Invalid, "the image's /etc/group has no number for %.100q", group)
		}
	}
	o.gid = int(gid)
	return o, nil
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

// copy puts a file, or a directory with everything below it, at a name.
func (l *layer) copy(name string, f *file) error {
	if !f.isDir() {
		return l.put(name, f)
	}
	if err := l.mkdir(name, f); err != nil {
		return err
	}
	for _, child := range slices.Sorted(maps.Keys(f.children)) {
		if err := l.copy(path.Join(name, child), f.children[child]); err != nil {
			return err
		}
	}
	return nil
}

// dress returns f, or a copy of it with the owner and mode that the instruction sets.
func (l *layer) dress(f *file) *file {
	if l.own == nil && l.chmod == nil {
		return f
	}
	if l.twins[f] == nil {
		twin := *f
		if l.own != nil {
			twin.uid, twin.gid = l.own.uid, l.own.gid
		}
		if l.chmod != nil && twin.typ != tar.TypeSymlink {
			l.chmod(&twin)
		}
		l.twins[f] = &twin
	}
	return l.twins[f]
}

// find returns the current file at a name, in the layer or below it, and its path with symbolic
// links in directories resolved.
func (l *layer) find(name string) (*file, string, error) {
	f, real, err := l.over.lookup(name, true)
	if err == nil && f != nil && !f.isDir() { // replace a file or link itself
		f, real, err = l.over.lookup(name, false)
	}
	if err != nil {
		return nil, "", err
	}
	if own := l.files[real]; own != nil {
		f = own
	}
	return f, real, nil
}

// mkdir makes a directory like f, and its parents. An existing one stays unchanged.
func (l *layer) mkdir(name string, f *file) error {
	old, real, err := l.find(name)
	if err != nil {
		return err
	}
	if old != nil {
		if !old.isDir() {
			return errors.Newf(errors.Invalid, "a directory cannot replace the file %.200q", name)
		}
		return nil
	}
	if real == "/" {
		return nil
	}
	if err := l.parents(real); err != nil {
		return err
	}
	dir := newDir(f.mode)
	dir.uid, dir.gid, dir.mtime = f.uid, f.gid, f.mtime
	return l.set(real, l.dress(dir))
}

// parents makes the missing directories above a name.
func (l *layer) parents(name string) error {
	dir := newDir(0o755)
	if l.own != nil {
		dir.uid, dir.gid = l.own.uid, l.own.gid
	}
	above := path.Dir(name)
	if above == "/" || l.files[above] != nil {
		return nil
	}
	old, real, err := l.find(above)
	if err != nil {
		return err
	}
	if old != nil {
		if !old.isDir() {
			return errors.Newf(errors.Invalid, "%.200q is not a directory", above)
		}
		return nil
	}
	if err := l.parents(real); err != nil {
		return err
	}
	return l.set(real, dir)
}

// put puts a file, which is not a directory, at a name.
func (l *layer) put(name string, f *file) error {
	old, real, err := l.find(name)
	if err != nil {
		return err
	}
	if old != nil && old.isDir() {
		return errors.Newf(errors.Invalid, "the file cannot replace the directory %.200q", name)
	}
	if err := l.parents(real); err != nil {
		return err
	}
	return l.set(real, l.dress(f))
}

func (l *layer) set(name string, f *file) error {
	if len(path.Base(name)) > 255 || len(name) > 4095 {
		return errors.Newf(errors.Invalid, "the name %.200q… is too long", name)
	}
	if _, again := l.files[name]; !again {
		l.names = append(l.names, name)
	}
	l.files[name] = f
	return nil
}

// write writes the layer as a tar file, which is empty if the layer has no files.
func (l *layer) write(to *os.File) error {
	if len(l.names) == 0 {
		return nil
	}
	tw := tar.NewWriter(to)
	for _, name := range l.names {
		f := l.files[name]
		hdr := f.header(strings.TrimPrefix(name, "/"))
		if f.mtime.IsZero() && !l.epoch.IsZero() {
			hdr.ModTime = l.epoch
		}
		if first, again := l.first[f]; again {
			hdr.Typeflag, hdr.Linkname, hdr.Size = tar.TypeLink, first, 0
		} else if !f.isDir() {
			l.first[f] = hdr.Name
		}
		if err := writeFile(tw, hdr, f); err != nil {
			return tarfs.Explain(err, "a layer")
		}
	}
	return tarfs.Explain(tw.Close(), "a layer")
}

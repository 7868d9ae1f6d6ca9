package files

import (
	"archive/tar"
	"context"
	"io"
	"io/fs"
	"os"
	"path"
	"strings"
	"syscall"

	"github.com/moby/patternmatcher"
	"github.com/moby/patternmatcher/ignorefile"

	"github.com/RelevanceAI/harvest/client/errors"
	"github.com/RelevanceAI/harvest/internal/base/tarfs"
)

const (
	ignoreName = ".dockerignore"
	maxIgnore  = 1 << 20
)

// ContextName is the name of a build context in errors.
const ContextName = "the build context"

// Limits of a build context.
type Limits struct {
	Bytes int64 // of all files: 8 GiB
	Files int   // 500,000
}

// OpenContext returns the files of a build context, a directory or a tar file, without those that
// .dockerignore excludes. The name "" is an empty context. Symbolic links are kept as links, and
// nothing outside of the context is opened.
func OpenContext(ctx context.Context, name string, limits Limits) (*Tree, error) {
	t := NewTree()
	if name == "" {
		return t, nil
	}
	info, err := os.Stat(name)
	if err != nil {
		return nil, errors.Explainf(err, errors.NotFound, "the build context cannot be read")
	}
	used := &budget{limits: limits}
	if info.IsDir() {
		err = t.addDir(ctx, name, used)
	} else {
		err = t.addContext(name, used)
	}
	if err == nil {
		err = t.ignore()
	}
	if err != nil {
		return nil, errors.Join(err, t.Close())
	}
	return t, nil
}

// budget counts the files and bytes of a context against the limits.
type budget struct {
	limits Limits
	bytes  int64
	files  int
}

func (b *budget) take(size int64) error {
	b.files++
	b.bytes += size
	if size < 0 || b.bytes > b.limits.Bytes || b.files > b.limits.Files {
		err := errors.Newf(errors.Exhausted, "the build context has more than %d bytes or %d files", b.limits.Bytes,
			b.limits.Files)
		return errors.Remedy(err, "list unneeded files in .dockerignore")
	}
	return nil
}

// addContext reads the tar file of a context.
func (t *Tree) addContext(name string, used *budget) error {
	f, err := os.Open(name)
	if err != nil {
		return errors.Wrapf(err, "open the build context")
	}
	t.close = append(t.close, f)
	return t.addArchive(f, func(hdr *tar.Header) error {
		hdr.Uid, hdr.Gid = 0, 0 // owners have no meaning on another machine
		return used.take(hdr.Size)
	})
}

// addArchive adds the entries of a foreign archive that check accepts. It refuses those whose names lead out of it.
func (t *Tree) addArchive(f *os.File, check func(hdr *tar.Header) error) error {
	tr := tarfs.NewReader(f)
	for {
		hdr, err := tr.Next()
		if err == io.EOF {
			return nil
		}
		if err == nil {
			err = check(hdr)
		}
		if err != nil {
			return err
		}
		c, err := at(f, hdr.Size)
		if err == nil {
			err = t.addEntry(hdr, c)
		}
		if err != nil {
			return err
		}
	}
}

// at returns the content at the current offset of a file that a tar reader reads: it reads headers
// block by block.
func at(f *os.File, size int64) (content, error) {
	off, err := f.Seek(0, io.SeekCurrent)
	return section(f, off, size), errors.Wrapf(err, "find a file in an archive")
}

// addEntry adds an entry of a foreign archive. It omits devices.
func (t *Tree) addEntry(hdr *tar.Header, c content) error {
	for _, part := range strings.Split(hdr.Name, "/") {
		if part == ".." {
			return errors.Newf(errors.Invalid, "the archive has the name %.200q, which leads out of its directory",
				hdr.Name)
		}
	}
	if strings.ContainsRune(hdr.Name, 0) {
		return errors.Newf(errors.Invalid, "the archive has a name with a NUL byte")
	}
	if hdr.Uid < 0 || hdr.Gid < 0 || int64(hdr.Uid) >= 1<<32 || int64(hdr.Gid) >= 1<<32 {
		return errors.Newf(errors.Invalid, "%.200q has an invalid owner", hdr.Name)
	}
	switch hdr.Typeflag {
	case tar.TypeGNUSparse:
		return sparse(hdr.Name)
	case tar.TypeSymlink:
		if hdr.Linkname == "" || strings.ContainsRune(hdr.Linkname, 0) {
			return errors.Newf(errors.Invalid, "the symbolic link %.200q has no usable target", hdr.Name)
		}
	case tar.TypeReg:
		for key := range hdr.PAXRecords {
			if strings.HasPrefix(key, "GNU.sparse.") {
				return sparse(hdr.Name)
			}
		}
	}
	return t.add(hdr, c)
}

func sparse(name string) error {
	return errors.Remedy(errors.Newf(errors.Unsupported, "the archive has %.200q as a sparse file", name),
		"pack it without --sparse")
}

// addDir reads the directory of a context.
func (t *Tree) addDir(ctx context.Context, name string, used *budget) error {
	root, err := os.OpenRoot(name)
	if err != nil {
		return errors.Explainf(err, errors.Invalid, "the build context cannot be opened")
	}
	t.close = append(t.close, root)
	return t.addBelow(ctx, root, ".", used)
}

// addBelow reads what is in a directory of a context. Package fs could not: it refuses names that are not UTF-8.
func (t *Tree) addBelow(ctx context.Context, root *os.Root, dir string, used *budget) error {
	opened, err := root.Open(dir)
	if err != nil {
		return tarfs.Explain(err, dir)
	}
	entries, err := opened.ReadDir(-1)
	if err = errors.Join(err, opened.Close()); err != nil {
		return tarfs.Explain(err, dir)
	}
	for _, e := range entries {
		if err := context.Cause(ctx); err != nil {
			return err
		}
		p := path.Join(dir, e.Name())
		f, err := contextFile(root, p)
		if err != nil {
			return tarfs.Explain(err, p)
		}
		if f == nil {
			continue
		}
		if err := used.take(f.Size); err != nil {
			return err
		}
		if err := t.put(p, f); err != nil {
			return err
		}
		if f.IsDir() {
			if err := t.addBelow(ctx, root, p, used); err != nil {
				return err
			}
		}
	}
	return nil
}

// contextFile returns a file of a context's directory, or nil if it is of another type than contexts have.
func contextFile(root *os.Root, p string) (*File, error) {
	info, err := root.Lstat(p)
	if err != nil {
		return nil, err
	}
	f := &File{Mode: int64(info.Mode().Perm()), ModTime: info.ModTime()}
	if st, ok := info.Sys().(*syscall.Stat_t); ok {
		f.Mode = int64(st.Mode & 0o7777)
	}
	switch info.Mode().Type() {
	case 0:
		f.Type, f.Size = tar.TypeReg, info.Size()
		f.content = func() (io.ReadCloser, error) {
			opened, err := root.OpenFile(p, os.O_RDONLY|syscall.O_NOFOLLOW|syscall.O_NONBLOCK, 0)
			return opened, tarfs.Explain(err, p)
		}
	case fs.ModeDir:
		f.Type, f.children = tar.TypeDir, map[string]*File{}
	case fs.ModeSymlink:
		f.Type = tar.TypeSymlink
		f.Link, err = root.Readlink(p)
	default:
		return nil, nil
	}
	return f, err
}

// ignore removes the files that the tree's own .dockerignore excludes.
func (t *Tree) ignore() error {
	f := t.Root.children[ignoreName]
	if f == nil || f.Type != tar.TypeReg {
		return nil
	}
	if f.Size > maxIgnore {
		return errors.Newf(errors.Invalid, "%s is larger than %d bytes", ignoreName, maxIgnore)
	}
	r, err := f.open()
	if err != nil {
		return err
	}
	return t.exclude(r)
}

// exclude removes the files that an ignore file excludes.
func (t *Tree) exclude(r io.ReadCloser) error {
	defer r.Close()
	m, err := readIgnore(io.LimitReader(r, maxIgnore))
	if err != nil {
		return err
	}
	return m.prune("", t.Root, patternmatcher.MatchInfo{})
}

// matcher matches the patterns of .dockerignore or of an option.
type matcher struct {
	*patternmatcher.PatternMatcher
	what string // for errors
}

func newMatcher(what string, patterns []string) (*matcher, error) {
	pm, err := patternmatcher.New(patterns)
	m := &matcher{pm, what}
	return m, m.explain(err)
}

func (m *matcher) explain(err error) error {
	if err == nil {
		return nil
	}
	return errors.Explainf(err, errors.Invalid, "invalid %s: %s", m.what, Clip(err.Error()))
}

// match matches a path. parent is the result for its directory.
func (m *matcher) match(name string, parent patternmatcher.MatchInfo) (bool, patternmatcher.MatchInfo, error) {
	ok, info, err := m.MatchesUsingParentResults(name, parent)
	return ok, info, m.explain(err)
}

func readIgnore(r io.Reader) (*matcher, error) {
	patterns, err := ignorefile.ReadAll(r)
	m := &matcher{what: ignoreName}
	if err = m.explain(err); err == nil {
		m, err = newMatcher(ignoreName, patterns)
	}
	return m, errors.Remedy(err, "write one pattern on each line, such as node_modules or **/*.log")
}

// prune removes the matching files below dir; directories with an exception stay.
func (m *matcher) prune(name string, dir *File, parent patternmatcher.MatchInfo) error {
	for last, f := range dir.children {
		full := path.Join(name, last)
		ignored, info, err := m.match(full, parent)
		if err != nil {
			return err
		}
		if f.IsDir() && (!ignored || m.Exclusions()) {
			if err := m.prune(full, f, info); err != nil {
				return err
			}
		}
		if ignored && (len(f.children) == 0 || !m.Exclusions()) {
			delete(dir.children, last)
		}
	}
	return nil
}

// Pack writes a build context as a tar stream: the files of dir without those that an ignore file
// excludes. That file is NAME.dockerignore beside a Dockerfile of that name, or else .dockerignore.
// Pack omits owners, since they have no meaning on another machine.
func Pack(ctx context.Context, dir, dockerfile string, w io.Writer) error {
	root, err := os.OpenRoot(dir)
	if err != nil {
		return errors.Remedy(errors.Explainf(err, errors.Invalid,
			"the build context %.200q is not a directory that can be read", dir),
			"give the directory with the files that the Dockerfile copies")
	}
	defer root.Close()
	t := NewTree()
	defer t.Close()
	if err := t.addDir(ctx, dir, &budget{limits: Limits{Bytes: 1 << 62, Files: maxFiles}}); err != nil {
		return err
	}
	if own, err := os.Open(dockerfile + ignoreName); dockerfile != "" && err == nil {
		if err := t.exclude(own); err != nil {
			return err
		}
		delete(t.Root.children, ignoreName) // it is not used
	} else if err := t.keepIgnore(); err != nil {
		return err
	}
	tw := tar.NewWriter(w)
	if err := t.Root.Walk("", func(name string, f *File) error {
		if err := context.Cause(ctx); err != nil {
			return err
		}
		return writeFile(tw, f.header(name), f)
	}); err != nil {
		return err
	}
	return errors.Wrapf(tw.Close(), "end the archive")
}

// keepIgnore applies .dockerignore and keeps it for the reader of the context.
func (t *Tree) keepIgnore() error {
	own := t.Root.children[ignoreName]
	err := t.ignore()
	if own != nil {
		t.Root.children[ignoreName] = own
	}
	return err
}

// Clip shortens messages of parsers to one line.
func Clip(text string) string {
	text = strings.Join(strings.Fields(text), " ")
	if len(text) > 300 {
		text = strings.ToValidUTF8(text[:300], "") + "…"
	}
	return text
}

// writeFile writes an entry with its content. If the file has changed meanwhile, the content is
// truncated or padded with zeros.
func writeFile(tw *tar.Writer, hdr *tar.Header, f *File) error {
	if err := tw.WriteHeader(hdr); err != nil {
		return errors.Wrapf(err, "write %.200q", hdr.Name)
	}
	if hdr.Typeflag != tar.TypeReg || hdr.Size == 0 {
		return nil
	}
	r, err := f.open()
	if err != nil {
		return err
	}
	defer r.Close()
	n, err := io.Copy(tw, io.LimitReader(r, hdr.Size))
	if err == nil && n < hdr.Size {
		err = errors.Newf(errors.Conflict, "%.200q was truncated while it was read", hdr.Name)
	}
	return errors.Wrapf(err, "write %.200q", hdr.Name)
}

package dockerfile

import (
	"archive/tar"
	"crypto/sha256"
	"encoding/hex"
	"io"
	"maps"
	"path"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/RelevanceAI/harvest/errors"
)

const (
	maxLinks  = 40        // symbolic links on a path
	maxFiles  = 2_000_000 // of a tree
	whiteout  = ".wh."    // https://github.com/opencontainers/image-spec/blob/main/layer.md
	opaque    = ".wh..wh..opq"
	maxSource = 64 << 10 // maximum size of files parsed here, such as /etc/passwd
)

// tree is a file tree in memory. Content stays in its source.
type tree struct {
	root  *file
	files int
	close []io.Closer // sources of content
}

// file is one file; several names may refer to it.
type file struct {
	typ      byte // as in tar headers
	mode     int64
	uid, gid int
	mtime    time.Time // zero: the time of writing
	size     int64
	link     string            // target of a symbolic link
	xattrs   map[string]string // by their keys in tar headers
	content  content
	children map[string]*file
	sum      string // of the content, once computed
}

// content is the source of a file's bytes.
type content interface {
	open() (io.ReadCloser, error)
}

// section is content within an open file.
type section struct {
	r         io.ReaderAt
	off, size int64
}

func (s section) open() (io.ReadCloser, error) {
	return io.NopCloser(io.NewSectionReader(s.r, s.off, s.size)), nil
}

// text is content in memory.
type text string

func (t text) open() (io.ReadCloser, error) { return io.NopCloser(strings.NewReader(string(t))), nil }

func newTree() *tree { return &tree{root: newDir(0o755)} }

func newDir(mode int64) *file {
	return &file{typ: tar.TypeDir, mode: mode, children: map[string]*file{}}
}

func (f *file) isDir() bool { return f.typ == tar.TypeDir }

// digest is the hash of the content, which is read once.
func (f *file) digest() (string, error) {
	if f.sum != "" || f.typ != tar.TypeReg {
		return f.sum, nil
	}
	r, err := f.open()
	if err != nil {
		return "", err
	}
	defer r.Close()
	h := sha256.New()
	if _, err := io.Copy(h, r); err != nil {
		return "", errors.Wrapf(err, "read a file")
	}
	f.sum = hex.EncodeToString(h.Sum(nil))
	return f.sum, nil
}

func (f *file) open() (io.ReadCloser, error) {
	if f.content == nil {
		return text("").open()
	}
	return f.content.open()
}

// header returns the tar header of the file.
func (f *file) header(name string) *tar.Header {
	hdr := &tar.Header{Typeflag: f.typ, Name: name, Mode: f.mode, Uid: f.uid, Gid: f.gid, ModTime: f.mtime,
		Linkname: f.link, PAXRecords: f.xattrs, Format: tar.FormatPAX}
	if f.mtime.IsZero() {
		hdr.ModTime = time.Now()
	}
	if f.typ == tar.TypeReg {
		hdr.Size = f.size
	}
	if f.isDir() {
		hdr.Name += "/"
	}
	return hdr
}

// fromHeader makes a file of an entry. It returns nil for types that a tree does not hold, such as
// devices.
func fromHeader(hdr *tar.Header, c content) *file {
	f := &file{typ: hdr.Typeflag, mode: hdr.Mode & 0o7777, uid: hdr.Uid, gid: hdr.Gid, mtime: hdr.ModTime}
	switch hdr.Typeflag {
	case tar.TypeReg:
		f.size, f.content = hdr.Size, c
	case tar.TypeDir:
		f.children = map[string]*file{}
	case tar.TypeSymlink:
		f.link = hdr.Linkname
	case tar.TypeFifo:
	default:
		return nil
	}
	for key, value := range hdr.PAXRecords {
		if key == xattrPrefix+"security.capability" || strings.HasPrefix(key, xattrPrefix+"user.") {
			if f.xattrs == nil {
				f.xattrs = map[string]string{}
			}
			f.xattrs[key] = value
		}
	}
	return f
}

// xattrPrefix begins the keys of extended attributes in tar headers.
const xattrPrefix = "SCHILY.xattr."

// twin returns a copy of a file. Copying sum would be a race: it is set while others copy.
func (f *file) twin() *file {
	return &file{typ: f.typ, mode: f.mode, uid: f.uid, gid: f.gid, mtime: f.mtime, size: f.size, link: f.link,
		xattrs: f.xattrs, content: f.content, children: f.children}
}

// Close closes the sources of content.
func (t *tree) Close() error {
	var all error
	for _, c := range t.close {
		all = errors.Join(all, c.Close())
	}
	t.close = nil
	return all
}

// writeTar writes a file, and everything below a directory, as an archive in which it has that name.
func (f *file) writeTar(w io.Writer, name string) error {
	tw := tar.NewWriter(w)
	if err := writeFile(tw, f.header(name), f); err != nil {
		return err
	}
	if err := f.walk(name, func(name string, f *file) error { return writeFile(tw, f.header(name), f) }); err != nil {
		return err
	}
	return errors.Wrapf(tw.Close(), "end an archive")
}

// newFile returns a regular file with that content.
func newFile(data []byte, mode int64, uid, gid int) *file {
	return &file{typ: tar.TypeReg, mode: mode, uid: uid, gid: gid, size: int64(len(data)), content: text(data)}
}

// newSection returns a regular file whose content is the first size bytes of r, which stays open.
func newSection(r io.ReaderAt, size int64, mode int64, mtime time.Time) *file {
	return &file{typ: tar.TypeReg, mode: mode, size: size, content: section{r, 0, size}, mtime: mtime}
}

// parts splits a cleaned name; the root has no parts.
func parts(name string) []string {
	name = strings.Trim(path.Clean("/"+name), "/")
	if name == "" {
		return nil
	}
	return strings.Split(name, "/")
}

// lookup returns the file at name and its path without symbolic links, with the tree as the root.
// It follows a link in the last part if follow is set. If nothing exists, the file is nil and the
// path is where it would be.
func (t *tree) lookup(name string, follow bool) (*file, string, error) {
	links := 0
	done, at := []*file{t.root}, []string{}
	rest := parts(name)
	for len(rest) > 0 {
		part := rest[0]
		rest = rest[1:]
		if part == ".." {
			if len(at) > 0 {
				done, at = done[:len(done)-1], at[:len(at)-1]
			}
			continue
		}
		if part == "." || part == "" {
			continue
		}
		dir := done[len(done)-1]
		if dir != nil && !dir.isDir() {
			return nil, "", errors.Explainf(syscall.ENOTDIR, errors.Invalid,
				"a part of %.200q is not a directory", name)
		}
		var next *file
		if dir != nil {
			next = dir.children[part]
		}
		if next != nil && next.typ == tar.TypeSymlink && (len(rest) > 0 || follow) {
			if links++; links > maxLinks {
				return nil, "", errors.Newf(errors.Invalid, "%.200q goes through too many symbolic links", name)
			}
			if path.IsAbs(next.link) {
				done, at = done[:1], at[:0]
			}
			rest = append(strings.Split(next.link, "/"), rest...)
			continue
		}
		done, at = append(done, next), append(slices.Clone(at), part)
	}
	return done[len(done)-1], "/" + strings.Join(at, "/"), nil
}

// put gives a file a name. It follows symbolic links and makes missing directories. A directory is
// merged with an existing one.
func (t *tree) put(name string, f *file) error {
	base := path.Base(path.Clean("/" + name))
	if base == "/" {
		if f.isDir() {
			t.root.adopt(f)
		}
		return nil
	}
	parent, err := t.dir(path.Dir(path.Clean("/" + name)))
	if err != nil {
		return err
	}
	if old := parent.children[base]; old != nil && old.isDir() && f.isDir() {
		old.adopt(f)
		return nil
	}
	if t.files++; t.files > maxFiles {
		return errors.Newf(errors.Exhausted, "there are more than %d files", maxFiles)
	}
	parent.children[base] = f
	return nil
}

// adopt copies everything but the children.
func (f *file) adopt(from *file) {
	f.mode, f.uid, f.gid, f.mtime, f.xattrs = from.mode, from.uid, from.gid, from.mtime, from.xattrs
}

// dir returns a directory, and makes it if it is missing.
func (t *tree) dir(name string) (*file, error) {
	f, real, err := t.lookup(name, true)
	if err != nil || f != nil {
		if err == nil && !f.isDir() {
			err = errors.Newf(errors.Invalid, "%.200q is not a directory", name)
		}
		return f, err
	}
	dir := t.root
	for _, part := range parts(real) {
		next := dir.children[part]
		if next == nil {
			next = newDir(0o755)
			dir.children[part] = next
			t.files++
		}
		dir = next
	}
	return dir, nil
}

// remove removes a name.
func (t *tree) remove(name string) {
	if dir, _, err := t.lookup(path.Dir(name), true); err == nil && dir != nil && dir.isDir() {
		delete(dir.children, path.Base(name))
	}
}

// walk visits all files below f, parents first, sorted by name.
func (f *file) walk(name string, visit func(name string, f *file) error) error {
	for _, child := range slices.Sorted(maps.Keys(f.children)) {
		full := path.Join(name, child)
		if err := visit(full, f.children[child]); err != nil {
			return err
		}
		if err := f.children[child].walk(full, visit); err != nil {
			return err
		}
	}
	return nil
}

// read returns the content of a small file, or "" if there is none.
func (t *tree) read(name string) string {
	f, _, err := t.lookup(name, true)
	if err != nil || f == nil || f.typ != tar.TypeReg {
		return ""
	}
	r, err := f.open()
	if err != nil {
		return ""
	}
	defer r.Close()
	b, _ := io.ReadAll(io.LimitReader(r, maxSource))
	return string(b)
}

// apply adds a layer over the tree. at returns the content of the entry just read.
func (t *tree) apply(tr *tar.Reader, at func(hdr *tar.Header) (content, error)) error {
	for {
		hdr, err := tr.Next()
		if err == io.EOF {
			return nil
		}
		if err != nil {
			return errors.Wrapf(err, "read a layer")
		}
		name := path.Clean("/" + hdr.Name)
		base := path.Base(name)
		switch {
		case base == opaque:
			if dir, err := t.dir(path.Dir(name)); err == nil {
				clear(dir.children)
			}
			continue
		case strings.HasPrefix(base, whiteout):
			t.remove(path.Join(path.Dir(name), strings.TrimPrefix(base, whiteout)))
			continue
		case hdr.Typeflag == tar.TypeLink:
			target, _, err := t.lookup(hdr.Linkname, false)
			if err != nil || target == nil || target.isDir() {
				return errors.Newf(errors.Invalid, "the hard link %.200q has no file %.200q to link to",
					hdr.Name, hdr.Linkname)
			}
			if err := t.put(name, target); err != nil {
				return err
			}
			continue
		}
		c, err := at(hdr)
		if err != nil {
			return err
		}
		if f := fromHeader(hdr, c); f != nil {
			if err := t.put(name, f); err != nil {
				return err
			}
		}
	}
}

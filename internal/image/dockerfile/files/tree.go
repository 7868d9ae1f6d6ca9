// Package files has the files of builds: trees in memory whose content stays in images, layers and build contexts; the
// file operations of BuildKit on them; and layers as archives.
package files

import (
	"archive/tar"
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"io"
	"maps"
	"path"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/RelevanceAI/harvest/client/errors"
)

// Names in layers, of files that delete others: https://github.com/opencontainers/image-spec/blob/main/layer.md.
const (
	Whiteout = ".wh." // begins the name of a deleted file
	Opaque   = ".wh..wh..opq"
)

const (
	maxLinks  = 40        // symbolic links on a path
	maxFiles  = 2_000_000 // of a tree
	maxSource = 64 << 10  // maximum size of files parsed here, such as /etc/passwd
)

// Tree is a file tree in memory. Content stays in its source.
type Tree struct {
	Root  *File
	files int
	close []io.Closer // sources of content
}

// File is one file; several names may refer to it.
type File struct {
	Type     byte // as in tar headers
	Mode     int64
	UID, GID int
	ModTime  time.Time // zero: the time of writing
	Size     int64
	Link     string            // target of a symbolic link
	Xattrs   map[string]string // by their keys in tar headers
	content  content
	children map[string]*File
	sum      string // of the content, once computed
}

// content opens a file's bytes.
type content func() (io.ReadCloser, error)

// section is content within an open file.
func section(r io.ReaderAt, off, size int64) content {
	return func() (io.ReadCloser, error) { return io.NopCloser(io.NewSectionReader(r, off, size)), nil }
}

// text is content in memory.
func text(data []byte) content {
	return func() (io.ReadCloser, error) { return io.NopCloser(bytes.NewReader(data)), nil }
}

// NewTree returns a tree of an empty directory.
func NewTree() *Tree { return &Tree{Root: NewDir(0o755)} }

// NewDir returns an empty directory.
func NewDir(mode int64) *File {
	return &File{Type: tar.TypeDir, Mode: mode, children: map[string]*File{}}
}

// IsDir reports whether the file is a directory.
func (f *File) IsDir() bool { return f.Type == tar.TypeDir }

// ContentDigest is the hash of the content, which is read once.
func (f *File) ContentDigest() (string, error) {
	if f.sum != "" || f.Type != tar.TypeReg {
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

func (f *File) open() (io.ReadCloser, error) {
	if f.content == nil {
		return text(nil)()
	}
	return f.content()
}

// header returns the tar header of the file.
func (f *File) header(name string) *tar.Header {
	hdr := &tar.Header{Typeflag: f.Type, Name: name, Mode: f.Mode, Uid: f.UID, Gid: f.GID, ModTime: f.ModTime,
		Linkname: f.Link, PAXRecords: f.Xattrs, Format: tar.FormatPAX}
	if f.ModTime.IsZero() {
		hdr.ModTime = time.Now()
	}
	if f.Type == tar.TypeReg {
		hdr.Size = f.Size
	}
	if f.IsDir() {
		hdr.Name += "/"
	}
	return hdr
}

// fromHeader makes a file of an entry. It returns nil for types that a tree does not hold, such as
// devices.
func fromHeader(hdr *tar.Header, c content) *File {
	f := &File{Type: hdr.Typeflag, Mode: hdr.Mode & 0o7777, UID: hdr.Uid, GID: hdr.Gid, ModTime: hdr.ModTime}
	switch hdr.Typeflag {
	case tar.TypeReg:
		f.Size, f.content = hdr.Size, c
	case tar.TypeDir:
		f.children = map[string]*File{}
	case tar.TypeSymlink:
		f.Link = hdr.Linkname
	case tar.TypeFifo:
	default:
		return nil
	}
	for key, value := range hdr.PAXRecords {
		if key == xattrPrefix+"security.capability" || strings.HasPrefix(key, xattrPrefix+"user.") {
			if f.Xattrs == nil {
				f.Xattrs = map[string]string{}
			}
			f.Xattrs[key] = value
		}
	}
	return f
}

// xattrPrefix begins the keys of extended attributes in tar headers.
const xattrPrefix = "SCHILY.xattr."

// twin returns a copy of a file. Copying sum would be a race: it is set while others copy.
func (f *File) twin() *File {
	return &File{Type: f.Type, Mode: f.Mode, UID: f.UID, GID: f.GID, ModTime: f.ModTime, Size: f.Size, Link: f.Link,
		Xattrs: f.Xattrs, content: f.content, children: f.children}
}

// Close closes the sources of content.
func (t *Tree) Close() error {
	var all error
	for _, c := range t.close {
		all = errors.Join(all, c.Close())
	}
	t.close = nil
	return all
}

// Digest is the hash of a file, or of a directory with everything below it, with modes and owners, without times.
func (f *File) Digest() (string, error) {
	h := sha256.New()
	top := &File{children: map[string]*File{"": f}}
	err := top.Walk("", func(name string, f *File) error {
		sum, err := f.ContentDigest()
		parts := []string{name, string(f.Type), strconv.FormatInt(f.Mode, 8), strconv.Itoa(f.UID), strconv.Itoa(f.GID),
			f.Link, sum}
		for _, key := range slices.Sorted(maps.Keys(f.Xattrs)) {
			parts = append(parts, key, strconv.Quote(f.Xattrs[key]))
		}
		for _, part := range parts {
			io.WriteString(h, part)
			h.Write([]byte{0})
		}
		return err
	})
	return "sha256:" + hex.EncodeToString(h.Sum(nil)), err
}

// WriteTar writes a file, and everything below a directory, as an archive in which it has that name.
func (f *File) WriteTar(w io.Writer, name string) error {
	tw := tar.NewWriter(w)
	if err := writeFile(tw, f.header(name), f); err != nil {
		return err
	}
	if err := f.Walk(name, func(name string, f *File) error { return writeFile(tw, f.header(name), f) }); err != nil {
		return err
	}
	return errors.Wrapf(tw.Close(), "end an archive")
}

// NewFile returns a regular file with that content.
func NewFile(data []byte, mode int64, uid, gid int) *File {
	return &File{Type: tar.TypeReg, Mode: mode, UID: uid, GID: gid, Size: int64(len(data)), content: text(data)}
}

// NewSection returns a regular file whose content is the first size bytes of r, which stays open.
func NewSection(r io.ReaderAt, size int64, mode int64, mtime time.Time) *File {
	return &File{Type: tar.TypeReg, Mode: mode, Size: size, content: section(r, 0, size), ModTime: mtime}
}

// parts splits a cleaned name; the root has no parts.
func parts(name string) []string {
	name = strings.Trim(path.Clean("/"+name), "/")
	if name == "" {
		return nil
	}
	return strings.Split(name, "/")
}

// Lookup returns the file at name and its path without symbolic links, with the tree as the root.
// It follows a link in the last part if follow is set. If nothing exists, the file is nil and the
// path is where it would be.
func (t *Tree) Lookup(name string, follow bool) (*File, string, error) {
	links := 0
	done, at := []*File{t.Root}, []string{}
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
		if dir != nil && !dir.IsDir() {
			return nil, "", errors.Explainf(syscall.ENOTDIR, errors.Invalid,
				"a part of %.200q is not a directory", name)
		}
		var next *File
		if dir != nil {
			next = dir.children[part]
		}
		if next != nil && next.Type == tar.TypeSymlink && (len(rest) > 0 || follow) {
			if links++; links > maxLinks {
				return nil, "", errors.Newf(errors.Invalid, "%.200q goes through too many symbolic links", name)
			}
			if path.IsAbs(next.Link) {
				done, at = done[:1], at[:0]
			}
			rest = append(strings.Split(next.Link, "/"), rest...)
			continue
		}
		done, at = append(done, next), append(slices.Clone(at), part)
	}
	return done[len(done)-1], "/" + strings.Join(at, "/"), nil
}

// Lacks reports whether there is nothing at name.
func (t *Tree) Lacks(name string) bool {
	f, _, err := t.Lookup(name, false)
	return err == nil && f == nil
}

// put gives a file a name. It follows symbolic links and makes missing directories. A directory is
// merged with an existing one.
func (t *Tree) put(name string, f *File) error {
	base := path.Base(path.Clean("/" + name))
	if base == "/" {
		if f.IsDir() {
			t.Root.adopt(f)
		}
		return nil
	}
	parent, err := t.dir(path.Dir(path.Clean("/" + name)))
	if err != nil {
		return err
	}
	return t.set(parent, base, f)
}

// set gives a file a name in a directory. A directory is merged with an existing one.
func (t *Tree) set(dir *File, base string, f *File) error {
	if old := dir.children[base]; old != nil && old.IsDir() && f.IsDir() {
		old.adopt(f)
		return nil
	}
	if t.files++; t.files > maxFiles {
		return errors.Newf(errors.Exhausted, "there are more than %d files", maxFiles)
	}
	dir.children[base] = f
	return nil
}

// adopt copies everything but the children.
func (f *File) adopt(from *File) {
	f.Mode, f.UID, f.GID, f.ModTime, f.Xattrs = from.Mode, from.UID, from.GID, from.ModTime, from.Xattrs
}

// dir returns a directory, and makes it if it is missing.
func (t *Tree) dir(name string) (*File, error) {
	f, real, err := t.Lookup(name, true)
	if err != nil || f != nil {
		if err == nil && !f.IsDir() {
			err = errors.Newf(errors.Invalid, "%.200q is not a directory", name)
		}
		return f, err
	}
	dir := t.Root
	for _, part := range parts(real) {
		next := dir.children[part]
		if next == nil {
			next = NewDir(0o755)
			dir.children[part] = next
			t.files++
		}
		dir = next
	}
	return dir, nil
}

// remove removes a name.
func (t *Tree) remove(name string) {
	if dir, _, err := t.Lookup(path.Dir(name), true); err == nil && dir != nil && dir.IsDir() {
		delete(dir.children, path.Base(name))
	}
}

// Walk visits all files below f, parents first, sorted by name.
func (f *File) Walk(name string, visit func(name string, f *File) error) error {
	for _, child := range slices.Sorted(maps.Keys(f.children)) {
		full := path.Join(name, child)
		if err := visit(full, f.children[child]); err != nil {
			return err
		}
		if err := f.children[child].Walk(full, visit); err != nil {
			return err
		}
	}
	return nil
}

// Read returns the content of a small file, or "" if there is none.
func (t *Tree) Read(name string) string {
	f, _, err := t.Lookup(name, true)
	if err != nil || f == nil || f.Type != tar.TypeReg {
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
func (t *Tree) apply(tr *tar.Reader, at func(hdr *tar.Header) (content, error)) error {
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
		case base == Opaque:
			if dir, err := t.dir(path.Dir(name)); err == nil {
				clear(dir.children)
			}
			continue
		case strings.HasPrefix(base, Whiteout):
			t.remove(path.Join(path.Dir(name), strings.TrimPrefix(base, Whiteout)))
			continue
		}
		c, err := at(hdr)
		if err != nil {
			return err
		}
		if err := t.add(hdr, c); err != nil {
			return err
		}
	}
}

// add adds an entry of an archive. It omits devices.
func (t *Tree) add(hdr *tar.Header, c content) error {
	f := fromHeader(hdr, c)
	if hdr.Typeflag == tar.TypeLink {
		var err error
		if f, _, err = t.Lookup(hdr.Linkname, false); err != nil || f == nil || f.IsDir() {
			return errors.Newf(errors.Invalid, "the hard link %.200q has no file %.200q to link to",
				hdr.Name, hdr.Linkname)
		}
	}
	if f == nil {
		return nil
	}
	return t.put(hdr.Name, f)
}

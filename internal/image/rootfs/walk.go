package rootfs

import (
	"archive/tar"
	"context"
	"io"
	"path"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/RelevanceAI/harvest/client/errors"
)

// Walk calls visit for the file or directory of that name and everything below it, in the order of
// names, parents first. "." is the root. It follows symbolic links on the way to the name as in a
// chroot. Headers are those of a tar archive, with names relative to the root; directories end with
// "/". Further names of a file are hard links to the first one visited. content is nil except for
// regular files with content, and is valid until visit returns. Walk returns NotFound if the name
// does not exist, otherwise the error of visit.
func (r *Reader) Walk(name string, visit func(hdr *tar.Header, content io.Reader) error) error {
	start, full, err := r.find(name)
	if err != nil {
		return err
	}
	type step struct {
		n    *node
		name string
	}
	seen := map[*node]string{}
	todo := []step{{start, full}}
	for len(todo) > 0 {
		s := todo[len(todo)-1]
		todo = todo[:len(todo)-1]
		hdr := s.n.header(s.name)
		var content io.Reader
		if first, again := seen[s.n]; again {
			hdr.Typeflag, hdr.Linkname, hdr.Size = tar.TypeLink, first, 0
		} else if s.n.isRegular() && s.n.size > 0 {
			content = io.NewSectionReader(r.r, r.offset(s.n), s.n.size)
		}
		if s.n.links > 1 && !s.n.isDir() {
			seen[s.n] = s.name
		}
		if err := visit(hdr, content); err != nil {
			return err
		}
		if !s.n.isDir() {
			continue
		}
		names := s.n.names()
		for i := len(names) - 1; i >= 0; i-- {
			if names[i] != "." && names[i] != ".." {
				todo = append(todo, step{s.n.children[names[i]], path.Join(s.name, names[i])})
			}
		}
	}
	return nil
}

// Open returns one file in the form of Walk. It follows symbolic links as in a chroot, including
// the last one. It returns NotFound if there is no such file.
func (r *Reader) Open(name string) (*tar.Header, *io.SectionReader, error) {
	n, full, err := r.open(name)
	if err != nil {
		return nil, nil, err
	}
	size := int64(0)
	if n.isRegular() {
		size = n.size
	}
	return n.header(full), io.NewSectionReader(r.r, r.offset(n), size), nil
}

// open is find that also follows the last element.
func (r *Reader) open(name string) (*node, string, error) {
	for range maxLinks {
		n, full, err := r.find(name)
		if err != nil || n.target == "" {
			return n, full, err
		}
		name = n.target
		if !path.IsAbs(name) {
			name = path.Dir(full) + "/" + name
		}
	}
	return nil, "", errors.Newf(errors.Invalid, "%.200q goes through too many symbolic links", name)
}

// find returns the file of that name, and its name without symbolic links. It does not follow the
// last element.
func (r *Reader) find(name string) (*node, string, error) {
	in, last := path.Split(strings.TrimRight(name, "/"))
	if last == "." || last == ".." {
		in, last = name, ""
	}
	dir, err := (&Writer{root: r.root}).dir(in, nil) // makes nothing without a header
	if err != nil {
		return nil, "", err
	}
	switch {
	case dir != nil && last == "":
		return dir, dir.name(), nil
	case dir != nil && dir.children[last] != nil:
		return dir.children[last], path.Join(dir.name(), last), nil
	}
	return nil, "", errors.Newf(errors.NotFound, "the image has no file %.200q", name)
}

// name returns the path of a directory.
func (n *node) name() string {
	full := ""
	for n.parent != n {
		for name, child := range n.parent.children {
			if child == n {
				full = path.Join(name, full)
				break
			}
		}
		n = n.parent
	}
	return path.Join(".", full)
}

// Edit changes an entry of a stream, or omits it.
type Edit func(hdr *tar.Header, content io.Reader) (edited *tar.Header, rest io.Reader, omit bool, err error)

// WriteTar writes the whole image as a tar stream, with the entries as edit, which may be nil, returns them. Equal
// images give equal streams.
func (r *Reader) WriteTar(ctx context.Context, to io.Writer, edit Edit) error {
	tw := tar.NewWriter(to)
	err := r.Walk(".", func(hdr *tar.Header, content io.Reader) error {
		if err := context.Cause(ctx); err != nil {
			return err
		}
		if edit != nil {
			var omit bool
			var err error
			if hdr, content, omit, err = edit(hdr, content); omit || err != nil {
				return err
			}
		}
		if err := tw.WriteHeader(hdr); err != nil {
			return errors.Wrapf(err, "write %.200q", hdr.Name)
		}
		if content == nil {
			return nil
		}
		_, err := io.Copy(tw, content)
		return errors.Wrapf(err, "write %.200q", hdr.Name)
	})
	if err != nil {
		return err
	}
	return errors.Wrapf(tw.Close(), "end the archive")
}

// header returns the tar header of a file.
func (n *node) header(name string) *tar.Header {
	hdr := &tar.Header{
		Name: name, Mode: int64(n.mode &^ unix.S_IFMT), Uid: int(n.uid), Gid: int(n.gid),
		ModTime: time.Unix(n.mtime, int64(n.nanos)), Format: tar.FormatPAX,
	}
	switch n.mode & unix.S_IFMT {
	case unix.S_IFDIR:
		hdr.Typeflag, hdr.Name = tar.TypeDir, name+"/"
	case unix.S_IFLNK:
		hdr.Typeflag, hdr.Linkname = tar.TypeSymlink, n.target
	case unix.S_IFIFO:
		hdr.Typeflag = tar.TypeFifo
	default:
		hdr.Typeflag, hdr.Size = tar.TypeReg, n.size
	}
	if len(n.xattrs) > 0 {
		hdr.PAXRecords = map[string]string{}
		for key, value := range n.xattrs {
			hdr.PAXRecords[paxXattr+key] = value
		}
	}
	return hdr
}

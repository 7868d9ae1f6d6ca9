// Package rootfs writes and reads the root file systems of sandboxes. It converts tar streams,
// layers and other images to one EROFS image in a single pass, without unpacking. It needs no
// privileges and no tools of the host.
//
// The images have the form that gVisor's EROFS driver supports, a subset of the kernel's: the data
// of a regular file begins at a block of its own, so that it can be mapped, and there are no
// extended attributes, chunks or compression. Extended attributes are stored after the file system,
// where Reader finds them.
package rootfs

import (
	"archive/tar"
	"bytes"
	"io"
	"maps"
	"os"
	"path"
	"slices"
	"strings"
	"syscall"

	"github.com/RelevanceAI/harvest/client/errors"
	"github.com/RelevanceAI/harvest/internal/base/tarfs"
)

const (
	maxLinks = 40   // symbolic links on a path
	maxName  = 255  // bytes of an element of a path
	maxPath  = 4095 // bytes of a path or a symlink's target
	maxMeta  = 1 << 30
	nodeCost = 256 // memory of a file besides its name, attributes and target, in bytes
)

// Options configures a Writer.
type Options struct {
	MaxBytes int64 // content of all files; 0 means no limit
	MaxFiles int64 // entries of all archives; 0 means no limit
}

// Stats describes a finished image.
type Stats struct {
	Size  int64 // of the image
	Files int64 // files of all types
}

// Writer writes one image. Later entries replace earlier ones of the same name, like layers of
// images; a directory is merged with a directory. Names are resolved with the image as root, so
// that none can leave it. After an error, the image is unusable. A Writer is not safe for
// concurrent use.
type Writer struct {
	out  *output
	opts Options
	root *node
	used int64 // bytes of content
	adds int64 // entries
	meta int64 // approximate memory use in bytes

	fresh map[entry]bool // in AddLayer: the names that this layer has added
	lost  []*node        // regular files whose last name was removed
}

// entry is a name in a directory.
type entry struct {
	dir  *node
	name string
}

// NewWriter returns a Writer to f, which must be empty. The caller closes f.
func NewWriter(f *os.File, opts Options) *Writer {
	w := &Writer{out: newOutput(f), opts: opts, root: &node{mode: syscall.S_IFDIR | 0o755,
		children: map[string]*node{}}}
	w.root.parent = w.root
	return w
}

// AddTar adds the entries of a tar stream. tap, if not nil, may return a writer that receives a
// copy of a file's content. The errors are those of Add and of tarfs.Reader.
func (w *Writer) AddTar(r io.Reader, tap func(name string) io.Writer) error {
	tr := tarfs.NewReader(r)
	for {
		hdr, err := tr.Next()
		if err == io.EOF {
			return nil
		}
		if err != nil {
			return err
		}
		content := io.Reader(tr)
		if tap != nil && hdr.Typeflag == tar.TypeReg {
			if also := tap(strings.Trim(path.Clean(hdr.Name), "/")); also != nil {
				content = io.TeeReader(tr, also)
			}
		}
		if err := w.Add(hdr, content); err != nil {
			return err
		}
	}
}

// Add adds one entry; it reads hdr.Size bytes of content. It omits devices, since sandboxes have
// their own /dev. Extended attributes are kept only for Reader, since gVisor refuses files that
// have any. It returns Invalid for an invalid name, a hard link to nothing, or an unknown type, and
// Exhausted if a limit of Options is reached or the disk is full.
func (w *Writer) Add(hdr *tar.Header, content io.Reader) error {
	if err := w.count(hdr); err != nil {
		return err
	}
	n, err := newNode(hdr)
	if err != nil {
		return err
	}
	name, err := clean(hdr.Name)
	if err != nil || n == nil && hdr.Typeflag != tar.TypeLink {
		return err
	}
	if name == "." {
		return w.addRoot(hdr, n)
	}
	if hdr.Typeflag == tar.TypeLink {
		if n, err = w.linkTarget(hdr); err != nil {
			return err
		}
	}
	if len(path.Base(name)) > maxName {
		return errors.Newf(errors.Invalid, "the name %.200q… is too long", path.Base(name))
	}
	parent, err := w.dir(path.Dir(name), hdr)
	if err != nil {
		return err
	}
	if n.isRegular() && hdr.Typeflag != tar.TypeLink {
		if w.opts.MaxBytes > 0 && n.size > w.opts.MaxBytes-w.used {
			return errors.Newf(errors.Exhausted, "the image would have more than %d bytes", w.opts.MaxBytes)
		}
		w.used += n.size
		if n.block, err = w.out.content(content, n.size); err != nil {
			return errors.Wrapf(err, "write %.200q", name)
		}
	}
	w.put(parent, path.Base(name), n)
	return nil
}

// count checks the limits before anything of an entry is stored.
func (w *Writer) count(hdr *tar.Header) error {
	w.adds++
	w.meta += nodeCost + int64(len(hdr.Name)+len(hdr.Linkname))
	for key, value := range hdr.PAXRecords {
		w.meta += int64(len(key) + len(value))
	}
	if w.opts.MaxFiles > 0 && w.adds > w.opts.MaxFiles {
		return errors.Newf(errors.Exhausted, "the image would have more than %d files", w.opts.MaxFiles)
	}
	if w.meta > maxMeta {
		return errors.Newf(errors.Exhausted, "the names and attributes of the image's files take too much memory")
	}
	return nil
}

func (w *Writer) addRoot(hdr *tar.Header, n *node) error {
	if n == nil || !n.isDir() {
		return errors.Newf(errors.Invalid, "the entry %.200q replaces the root directory", hdr.Name)
	}
	w.root.adopt(n)
	return nil
}

// newNode makes a node of a header, without content. It returns nil for omitted entries and for
// hard links.
func newNode(hdr *tar.Header) (*node, error) {
	if hdr.Uid < 0 || hdr.Gid < 0 || int64(hdr.Uid) > 1<<32-1 || int64(hdr.Gid) > 1<<32-1 {
		return nil, errors.Newf(errors.Invalid, "%.200q has an invalid owner", hdr.Name)
	}
	n := &node{mode: uint16(hdr.Mode & 0o7777), uid: uint32(hdr.Uid), gid: uint32(hdr.Gid), mtime: hdr.ModTime.Unix(),
		nanos: uint32(hdr.ModTime.Nanosecond())}
	n.xattrs = attributes(hdr)
	switch hdr.Typeflag {
	case tar.TypeReg, tar.TypeCont, tar.TypeGNUSparse:
		n.mode |= syscall.S_IFREG
		n.size = hdr.Size
	case tar.TypeDir:
		n.mode |= syscall.S_IFDIR
		n.children = map[string]*node{}
	case tar.TypeSymlink:
		if hdr.Linkname == "" || len(hdr.Linkname) > maxPath || strings.ContainsRune(hdr.Linkname, 0) {
			return nil, errors.Newf(errors.Invalid, "the symbolic link %.200q has no usable target", hdr.Name)
		}
		n.mode |= syscall.S_IFLNK
		n.target = hdr.Linkname
	case tar.TypeFifo:
		n.mode |= syscall.S_IFIFO
	case tar.TypeLink, tar.TypeChar, tar.TypeBlock, tar.TypeXGlobalHeader:
		return nil, nil
	default:
		return nil, errors.Newf(errors.Invalid, "%.200q has the unknown type %q", hdr.Name, hdr.Typeflag)
	}
	return n, nil
}

// clean returns an entry's name relative to the image's root, "." for the root itself.
func clean(name string) (string, error) {
	for part := range strings.SplitSeq(name, "/") {
		if part == ".." {
			return "", errors.Newf(errors.Invalid, "the name %.200q leads out of its directory", name)
		}
	}
	if len(name) > maxPath {
		return "", errors.Newf(errors.Invalid, "the name %.200q… is too long", name)
	}
	return tarfs.Clean(name)
}

func (w *Writer) linkTarget(hdr *tar.Header) (*node, error) {
	name, err := clean(hdr.Linkname)
	if err != nil {
		return nil, err
	}
	dir, err := w.dir(path.Dir(name), nil)
	if err != nil {
		return nil, err
	}
	var n *node
	if dir != nil {
		n = dir.children[path.Base(name)]
	}
	if n == nil || n.isDir() {
		return nil, errors.Newf(errors.Invalid, "the hard link %.200q has no file %.200q to link to",
			hdr.Name, hdr.Linkname)
	}
	return n, nil
}

// dir returns the directory of that name. It follows symbolic links as in a chroot. It makes a
// missing one with the mtime of like; without like it returns nil.
func (w *Writer) dir(name string, like *tar.Header) (*node, error) {
	dir, links := w.root, 0
	rest := strings.Split(name, "/")
	for len(rest) > 0 {
		part := rest[0]
		rest = rest[1:]
		switch part {
		case ".", "":
			continue
		case "..":
			dir = dir.parent
			continue
		}
		if len(part) > maxName {
			return nil, errors.Newf(errors.Invalid, "the name %.200q… is too long", part)
		}
		next := dir.children[part]
		switch {
		case next == nil && like == nil:
			return nil, nil
		case next == nil:
			next = &node{mode: syscall.S_IFDIR | 0o755, mtime: like.ModTime.Unix(), children: map[string]*node{}}
			w.put(dir, part, next)
			dir = next
		case next.isDir():
			dir = next
		case next.target != "":
			if links++; links > maxLinks {
				return nil, errors.Newf(errors.Invalid, "%.200q goes through too many symbolic links", name)
			}
			if path.IsAbs(next.target) {
				dir = w.root
			}
			rest = append(strings.Split(next.target, "/"), rest...)
		default:
			return nil, errors.Newf(errors.Invalid, "a part of %.200q is not a directory", name)
		}
	}
	return dir, nil
}

// node is a file of the image.
type node struct {
	mode     uint16 // as in struct stat
	uid, gid uint32
	mtime    int64
	nanos    uint32
	size     int64  // of the content; for directories set by the layout
	block    uint32 // first block of the content
	target   string // of a symbolic link
	xattrs   map[string]string
	from     *Reader // has the content at block; nil if this image has it
	children map[string]*node
	parent   *node  // of a directory
	links    uint32 // names
	nid      uint64 // inode number; 0 until it is placed
	inline   bool   // the content follows the inode
}

func (n *node) isDir() bool     { return n.mode&syscall.S_IFMT == syscall.S_IFDIR }
func (n *node) isRegular() bool { return n.mode&syscall.S_IFMT == syscall.S_IFREG }

// adopt copies the metadata of from.
func (n *node) adopt(from *node) {
	n.mode, n.uid, n.gid, n.mtime, n.nanos, n.xattrs = from.mode, from.uid, from.gid, from.mtime,
		from.nanos, from.xattrs
}

// put gives child a name in a directory.
func (w *Writer) put(dir *node, name string, child *node) {
	if w.fresh != nil {
		w.fresh[entry{dir, name}] = true
	}
	old := dir.children[name]
	if old != nil && old.isDir() && child.isDir() {
		old.adopt(child)
		return
	}
	child.links++ // first, since child may be the old one
	if old != nil {
		w.drop(old)
	}
	if child.isDir() {
		child.parent = dir
	}
	dir.children[name] = child
}

// drop removes one name of a file, and with a directory everything below it.
func (w *Writer) drop(n *node) {
	todo := []*node{n}
	for len(todo) > 0 {
		n := todo[len(todo)-1]
		todo = todo[:len(todo)-1]
		n.links--
		if n.links == 0 && n.isRegular() && n.from == nil && n.size > 0 {
			w.lost = append(w.lost, n)
		}
		for _, child := range n.children {
			todo = append(todo, child)
		}
	}
}

// names returns the names in a directory in byte order, including "." and "..", as drivers search
// them.
func (n *node) names() []string {
	return slices.Sorted(func(yield func(string) bool) {
		if yield(".") && yield("..") {
			maps.Keys(n.children)(yield)
		}
	})
}

// child returns an entry of a directory, including "." and "..".
func (n *node) child(name string) *node {
	switch name {
	case ".":
		return n
	case "..":
		return n.parent
	}
	return n.children[name]
}

// isZero reports whether p is all zeros.
func isZero(p []byte) bool {
	for len(p) > 0 {
		part := p[:min(len(p), len(zeros))]
		if !bytes.Equal(part, zeros[:len(part)]) {
			return false
		}
		p = p[len(part):]
	}
	return true
}

package rootfs

import (
	"archive/tar"
	"bytes"
	"cmp"
	"io"
	"path"
	"slices"
	"strings"

	"github.com/RelevanceAI/harvest/client/errors"
	"github.com/RelevanceAI/harvest/internal/base/tarfs"
)

// whiteout begins names that remove an entry of lower layers; opaque removes all entries of a
// directory. https://github.com/opencontainers/image-spec/blob/main/layer.md
const (
	whiteout = ".wh."
	opaque   = ".wh..wh..opq"
	aufs     = ".wh..wh." // other such files are internal to aufs
)

// AddLayer adds a layer of an OCI image, an uncompressed tar stream, over the current content.
// Whiteouts remove entries of lower layers, at any position in the stream. Names with ".." end at
// the image's root. tap is as in AddTar. Errors are those of AddTar, but an archive may end after
// an entry without a trailer, as umoci writes for whiteouts. The caller must therefore verify with
// the digest that the stream is complete.
func (w *Writer) AddLayer(r io.Reader, tap func(name string) io.Writer) error {
	w.fresh = map[entry]bool{}
	defer func() { w.fresh = nil }()
	tr := tarfs.NewLayerReader(r)
	for {
		hdr, err := tr.Next()
		if err == io.EOF {
			return nil
		}
		if err != nil {
			return err
		}
		hdr.Name = path.Clean("/" + hdr.Name)
		if hdr.Typeflag == tar.TypeLink {
			hdr.Linkname = path.Clean("/" + hdr.Linkname)
		}
		if err := w.layerEntry(hdr, tr, tap); err != nil {
			return err
		}
	}
}

func (w *Writer) layerEntry(hdr *tar.Header, content io.Reader, tap func(name string) io.Writer) error {
	dir, last := path.Split(hdr.Name)
	if strings.HasPrefix(last, whiteout) {
		if err := w.count(hdr); err != nil {
			return err
		}
		return w.remove(dir, last)
	}
	switch hdr.Typeflag {
	case tar.TypeChar, tar.TypeBlock: // omitted, like the entry that it replaces
		return w.remove(dir, whiteout+last)
	case tar.TypeReg:
		if tap == nil {
			break
		}
		if also := tap(strings.Trim(hdr.Name, "/")); also != nil {
			content = io.TeeReader(content, also)
		}
	}
	return w.Add(hdr, content)
}

// remove applies a whiteout.
func (w *Writer) remove(in, last string) error {
	name := strings.TrimPrefix(last, whiteout)
	if name == "" || name == "." || name == ".." {
		return errors.Newf(errors.Invalid, "invalid whiteout %.200q", in+last)
	}
	if strings.HasPrefix(last, aufs) && last != opaque {
		return nil
	}
	dir, err := w.dir(in, nil)
	if err != nil || dir == nil {
		return err // nothing to remove
	}
	if last == opaque {
		w.prune(dir)
	} else if n := dir.children[name]; n != nil {
		w.removeOld(entry{dir, name}, n)
	}
	return nil
}

// prune removes the entries of a directory that lower layers have added.
func (w *Writer) prune(dir *node) {
	for name, n := range dir.children {
		w.removeOld(entry{dir, name}, n)
	}
}

// removeOld removes the parts of e that lower layers have added, and reports whether anything is
// left.
func (w *Writer) removeOld(e entry, n *node) bool {
	if !n.isDir() {
		if w.fresh[e] {
			return true
		}
		w.drop(n)
		delete(e.dir.children, e.name)
		return false
	}
	left := w.fresh[e]
	for name, child := range n.children {
		left = w.removeOld(entry{n, name}, child) || left
	}
	if !left {
		w.drop(n)
		delete(e.dir.children, e.name)
	}
	return left
}

// AddImage adds a whole image. Close copies its content, so the file of from must stay open until
// then. Content that later layers replace is not copied.
func (w *Writer) AddImage(from *Reader) error {
	twins := map[*node]*node{}
	var add func(to, dir *node) error
	add = func(to, dir *node) error {
		for _, name := range dir.names() {
			if name == "." || name == ".." {
				continue
			}
			n := dir.children[name]
			twin := twins[n]
			if twin == nil {
				hdr := n.header(name)
				if err := w.count(hdr); err != nil {
					return err
				}
				if n.isRegular() {
					if w.opts.MaxBytes > 0 && n.size > w.opts.MaxBytes-w.used {
						return errors.Newf(errors.Exhausted, "the image would have more than %d bytes", w.opts.MaxBytes)
					}
					w.used += n.size
				}
				twin = n.twin()
				twins[n] = twin
			}
			w.put(to, name, twin)
			if n.isDir() {
				if err := add(to.children[name], n); err != nil {
					return err
				}
			}
		}
		return nil
	}
	w.root.adopt(from.root)
	return add(w.root, from.root)
}

// twin returns a copy of a file without its names.
func (n *node) twin() *node {
	twin := &node{size: n.size, block: n.block, target: n.target, from: n.from}
	twin.mode = n.mode
	twin.adopt(n)
	if n.isDir() {
		twin.children = map[string]*node{}
	}
	return twin
}

// copyContent copies the file content of other images. Adjacent content is copied together.
func (w *Writer) copyContent(order []*node) error {
	var files []*node
	sources := map[*Reader]int{}
	for _, n := range order {
		if n.from == nil || !n.isRegular() {
			continue
		}
		if n.size == 0 {
			n.block = 0
			continue
		}
		if _, ok := sources[n.from]; !ok {
			sources[n.from] = len(sources)
		}
		files = append(files, n)
	}
	slices.SortStableFunc(files, func(a, b *node) int {
		return cmp.Or(cmp.Compare(sources[a.from], sources[b.from]), cmp.Compare(a.block, b.block))
	})
	for len(files) > 0 {
		run, end := 1, files[0].end()
		for run < len(files) && files[run].from == files[0].from && int64(files[run].block) == end {
			end = files[run].end()
			run++
		}
		if err := w.copyRun(files[:run], end-int64(files[0].block)); err != nil {
			return err
		}
		files = files[run:]
	}
	return nil
}

func (w *Writer) copyRun(files []*node, blocks int64) error {
	to, err := w.out.block()
	if err != nil {
		return err
	}
	first, from := files[0].block, files[0].from
	if err := w.out.copyFrom(from, first, blocks); err != nil {
		return err
	}
	for _, n := range files {
		n.block, n.from = to+(n.block-first), nil
	}
	return nil
}

// end returns the block after a file's content.
func (n *node) end() int64 { return int64(n.block) + align(n.size, blockSize)>>blockBits }

// ReadFile returns the content of a file that was added so far. It follows symbolic links as in a
// chroot. It returns NotFound if there is none, and Exhausted if the file is larger than limit.
func (w *Writer) ReadFile(name string, limit int64) ([]byte, error) {
	n, _, err := (&Reader{root: w.root}).open(name)
	if err != nil {
		return nil, err
	}
	if !n.isRegular() {
		return nil, errors.Newf(errors.NotFound, "%.200q is not a regular file", name)
	}
	if n.size > limit {
		return nil, errors.Newf(errors.Exhausted, "%.200q is larger than %d bytes", name, limit)
	}
	if err := w.out.buf.Flush(); err != nil {
		return nil, writeError(err)
	}
	data := make([]byte, n.size)
	if n.from != nil {
		return data, n.from.readAt(data, n.from.offset(n))
	}
	read, err := w.out.f.ReadAt(data, int64(n.block)<<blockBits)
	if err == io.EOF { // trailing zeros that are not written yet
		clear(data[read:])
		err = nil
	}
	return data, errors.Wrapf(err, "read the image")
}

// IsDir reports whether a directory of that name was added so far. It follows symbolic links as in
// a chroot.
func (w *Writer) IsDir(name string) bool {
	n, _, err := (&Reader{root: w.root}).open(name)
	return err == nil && n.isDir()
}

// Replace replaces the content of a file that was added. It follows symbolic links as in a chroot.
// The file keeps its owner, mode and attributes. Errors are those of ReadFile and Add.
func (w *Writer) Replace(name string, content []byte) error {
	n, full, err := (&Reader{root: w.root}).open(name)
	if err != nil {
		return err
	}
	hdr := n.header(full)
	hdr.Size = int64(len(content))
	return w.Add(hdr, bytes.NewReader(content))
}

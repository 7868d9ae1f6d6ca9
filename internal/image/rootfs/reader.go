package rootfs

import (
	"encoding/binary"
	"io"
	"math"
	"os"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/RelevanceAI/harvest/client/errors"
)

// Reader reads an image of a Writer. It reads all names when it is opened, and content on request.
// It is safe for concurrent use.
type Reader struct {
	r     io.ReaderAt
	file  *os.File // r, if it is a file
	size  int64
	meta  int64 // offset of the inodes
	end   int64 // end of the blocks
	root  *node
	nodes map[uint64]*node
}

// OpenReader returns a Reader of the image in f, which the caller closes after using the Reader. It
// returns Invalid for an image that is damaged or not of a Writer.
func OpenReader(f *os.File) (*Reader, error) {
	info, err := f.Stat()
	if err != nil {
		return nil, errors.Wrapf(err, "measure the image")
	}
	r, err := NewReader(f, info.Size())
	if err != nil {
		return nil, err
	}
	r.file = f
	return r, nil
}

// NewReader is OpenReader for an image of that size in any io.ReaderAt.
func NewReader(from io.ReaderAt, size int64) (*Reader, error) {
	r := &Reader{r: from, size: size, nodes: map[uint64]*node{}}
	super := make([]byte, 128)
	if err := r.readAt(super, superOffset); err != nil {
		return nil, err
	}
	le := binary.LittleEndian
	if le.Uint32(super) != superMagic || super[12] != blockBits || le.Uint32(super[80:]) != 0 {
		return nil, errors.Newf(errors.Invalid, "this is not an image in Harvest's format")
	}
	blocks := int64(le.Uint32(super[36:]))
	r.meta, r.end = int64(le.Uint32(super[40:]))<<blockBits, blocks<<blockBits
	if r.end > size || r.meta >= r.end {
		return nil, damaged("its file is too short")
	}
	var err error
	if r.root, err = r.inode(uint64(le.Uint16(super[14:])), syscall.S_IFDIR); err != nil {
		return nil, err
	}
	r.root.parent = r.root
	if err := r.tree(); err != nil {
		return nil, err
	}
	return r, r.readAttributes(blocks)
}

func damaged(what string) error {
	return errors.Remedy(errors.Newf(errors.Invalid, "the image is damaged: %s", what), "build it again with --force")
}

func (r *Reader) readAt(p []byte, off int64) error {
	if off < 0 || off > r.size-int64(len(p)) {
		return damaged("its file is too short")
	}
	n, err := r.r.ReadAt(p, off)
	if n == len(p) {
		return nil
	}
	return errors.Wrapf(err, "read the image")
}

// tree reads all directories. It requires that each has a single name, so that there are no cycles,
// and reads every inode once.
func (r *Reader) tree() error {
	todo := []*node{r.root}
	for len(todo) > 0 {
		dir := todo[len(todo)-1]
		todo = todo[:len(todo)-1]
		data, err := r.inlined(dir)
		if err != nil {
			return err
		}
		for len(data) > 0 {
			block := data[:min(len(data), blockSize)]
			data = data[len(block):]
			dirs, err := r.entries(dir, block)
			if err != nil {
				return err
			}
			todo = append(todo, dirs...)
		}
	}
	return nil
}

// entries reads a block of a directory, and returns the directories in it.
func (r *Reader) entries(dir *node, block []byte) (dirs []*node, err error) {
	if len(block) < direntSize {
		return nil, damaged("a directory is cut off")
	}
	first := int(binary.LittleEndian.Uint16(block[8:]))
	if first%direntSize != 0 || first == 0 || first > len(block) {
		return nil, damaged("a directory's entries")
	}
	for i := 0; i < first; i += direntSize {
		from, to := int(binary.LittleEndian.Uint16(block[i+8:])), len(block)
		if i+direntSize < first {
			to = int(binary.LittleEndian.Uint16(block[i+direntSize+8:]))
		}
		if from < first || to < from || to > len(block) {
			return nil, damaged("a directory's entries")
		}
		name := string(block[from:to])
		if i+direntSize == first {
			name = strings.TrimRight(name, "\x00") // the last name of a block is padded
		}
		if name == "." || name == ".." {
			continue
		}
		if name == "" || len(name) > maxName || strings.ContainsAny(name, "/\x00") || dir.children[name] != nil {
			return nil, damaged("a name in a directory")
		}
		nid := binary.LittleEndian.Uint64(block[i:])
		child := r.nodes[nid]
		if child == nil {
			if child, err = r.inode(nid, 0); err != nil {
				return nil, err
			}
			if child.isDir() {
				child.parent = dir
				dirs = append(dirs, child)
			}
		} else if child.isDir() {
			return nil, damaged("a directory has two names")
		}
		child.links++
		dir.children[name] = child
	}
	return dirs, nil
}

// inode reads an inode. It must be of that type unless kind is 0.
func (r *Reader) inode(nid uint64, kind uint16) (*node, error) {
	if nid > math.MaxInt64/slotSize/2 || r.meta+int64(nid)*slotSize > r.end-inodeSize {
		return nil, damaged("an inode is outside of it")
	}
	b := make([]byte, inodeSize)
	if err := r.readAt(b, r.meta+int64(nid)*slotSize); err != nil {
		return nil, err
	}
	le := binary.LittleEndian
	n := &node{
		nid: nid, from: r, mode: le.Uint16(b[4:]), size: int64(le.Uint64(b[8:])), block: le.Uint32(b[16:]),
		uid: le.Uint32(b[24:]), gid: le.Uint32(b[28:]),
		mtime: int64(le.Uint64(b[32:])), nanos: le.Uint32(b[40:]),
	}
	format := le.Uint16(b)
	n.inline = format == extended|layoutInline
	if !n.inline && format != extended|layoutPlain || le.Uint16(b[2:]) != 0 || n.nanos >= 1e9 {
		return nil, errors.Newf(errors.Invalid, "this is not an image in Harvest's format")
	}
	typ := n.mode & syscall.S_IFMT
	if fileTypes[typ] == 0 || kind != 0 && typ != kind || n.isRegular() && n.inline {
		return nil, damaged("the type of a file")
	}
	start := int64(n.block) << blockBits
	if n.inline {
		start = r.meta + int64(nid)*slotSize + inodeSize
	}
	if n.size < 0 || n.size > r.end-start || n.size > 0 && start < blockSize {
		return nil, damaged("a file's content is outside of it")
	}
	r.nodes[nid] = n
	return n, r.fill(n)
}

// fill sets the fields that depend on the type of a node.
func (r *Reader) fill(n *node) error {
	switch n.mode & syscall.S_IFMT {
	case syscall.S_IFDIR:
		n.children = map[string]*node{}
	case syscall.S_IFLNK:
		if n.size == 0 || n.size > maxPath {
			return damaged("the target of a symbolic link")
		}
		target, err := r.inlined(n)
		n.target = string(target)
		if err == nil && strings.ContainsRune(n.target, 0) {
			err = damaged("the target of a symbolic link")
		}
		return err
	}
	return nil
}

// inlined returns the content of a directory or symbolic link.
func (r *Reader) inlined(n *node) ([]byte, error) {
	if n.isDir() && n.size > maxMeta {
		return nil, damaged("a directory is too large")
	}
	data := make([]byte, n.size)
	return data, r.readAt(data, r.offset(n))
}

// offset returns the offset of a file's content.
func (r *Reader) offset(n *node) int64 {
	if n.inline {
		return r.meta + int64(n.nid)*slotSize + inodeSize
	}
	return int64(n.block) << blockBits
}

// segment returns the next run of data at or after off; both results are at most end.
func (r *Reader) segment(off, end int64) (data, hole int64) {
	if r.file == nil {
		return off, end
	}
	fd := int(r.file.Fd())
	data, err := unix.Seek(fd, off, unix.SEEK_DATA)
	if errors.Is(err, unix.ENXIO) {
		return end, end
	}
	if err != nil {
		return off, end
	}
	hole, err = unix.Seek(fd, data, unix.SEEK_HOLE)
	if err != nil {
		hole = end
	}
	return min(data, end), min(hole, end)
}

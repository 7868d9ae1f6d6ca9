package rootfs

import (
	"encoding/binary"
	"math"
	"slices"
	"syscall"

	"github.com/RelevanceAI/harvest/client/errors"
)

// The on-disk format, according to the kernel's documentation of EROFS. All numbers are little
// endian.
const (
	blockBits  = 12
	blockSize  = 1 << blockBits // gVisor requires the page size
	slotSize   = 32             // inodes are counted in slots
	inodeSize  = 64             // of an extended inode; compact ones have no mtime
	direntSize = 12

	superOffset  = 1024
	superMagic   = 0xe0f5e1e2
	compatMtime  = 0x2 // inode times are mtimes
	extended     = 1   // inode format: extended …
	layoutPlain  = 0 << 1
	layoutInline = 2 << 1 // … with the last block of content behind it

	// firstSlot keeps the inode number of the root from being 0, which programs take for a deleted
	// entry.
	firstSlot = 2
)

// fileTypes are the file types in directory entries.
var fileTypes = map[uint16]byte{syscall.S_IFREG: 1, syscall.S_IFDIR: 2, syscall.S_IFIFO: 5, syscall.S_IFLNK: 7}

// Close completes the image. It contains the data in the order of arrival, then directories that do
// not fit beside their inode, then all inodes. The layout, and therefore the image, depends only on
// the added entries.
func (w *Writer) Close() (Stats, error) {
	order := w.place()
	if err := w.copyContent(order); err != nil {
		return Stats{}, err
	}
	for _, n := range order {
		if n.isDir() && !n.inline || n.target != "" && !n.inline {
			block, err := w.out.block()
			if err != nil {
				return Stats{}, err
			}
			n.block = block
			if err := w.out.write(n.bytes()); err != nil {
				return Stats{}, err
			}
		}
	}
	meta, err := w.out.block()
	if err != nil {
		return Stats{}, err
	}
	start := w.out.off
	for i, n := range order {
		w.out.zero(start + int64(n.nid)*slotSize - w.out.off)
		if err := w.out.write(n.inode(uint32(i + 1))); err != nil {
			return Stats{}, err
		}
	}
	blocks, err := w.out.block()
	if err != nil {
		return Stats{}, err
	}
	super := make([]byte, 128)
	binary.LittleEndian.PutUint32(super[0:], superMagic)
	binary.LittleEndian.PutUint32(super[8:], compatMtime)
	super[12] = blockBits
	binary.LittleEndian.PutUint16(super[14:], uint16(w.root.nid))
	binary.LittleEndian.PutUint64(super[16:], uint64(len(order)))
	binary.LittleEndian.PutUint32(super[36:], blocks)
	binary.LittleEndian.PutUint32(super[40:], meta)
	if err := w.attributes(order); err != nil {
		return Stats{}, err
	}
	if err := w.out.finish(super, w.lost); err != nil {
		return Stats{}, err
	}
	return Stats{Size: w.out.off, Files: int64(len(order))}, nil
}

// place assigns inode numbers in depth-first order, parents before children, so that related files
// are close together.
func (w *Writer) place() []*node {
	var order []*node
	off := int64(firstSlot * slotSize)
	todo := []*node{w.root}
	for len(todo) > 0 {
		n := todo[len(todo)-1]
		todo = todo[:len(todo)-1]
		if n.nid != 0 {
			continue // another name of the same file
		}
		n.measure()
		size := int64(inodeSize)
		if n.inline {
			size += n.size
		}
		if off%blockSize+size > blockSize {
			off = align(off, blockSize)
		}
		n.nid = uint64(off / slotSize)
		off = align(off+size, slotSize)
		order = append(order, n)
		if n.isDir() {
			for _, name := range slices.Backward(n.names()) {
				if name != "." && name != ".." {
					todo = append(todo, n.children[name])
				}
			}
		}
	}
	return order
}

func align(off, to int64) int64 { return (off + to - 1) / to * to }

// measure sets the fields that depend on the finished tree: the size of directories and links, and
// the link count of directories.
func (n *node) measure() {
	switch {
	case n.isDir():
		n.links = 2
		for _, child := range n.children {
			if child.isDir() {
				n.links++
			}
		}
		n.size = 0
		for _, names := range n.blocks() {
			n.size = align(n.size, blockSize)
			for _, name := range names {
				n.size += direntSize + int64(len(name))
			}
		}
	case n.target != "":
		n.size = int64(len(n.target))
	default:
		return
	}
	n.inline = inodeSize+n.size <= blockSize
}

// blocks splits the names of a directory into blocks of entries.
func (n *node) blocks() [][]string {
	var blocks [][]string
	names := n.names()
	for len(names) > 0 {
		used, i := 0, 0
		for i < len(names) && used+direntSize+len(names[i]) <= blockSize {
			used += direntSize + len(names[i])
			i++
		}
		blocks = append(blocks, names[:i])
		names = names[i:]
	}
	return blocks
}

// bytes returns the content of a directory or symbolic link.
func (n *node) bytes() []byte {
	if n.target != "" {
		return []byte(n.target)
	}
	var out []byte
	for _, names := range n.blocks() {
		out = append(out, make([]byte, align(int64(len(out)), blockSize)-int64(len(out)))...)
		nameOff := direntSize * len(names)
		for _, name := range names {
			child := n.child(name)
			out = binary.LittleEndian.AppendUint64(out, child.nid)
			out = binary.LittleEndian.AppendUint16(out, uint16(nameOff))
			out = append(out, fileTypes[child.mode&syscall.S_IFMT], 0)
			nameOff += len(name)
		}
		for _, name := range names {
			out = append(out, name...)
		}
	}
	return out
}

// inode returns the inode of a file with its inline data.
func (n *node) inode(number uint32) []byte {
	b := make([]byte, inodeSize)
	format := uint16(extended | layoutPlain)
	if n.inline {
		format = extended | layoutInline
	}
	binary.LittleEndian.PutUint16(b[0:], format)
	binary.LittleEndian.PutUint16(b[4:], n.mode)
	binary.LittleEndian.PutUint64(b[8:], uint64(n.size))
	binary.LittleEndian.PutUint32(b[16:], n.block)
	binary.LittleEndian.PutUint32(b[20:], number)
	binary.LittleEndian.PutUint32(b[24:], n.uid)
	binary.LittleEndian.PutUint32(b[28:], n.gid)
	binary.LittleEndian.PutUint64(b[32:], uint64(n.mtime))
	binary.LittleEndian.PutUint32(b[40:], n.nanos)
	binary.LittleEndian.PutUint32(b[44:], n.links)
	if n.inline {
		b = append(b, n.bytes()...)
	}
	return b
}

// tooLarge returns an error if the image has more blocks than block numbers.
func tooLarge(off int64) error {
	if off>>blockBits > math.MaxUint32-1 {
		return errors.Newf(errors.Exhausted, "the image would be too large for its format")
	}
	return nil
}

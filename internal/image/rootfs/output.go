package rootfs

import (
	"bufio"
	"io"
	"os"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/RelevanceAI/harvest/client/errors"
)

// minHole is the number of zeros that makes a hole worth its system calls.
const minHole = 1 << 20

// maxCopy bounds one copy by the kernel, so that signals are handled in time, and so that the disk begins to write
// while more is copied.
const maxCopy = 16 << 20

var zeros [64 << 10]byte

// output writes the image sequentially and leaves holes for long runs of zeros.
type output struct {
	f    *os.File
	buf  *bufio.Writer
	off  int64 // offset of the next byte, including skip
	skip int64 // pending zeros
	part []byte
}

// newOutput returns an output that leaves room for the superblock.
func newOutput(f *os.File) *output {
	return &output{f: f, buf: bufio.NewWriterSize(f, 1<<20), off: blockSize, skip: blockSize,
		part: make([]byte, 256<<10)}
}

// block advances to the next block and returns its number.
func (o *output) block() (uint32, error) {
	o.zero(align(o.off, blockSize) - o.off)
	return uint32(o.off >> blockBits), tooLarge(o.off)
}

// content copies a file of that size and returns its first block, or 0 for an empty one.
func (o *output) content(r io.Reader, size int64) (uint32, error) {
	if size == 0 {
		return 0, nil
	}
	if err := tooLarge(o.off + size); err != nil {
		return 0, err
	}
	block, err := o.block()
	for left := size; left > 0 && err == nil; {
		n := min(left, int64(len(o.part)))
		if _, err = io.ReadFull(r, o.part[:n]); err == nil {
			err = o.write(o.part[:n])
		} else if err == io.EOF || err == io.ErrUnexpectedEOF {
			err = errors.Explainf(err, errors.Invalid, "a file is shorter than its entry says")
		}
		left -= n
	}
	return block, err
}

func (o *output) zero(n int64) {
	o.off += n
	o.skip += n
}

func (o *output) write(p []byte) error {
	if isZero(p) {
		o.zero(int64(len(p)))
		return nil
	}
	if err := o.settle(); err != nil {
		return err
	}
	o.off += int64(len(p))
	_, err := o.buf.Write(p)
	return writeError(err)
}

// settle writes or skips the pending zeros.
func (o *output) settle() error {
	if o.skip >= minHole {
		if err := o.buf.Flush(); err != nil {
			return writeError(err)
		}
		_, err := o.f.Seek(o.skip, io.SeekCurrent)
		o.skip = 0
		return errors.Wrapf(err, "seek in the image")
	}
	for o.skip > 0 {
		n := min(o.skip, int64(len(zeros)))
		if _, err := o.buf.Write(zeros[:n]); err != nil {
			return writeError(err)
		}
		o.skip -= n
	}
	return nil
}

// copyFrom copies blocks of another image to the current position, which must be the beginning of a
// block. Holes stay holes.
func (o *output) copyFrom(from *Reader, block uint32, blocks int64) error {
	if err := tooLarge(o.off + blocks<<blockBits); err != nil {
		return err
	}
	if err := o.buf.Flush(); err != nil {
		return writeError(err)
	}
	start, at, end := o.off, int64(block)<<blockBits, (int64(block)+blocks)<<blockBits
	for at < end {
		data, hole := from.segment(at, end)
		if err := o.copySegment(from, data, start+data-int64(block)<<blockBits, hole-data); err != nil {
			return err
		}
		at = hole
	}
	o.off, o.skip = start+blocks<<blockBits, 0
	_, err := o.f.Seek(o.off, io.SeekStart)
	return errors.Wrapf(err, "seek in the image")
}

// copySegment copies in the kernel, which shares the blocks if the file system can.
func (o *output) copySegment(from *Reader, at, to, n int64) error {
	for n > 0 && from.file != nil {
		done, err := unix.CopyFileRange(int(from.file.Fd()), &at, int(o.f.Fd()), &to, int(min(n, maxCopy)), 0)
		if err == unix.EINTR {
			continue
		}
		if err != nil || done == 0 { // unsupported here, or a truncated image: reading will tell
			break
		}
		// The disk writes this part while the next one is copied, so that finish waits for less. It is only a hint.
		_ = unix.SyncFileRange(int(o.f.Fd()), to-int64(done), int64(done), unix.SYNC_FILE_RANGE_WRITE)
		n -= int64(done)
	}
	for n > 0 {
		part := o.part[:min(n, int64(len(o.part)))]
		if _, err := from.r.ReadAt(part, at); err != nil {
			return errors.Wrapf(err, "read the content of an image")
		}
		if _, err := o.f.WriteAt(part, to); err != nil {
			return writeError(err)
		}
		at, to, n = at+int64(len(part)), to+int64(len(part)), n-int64(len(part))
	}
	return nil
}

// finish writes the superblock and flushes the file. It punches holes for the content of lost
// files.
func (o *output) finish(super []byte, lost []*node) error {
	if err := o.buf.Flush(); err != nil {
		return writeError(err)
	}
	for _, n := range lost {
		err := unix.Fallocate(int(o.f.Fd()), unix.FALLOC_FL_PUNCH_HOLE|unix.FALLOC_FL_KEEP_SIZE,
			int64(n.block)<<blockBits, align(n.size, blockSize))
		if err != nil { // unsupported: the space stays in use
			break
		}
	}
	if err := o.f.Truncate(o.off); err != nil {
		return writeError(err)
	}
	if _, err := o.f.WriteAt(super, superOffset); err != nil {
		return writeError(err)
	}
	return writeError(o.f.Sync())
}

func writeError(err error) error {
	if errors.Is(err, syscall.ENOSPC) || errors.Is(err, syscall.EDQUOT) {
		err = errors.Explainf(err, errors.Exhausted, "the disk is full: there is no space left for the image")
		return errors.Remedy(err, "free some space on the disk of the data directory")
	}
	return errors.Wrapf(err, "write the image")
}

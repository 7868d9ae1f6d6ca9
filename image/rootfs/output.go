package rootfs

import (
	"bufio"
	"io"
	"os"
	"syscall"

	"github.com/RelevanceAI/harvest/errors"
)

// minHole is from how many zeros on a hole in the image is worth its system calls.
const minHole = 1 << 20

var zeros [64 << 10]byte

// output writes the image from front to back and leaves out long runs of zeros.
type output struct {
	f    *os.File
	buf  *bufio.Writer
	off  int64 // where the next byte belongs, skip included
	skip int64 // zeros that are not written yet
	part []byte
}

// newOutput returns an output that leaves room for the superblock.
func newOutput(f *os.File) *output {
	return &output{f: f, buf: bufio.NewWriterSize(f, 1<<20), off: blockSize, skip: blockSize, part: make([]byte, 256<<10)}
}

// block goes to the beginning of the next block and returns its number.
func (o *output) block() (uint32, error) {
	o.zero(align(o.off, blockSize) - o.off)
	return uint32(o.off >> blockBits), tooLarge(o.off)
}

// content copies a file of that size and returns its first block, 0 for an empty one.
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

// settle brings the file to where the zeros end.
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

// finish writes the superblock and makes everything durable.
func (o *output) finish(super []byte) error {
	if err := o.buf.Flush(); err != nil {
		return writeError(err)
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

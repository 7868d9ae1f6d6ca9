package proc

import (
	"encoding/binary"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"

	"github.com/RelevanceAI/harvest/client/errors"
)

// window is the maximum lag of a spool's slowest reader in bytes before the writer waits.
const window = 1 << 20

// spool keeps the newest output of one command in a directory. Positions count the bytes of output from the
// beginning.
//
// The files are segments, named "out-" and the position of their first byte. They contain frames: stream,
// length, data. The oldest segment is dropped when a new one starts and all the others together have reached
// the limit.
type spool struct {
	dir   string
	limit int64

	mu       sync.Mutex
	moved    *sync.Cond // signals a change of end, closed or a reader's position
	out      *os.File   // the last segment; nil in a read-only spool
	segments []int64    // guarded by mu, like all below
	end      int64
	closed   bool
	readers  map[*reader]bool
}

func createSpool(dir string, limit int64) (*spool, error) {
	s := &spool{dir: dir, limit: limit, readers: map[*reader]bool{}}
	s.moved = sync.NewCond(&s.mu)
	return s, s.rotate()
}

// openSpool opens the spool that a writer has left.
func openSpool(dir string) (*spool, error) {
	s := &spool{dir: dir, closed: true, readers: map[*reader]bool{}}
	s.moved = sync.NewCond(&s.mu)
	names, err := os.ReadDir(dir)
	if err != nil {
		return nil, errors.Wrapf(err, "list the output")
	}
	for _, entry := range names {
		if start, found := strings.CutPrefix(entry.Name(), "out-"); found {
			if n, err := strconv.ParseInt(start, 10, 64); err == nil {
				s.segments = append(s.segments, n)
			}
		}
	}
	if len(s.segments) == 0 {
		return nil, errors.Errorf("there is no output in %s", dir)
	}
	slices.Sort(s.segments)
	s.end, err = segmentEnd(s.segment(s.segments[len(s.segments)-1]), s.segments[len(s.segments)-1])
	return s, err
}

func (s *spool) segment(start int64) string {
	return filepath.Join(s.dir, "out-"+strconv.FormatInt(start, 10))
}

// segmentEnd returns the position after the last complete frame.
func segmentEnd(name string, start int64) (int64, error) {
	f, err := os.Open(name)
	if err != nil {
		return 0, errors.Wrapf(err, "open the output")
	}
	defer f.Close()
	info, err := f.Stat()
	if err != nil {
		return 0, errors.Wrapf(err, "stat the output")
	}
	end := start
	for off := int64(0); ; {
		_, n, err := frameAt(f, off)
		if err != nil || off+frameHeader+int64(n) > info.Size() {
			return end, nil
		}
		off += frameHeader + int64(n)
		end += int64(n)
	}
}

func frameAt(f *os.File, off int64) (stream byte, n int, err error) {
	var header [frameHeader]byte
	if _, err := f.ReadAt(header[:], off); err != nil {
		return 0, 0, err
	}
	return header[0], int(binary.BigEndian.Uint32(header[1:])), nil
}

// rotate starts a new segment. The caller holds mu, or has the only reference to s.
func (s *spool) rotate() error {
	f, err := os.OpenFile(s.segment(s.end), os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o600)
	if err != nil {
		return errors.Wrapf(err, "keep the output")
	}
	if s.out != nil {
		s.out.Close()
	}
	s.out = f
	s.segments = append(s.segments, s.end)
	for len(s.segments) > 2 && s.end-s.segments[1] >= s.limit {
		if err := os.Remove(s.segment(s.segments[0])); err != nil {
			return errors.Wrapf(err, "drop old output")
		}
		s.segments = s.segments[1:]
	}
	return nil
}

// append adds output. It first waits for slow readers.
func (s *spool) append(stream byte, data []byte) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	for s.lag() > window {
		s.moved.Wait()
	}
	if s.end-s.segments[len(s.segments)-1] >= max(s.limit/4, 1) {
		if err := s.rotate(); err != nil {
			return err
		}
	}
	if err := writeFrame(s.out, stream, data); err != nil {
		return errors.Wrapf(err, "keep the output")
	}
	s.end += int64(len(data))
	s.moved.Broadcast()
	return nil
}

func (s *spool) lag() int64 {
	var lag int64
	for r := range s.readers {
		lag = max(lag, s.end-r.pos)
	}
	return lag
}

// close marks the end of the output.
func (s *spool) close() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.out != nil {
		s.out.Close()
	}
	s.closed = true
	s.moved.Broadcast()
}

// reader reads a spool from a position on. While it is slow, it blocks the writer, until it is stopped.
type reader struct {
	s    *spool
	pos  int64 // guarded by s.mu; the other fields belong to the caller of next
	file *os.File
	off  int64
	gone bool // guarded by s.mu
}

// reader returns a reader that starts at the oldest kept byte at or after from, and the number of bytes that it
// skipped. from must be the end of a frame.
func (s *spool) reader(from int64) (r *reader, dropped int64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	r = &reader{s: s, pos: max(from, s.segments[0])}
	s.readers[r] = true
	return r, r.pos - from
}

// next waits for a frame and reads it into buf, which must have room for the largest frame. It returns io.EOF
// at the end.
func (r *reader) next(buf []byte) (stream byte, data []byte, err error) {
	r.s.mu.Lock()
	for r.pos >= r.s.end && !r.s.closed && !r.gone {
		r.s.moved.Wait()
	}
	ended := r.gone || r.pos >= r.s.end
	r.s.mu.Unlock()
	if ended {
		return 0, nil, io.EOF
	}
	if r.file == nil {
		if err := r.open(); err != nil {
			return 0, nil, err
		}
	}
	stream, n, err := frameAt(r.file, r.off)
	if err == io.EOF { // end of the segment; the rest is in the next one
		r.file.Close()
		r.file = nil
		return r.next(buf)
	}
	if err != nil || n > len(buf) {
		return 0, nil, errors.Errorf("the output kept in %s is damaged: %v", r.s.dir, err)
	}
	if _, err := r.file.ReadAt(buf[:n], r.off+frameHeader); err != nil {
		return 0, nil, errors.Wrapf(err, "read the output")
	}
	r.off += frameHeader + int64(n)
	r.s.mu.Lock()
	r.pos += int64(n)
	r.s.moved.Broadcast()
	r.s.mu.Unlock()
	return stream, buf[:n], nil
}

// open opens the segment with pos in it, at that position.
func (r *reader) open() error {
	r.s.mu.Lock()
	start, pos := r.s.segments[0], r.pos
	for _, s := range r.s.segments {
		if s <= pos {
			start = s
		}
	}
	f, err := os.Open(r.s.segment(start))
	r.s.mu.Unlock()
	if err != nil {
		return errors.Wrapf(err, "open the output")
	}
	r.file, r.off = f, 0
	for start < pos {
		_, n, err := frameAt(f, r.off)
		if err != nil {
			return errors.Wrapf(err, "find byte %d of the output", pos)
		}
		r.off += frameHeader + int64(n)
		start += int64(n)
	}
	return nil
}

// stop unblocks the writer, and a pending next.
func (r *reader) stop() {
	r.s.mu.Lock()
	defer r.s.mu.Unlock()
	delete(r.s.readers, r)
	r.gone = true
	r.s.moved.Broadcast()
}

// close stops r and closes its file. It must not be called concurrently with next.
func (r *reader) close() {
	r.stop()
	if r.file != nil {
		r.file.Close()
	}
}

package proc

import (
	"bytes"
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

// memory is the maximum size of the output that is in memory because the disk has failed.
const memory = 256 << 10

// window is the maximum lag of a spool's slowest reader in bytes before the writer waits.
const window = 1 << 20

// spool keeps the newest output of one command in a directory. Positions count the bytes of output from the
// beginning.
//
// The files are segments, named "out-" and the position of their first byte. They contain frames: stream,
// length, data. The oldest segment is dropped when a new one starts and all the others together have reached
// the limit.
//
// When the disk fails, because it is full for example, the output that follows stays in memory, with the limit
// memory. When that is reached, the output on disk is dropped as the oldest. close tries to write the rest to disk.
type spool struct {
	dir   string
	limit int64

	mu       sync.Mutex
	moved    *sync.Cond // signals a change of end, closed or a reader's position
	out      *os.File   // the last segment; nil in a read-only spool
	size     int64      // of out; belongs to the caller of append
	segments []int64    // guarded by mu, like all below
	failed   bool       // the output from mem on is in memory
	mem      int64      // position of the first frame of frames
	frames   []frame
	dropped  int // number of frames before these
	end      int64
	closed   bool
	readers  map[*reader]bool
}

// frame is a frame in memory.
type frame struct {
	stream byte
	data   []byte
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
	s.out, s.size = f, 0
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
func (s *spool) append(stream byte, data []byte) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for s.lag() > s.window() {
		s.moved.Wait()
	}
	if !s.failed && s.write(stream, data) != nil {
		s.failed, s.mem = true, s.end
	}
	if s.failed {
		s.remember(stream, bytes.Clone(data))
	}
	s.end += int64(len(data))
	s.moved.Broadcast()
}

// write adds output to the disk, or nothing if the disk fails.
func (s *spool) write(stream byte, data []byte) error {
	if s.end-s.segments[len(s.segments)-1] >= max(s.limit/4, 1) {
		if err := s.rotate(); err != nil {
			return err
		}
	}
	if err := writeFrame(s.out, stream, data); err != nil {
		_ = s.out.Truncate(s.size) // of a part of the frame
		return errors.Wrapf(err, "keep the output")
	}
	s.size += frameHeader + int64(len(data))
	return nil
}

// remember adds output to the memory.
func (s *spool) remember(stream byte, data []byte) {
	s.frames = append(s.frames, frame{stream, data})
	for s.end+int64(len(data))-s.mem > memory {
		s.dropSegments()
		s.mem += int64(len(s.frames[0].data))
		s.frames, s.dropped = s.frames[1:], s.dropped+1
	}
}

// dropSegments removes all output from the disk.
func (s *spool) dropSegments() {
	if s.out != nil {
		s.out.Close()
		s.out = nil
	}
	for _, start := range s.segments {
		_ = os.Remove(s.segment(start)) // best effort
	}
	s.segments = nil
}

// first returns the position of the oldest kept byte.
func (s *spool) first() int64 {
	if len(s.segments) > 0 {
		return s.segments[0]
	}
	return s.mem
}

// window returns the maximum lag of readers.
func (s *spool) window() int64 {
	if s.failed {
		return memory / 2
	}
	return window
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
	if s.failed {
		s.save()
	}
	if s.out != nil {
		s.out.Close()
	}
	s.closed = true
	s.moved.Broadcast()
}

// save writes the output in memory to the disk, in place of the older output if necessary. An empty segment still says
// how much output there was. All is best effort.
func (s *spool) save() {
	if s.saveFrames(s.mem, s.frames) == nil || s.lag() > s.end-s.mem {
		return
	}
	s.dropSegments()
	if s.saveFrames(s.mem, s.frames) != nil {
		_ = s.saveFrames(s.end, nil)
	}
}

// saveFrames writes a segment, or nothing.
func (s *spool) saveFrames(start int64, frames []frame) error {
	var all bytes.Buffer
	for _, f := range frames {
		_ = writeFrame(&all, f.stream, f.data)
	}
	err := os.WriteFile(s.segment(start), all.Bytes(), 0o600)
	if err != nil {
		_ = os.Remove(s.segment(start))
	}
	return err
}

// reader reads a spool from a position on. While it is slow, it blocks the writer, until it is stopped.
type reader struct {
	s    *spool
	pos  int64 // guarded by s.mu; the other fields belong to the caller of next
	file *os.File
	off  int64
	gone bool // guarded by s.mu
	// frame is the number of its next frame in memory, with those that were dropped; -1 before the first.
	frame int
}

// reader returns a reader that starts at the oldest kept byte at or after from, and the number of bytes that it
// skipped. from must be the end of a frame.
func (s *spool) reader(from int64) (r *reader, dropped int64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	r = &reader{s: s, frame: -1, pos: max(from, s.first())}
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
	if !ended && r.s.failed && r.pos >= r.s.mem {
		defer r.s.mu.Unlock()
		if r.file != nil { // the disk needs its space
			r.file.Close()
			r.file = nil
		}
		stream, data = r.remembered(buf)
		return stream, data, nil
	}
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

// remembered reads a frame in memory into buf. The caller holds r.s.mu.
func (r *reader) remembered(buf []byte) (stream byte, data []byte) {
	if r.frame < 0 {
		r.frame = r.s.dropped
		for at := r.s.mem; at < r.pos; r.frame++ {
			at += int64(len(r.s.frames[r.frame-r.s.dropped].data))
		}
	}
	f := r.s.frames[r.frame-r.s.dropped]
	r.frame++
	r.pos += int64(len(f.data))
	r.s.moved.Broadcast()
	return f.stream, buf[:copy(buf, f.data)]
}

// skip passes over the output that next has failed to read, and returns how much that is.
func (r *reader) skip() int64 {
	if r.file != nil {
		r.file.Close()
		r.file = nil
	}
	r.s.mu.Lock()
	defer r.s.mu.Unlock()
	to := r.s.end
	if r.s.failed {
		to = r.s.mem
	}
	n := to - r.pos
	r.pos = to
	r.s.moved.Broadcast()
	return n
}

// open opens the segment with pos in it, at that position.
func (r *reader) open() error {
	r.s.mu.Lock()
	start, pos := r.s.first(), r.pos
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

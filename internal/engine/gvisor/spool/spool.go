// Package spool stores a limited amount of a command's output on disk. Followers read it from its beginning
// while it grows.
//
// Output is a sequence of frames in the format of package wire, stored in segment files. At the limit, the
// oldest segment is dropped, unless a follower has not read it yet. In that case Append waits, so that a slow
// reader slows the command down, and no follower loses a byte.
//
// Followers do not depend on the disk: output that cannot be written, because the disk is full or fails, stays
// in memory, with a smaller limit.
package spool

import (
	"encoding/binary"
	"io"
	"os"
	"path/filepath"
	"strconv"
	"sync"

	"github.com/RelevanceAI/harvest/client/errors"
	"github.com/RelevanceAI/harvest/internal/engine/gvisor/wire"
)

const (
	// segments is the number of files that the limit is divided into, so that only a small part of the output is
	// dropped at once.
	segments = 8
	// memory limits the output that is in memory because the disk failed, and memorySegment its segments. A spool
	// tries the disk again with each of its segments.
	memory        = 256 << 10
	memorySegment = memory / segments
)

// MaxFrame is the maximum size of a frame with its header.
const MaxFrame = wire.HeaderSize + 64<<10

// Spool is the output of one command. All methods may be called concurrently, Append by several streams.
type Spool struct {
	dir     string
	segSize int64
	limit   int64

	mu        sync.Mutex
	changed   sync.Cond           // more output, a follower moved or left, or the end
	segs      []*segment          // oldest first; guarded by mu
	start     int64               // offset of the first kept byte; guarded by mu
	inMemory  int64               // bytes of segs in memory; guarded by mu
	dropped   int64               // dropped bytes of output, without headers; guarded by mu
	end       int64               // offset after the last byte; guarded by mu
	followers map[*Follower]int64 // offsets that they have read up to; guarded by mu
	ended     bool                // followers get no more output; guarded by mu
	err       error               // the last error of the disk; guarded by mu
	removed   bool                // guarded by mu
	created   int                 // number of files ever created; guarded by mu
	again     bool                // the next output tries the disk again; guarded by mu
}

// segment is a part of the output: in a file, or in memory.
type segment struct {
	start, end int64
	before     int64 // bytes of output before it, without headers
	output     int64 // bytes of output in it
	file       *os.File
	data       []byte // without a file; only ever appended to
}

// New returns an empty spool with files in dir, which the first output creates. It keeps up to limit bytes.
func New(dir string, limit int64) *Spool {
	s := &Spool{dir: dir, limit: limit, segSize: max(limit/segments, 4<<10), followers: map[*Follower]int64{}}
	s.changed.L = &s.mu
	return s
}

// Append adds one frame of at most MaxFrame bytes. data must start with wire.HeaderSize unused bytes, so that header
// and payload are one write. Append waits while a follower is behind by the limit.
func (s *Spool) Append(k wire.Kind, data []byte) {
	wire.PutHeader(data, k, len(data)-wire.HeaderSize)
	s.mu.Lock()
	defer s.mu.Unlock()
	for !s.removed && len(s.segs) > 1 && s.exceeds(int64(len(data))) {
		oldest := s.segs[0]
		if !s.ended && s.slowest() < oldest.end {
			s.changed.Wait()
			continue
		}
		s.drop()
		if oldest.file != nil && s.end-s.start+int64(len(data)) <= s.limit {
			s.again = true // the disk has room for this part of the output in memory
			break
		}
	}
	if !s.removed {
		s.write(data)
	}
	s.changed.Broadcast()
}

// exceeds reports whether n more bytes exceed a limit.
func (s *Spool) exceeds(n int64) bool {
	return s.end-s.start+n > s.limit || s.inMemory > 0 && s.inMemory+n > memory
}

// slowest returns the smallest offset of all followers.
func (s *Spool) slowest() int64 {
	least := s.end
	for _, at := range s.followers {
		least = min(least, at)
	}
	return least
}

// drop removes the oldest segment.
func (s *Spool) drop() {
	oldest := s.segs[0]
	s.segs = s.segs[1:]
	s.start = oldest.end
	s.dropped += oldest.output
	if oldest.file == nil {
		s.inMemory -= oldest.end - oldest.start
		return
	}
	remove(oldest.file)
}

func remove(f *os.File) {
	_ = f.Close()
	_ = os.Remove(f.Name())
}

// write appends data to the last segment, or to a new one.
func (s *Spool) write(data []byte) {
	last := s.last()
	if last == nil {
		last = s.add(s.create())
	}
	if last.file != nil {
		if _, err := last.file.WriteAt(data, last.end-last.start); err != nil {
			s.err = errors.Wrapf(err, "keep output")
			last = s.replace(last)
		}
	}
	if last.file == nil {
		last.data = append(last.data, data...)
		s.inMemory += int64(len(data))
	}
	last.end += int64(len(data))
	last.output += int64(len(data)) - wire.HeaderSize
	s.end = last.end
}

// last returns the segment to append to, or nil if a new one is due.
func (s *Spool) last() *segment {
	n := len(s.segs)
	if n == 0 || s.again {
		return nil
	}
	last := s.segs[n-1]
	size := s.segSize
	if last.file == nil {
		size = memorySegment
	}
	if last.end-last.start >= size {
		return nil
	}
	return last
}

// add adds an empty segment, in memory if file is nil.
func (s *Spool) add(file *os.File) *segment {
	s.again = false
	seg := &segment{start: s.end, end: s.end, file: file}
	if n := len(s.segs); n > 0 {
		seg.before = s.segs[n-1].before + s.segs[n-1].output
	} else {
		seg.before = s.dropped
	}
	s.segs = append(s.segs, seg)
	return seg
}

// replace returns a segment in memory, instead of the last one, whose file failed. A part of a frame that the file may
// have is not counted.
func (s *Spool) replace(last *segment) *segment {
	if last.end > last.start {
		return s.add(nil)
	}
	remove(last.file)
	last.file = nil
	return last
}

// create returns a new file for a segment, or nil if the disk fails.
func (s *Spool) create() *os.File {
	err := os.MkdirAll(s.dir, 0o700)
	var f *os.File
	if err == nil {
		f, err = os.OpenFile(filepath.Join(s.dir, "output."+strconv.Itoa(s.created)),
			os.O_RDWR|os.O_CREATE|os.O_EXCL, 0o600)
	}
	if err != nil {
		s.err = errors.Wrapf(err, "create output file")
		return nil
	}
	s.created++
	return f
}

// End ends the output for followers. Later output is still kept for later followers, but Append no longer
// waits.
func (s *Spool) End() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.ended = true
	s.changed.Broadcast()
}

// Err returns the last error of the disk, if any. It does not mean that output was dropped.
func (s *Spool) Err() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.err
}

// Remove closes and removes all files. Followers get an error.
func (s *Spool) Remove() {
	s.mu.Lock()
	defer s.mu.Unlock()
	for len(s.segs) > 0 {
		s.drop()
	}
	s.ended, s.removed = true, true
	s.changed.Broadcast()
	_ = os.Remove(s.dir)
}

// Size returns the number of kept bytes.
func (s *Spool) Size() int64 {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.end - s.start
}

// Follower reads a spool.
type Follower struct {
	s      *Spool
	at     int64
	output int64 // bytes of output before at, without headers
	buf    []byte
	closed bool // guarded by s.mu
}

// Follow returns a follower that starts with the oldest kept output, and the number of output bytes dropped
// before it.
func (s *Spool) Follow() (f *Follower, skipped int64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	f = &Follower{s: s, at: s.start, output: s.dropped}
	s.followers[f] = f.at
	return f, s.dropped
}

// Next waits for output and returns some of it, in whole frames, or io.EOF after the end. The frames are valid until
// the next call, which also marks them as read. lost is the number of bytes, without headers, that are missing before
// the rest: because the disk does not return them, or because the output was dropped after its end. After Close, which
// another goroutine may call, Next returns io.ErrClosedPipe.
func (f *Follower) Next() (frames []byte, lost int64, err error) {
	seg, lost, err := f.await()
	if err != nil || lost > 0 {
		return nil, lost, err
	}
	if seg.file == nil {
		frames = seg.data[f.at-seg.start:]
	} else if frames, err = f.read(seg); err != nil {
		lost = seg.before + seg.output - f.output
		f.at, f.output = seg.end, f.output+lost
		return nil, lost, nil
	}
	f.at += int64(len(frames))
	f.output += outputOf(frames)
	return frames, 0, nil
}

// await returns the segment with the next output, as it is now.
func (f *Follower) await() (seg segment, lost int64, err error) {
	s := f.s
	s.mu.Lock()
	defer s.mu.Unlock()
	if !f.closed && s.followers[f] != f.at {
		s.followers[f] = f.at
		s.changed.Broadcast()
	}
	for f.at >= s.end && !s.ended && !f.closed {
		s.changed.Wait()
	}
	switch {
	case f.closed:
		return segment{}, 0, io.ErrClosedPipe
	case s.removed:
		return segment{}, 0, errors.Newf(errors.NotFound, "the output of this command is no longer kept")
	case f.at < s.start:
		lost = s.dropped - f.output
		f.at, f.output = s.start, s.dropped
		return segment{}, lost, nil
	}
	for _, seg := range s.segs {
		if f.at < seg.end {
			return *seg, 0, nil
		}
	}
	return segment{}, 0, io.EOF
}

// read reads whole frames of seg.
func (f *Follower) read(seg segment) ([]byte, error) {
	if f.buf == nil {
		f.buf = make([]byte, MaxFrame)
	}
	buf := f.buf[:min(int64(len(f.buf)), seg.end-f.at)]
	if _, err := seg.file.ReadAt(buf, f.at-seg.start); err != nil {
		return nil, err
	}
	whole := 0
	for rest := buf; len(rest) >= wire.HeaderSize; rest = buf[whole:] {
		n := wire.HeaderSize + int(binary.BigEndian.Uint32(rest[1:]))
		if n > len(rest) {
			break
		}
		whole += n
	}
	if whole == 0 {
		return nil, errors.Errorf("output file %s is damaged", seg.file.Name())
	}
	return buf[:whole], nil
}

// outputOf returns the number of bytes in whole frames, without headers.
func outputOf(frames []byte) (n int64) {
	for len(frames) > 0 {
		size := int(binary.BigEndian.Uint32(frames[1:]))
		n += int64(size)
		frames = frames[wire.HeaderSize+size:]
	}
	return n
}

// Close ends the follower, so that Append no longer waits for it.
func (f *Follower) Close() {
	f.s.mu.Lock()
	defer f.s.mu.Unlock()
	f.closed = true
	delete(f.s.followers, f)
	f.s.changed.Broadcast()
}

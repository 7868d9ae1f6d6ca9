// Package spool stores a limited amount of a command's output on disk. Followers read it from its beginning
// while it grows.
//
// Output is a sequence of frames in the format of package wire, stored in segment files. At the limit, the
// oldest segment is dropped, unless a follower has not read it yet. In that case Append waits, so that a slow
// reader slows the command down, and no follower loses a byte.
package spool

import (
	"io"
	"os"
	"path/filepath"
	"strconv"
	"sync"

	"github.com/RelevanceAI/harvest/client/errors"
	"github.com/RelevanceAI/harvest/internal/engine/gvisor/wire"
)

// segments is the number of files that the limit is divided into, so that only a small part of the output is
// dropped at once.
const segments = 8

// Spool is the output of one command. All methods may be called concurrently, Append by several streams.
type Spool struct {
	dir     string
	segSize int64
	limit   int64

	mu        sync.Mutex
	changed   sync.Cond           // more output, a follower moved or left, or the end
	segs      []*segment          // oldest first; guarded by mu
	start     int64               // offset of the first kept byte; guarded by mu
	dropped   int64               // dropped bytes of output, without headers; guarded by mu
	end       int64               // offset after the last byte; guarded by mu
	followers map[*Follower]int64 // offsets that they have read up to; guarded by mu
	ended     bool                // followers get no more output; guarded by mu
	err       error               // the disk failed: output is discarded from here on; guarded by mu
	created   int                 // number of segments ever created; guarded by mu
}

type segment struct {
	start, end int64
	output     int64 // bytes without headers
	file       *os.File
}

// New returns an empty spool with files in dir, which the first output creates. It keeps up to limit bytes.
func New(dir string, limit int64) *Spool {
	s := &Spool{dir: dir, limit: limit, segSize: max(limit/segments, 4<<10), followers: map[*Follower]int64{}}
	s.changed.L = &s.mu
	return s
}

// Append adds one frame. data must start with wire.HeaderSize unused bytes, so that header and payload are one
// write. It waits while a follower is behind by the limit. After a disk error, it discards output, and Err
// returns the error.
func (s *Spool) Append(k wire.Kind, data []byte) {
	wire.PutHeader(data, k, len(data)-wire.HeaderSize)
	s.mu.Lock()
	defer s.mu.Unlock()
	for s.end-s.start+int64(len(data)) > s.limit && len(s.segs) > 1 {
		oldest := s.segs[0]
		if !s.ended && s.slowest() < oldest.end {
			s.changed.Wait()
			continue
		}
		s.drop()
	}
	if s.err == nil {
		s.err = s.write(data)
	}
	s.changed.Broadcast()
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
	name := oldest.file.Name()
	_ = oldest.file.Close()
	_ = os.Remove(name)
}

// write appends data to the last segment, or to a new one.
func (s *Spool) write(data []byte) error {
	if n := len(s.segs); n == 0 || s.segs[n-1].end-s.segs[n-1].start >= s.segSize {
		if err := os.MkdirAll(s.dir, 0o700); err != nil {
			return errors.Wrapf(err, "create output directory")
		}
		f, err := os.OpenFile(filepath.Join(s.dir, "output."+strconv.Itoa(s.created)),
			os.O_RDWR|os.O_CREATE|os.O_EXCL, 0o600)
		if err != nil {
			return errors.Wrapf(err, "create output file")
		}
		s.created++
		s.segs = append(s.segs, &segment{start: s.end, end: s.end, file: f})
	}
	last := s.segs[len(s.segs)-1]
	if _, err := last.file.WriteAt(data, last.end-last.start); err != nil {
		return errors.Wrapf(err, "keep output")
	}
	last.end += int64(len(data))
	last.output += int64(len(data)) - wire.HeaderSize
	s.end = last.end
	return nil
}

// End ends the output for followers. Later output is still kept for later followers, but Append no longer
// waits.
func (s *Spool) End() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.ended = true
	s.changed.Broadcast()
}

// Err returns the disk error after which output is discarded, if any.
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
	s.ended = true
	s.err = errors.Newf(errors.NotFound, "the output of this command is no longer kept")
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
	closed bool // guarded by s.mu
}

// Follow returns a follower that starts with the oldest kept output, and the number of output bytes dropped
// before it.
func (s *Spool) Follow() (f *Follower, skipped int64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	f = &Follower{s: s, at: s.start}
	s.followers[f] = f.at
	return f, s.dropped
}

// Next waits for output and returns some of it, in whole frames, or io.EOF after the end. It marks the output
// of the previous call as read. After Close, which another goroutine may call, it returns io.ErrClosedPipe.
func (f *Follower) Next() (io.Reader, error) {
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
	if f.closed {
		return nil, io.ErrClosedPipe
	}
	if f.at < s.start {
		return nil, s.err
	}
	for _, seg := range s.segs {
		if f.at < seg.end {
			r := io.NewSectionReader(seg.file, f.at-seg.start, seg.end-f.at)
			f.at = seg.end
			return r, nil
		}
	}
	return nil, io.EOF
}

// Close ends the follower, so that Append no longer waits for it.
func (f *Follower) Close() {
	f.s.mu.Lock()
	defer f.s.mu.Unlock()
	f.closed = true
	delete(f.s.followers, f)
	f.s.changed.Broadcast()
}

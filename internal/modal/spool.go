package modal

import (
	"context"
	"os"
	"sync"
	"time"

	"google.golang.org/grpc/codes"

	"github.com/RelevanceAI/harvest/client/errors"
)

// inMemory is the largest size of output kept without a file.
const inMemory = 64 << 10

// spool keeps the last limit bytes of an output stream, for reads from any offset. While a reader is active,
// its unread bytes are not overwritten: the writer waits. Without readers, the oldest bytes are overwritten.
type spool struct {
	dir   string
	limit int64

	mu      sync.Mutex
	mem     []byte        // guarded by mu; all bytes, until file is used
	file    *os.File      // guarded by mu; a ring buffer of limit bytes, unnamed
	size    int64         // guarded by mu; total bytes written
	first   int64         // guarded by mu; offset of the first byte kept
	adrift  bool          // guarded by mu; an unknown number of bytes was missed: offsets are meaningless
	closed  bool          // guarded by mu; nothing follows
	changed chan struct{} // guarded by mu; closed when anything above changes
	readers map[*reader]int64
	moved   chan struct{} // guarded by mu; closed when a reader advances or leaves
	marks   []mark        // guarded by mu; arrival times
}

type reader struct{ s *spool }

// mark is the arrival time of the byte at an offset.
type mark struct {
	offset int64
	at     time.Time
}

// mostMarks is the most marks of a spool; markEvery is their least distance.
const (
	mostMarks = 4096
	markEvery = time.Millisecond
)

func newSpool(dir string, limit int64) *spool {
	return &spool{dir: dir, limit: limit, changed: make(chan struct{}), moved: make(chan struct{}),
		readers: map[*reader]int64{}}
}

// Write keeps p. It fails only if the disk is full.
func (s *spool) Write(p []byte) (int, error) {
	n := 0
	for len(p) > 0 {
		s.mu.Lock()
		closed, most := s.closed, max(1, s.limit/4)
		s.mu.Unlock()
		if closed { // no reader will come
			return n + len(p), nil
		}
		part := p[:min(int64(len(p)), most)]
		s.await(int64(len(part)))
		if err := s.put(part); err != nil {
			return n, err
		}
		n += len(part)
		p = p[len(part):]
	}
	return n, nil
}

// await waits until n more bytes overwrite no unread byte of an active reader.
func (s *spool) await(n int64) {
	for {
		s.mu.Lock()
		first := s.size
		for _, at := range s.readers {
			first = min(first, at)
		}
		room := s.closed || s.size+n-first <= s.limit
		moved := s.moved
		s.mu.Unlock()
		if room {
			return
		}
		<-moved
	}
}

func (s *spool) put(p []byte) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		return nil
	}
	if s.file == nil && s.size-s.first+int64(len(p)) <= inMemory {
		s.mem = append(s.mem, p...)
	} else {
		if s.file == nil {
			if err := s.open(); err != nil {
				return err
			}
		}
		if err := s.ring(p, s.size, s.file.WriteAt); err != nil {
			return errors.Wrapf(err, "keep the output of a command")
		}
	}
	if n := len(s.marks); n == 0 || time.Since(s.marks[n-1].at) >= markEvery {
		if n == mostMarks { // drop every other mark
			for i := range n / 2 {
				s.marks[i] = s.marks[2*i]
			}
			s.marks = s.marks[:n/2]
		}
		s.marks = append(s.marks, mark{s.size, time.Now()})
	}
	s.size += int64(len(p))
	s.wake()
	return nil
}

// skip advances by n bytes that were written but not kept.
func (s *spool) skip(n int64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.size += n
	s.first, s.mem = s.size, nil
	s.wake()
}

// detach is skip for an unknown number of bytes.
func (s *spool) detach() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.adrift = true
	s.wake()
}

// from returns the first kept offset at or after offset. s.mu is held.
func (s *spool) from(offset int64) int64 { return max(offset, s.first, s.size-s.limit) }

// placed returns DATA_LOSS if offsets are meaningless.
func (s *spool) placed() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.adrift {
		return dataLoss("the server was started anew, and it is not known which bytes of the output it has kept")
	}
	return nil
}

// lost returns DATA_LOSS if offsets are meaningless, or the byte at this offset is no longer kept.
func (s *spool) lost(offset int64) error {
	if err := s.placed(); err != nil {
		return err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if start := s.from(offset); start > offset {
		return dataLoss("the output before byte %d is no longer kept", start)
	}
	return nil
}

func dataLoss(format string, args ...any) error {
	err := errors.Newf(errors.Gone, format, args...)
	return withCode(errors.Remedy(err, "read output while the command runs, or write it to a file"), codes.DataLoss)
}

// at returns the approximate arrival time of the byte at an offset.
func (s *spool) at(offset int64) time.Time {
	s.mu.Lock()
	defer s.mu.Unlock()
	at := time.Time{}
	for _, m := range s.marks {
		if m.offset > offset {
			break
		}
		at = m.at
	}
	return at
}

// kept returns at most limit of the last kept bytes, and the offset of the first one.
func (s *spool) kept(ctx context.Context, limit int64) (data []byte, start int64, err error) {
	s.mu.Lock()
	start = max(s.first, s.size-min(limit, s.limit))
	n := s.size - start
	s.mu.Unlock()
	if n == 0 {
		return nil, start, nil
	}
	done := errors.Errorf("enough")
	err = s.copy(ctx, start, make([]byte, chunk), func(part []byte, at int64) error {
		if len(data) == 0 {
			start = at
		}
		if data = append(data, part...); int64(len(data)) >= n {
			return done
		}
		return nil
	})
	if errors.Is(err, done) {
		err = nil
	}
	return data, start, err
}

// open creates the file. It is unnamed, so that nothing is left behind however the server ends. s.mu is held.
func (s *spool) open() error {
	f, err := os.CreateTemp(s.dir, "output-")
	if err == nil {
		err = os.Remove(f.Name())
	}
	if err != nil {
		return errors.Wrapf(err, "keep the output of a command")
	}
	s.file = f
	err = s.ring(s.mem, s.first, f.WriteAt)
	s.mem = nil
	return err
}

// ring calls at for each contiguous part of p in the ring buffer.
func (s *spool) ring(p []byte, offset int64, at func([]byte, int64) (int, error)) error {
	for len(p) > 0 {
		place := offset % s.limit
		part := p[:min(int64(len(p)), s.limit-place)]
		if n, err := at(part, place); err != nil && n < len(part) {
			return err
		}
		offset += int64(len(part))
		p = p[len(part):]
	}
	return nil
}

// wake wakes the readers. s.mu is held.
func (s *spool) wake() {
	close(s.changed)
	s.changed = make(chan struct{})
}

// end marks the end of the stream. It is idempotent.
func (s *spool) end() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		return
	}
	s.closed = true
	s.wake()
	close(s.moved)
	s.moved = make(chan struct{})
}

// forget releases the kept bytes.
func (s *spool) forget() {
	s.end()
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.file != nil {
		_ = s.file.Close()
		s.file = nil
	}
	s.mem, s.limit = nil, 1
	if s.size > 0 {
		s.size++ // no byte is kept now
	}
}

// copy passes the bytes from offset on to send, in parts of at most len(buf), until the end of the stream or of
// ctx. start is the offset of each part, which is above offset if earlier bytes are no longer kept.
func (s *spool) copy(ctx context.Context, offset int64, buf []byte, send func(part []byte, start int64) error) error {
	r := &reader{s}
	s.mu.Lock()
	s.readers[r] = s.from(offset)
	s.mu.Unlock()
	defer s.leave(r)
	for {
		n, start, more, err := s.next(r, offset, buf)
		if err != nil {
			return err
		}
		switch {
		case n > 0:
			if err := send(buf[:n], start); err != nil {
				return err
			}
			offset = start + int64(n)
			s.advance(r, offset)
		case more == nil:
			return nil
		default:
			select {
			case <-more:
			case <-ctx.Done():
				return ctx.Err()
			}
		}
	}
}

// next reads the bytes after offset. more is closed when there is more to read, and nil at the end of the
// stream.
func (s *spool) next(r *reader, offset int64, buf []byte) (n int, start int64, more <-chan struct{}, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	start = s.from(offset)
	s.readers[r] = start
	n = int(max(0, min(int64(len(buf)), s.size-start)))
	switch {
	case n == 0 && s.closed:
		return 0, start, nil, nil
	case n == 0:
		return 0, start, s.changed, nil
	case s.file == nil && s.mem == nil:
		return 0, start, nil, nil // forgotten
	case s.file == nil:
		copy(buf, s.mem[start-s.first:])
		return n, start, nil, nil
	}
	return n, start, nil, errors.Wrapf(s.ring(buf[:n], start, s.file.ReadAt), "read the output of a command")
}

// peek returns at most limit bytes from offset on, the offset of the first one, and whether nothing follows them. It
// does not wait, and the writer does not wait for it.
func (s *spool) peek(offset, limit int64) (data []byte, start int64, last bool, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	start = s.from(offset)
	n := max(0, min(limit, s.size-start))
	last = s.closed && start+n == s.size
	if n == 0 || s.file == nil && s.mem == nil {
		return nil, start, s.closed, nil
	}
	data = make([]byte, n)
	if s.file == nil {
		copy(data, s.mem[start-s.first:])
		return data, start, last, nil
	}
	return data, start, last, errors.Wrapf(s.ring(data, start, s.file.ReadAt), "read the output of a command")
}

func (s *spool) advance(r *reader, offset int64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.readers[r] = offset
	close(s.moved)
	s.moved = make(chan struct{})
}

func (s *spool) leave(r *reader) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.readers, r)
	close(s.moved)
	s.moved = make(chan struct{})
}

package modal

import (
	"context"
	"os"
	"sync"
	"time"

	"google.golang.org/grpc/codes"

	"github.com/RelevanceAI/harvest/client/errors"
)

const (
	// inMemory is the largest size of output kept without a file.
	inMemory = 64 << 10
	// withoutDisk is the same after the disk has failed.
	withoutDisk = 256 << 10
)

// spool keeps the last limit bytes of an output stream, for reads from any offset. While a reader is active,
// its unread bytes are not overwritten: the writer waits. Without readers, the oldest bytes are overwritten.
// After the disk has failed, because it is full for example, new output stays in memory, with a smaller limit.
type spool struct {
	dir   string
	limit int64

	mu      sync.Mutex
	mem     []byte        // guarded by mu; all bytes, until file is used; the bytes from split on once failed is set
	failed  bool          // guarded by mu; nothing more is written to file
	split   int64         // guarded by mu; with failed, the offset up to which the bytes are in file
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

// Write keeps p. It does not fail.
func (s *spool) Write(p []byte) (int, error) {
	n := 0
	for len(p) > 0 {
		s.mu.Lock()
		closed, most := s.closed, max(1, s.most()/4)
		s.mu.Unlock()
		if closed { // no reader will come
			return n + len(p), nil
		}
		part := p[:min(int64(len(p)), most)]
		s.await(int64(len(part)))
		if !s.put(part) {
			continue
		}
		n += len(part)
		p = p[len(part):]
	}
	return n, nil
}

// most returns the limit of unread bytes. s.mu is held.
func (s *spool) most() int64 {
	if s.failed {
		return min(s.limit, withoutDisk)
	}
	return s.limit
}

// await waits until n more bytes overwrite no unread byte of an active reader.
func (s *spool) await(n int64) {
	for {
		s.mu.Lock()
		first := s.size
		for _, at := range s.readers {
			first = min(first, at)
		}
		if s.failed {
			first = max(first, s.split)
		}
		room := s.closed || s.size+n-first <= s.most()
		moved := s.moved
		s.mu.Unlock()
		if room {
			return
		}
		<-moved
	}
}

// put keeps p, unless the disk fails meanwhile: then it reports false, and the limit is smaller.
func (s *spool) put(p []byte) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	switch {
	case s.closed:
		return true
	case s.failed:
		s.mem = append(s.mem, p...)
		if over := int64(len(s.mem)) - s.most(); over > 0 {
			s.mem = append([]byte(nil), s.mem[over:]...)
			s.first = s.size + int64(len(p)-len(s.mem))
		}
	case s.file == nil && s.size-s.first+int64(len(p)) <= inMemory:
		s.mem = append(s.mem, p...)
	case s.file == nil && !s.open():
		return false
	default:
		if err := s.ring(p, s.size, s.file.WriteAt); err != nil {
			s.fail(s.size)
			s.first = max(s.first, s.size+int64(len(p))-s.limit) // a part of p may have replaced the oldest bytes
			return false
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
	return true
}

// fail gives up the disk for further output. The bytes before offset split are in the file. s.mu is held.
func (s *spool) fail(split int64) { s.failed, s.split = true, split }

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
	end := s.size
	s.mu.Unlock()
	if start == end {
		return nil, start, nil
	}
	done := errors.Errorf("enough")
	err = s.copy(ctx, start, make([]byte, chunk), func(part []byte, at int64) error {
		if len(data) == 0 {
			start = at
		}
		if data = append(data, part...); at+int64(len(part)) >= end {
			return done
		}
		return nil
	})
	if errors.Is(err, done) {
		err = nil
	}
	return data, start, err
}

// open creates the file, and reports whether the disk has not failed. The file is unnamed, so that nothing is left
// behind however the server ends. s.mu is held.
func (s *spool) open() bool {
	f, err := os.CreateTemp(s.dir, "output-")
	if err == nil {
		err = errors.Join(os.Remove(f.Name()), s.ring(s.mem, s.first, f.WriteAt))
		if err != nil {
			_ = f.Close()
		}
	}
	if err != nil {
		s.fail(s.first)
		return false
	}
	s.file, s.mem = f, nil
	return true
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
	}
	if n = s.read(buf[:n], start); n == 0 { // the disk has lost what follows
		return 0, start, ready, nil
	}
	return n, start, nil, nil
}

// ready is closed.
var ready = func() <-chan struct{} {
	c := make(chan struct{})
	close(c)
	return c
}()

// read reads some of the kept bytes from offset on. It returns 0 after it has given up bytes that the disk does not
// return. s.mu is held.
func (s *spool) read(buf []byte, offset int64) int {
	inFile := s.size
	if s.file == nil {
		inFile = s.first
	} else if s.failed {
		inFile = s.split
	}
	if offset >= inFile {
		return copy(buf, s.mem[int64(len(s.mem))-(s.size-offset):])
	}
	buf = buf[:min(int64(len(buf)), inFile-offset)]
	if err := s.ring(buf, offset, s.file.ReadAt); err != nil {
		s.first = inFile
		return 0
	}
	return len(buf)
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
	data = data[:s.read(data, start)]
	last = last && int64(len(data)) == n
	return data, start, last, nil
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

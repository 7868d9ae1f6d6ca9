package sync

import (
	"sync"

	"golang.org/x/sys/unix"
)

// pool keeps the body buffers of one sync, by size. Unlike sync.Pool, it does not release large
// buffers to the garbage collector and then allocate new ones, which would cost a transfer of many
// files time and memory. Large buffers are not garbage-collected at all, since the collector would
// let as much memory again go to waste before it runs. Close releases the memory.
type pool struct {
	mu   sync.Mutex
	free [len(sizes)][]*buffer // guarded by mu
	// held is the number of bytes in all buffers, used or free. It is at most maxInFlight, unless
	// the used ones take more.
	held int64 // guarded by mu
}

// buffer is memory for a body.
type buffer struct {
	b      []byte
	mapped bool // allocated with mmap
}

// sizes of buffers, in bytes.
var sizes = [...]int64{4 << 10, 16 << 10, 64 << 10, 256 << 10, 1 << 20, 4 << 20, partSize}

// mapFrom is the size from which buffers are allocated with mmap. There are at most as many smaller
// ones as workers.
const mapFrom = 256 << 10

// class returns the index of the smallest size for n bytes, or -1 if n is larger than all.
func class(n int64) int {
	for i, size := range sizes {
		if n <= size {
			return i
		}
	}
	return -1
}

// weight returns the memory that a buffer for n bytes takes.
func weight(n int64) int64 {
	if c := class(n); c >= 0 {
		return sizes[c]
	}
	return min(n, maxInFlight)
}

// get returns a buffer of at least n bytes.
func (p *pool) get(n int64) *buffer {
	p.mu.Lock()
	defer p.mu.Unlock()
	if c := class(n); c >= 0 {
		n = sizes[c]
		if k := len(p.free[c]); k > 0 {
			b := p.free[c][k-1]
			p.free[c] = p.free[c][:k-1]
			return b
		}
	}
	p.held += n
	for c := len(sizes) - 1; c >= 0 && p.held > maxInFlight; c-- {
		for k := len(p.free[c]); k > 0 && p.held > maxInFlight; k-- {
			p.drop(p.free[c][k-1])
			p.free[c] = p.free[c][:k-1]
		}
	}
	if n >= mapFrom {
		if b, err := unix.Mmap(-1, 0, int(n), unix.PROT_READ|unix.PROT_WRITE,
			unix.MAP_PRIVATE|unix.MAP_ANONYMOUS); err == nil {
			return &buffer{b, true}
		}
	}
	return &buffer{b: make([]byte, n)}
}

// Held returns the number of bytes in all buffers, used or free.
func (p *pool) Held() int64 {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.held
}

// put returns a buffer that is no longer in use.
func (p *pool) put(b *buffer) {
	p.mu.Lock()
	defer p.mu.Unlock()
	n := int64(len(b.b))
	c := class(n)
	if c < 0 || p.held > maxInFlight {
		p.drop(b)
		return
	}
	p.free[c] = append(p.free[c], b)
}

// drop frees a buffer. The caller holds mu.
func (p *pool) drop(b *buffer) {
	p.held -= int64(len(b.b))
	if b.mapped {
		_ = unix.Munmap(b.b)
	}
	b.b = nil
}

// close frees all unused buffers.
func (p *pool) close() {
	p.mu.Lock()
	defer p.mu.Unlock()
	for c := range p.free {
		for _, b := range p.free[c] {
			p.drop(b)
		}
		p.free[c] = nil
	}
}

// partSize is the minimum size of the parts of a large file: 16 MiB. Larger files are sent in
// parts.
const partSize = 16 << 20

// maxInFlight bounds the bytes of bodies in memory, for all files together.
const maxInFlight = 64 << 20

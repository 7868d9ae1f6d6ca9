// Package buffer keeps memory for the bodies of requests, and bounds it.
package buffer

import (
	"sync"

	"golang.org/x/sys/unix"
)

// Pool keeps the body buffers of one sync, by size. Unlike sync.Pool, it does not release large
// buffers to the garbage collector and then allocate new ones, which would cost a transfer of many
// files time and memory. Large buffers are not garbage-collected at all, since the collector would
// let as much memory again go to waste before it runs. Close releases the memory.
type Pool struct {
	mu   sync.Mutex
	free [len(sizes)][]*Buffer // guarded by mu
	// held is the number of bytes in all buffers, used or free. It is at most MaxInFlight, unless
	// the used ones take more.
	held int64 // guarded by mu
}

// Buffer is memory for a body.
type Buffer struct {
	B      []byte
	mapped bool // allocated with mmap
}

// sizes of buffers, in bytes.
var sizes = [...]int64{4 << 10, 16 << 10, 64 << 10, 256 << 10, 1 << 20, 4 << 20, PartSize}

// MapFrom is the size from which buffers are allocated with mmap. There are at most as many smaller
// ones as workers.
const MapFrom = 256 << 10

// class returns the index of the smallest size for n bytes, or -1 if n is larger than all.
func class(n int64) int {
	for i, size := range sizes {
		if n <= size {
			return i
		}
	}
	return -1
}

// Weight returns the memory that a buffer for n bytes takes.
func Weight(n int64) int64 {
	if c := class(n); c >= 0 {
		return sizes[c]
	}
	return min(n, MaxInFlight)
}

// Get returns a buffer of at least n bytes.
func (p *Pool) Get(n int64) *Buffer {
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
	for c := len(sizes) - 1; c >= 0 && p.held > MaxInFlight; c-- {
		for k := len(p.free[c]); k > 0 && p.held > MaxInFlight; k-- {
			p.drop(p.free[c][k-1])
			p.free[c] = p.free[c][:k-1]
		}
	}
	if n >= MapFrom {
		if b, err := unix.Mmap(-1, 0, int(n), unix.PROT_READ|unix.PROT_WRITE,
			unix.MAP_PRIVATE|unix.MAP_ANONYMOUS); err == nil {
			return &Buffer{b, true}
		}
	}
	return &Buffer{B: make([]byte, n)}
}

// Held returns the number of bytes in all buffers, used or free.
func (p *Pool) Held() int64 {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.held
}

// Put returns a buffer that is no longer in use.
func (p *Pool) Put(b *Buffer) {
	p.mu.Lock()
	defer p.mu.Unlock()
	n := int64(len(b.B))
	c := class(n)
	if c < 0 || p.held > MaxInFlight {
		p.drop(b)
		return
	}
	p.free[c] = append(p.free[c], b)
}

// drop frees a buffer. The caller holds mu.
func (p *Pool) drop(b *Buffer) {
	p.held -= int64(len(b.B))
	if b.mapped {
		_ = unix.Munmap(b.B)
	}
	b.B = nil
}

// Close frees all unused buffers.
func (p *Pool) Close() {
	p.mu.Lock()
	defer p.mu.Unlock()
	for c := range p.free {
		for _, b := range p.free[c] {
			p.drop(b)
		}
		p.free[c] = nil
	}
}

// PartSize is the minimum size of the parts of a large file: 16 MiB. Larger files are sent in
// parts.
const PartSize = 16 << 20

// MaxInFlight bounds the bytes of bodies in memory, for all files together.
const MaxInFlight = 64 << 20

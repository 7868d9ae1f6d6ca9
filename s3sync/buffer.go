package s3sync

import "sync"

// pool keeps buffers for bodies, by size. Unlike sync.Pool it does not give large ones to the garbage collector and then ask for new ones:
// a transfer of many files would spend its time, and its memory, on that.
type pool struct {
	mu   sync.Mutex
	free [len(sizes)][][]byte // guarded by mu
}

var buffers pool

// sizes of buffers, in bytes, and how many of each are kept.
var (
	sizes   = [...]int64{4 << 10, 16 << 10, 64 << 10, 256 << 10, 1 << 20, 4 << 20, partSize}
	maxFree = [len(sizes)]int{workers, workers, workers, 32, 16, 4, 4}
)

// class is the index of the smallest size for n bytes, or -1 if none is large enough.
func class(n int64) int {
	for i, size := range sizes {
		if n <= size {
			return i
		}
	}
	return -1
}

// weight is how much memory a buffer for n bytes takes.
func weight(n int64) int64 {
	if c := class(n); c >= 0 {
		return sizes[c]
	}
	return min(n, maxInFlight)
}

func (p *pool) get(n int64) []byte {
	c := class(n)
	if c < 0 {
		return make([]byte, n)
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if k := len(p.free[c]); k > 0 {
		b := p.free[c][k-1]
		p.free[c] = p.free[c][:k-1]
		return b[:n]
	}
	return make([]byte, n, sizes[c])
}

func (p *pool) put(b []byte) {
	c := class(int64(cap(b)))
	if c < 0 || int64(cap(b)) != sizes[c] {
		return
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if len(p.free[c]) < maxFree[c] {
		p.free[c] = append(p.free[c], b)
	}
}

package commands

import (
	"fmt"
	"sync"
)

// capture keeps the first and the last half of limit bytes: in long output, errors are at the end.
type capture struct {
	limit int

	mu      sync.Mutex
	head    []byte // guarded by mu
	tail    []byte // guarded by mu; a ring once it is full
	next    int    // guarded by mu; next position in the ring
	dropped int64  // guarded by mu
}

// Write never fails.
func (c *capture) Write(p []byte) (int, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	n := len(p)
	half := c.limit / 2
	take := min(half-len(c.head), len(p))
	c.head = append(c.head, p[:take]...)
	p = p[take:]
	size := c.limit - half
	take = min(size-len(c.tail), len(p))
	c.tail = append(c.tail, p[:take]...)
	p = p[take:]
	c.dropped += int64(len(p))
	if len(p) > size {
		p = p[len(p)-size:]
	}
	for len(p) > 0 {
		k := copy(c.tail[c.next:], p)
		c.next = (c.next + k) % size
		p = p[k:]
	}
	return n, nil
}

func (c *capture) truncated() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.dropped > 0
}

func (c *capture) text() string {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.dropped == 0 {
		return string(c.head) + string(c.tail)
	}
	return string(c.head) + fmt.Sprintf("\n[… %d bytes left out …]\n",
		c.dropped) + string(c.tail[c.next:]) + string(c.tail[:c.next])
}

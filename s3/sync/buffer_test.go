package sync

import (
	"math/rand/v2"
	"testing"
)

// TestBuffersAreBounded checks that for any mix of sizes, used and free buffers together stay within the limit for used
// ones, and that no two buffers share memory.
// mission: 2.4, D1
func TestBuffersAreBounded(t *testing.T) {
	var p pool
	defer p.close()
	random := rand.New(rand.NewPCG(1, 2))
	type tagged struct {
		*buffer
		tag byte
	}
	var used []tagged
	taken := int64(0)
	for range 20_000 {
		n := int64(1) << random.IntN(25) // up to 16 MiB
		n -= random.Int64N(n)
		for len(used) > 0 && (taken+weight(n) > maxInFlight || random.IntN(3) == 0) {
			i := random.IntN(len(used))
			b := used[i]
			used[i] = used[len(used)-1]
			used = used[:len(used)-1]
			if b.b[0] != b.tag || b.b[len(b.b)-1] != b.tag {
				t.Fatalf("another wrote into a buffer of %d bytes", len(b.b))
			}
			taken -= int64(len(b.b))
			p.put(b.buffer)
		}
		b := tagged{p.get(n), byte(random.Uint32())}
		if int64(len(b.b)) < n || int64(len(b.b)) != weight(n) {
			t.Fatalf("%d bytes for %d", len(b.b), n)
		}
		b.b[0], b.b[len(b.b)-1] = b.tag, b.tag
		taken += int64(len(b.b))
		used = append(used, b)
		free := int64(0)
		for c := range p.free {
			free += int64(len(p.free[c])) * sizes[c]
		}
		if p.held != taken+free || p.held > maxInFlight {
			t.Fatalf("%d bytes are held, %d in use and %d free", p.held, taken, free)
		}
	}
	for _, b := range used {
		p.put(b.buffer)
	}
	// Parts of files that exceed 10,000 parts of the usual size are larger. Their buffers are not kept.
	large := p.get(partSize + 1)
	if len(large.b) != partSize+1 || !large.mapped {
		t.Errorf("%d bytes, mapped %v, for a large part", len(large.b), large.mapped)
	}
	p.put(large)
	if p.close(); p.held != 0 {
		t.Errorf("%d bytes are held after the end", p.held)
	}
}

func TestUnusualSizes(t *testing.T) {
	if class(partSize+1) != -1 || weight(partSize+1) != partSize+1 || weight(1<<40) != maxInFlight {
		t.Error("buffers of an unusual size")
	}
}

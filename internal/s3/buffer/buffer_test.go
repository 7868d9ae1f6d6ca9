package buffer

import (
	"math/rand/v2"
	"testing"
)

// TestBuffersAreBounded checks that for any mix of sizes, used and free buffers together stay within the limit for used
// ones, and that no two buffers share memory.
// mission: 2.4, D1
func TestBuffersAreBounded(t *testing.T) {
	var p Pool
	defer p.Close()
	random := rand.New(rand.NewPCG(1, 2))
	type tagged struct {
		*Buffer
		tag byte
	}
	var used []tagged
	taken := int64(0)
	for range 20_000 {
		n := int64(1) << random.IntN(25) // up to 16 MiB
		n -= random.Int64N(n)
		for len(used) > 0 && (taken+Weight(n) > MaxInFlight || random.IntN(3) == 0) {
			i := random.IntN(len(used))
			b := used[i]
			used[i] = used[len(used)-1]
			used = used[:len(used)-1]
			if b.B[0] != b.tag || b.B[len(b.B)-1] != b.tag {
				t.Fatalf("another wrote into a buffer of %d bytes", len(b.B))
			}
			taken -= int64(len(b.B))
			p.Put(b.Buffer)
		}
		b := tagged{p.Get(n), byte(random.Uint32())}
		if int64(len(b.B)) < n || int64(len(b.B)) != Weight(n) {
			t.Fatalf("%d bytes for %d", len(b.B), n)
		}
		b.B[0], b.B[len(b.B)-1] = b.tag, b.tag
		taken += int64(len(b.B))
		used = append(used, b)
		free := int64(0)
		for c := range p.free {
			free += int64(len(p.free[c])) * sizes[c]
		}
		if p.held != taken+free || p.held > MaxInFlight {
			t.Fatalf("%d bytes are held, %d in use and %d free", p.held, taken, free)
		}
	}
	for _, b := range used {
		p.Put(b.Buffer)
	}
	// Parts of files that exceed 10,000 parts of the usual size are larger. Their buffers are not kept.
	large := p.Get(PartSize + 1)
	if len(large.B) != PartSize+1 || !large.mapped {
		t.Errorf("%d bytes, mapped %v, for a large part", len(large.B), large.mapped)
	}
	p.Put(large)
	if p.Close(); p.held != 0 {
		t.Errorf("%d bytes are held after the end", p.held)
	}
}

func TestUnusualSizes(t *testing.T) {
	if class(PartSize+1) != -1 || Weight(PartSize+1) != PartSize+1 || Weight(1<<40) != MaxInFlight {
		t.Error("buffers of an unusual size")
	}
}

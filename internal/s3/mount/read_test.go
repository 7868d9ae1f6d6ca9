package mount

import (
	"bytes"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/RelevanceAI/harvest/internal/s3"
	"github.com/RelevanceAI/harvest/internal/s3/object"
	"github.com/RelevanceAI/harvest/test/stubs/s3test"
)

// within is the file system in the test's own process, mounted nowhere. It has one file, f, which is kept in file.
func within(t *testing.T, content []byte) (m *live, a *asks, file string) {
	t.Helper()
	url, bucket := s3test.Bucket(t)
	a = newAsks(t, url)
	file = filepath.Join(s3test.Dir(bucket), "f")
	loc := s3.Location{Bucket: bucket, Endpoint: a.URL, PathStyle: true, Region: "us-east-1", Patience: time.Minute,
		Credentials: s3.Credentials{AccessKeyID: s3test.AccessKey, SecretAccessKey: s3test.SecretKey}}
	b, err := object.Open(t.Context(), loc)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(b.Close)
	if err := os.WriteFile(file, content, 0o644); err != nil {
		t.Fatal(err)
	}
	return newLive(t.Context(), b, t.TempDir(), settings{Limit: 1 << 30}), a, file
}

// opened opens the file f, as a program does.
func (m *live) opened(t *testing.T) *handle {
	t.Helper()
	e, err := m.b.Describe(t.Context(), "f")
	if err != nil {
		t.Fatal(err)
	}
	return &handle{n: &node{m: m, path: "f", e: e}}
}

func random(n int) []byte {
	data := make([]byte, n)
	_, _ = rand.NewChaCha8([32]byte{2}).Read(data)
	return data
}

// expect reads a part of a file, which has that of data.
func (h *handle) expect(t *testing.T, data []byte, at, n int) {
	t.Helper()
	buf := make([]byte, n)
	want := data[at:min(at+n, len(data))]
	if got, err := h.read(buf, int64(at)); err != nil || !bytes.Equal(buf[:got], want) {
		t.Errorf("at %d it reads %d bytes, %v; want %d", at, got, err, len(want))
	}
}

// held is the number of bytes in the windows of a file, including those in transit.
func (h *handle) held() (n int64) {
	h.mu.Lock()
	defer h.mu.Unlock()
	for _, w := range h.open {
		select {
		case <-w.done:
			h.n.m.windows.mu.Lock()
			n += int64(len(w.data))
			h.n.m.windows.mu.Unlock()
		default:
			n += w.end - w.at
		}
	}
	return n
}

func (a *windows) counted() int64 {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.bytes
}

// eventually waits for a condition that becomes true by itself.
func eventually(t *testing.T, what string, is func() bool) {
	t.Helper()
	for deadline := time.Now().Add(2 * time.Minute); !is(); time.Sleep(10 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatal(what)
		}
	}
}

// TestWindowsAreBounded checks that the read-ahead of all open files together is bounded, and that each file still has
// its next bytes ready.
// mission: D5
func TestWindowsAreBounded(t *testing.T) {
	t.Parallel()
	const files, size, step, limit = 40, 1<<20 + 5, 64 << 10, 4 << 20
	data := random(size)
	m, a, _ := within(t, data)
	if m.windows.limit != 256<<20 {
		t.Errorf("the bound is %d bytes", m.windows.limit)
	}
	m.windows.limit = limit
	var open []*handle
	for range files {
		open = append(open, m.opened(t))
	}
	held := func() (n int64) {
		for _, h := range open {
			n += h.held()
		}
		return n
	}
	most := int64(0)
	for at := 0; at < size; at += step {
		for i, h := range open {
			h.expect(t, data, at, step)
			now := held()
			if most = max(most, now); now > limit || m.windows.counted() > limit {
				t.Fatalf("file %d at %d: all have %d bytes, counted are %d; want at most %d", i, at, now,
					m.windows.counted(), limit)
			}
		}
	}
	if most < limit/2 {
		t.Errorf("they had %d bytes at most, of %d", most, limit)
	}
	asked := int64(0)
	for _, one := range a.of("GET", "/f") {
		asked += one.length()
	}
	if asked > files*size*11/10 {
		t.Errorf("of %d bytes %d were asked for", files*size, asked)
	}
	// Files that are open and not read lose their windows after a time.
	m.windows.tend(time.Now())
	if held() == 0 {
		t.Error("what was just read is gone")
	}
	eventually(t, "files that are not read keep what they have", func() bool {
		m.windows.tend(time.Now().Add(idleWindow + time.Second))
		return held()+m.windows.counted() == 0
	})
	open[0].expect(t, data, 2*step, step)
	if held() == 0 {
		t.Error("there is room, and it reads without a window")
	}
	open[0].Release(t.Context())
	eventually(t, "a closed file has room", func() bool { return m.windows.counted() == 0 })
}

// TestWindowsShare checks that many readers of large files share the memory: the parts get smaller, and every reader
// has some.
func TestWindowsShare(t *testing.T) {
	t.Parallel()
	const files, size, step = 24, 64 << 20, 128 << 10
	m, _, file := within(t, nil)
	if err := os.Truncate(file, size); err != nil {
		t.Fatal(err)
	}
	m.windows.limit = 64 << 20
	data := make([]byte, size)
	var open []*handle
	for range files {
		open = append(open, m.opened(t))
	}
	for at := 0; at < 6<<20; at += step {
		for i, h := range open {
			h.expect(t, data, at, step)
			if h.held() == 0 {
				t.Fatalf("file %d has no room at %d", i, at)
			}
		}
	}
}

// TestReadsWithoutRoom checks that reads continue without any memory for read-ahead, and do not wait for others.
func TestReadsWithoutRoom(t *testing.T) {
	t.Parallel()
	data := random(3 << 20)
	for _, limit := range []int64{0, firstWindow, 1 << 20} {
		m, _, _ := within(t, data)
		m.windows.limit = limit
		shared := m.opened(t)
		var g sync.WaitGroup
		for i := range 12 {
			g.Go(func() {
				h := shared
				if i%2 == 0 {
					h = m.opened(t)
					defer h.Release(t.Context())
				}
				for at := 0; at < len(data); at += 200_000 {
					h.expect(t, data, at, 200_000)
					if got := m.windows.counted(); got > limit {
						t.Errorf("with room for %d bytes there are %d", limit, got)
					}
				}
			})
		}
		g.Wait()
		shared.Release(t.Context())
		eventually(t, "closed files have room", func() bool { return m.windows.counted() == 0 })
	}
}

// TestRanges checks that small reads fetch little, and that sequential reads fetch ever larger parts, each once, and
// two ahead.
func TestRanges(t *testing.T) {
	t.Parallel()
	const size = 64 << 20
	m, a, file := within(t, nil)
	if err := os.Truncate(file, size); err != nil {
		t.Fatal(err)
	}
	data := make([]byte, size)
	h := m.opened(t)
	h.expect(t, data, 0, 4096)
	if got := fmt.Sprint(a.of("GET", "/f")); got != "[GET /f bytes=0-131071]" {
		t.Errorf("for a little it asks %s", got)
	}
	const step, whole = 128 << 10, 8 << 20
	furthest := int64(0)
	for at := 0; at < size; at += step {
		h.expect(t, data, at, step)
		h.mu.Lock()
		furthest = max(furthest, h.next-int64(at))
		h.mu.Unlock()
	}
	if furthest < 2*whole || furthest > 3*whole {
		t.Errorf("it is ahead by up to %d bytes", furthest)
	}
	all := a.of("GET", "/f")
	slices.SortFunc(all, func(a, b ask) int { return int(a.from() - b.from()) }) // they are on their way at once
	next, largest, last := int64(0), int64(0), int64(128<<10)
	for _, one := range all {
		if one.from() != next || one.length() > 2*last {
			t.Errorf("after %d bytes, the last %d of them at once, it asks for %s", next, last, one)
		}
		next, last, largest = one.from()+one.length(), one.length(), max(largest, one.length())
	}
	if next != size || largest != whole {
		t.Errorf("it asked for %d bytes of %d, at most for %d at once", next, size, largest)
	}
	// A read out of order starts again with a small part.
	h.expect(t, data, size/2+5, 10)
	if got := a.of("GET", "/f")[len(all):]; len(got) != 1 || got[0].length() != 128<<10 {
		t.Errorf("out of order it asks %s", got)
	}
}

package proc

import (
	"bytes"
	"io"
	"math/rand/v2"
	"os"
	"testing"
)

// readAll reads all data of r, and compares it.
func readAll(t *testing.T, r *reader, want []byte) {
	t.Helper()
	defer r.close()
	var got []byte
	buf := make([]byte, maxData)
	for {
		stream, data, err := r.next(buf)
		if err == io.EOF {
			break
		}
		if err != nil {
			t.Fatal(err)
		}
		if stream != frameStdout && stream != frameStderr {
			t.Fatalf("a frame of stream %q", stream)
		}
		got = append(got, data...)
	}
	if !bytes.Equal(got, want) {
		t.Errorf("%d bytes came, want %d", len(got), len(want))
	}
}

// TestSpoolFromAnyFrame checks that a spool that was cut off at any point can be read from each remaining frame on.
func TestSpoolFromAnyFrame(t *testing.T) {
	t.Parallel()
	random := rand.New(rand.NewPCG(1, 2))
	s, err := createSpool(t.TempDir(), 10_000)
	if err != nil {
		t.Fatal(err)
	}
	var all []byte
	starts := []int64{0}
	for i := range 200 {
		data := make([]byte, 1+random.IntN(600))
		for j := range data {
			data[j] = byte(random.Int())
		}
		if err := s.append("oe"[i%2], data); err != nil {
			t.Fatal(err)
		}
		all = append(all, data...)
		starts = append(starts, int64(len(all)))
	}
	s.close()
	left, err := openSpool(s.dir)
	if err != nil {
		t.Fatal(err)
	}
	for _, from := range starts {
		r, dropped := left.reader(from)
		if kept := int64(len(all)) - from - dropped; kept > 15_000 || dropped > 0 && kept < 10_000 {
			t.Fatalf("of %d bytes, %d are dropped", int64(len(all))-from, dropped)
		}
		readAll(t, r, all[from+dropped:])
	}

	last := left.segment(left.segments[len(left.segments)-1])
	info, err := os.Stat(last)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.Truncate(last, info.Size()-1); err != nil { // within the last frame
		t.Fatal(err)
	}
	cut, err := openSpool(s.dir)
	if err != nil {
		t.Fatal(err)
	}
	r, dropped := cut.reader(0)
	readAll(t, r, all[dropped:starts[len(starts)-2]])
}

func TestSpoolWaitsForItsReaders(t *testing.T) {
	t.Parallel()
	s, err := createSpool(t.TempDir(), 16<<20)
	if err != nil {
		t.Fatal(err)
	}
	slow, _ := s.reader(0)
	written := make(chan int64)
	go func() {
		defer close(written)
		data := make([]byte, maxData)
		for range 4 * window / maxData {
			if err := s.append(frameStdout, data); err != nil {
				t.Error(err)
			}
		}
	}()
	buf := make([]byte, maxData)
	for range 8 {
		if _, _, err := slow.next(buf); err != nil {
			t.Fatal(err)
		}
		s.mu.Lock()
		ahead := s.end - slow.pos
		s.mu.Unlock()
		if ahead > window+2*maxData {
			t.Errorf("the writer is %d bytes ahead", ahead)
		}
	}
	select {
	case <-written:
		t.Error("the writer did not wait")
	default:
	}
	slow.close() // now no reader delays it
	<-written
	if s.end != 4*window {
		t.Errorf("%d bytes were written", s.end)
	}
	if _, _, err := slow.next(buf); err != io.EOF {
		t.Errorf("a closed reader answered %v", err)
	}
	s.close()
}

func TestOpenSpoolOfNothing(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	for range 2 {
		if _, err := openSpool(dir); err == nil {
			t.Error("there is a spool where none is")
		}
		if err := os.RemoveAll(dir); err != nil {
			t.Fatal(err)
		}
	}
}

func FuzzReadFrame(f *testing.F) {
	var whole bytes.Buffer
	if err := writeValue(&whole, frameRequest, request{Op: "signal", Signal: 9}); err != nil {
		f.Fatal(err)
	}
	f.Add(whole.Bytes())
	f.Add([]byte{frameInput, 0xff, 0xff, 0xff, 0xff})
	f.Add([]byte{frameEOF, 0, 0, 0, 0})
	f.Fuzz(func(t *testing.T, data []byte) {
		kind, got, err := readFrame(bytes.NewReader(data), nil)
		if err == nil {
			var again bytes.Buffer
			if err := writeFrame(&again, kind, got); err != nil || !bytes.HasPrefix(data, again.Bytes()) {
				t.Errorf("%q was read as %q %q", data, kind, got)
			}
		}
		var req request
		if readValue(bytes.NewReader(data), frameRequest, &req) == nil && err != nil {
			t.Errorf("a request was read from %q", data)
		}
	})
}

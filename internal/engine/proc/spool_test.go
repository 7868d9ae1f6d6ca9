package proc

import (
	"bytes"
	"io"
	"math/rand/v2"
	"os"
	"path/filepath"
	"sync"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/RelevanceAI/harvest/client/errors"
	"github.com/RelevanceAI/harvest/internal/base/testenv"
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
		s.append("oe"[i%2], data)
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
			s.append(frameStdout, data)
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

// TestSpoolOnFullDisk checks that readers get all output when the disk becomes full, and that a later spool of the same
// directory has the end of it and says how much is missing.
func TestSpoolOnFullDisk(t *testing.T) {
	t.Parallel()
	all := make([]byte, 3<<20)
	for i := range all {
		all[i] = byte(i>>10) ^ byte(i>>18)
	}
	for name, reads := range map[string]bool{"with a reader": true, "without": false} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			dir := testenv.SmallDisk(t, "size=1m")
			s, err := createSpool(dir, 16<<20)
			if err != nil {
				t.Fatal(err)
			}
			var reading sync.WaitGroup
			if reads {
				r, _ := s.reader(0)
				reading.Go(func() { readAll(t, r, all) })
			}
			for at := 0; at < len(all); at += 1000 {
				s.append("oe"[at%2], all[at:min(at+1000, len(all))])
			}
			if !s.failed {
				t.Error("the disk was not full")
			}
			late, dropped := s.reader(0)
			s.close()
			readAll(t, late, all[dropped:])
			reading.Wait()
			left, err := openSpool(dir)
			if err != nil {
				t.Fatal(err)
			}
			r, dropped := left.reader(0)
			if kept := int64(len(all)) - dropped; kept < memory/2 {
				t.Errorf("%d bytes are kept", kept)
			}
			readAll(t, r, all[dropped:])
		})
	}
}

// TestSpoolOnDiskWithoutSpace checks output of which nothing can be kept after the end.
func TestSpoolOnDiskWithoutSpace(t *testing.T) {
	t.Parallel()
	dir := testenv.SmallDisk(t, "size=256k")
	s, err := createSpool(dir, 16<<20)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(dir, "filler"), make([]byte, 1<<20), 0o600); !errors.Is(err, unix.ENOSPC) {
		t.Fatalf("the disk is not full: %v", err)
	}
	s.append(frameStdout, []byte("hello\n"))
	live, _ := s.reader(0)
	s.close()
	readAll(t, live, []byte("hello\n"))
	left, err := openSpool(dir)
	if err != nil {
		t.Fatal(err)
	}
	r, dropped := left.reader(0)
	if dropped != 6 {
		t.Errorf("%d bytes are missing, want 6", dropped)
	}
	readAll(t, r, nil)
}

// TestUnreadableSpool checks that a reader passes over output that the disk does not return.
func TestUnreadableSpool(t *testing.T) {
	t.Parallel()
	s, err := createSpool(t.TempDir(), 16<<20)
	if err != nil {
		t.Fatal(err)
	}
	s.append(frameStdout, []byte("gone"))
	s.close()
	if err := os.Remove(s.segment(0)); err != nil {
		t.Fatal(err)
	}
	r, _ := s.reader(0)
	buf := make([]byte, maxData)
	if _, _, err := r.next(buf); err == nil || err == io.EOF {
		t.Fatalf("reading a file that is gone: %v", err)
	}
	if n := r.skip(); n != 4 {
		t.Errorf("%d bytes are missing, want 4", n)
	}
	readAll(t, r, nil)
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

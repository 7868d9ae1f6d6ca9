package modal

import (
	"bytes"
	"os"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/RelevanceAI/harvest/client/errors"
	"github.com/RelevanceAI/harvest/internal/base/testenv"
)

// text returns n bytes that differ from one KiB to the next.
func text(n int) []byte {
	data := make([]byte, n)
	for i := range data {
		data[i] = byte(i>>10) ^ byte(i>>18)
	}
	return data
}

// read reads s from offset 0 to its end, and returns the offset of the first byte that it got.
func read(t *testing.T, s *spool, begun chan<- struct{}) (got []byte, first int64) {
	t.Helper()
	first = -1
	err := s.copy(t.Context(), 0, make([]byte, 10_000), func(part []byte, start int64) error {
		if first < 0 {
			first = start
			if begun != nil {
				close(begun)
			}
		}
		if start != first+int64(len(got)) {
			t.Errorf("a gap before byte %d", start)
		}
		got = append(got, part...)
		return nil
	})
	if err != nil {
		t.Error(err)
	}
	return got, first
}

// TestSpoolOnFullDisk checks that a reader loses nothing when the disk is full from the beginning or becomes full, and
// that later readers get the end of the output and learn where it begins.
func TestSpoolOnFullDisk(t *testing.T) {
	t.Parallel()
	for name, free := range map[string]int{"full": 0, "becomes full": 512 << 10} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			dir := testenv.SmallDisk(t, "size=1m")
			if err := os.WriteFile(filepath.Join(dir, "filler"), make([]byte, 1<<20-free), 0o600); err != nil &&
				!errors.Is(err, unix.ENOSPC) {
				t.Fatal(err)
			}
			s := newSpool(dir, 4<<20)
			defer s.forget()
			data := text(3 << 20)
			if _, err := s.Write(data[:10]); err != nil {
				t.Fatal(err)
			}
			begun := make(chan struct{})
			go func() {
				<-begun
				if n, err := s.Write(data[10:]); err != nil || n != len(data)-10 {
					t.Errorf("wrote %d, %v", n, err)
				}
				s.end()
			}()
			if got, first := read(t, s, begun); first != 0 || !bytes.Equal(got, data) {
				t.Errorf("the reader got %d bytes of %d, from %d on", len(got), len(data), first)
			}
			got, first := read(t, s, nil)
			if len(got) < withoutDisk || first < 0 || !bytes.Equal(got, data[first:]) {
				t.Errorf("kept %d bytes from %d on", len(got), first)
			}
			if err := s.lost(0); err == nil {
				t.Error("the loss of the beginning is not reported")
			}
			last, start, err := s.kept(t.Context(), 1000)
			if err != nil || start != int64(len(data)-1000) || !bytes.Equal(last, data[start:]) {
				t.Errorf("the last bytes: %d from %d on, %v", len(last), start, err)
			}
			if part, at, _, err := s.peek(first, 100); err != nil || at != first || !bytes.Equal(part, got[:100]) {
				t.Errorf("peek: %d bytes from %d on, %v", len(part), at, err)
			}
		})
	}
}

// TestSpoolWithoutFile checks output for which no file can be made.
func TestSpoolWithoutFile(t *testing.T) {
	t.Parallel()
	s := newSpool(filepath.Join(t.TempDir(), "missing"), 4<<20)
	defer s.forget()
	data := text(200 << 10)
	if _, err := s.Write(data); err != nil {
		t.Fatal(err)
	}
	s.end()
	if got, first := read(t, s, nil); first != 0 || !bytes.Equal(got, data) {
		t.Errorf("kept %d bytes of %d, from %d on", len(got), len(data), first)
	}
}

// TestSpoolOnUnreadableDisk checks that output that the disk does not return is reported, and that the rest is read.
func TestSpoolOnUnreadableDisk(t *testing.T) {
	t.Parallel()
	s := newSpool(t.TempDir(), 4<<20)
	defer s.forget()
	data := text(200 << 10)
	if _, err := s.Write(data); err != nil {
		t.Fatal(err)
	}
	if err := s.file.Close(); err != nil {
		t.Fatal(err)
	}
	if _, err := s.Write([]byte("more")); err != nil {
		t.Fatal(err)
	}
	s.end()
	if got, first := read(t, s, nil); string(got) != "more" || first != int64(len(data)) {
		t.Errorf("%q from %d on", got, first)
	}
	if err := s.lost(0); err == nil {
		t.Error("the loss is not reported")
	}
}

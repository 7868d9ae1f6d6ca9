package spool

import (
	"bytes"
	"crypto/sha256"
	"encoding/binary"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/RelevanceAI/harvest/client/errors"
	"github.com/RelevanceAI/harvest/internal/base/testenv"
	"github.com/RelevanceAI/harvest/internal/engine/gvisor/wire"
)

// frame returns data with room for a header in front.
func frame(data string) []byte { return append(make([]byte, wire.HeaderSize), data...) }

// readAll follows to the end and returns the payloads of one kind.
func readAll(t *testing.T, f *Follower, kind wire.Kind) []byte {
	t.Helper()
	var all bytes.Buffer
	for {
		frames, lost, err := f.Next()
		if err == io.EOF {
			break
		}
		if err != nil || lost > 0 {
			t.Fatalf("%d bytes lost, %v", lost, err)
		}
		all.Write(frames)
	}
	var out []byte
	for b := all.Bytes(); len(b) > 0; {
		n := binary.BigEndian.Uint32(b[1:])
		if wire.Kind(b[0]) == kind {
			out = append(out, b[wire.HeaderSize:wire.HeaderSize+n]...)
		}
		b = b[wire.HeaderSize+n:]
	}
	return out
}

func TestFollowersReadEverything(t *testing.T) {
	t.Parallel()
	s := New(filepath.Join(t.TempDir(), "out"), 1<<20)
	early, _ := s.Follow()
	s.Append(wire.KindStdout, frame("one "))
	s.Append(wire.KindStderr, frame("oops"))
	s.Append(wire.KindStdout, frame("two"))
	s.End()
	late, skipped := s.Follow()
	if skipped != 0 {
		t.Errorf("skipped %d bytes", skipped)
	}
	for name, f := range map[string]*Follower{"early": early, "late": late} {
		if got := readAll(t, f, wire.KindStdout); string(got) != "one two" {
			t.Errorf("%s follower read %q", name, got)
		}
	}
	again, _ := s.Follow()
	if got := readAll(t, again, wire.KindStderr); string(got) != "oops" {
		t.Errorf("stderr is %q", got)
	}
}

func TestWithoutFollowersTheOldestIsDropped(t *testing.T) {
	t.Parallel()
	dir := filepath.Join(t.TempDir(), "out")
	const limit = 64 << 10
	s := New(dir, limit)
	var last []byte
	for i := range 1000 {
		last = binary.BigEndian.AppendUint32(nil, uint32(i))
		s.Append(wire.KindStdout, frame(string(bytes.Repeat(last, 256))))
	}
	s.End()
	if n := s.Size(); n > limit {
		t.Errorf("%d bytes are kept, more than %d", n, limit)
	}
	files, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	var onDisk int64
	for _, f := range files {
		info, err := f.Info()
		if err != nil {
			t.Fatal(err)
		}
		onDisk += info.Size()
	}
	if onDisk != s.Size() {
		t.Errorf("%d bytes on disk, %d are kept", onDisk, s.Size())
	}
	f, skipped := s.Follow()
	got := readAll(t, f, wire.KindStdout)
	if !bytes.HasSuffix(got, bytes.Repeat(last, 256)) {
		t.Error("the end of the output is not what was written last")
	}
	if skipped+int64(len(got)) != 1000*1024 {
		t.Errorf("skipped %d and read %d, want %d in all", skipped, len(got), 1000*1024)
	}
}

// TestSlowFollowerMakesAppendWait checks that a reader that is slower than the command gets all output: the command
// waits.
func TestSlowFollowerMakesAppendWait(t *testing.T) {
	t.Parallel()
	s := New(filepath.Join(t.TempDir(), "out"), 64<<10)
	f, _ := s.Follow()
	written := sha256.New()
	var writer sync.WaitGroup
	writer.Go(func() {
		for i := range 2000 {
			data := bytes.Repeat([]byte{byte(i)}, 1000)
			written.Write(data)
			s.Append(wire.KindStdout, frame(string(data)))
			if n := s.Size(); n > 80<<10 {
				t.Errorf("%d bytes are kept", n)
				break
			}
		}
		s.End()
	})
	got := sha256.Sum256(readAll(t, f, wire.KindStdout))
	writer.Wait()
	if !bytes.Equal(got[:], written.Sum(nil)) {
		t.Error("the follower read something else than was written")
	}
}

func TestCloseFreesAWaitingCommand(t *testing.T) {
	t.Parallel()
	s := New(filepath.Join(t.TempDir(), "out"), 16<<10)
	f, _ := s.Follow()
	done := make(chan struct{})
	go func() {
		defer close(done)
		for range 100 {
			s.Append(wire.KindStdout, frame(string(make([]byte, 1000))))
		}
	}()
	select {
	case <-done:
		t.Error("100 KB went into a spool of 16 KB although a follower had read nothing")
	default:
	}
	f.Close()
	<-done
	if _, _, err := f.Next(); err != io.ErrClosedPipe {
		t.Errorf("Next after Close: %v", err)
	}
}

func TestCloseWakesAWaitingFollower(t *testing.T) {
	t.Parallel()
	s := New(filepath.Join(t.TempDir(), "out"), 16<<10)
	f, _ := s.Follow()
	result := make(chan error)
	go func() {
		_, _, err := f.Next()
		result <- err
	}()
	f.Close()
	if err := <-result; err != io.ErrClosedPipe {
		t.Errorf("Next: %v", err)
	}
}

// TestOutputAfterTheEnd checks that output of background children after the command's end is kept for later followers,
// and that the end does not wait for it.
func TestOutputAfterTheEnd(t *testing.T) {
	t.Parallel()
	s := New(filepath.Join(t.TempDir(), "out"), 16<<10)
	idle, _ := s.Follow()
	defer idle.Close()
	s.Append(wire.KindStdout, frame("before "))
	s.End()
	for range 100 {
		s.Append(wire.KindStdout, frame(string(bytes.Repeat([]byte("x"), 1000))))
	}
	s.Append(wire.KindStdout, frame("after"))
	f, _ := s.Follow()
	if got := readAll(t, f, wire.KindStdout); !bytes.HasSuffix(got, []byte("after")) {
		t.Error("what came after the end is not there")
	}
}

func TestRemove(t *testing.T) {
	t.Parallel()
	dir := filepath.Join(t.TempDir(), "out")
	s := New(dir, 16<<10)
	s.Append(wire.KindStdout, frame("x"))
	f, _ := s.Follow()
	s.Remove()
	if _, _, err := f.Next(); !errors.Is(err, errors.NotFound) {
		t.Errorf("Next after Remove: %v", err)
	}
	if _, err := os.Stat(dir); !errors.IsNotExist(err) {
		t.Errorf("the directory is still there: %v", err)
	}
}

// TestUnusableDisk checks that followers get output for which not even a file can be made, before and after its end.
func TestUnusableDisk(t *testing.T) {
	t.Parallel()
	file := filepath.Join(t.TempDir(), "file")
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	s := New(filepath.Join(file, "out"), 16<<10) // below a file nothing can be made
	early, _ := s.Follow()
	s.Append(wire.KindStdout, frame("x"))
	s.End()
	if s.Err() == nil {
		t.Error("Err does not report the disk")
	}
	late, skipped := s.Follow()
	for name, f := range map[string]*Follower{"early": early, "late": late} {
		if got := readAll(t, f, wire.KindStdout); string(got) != "x" || skipped != 0 {
			t.Errorf("%s: read %q after %d bytes", name, got, skipped)
		}
	}
}

// numbered returns output of n lines of 1024 bytes, each with its number.
func numbered(n int) (lines []string) {
	for i := range n {
		lines = append(lines, fmt.Sprintf("%08d%s\n", i, strings.Repeat(".", 1015)))
	}
	return lines
}

// TestFullDisk checks output that is much larger than the disk, and that the disk is used again when it has room.
func TestFullDisk(t *testing.T) {
	t.Parallel()
	const disk = 1 << 20
	dir := testenv.SmallDisk(t, "size=1m")
	lines := numbered(3 << 10)
	all := strings.Join(lines, "")
	t.Run("with a follower", func(t *testing.T) {
		s := New(filepath.Join(dir, "followed"), 16<<20)
		defer s.Remove()
		f, _ := s.Follow()
		go func() {
			for _, line := range lines {
				s.Append(wire.KindStdout, frame(line))
			}
			s.End()
		}()
		if got := readAll(t, f, wire.KindStdout); string(got) != all {
			t.Errorf("the follower has %d bytes that differ from the %d written", len(got), len(all))
		}
		wantKept(t, s, all, disk/2)
	})
	t.Run("without", func(t *testing.T) {
		s := New(filepath.Join(dir, "alone"), 16<<20)
		defer s.Remove()
		for _, line := range lines {
			s.Append(wire.KindStdout, frame(line))
		}
		s.End()
		wantKept(t, s, all, memory/2)
	})
	t.Run("full from the beginning", func(t *testing.T) {
		filler := filepath.Join(dir, "filler")
		if err := os.WriteFile(filler, make([]byte, 2*disk), 0o600); !errors.Is(err, unix.ENOSPC) {
			t.Fatalf("the disk is not full: %v", err)
		}
		s := New(filepath.Join(dir, "full"), 16<<20)
		defer s.Remove()
		for _, line := range lines {
			s.Append(wire.KindStdout, frame(line))
		}
		wantKept(t, s, all, memory/2)
		if err := os.Remove(filler); err != nil {
			t.Fatal(err)
		}
		for _, line := range lines[:512] {
			s.Append(wire.KindStdout, frame(line))
		}
		s.End()
		if files, err := os.ReadDir(filepath.Join(dir, "full")); err != nil || len(files) == 0 {
			t.Errorf("with room again: %d files, %v", len(files), err)
		}
		wantKept(t, s, all+strings.Join(lines[:512], ""), 512<<10)
	})
}

// wantKept checks that s keeps the end of all, least bytes or more, and says how much of the beginning it lacks.
func wantKept(t *testing.T, s *Spool, all string, least int) {
	t.Helper()
	f, skipped := s.Follow()
	defer f.Close()
	var got []byte
	for kept := int64(len(all)) - skipped; int64(len(got)) < kept; {
		frames, lost, err := f.Next()
		if err != nil || lost > 0 {
			t.Fatalf("%d bytes lost, %v", lost, err)
		}
		for len(frames) > 0 {
			n := wire.HeaderSize + binary.BigEndian.Uint32(frames[1:])
			got = append(got, frames[wire.HeaderSize:n]...)
			frames = frames[n:]
		}
	}
	if len(got) < least || int64(len(got))+skipped != int64(len(all)) || !strings.HasSuffix(all, string(got)) {
		t.Errorf("kept %d bytes and skipped %d of %d, want at least %d", len(got), skipped, len(all), least)
	}
}

// TestUnreadableOutput checks that a follower learns how many bytes the disk does not return, and gets the rest.
func TestUnreadableOutput(t *testing.T) {
	t.Parallel()
	s := New(filepath.Join(t.TempDir(), "out"), 64<<10) // segments of 8 KiB
	lines := numbered(16)
	for _, line := range lines {
		s.Append(wire.KindStdout, frame(line))
	}
	s.End()
	f, _ := s.Follow()
	if err := s.segs[0].file.Close(); err != nil {
		t.Fatal(err)
	}
	frames, lost, err := f.Next()
	if len(frames) != 0 || lost != 8<<10 || err != nil {
		t.Fatalf("%d bytes, %d lost, %v; want 8192 lost", len(frames), lost, err)
	}
	if got := readAll(t, f, wire.KindStdout); string(got) != strings.Join(lines[8:], "") {
		t.Errorf("the rest has %d bytes", len(got))
	}
}

// TestDroppedAfterTheEnd checks a follower whose unread output is dropped for output of background children.
func TestDroppedAfterTheEnd(t *testing.T) {
	t.Parallel()
	s := New(filepath.Join(t.TempDir(), "out"), 64<<10)
	s.Append(wire.KindStdout, frame("first"))
	f, _ := s.Follow()
	s.End()
	lines := numbered(128)
	for _, line := range lines {
		s.Append(wire.KindStdout, frame(line))
	}
	_, lost, err := f.Next()
	if lost < 64<<10 || err != nil {
		t.Fatalf("%d bytes lost, %v", lost, err)
	}
	if got := readAll(t, f, wire.KindStdout); "first"+strings.Join(lines, "") !=
		("first" + strings.Join(lines, ""))[:lost]+string(got) {
		t.Errorf("lost %d, read %d", lost, len(got))
	}
}

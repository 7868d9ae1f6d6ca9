package kept

import (
	"os"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/RelevanceAI/harvest/client/errors"
)

// TestPollable checks that a file that was opened to block honours deadlines afterwards.
func TestPollable(t *testing.T) {
	t.Parallel()
	var fds [2]int
	if err := unix.Pipe2(fds[:], unix.O_CLOEXEC); err != nil {
		t.Fatal(err)
	}
	w := os.NewFile(uintptr(fds[1]), "write")
	defer w.Close()
	blocking := os.NewFile(uintptr(fds[0]), "read")
	if err := blocking.SetReadDeadline(time.Now()); !errors.Is(err, os.ErrNoDeadline) {
		t.Fatalf("a file that blocks takes a deadline: %v", err)
	}
	r, err := Pollable(blocking)
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	if err := r.SetReadDeadline(time.Now()); err != nil {
		t.Fatal(err)
	}
	if _, err := r.Read(make([]byte, 1)); !errors.Is(err, os.ErrDeadlineExceeded) {
		t.Errorf("got %v, want the deadline", err)
	}
	if err := blocking.Close(); !errors.Is(err, os.ErrClosed) {
		t.Errorf("the former file is open: %v", err)
	}
	if _, err := Pollable(blocking); err == nil {
		t.Error("a closed file was duplicated")
	}
}

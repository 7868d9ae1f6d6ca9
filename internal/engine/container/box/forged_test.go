package box

import (
	"net"
	"os"
	"os/exec"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/RelevanceAI/harvest/client/errors"
	"github.com/RelevanceAI/harvest/internal/engine/container/pid1"
)

// forge returns a container whose first process does nothing, and the link by which it would speak.
func forge(t *testing.T) (*Box, *pid1.Link) {
	t.Helper()
	fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	var ends [2]*net.UnixConn
	for i, fd := range fds {
		f := os.NewFile(uintptr(fd), "link")
		c, err := net.FileConn(f)
		_ = f.Close()
		if err != nil {
			t.Fatal(err)
		}
		ends[i] = c.(*net.UnixConn)
	}
	init := exec.CommandContext(t.Context(), "sleep", "1000")
	if err := init.Start(); err != nil {
		t.Fatal(err)
	}
	b := watch(init, ends[0])
	theirs := pid1.NewLink(ends[1])
	t.Cleanup(func() {
		b.Kill()
		b.Wait()
		_ = theirs.Close()
	})
	return b, theirs
}

func send(t *testing.T, l *pid1.Link, m pid1.Message, files ...*os.File) {
	t.Helper()
	if err := l.Send(m, files...); err != nil {
		t.Fatal(err)
	}
}

// TestForgedMessages checks that messages of a first process that a user of the container controls change nothing but
// what they answer.
func TestForgedMessages(t *testing.T) {
	t.Parallel()
	b, theirs := forge(t)
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	first, second := unix.WaitStatus(1<<8), unix.WaitStatus(2<<8)
	send(t, theirs, pid1.Message{ID: 99, PID: 7}, w) // an answer to no request, with a file
	send(t, theirs, pid1.Message{PID: 7, Exit: &first})
	send(t, theirs, pid1.Message{PID: 7, Exit: &second})
	send(t, theirs, pid1.Message{PID: -1, Exit: &second})
	if status, err := b.WaitPID(7); err != nil || status != first {
		t.Errorf("got %v, %v, want the first status", status, err)
	}
	// Nobody else has the end of the pipe: what came without a request was closed.
	_ = w.Close()
	if n, err := r.Read(make([]byte, 1)); n != 0 || err == nil {
		t.Errorf("the file of a forged answer is open: %d, %v", n, err)
	}
	answers := make(chan error, 1)
	go func() {
		_, _, err := b.Terminal()
		answers <- err
	}()
	var req pid1.Request
	if _, err := theirs.Receive(&req); err != nil {
		t.Fatal(err)
	}
	send(t, theirs, pid1.Message{ID: req.ID}, r)
	if err := <-answers; err == nil {
		t.Error("an answer with one file in place of two was accepted")
	}
}

// TestFloodOfEnds checks that a first process cannot fill the memory of the keeper.
func TestFloodOfEnds(t *testing.T) {
	t.Parallel()
	b, theirs := forge(t)
	status := unix.WaitStatus(0)
	for pid := 1; pid <= maxExits+1; pid++ {
		if theirs.Send(pid1.Message{PID: pid, Exit: &status}) != nil {
			break // it has ended
		}
	}
	if got := b.Wait(); !got.Signaled() || b.Pid() != 0 {
		t.Errorf("ended with %v", got)
	}
	if _, err := b.WaitPID(maxExits + 2); !errors.Is(err, errors.Conflict) {
		t.Errorf("got %v, want Conflict", err)
	}
}

// TestLinkThatBreaks checks that a container without a link ends, and that requests fail then.
func TestLinkThatBreaks(t *testing.T) {
	t.Parallel()
	b, theirs := forge(t)
	_ = theirs.Close()
	b.Wait()
	if _, err := b.Execute(pid1.StartArgs{}); err == nil {
		t.Error("a request of a container that has ended succeeds")
	}
	if _, err := b.Users(); err == nil {
		t.Error("a container that has ended has users")
	}
}

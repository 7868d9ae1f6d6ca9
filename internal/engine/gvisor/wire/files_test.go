package wire

import (
	"net"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/RelevanceAI/harvest/client/errors"
)

// socketPair returns the ends of a connection that carries files.
func socketPair(t *testing.T) (x, y *Conn) {
	t.Helper()
	fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	var ends []*Conn
	for _, fd := range fds {
		f := os.NewFile(uintptr(fd), "end")
		c, err := net.FileConn(f)
		if err := errors.Join(err, f.Close()); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = c.Close() })
		ends = append(ends, NewConn(c))
	}
	return ends[0], ends[1]
}

// TestFilesTravelBesideFrames checks that open files arrive in order, between frames that arrive unchanged.
func TestFilesTravelBesideFrames(t *testing.T) {
	t.Parallel()
	client, keeper := socketPair(t)
	var files []*os.File
	for i := range 64 {
		f, err := os.Create(filepath.Join(t.TempDir(), strconv.Itoa(i)))
		if err != nil {
			t.Fatal(err)
		}
		defer f.Close()
		files = append(files, f)
	}
	sent := make(chan error, 1)
	go func() {
		err := client.SendJSON(KindRequest, Request{Op: Claim})
		if err == nil {
			err = client.SendFiles(files)
		}
		if err == nil {
			_, err = client.ReceiveReply(nil)
		}
		sent <- err
	}()
	if k, _, err := keeper.Receive(); k != KindRequest || err != nil {
		t.Fatalf("received %q, %v", k, err)
	}
	got, err := keeper.ReceiveFiles(len(files))
	if err != nil {
		t.Fatal(err)
	}
	for i, f := range got {
		var want, have unix.Stat_t
		if err := errors.Join(unix.Fstat(int(files[i].Fd()), &want), unix.Fstat(int(f.Fd()), &have)); err != nil ||
			want.Ino != have.Ino {
			t.Errorf("file %d has inode %d, %v, want %d", i, have.Ino, err, want.Ino)
		}
		if flags, err := unix.FcntlInt(f.Fd(), unix.F_GETFD, 0); err != nil || flags&unix.FD_CLOEXEC == 0 {
			t.Errorf("file %d is inherited: %x, %v", i, flags, err)
		}
		_ = f.Close()
	}
	if err := errors.Join(keeper.SendJSON(KindReply, Reply{}), <-sent); err != nil {
		t.Error(err)
	}
}

// TestFilesThatAreNotSent checks that both sides report a disagreement, and a failure arrives instead of the question.
func TestFilesThatAreNotSent(t *testing.T) {
	t.Parallel()
	client, keeper := socketPair(t)
	refused := errors.Newf(errors.Conflict, "the sandbox is taken")
	if err := keeper.SendJSON(KindFailure, FailureOf(refused)); err != nil {
		t.Fatal(err)
	}
	if err := client.SendFiles([]*os.File{os.Stdin}); !errors.Is(err, errors.Conflict) {
		t.Errorf("instead of the keeper's failure: %v", err)
	}
	client, keeper = socketPair(t)
	if err := keeper.SendJSON(KindFiles, 2); err != nil {
		t.Fatal(err)
	}
	if err := client.SendFiles([]*os.File{os.Stdin}); err == nil || !strings.Contains(err.Error(), "expects 2 files") {
		t.Errorf("a different number: %v", err)
	}
	if err := client.Send(KindStdin, nil); err != nil {
		t.Fatal(err)
	}
	if files, err := keeper.ReceiveFiles(1); err == nil || len(files) > 0 {
		t.Errorf("a frame instead of files: %v, %v", files, err)
	}
}

package store

import (
	"bufio"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/RelevanceAI/harvest/client/errors"
)

func TestSecondServerIsRefusedWithThePID(t *testing.T) {
	t.Parallel()
	dir := filepath.Join(t.TempDir(), "made", "by", "us")
	l, err := LockDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	if info, err := os.Stat(dir); err != nil || info.Mode().Perm() != 0o700 {
		t.Errorf("the directory: %v, %v, want mode 0700", info, err)
	}
	out, err := helper(t, "lock", dir).Output()
	if err != nil {
		t.Fatal(err)
	}
	check(t, string(out), "conflict: ", dir, fmt.Sprintf("process %d", os.Getpid()), "harvest down")
	if _, err := LockDir(dir); !errors.Is(err, errors.Conflict) {
		t.Errorf("a second lock in this process: %v, want Conflict", err)
	}
	if err := l.Unlock(); err != nil {
		t.Fatal(err)
	}
	again, err := LockDir(dir)
	if err != nil {
		t.Fatalf("lock after unlock: %v", err)
	}
	if err := again.Unlock(); err != nil {
		t.Fatal(err)
	}
}

func TestLockEndsWithItsProcess(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	cmd := helper(t, "lock", dir)
	if _, err := cmd.StdinPipe(); err != nil {
		t.Fatal(err)
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	if _, err := bufio.NewReader(out).ReadString('\n'); err != nil {
		t.Fatal(err)
	}
	_, err = LockDir(dir)
	check(t, errors.Message(err), fmt.Sprintf("process %d", cmd.Process.Pid))
	if err := cmd.Process.Signal(syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	if err := cmd.Wait(); err == nil {
		t.Fatal("the helper was not killed")
	}
	l, err := LockDir(dir)
	if err != nil {
		t.Fatalf("lock after kill -9 of its owner: %v", err)
	}
	defer l.Unlock()
	content, err := os.ReadFile(filepath.Join(dir, "lock"))
	if err != nil || strings.TrimSpace(string(content)) != strconv.Itoa(os.Getpid()) {
		t.Errorf("the file has %q, %v, want our pid", content, err)
	}
}

func TestLockWithoutPID(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	l, err := LockDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	defer l.Unlock()
	if err := l.File.Truncate(0); err != nil {
		t.Fatal(err)
	}
	_, err = LockDir(dir)
	if !errors.Is(err, errors.Conflict) {
		t.Fatalf("%v, want Conflict", err)
	}
	check(t, errors.Message(err), "in use by another Harvest")
}

// TestLockThatAnotherHoldsForAMoment checks that a program that is being started holds its parent's files until it
// runs.
func TestLockThatAnotherHoldsForAMoment(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	l, err := LockDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	fd, err := unix.Dup(int(l.File.Fd()))
	if err != nil {
		t.Fatal(err)
	}
	if err := l.Unlock(); err != nil {
		t.Fatal(err)
	}
	second, err := LockDir(dir)
	if err != nil {
		t.Fatalf("lock after unlock, while the file is open elsewhere: %v", err)
	}
	if err := unix.Close(fd); err != nil {
		t.Fatal(err)
	}

	// The locking process has ended without unlocking, and the child that it was starting ends a little later.
	if fd, err = unix.Dup(int(second.File.Fd())); err != nil {
		t.Fatal(err)
	}
	gone := helper(t, "lock", t.TempDir())
	if err := gone.Run(); err != nil {
		t.Fatal(err)
	}
	if _, err := second.File.WriteAt([]byte(strconv.Itoa(gone.Process.Pid)+"\n          "), 0); err != nil {
		t.Fatal(err)
	}
	if err := second.File.Close(); err != nil {
		t.Fatal(err)
	}
	time.AfterFunc(50*time.Millisecond, func() { _ = unix.Close(fd) })
	third, err := LockDir(dir)
	if err != nil {
		t.Fatalf("lock whose process has ended: %v", err)
	}
	if err := third.Unlock(); err != nil {
		t.Fatal(err)
	}
}

func TestDirectoryOfSomebodyElse(t *testing.T) {
	t.Parallel()
	if os.Geteuid() != 0 {
		t.Skip("this needs root, to give a directory to somebody else")
	}
	theirs := t.TempDir()
	if err := os.Chown(theirs, 65534, 65534); err != nil {
		t.Fatal(err)
	}
	_, err := LockDir(theirs)
	if !errors.Is(err, errors.Denied) {
		t.Fatalf("%v, want Denied", err)
	}
	check(t, errors.Message(err)+" | "+errors.RemedyOf(err), theirs, "belongs to the user nobody", "HARVEST_DATA")

	unknown := t.TempDir()
	if err := os.Chown(unknown, 54321, 54321); err != nil {
		t.Fatal(err)
	}
	_, err = LockDir(unknown)
	check(t, errors.Message(err), "belongs to the user 54321")

	cmd := helper(t, "lock", filepath.Join(shared(t, 0o755), "new"))
	asNobody(t, cmd)
	out, err := cmd.Output()
	if err != nil {
		t.Fatal(err)
	}
	check(t, string(out), "denied: ", "cannot be written", "HARVEST_DATA")
}

func TestDirectoryThatIsNone(t *testing.T) {
	t.Parallel()
	file := filepath.Join(t.TempDir(), "file")
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	for _, dir := range []string{file, filepath.Join(file, "below")} {
		_, err := LockDir(dir)
		if !errors.Is(err, errors.Invalid) {
			t.Errorf("%s: %v, want Invalid", dir, err)
		}
		check(t, errors.Message(err), "is not a directory")
	}
}

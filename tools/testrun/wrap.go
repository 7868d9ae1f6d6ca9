package main

import (
	"fmt"
	"os"
	"os/signal"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/RelevanceAI/harvest/client/errors"
)

// wrapCommand is the first argument of this program when it wraps a test binary.
const wrapCommand = "wrap-test-binary"

// settle is how long processes left behind by a test binary may take to end on their own.
const settle = 5 * time.Second

// wrap runs a test binary and returns its exit code. Then it kills and names the processes that the binary left
// behind, such as servers and sandboxes of a stopped test. SIGTERM kills the binary first.
func wrap(args []string) (code int, err error) {
	if err := unix.Prctl(unix.PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0); err != nil {
		return 0, errors.Wrapf(err, "adopt the processes of %s", args[0])
	}
	stop := make(chan os.Signal, 1)
	signal.Notify(stop, unix.SIGTERM)
	p, err := os.StartProcess(args[0], args, &os.ProcAttr{Files: []*os.File{os.Stdin, os.Stdout, os.Stderr}})
	if err != nil {
		return 0, errors.Wrapf(err, "start %s", args[0])
	}
	go func() {
		<-stop
		_ = unix.Kill(p.Pid, unix.SIGKILL)
	}()
	for {
		var status unix.WaitStatus
		pid, err := unix.Wait4(-1, &status, 0, nil) // includes processes left behind
		if err != nil && err != unix.EINTR {
			return 0, errors.Wrapf(err, "wait for %s", args[0])
		}
		if pid == p.Pid {
			code = status.ExitStatus() // -1 after a signal
			break
		}
	}
	killLeft()
	return code, nil
}

// killLeft waits until all descendants have ended. After settle it kills and names them, including those that
// start meanwhile. After twice that time it gives up.
func killLeft() {
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		for {
			if _, err := unix.Wait4(-1, nil, 0, nil); err != nil && err != unix.EINTR {
				return // ECHILD: no children
			}
		}
	}()
	late, over := time.After(settle), time.After(2*settle)
	again := make(<-chan time.Time)
	for {
		select {
		case <-ended:
			return
		case <-over:
			return
		case <-late:
		case <-again:
		}
		for _, pid := range descendants(os.Getpid()) {
			name, _ := os.ReadFile(fmt.Sprintf("/proc/%d/cmdline", pid)) // a process that has ended has no command line
			if unix.Kill(pid, unix.SIGKILL) == nil && len(name) > 0 {
				fmt.Fprintf(os.Stderr, "left by the tests and killed: %.300q\n",
					strings.ReplaceAll(strings.TrimRight(string(name), "\x00"), "\x00", " "))
			}
		}
		again = time.After(50 * time.Millisecond)
	}
}

// descendants returns the processes below pid.
func descendants(pid int) (found []int) {
	children := map[int][]int{}
	files, _ := filepath.Glob("/proc/[0-9]*/stat")
	for _, file := range files {
		text, _ := os.ReadFile(file) // a process that has ended is not a child
		_, rest, _ := strings.Cut(string(text[max(0, strings.LastIndex(string(text), ")")):]), " ")
		fields := strings.Fields(rest)
		if len(fields) < 2 || fields[0] == "Z" {
			continue
		}
		child, _ := strconv.Atoi(filepath.Base(filepath.Dir(file)))
		parent, _ := strconv.Atoi(fields[1])
		children[parent] = append(children[parent], child)
	}
	for next := children[pid]; len(next) > 0; {
		child := next[0]
		next = append(slices.Clone(next[1:]), children[child]...)
		found = append(found, child)
	}
	return found
}

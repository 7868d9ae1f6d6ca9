package testenv

import (
	"bytes"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// patience is how long processes and mounts may take to end, and files to be removed, on a busy machine.
var patience = time.Minute

// NoLeaks fails the test if dirs are still in use at its end: by a process that names one of them in its
// arguments or environment or has a file open there, this test's own process included; by a mount; or by a Unix
// socket. It also fails for empty cgroups and network namespaces named harvest. It ends the processes and
// mounts that it finds, so that they do not disturb later tests. Without dirs it looks for descendants of the
// test's process instead, and the test must not run in parallel with others.
func NoLeaks(t testing.TB, dirs ...string) {
	t.Helper()
	for i, dir := range dirs {
		if real, err := filepath.EvalSymlinks(dir); err == nil {
			dirs[i] = real
		}
	}
	before := emptyGroups()
	children := descendants(os.Getpid())
	t.Cleanup(func() {
		t.Helper()
		var left []leak
		for deadline := time.Now().Add(patience); ; time.Sleep(50 * time.Millisecond) {
			left = nil
			for _, dir := range dirs {
				left = append(left, leaksOf(dir)...)
			}
			if len(dirs) == 0 {
				left = append(left, newProcesses(children)...)
			}
			left = append(left, newGroups(before)...)
			if len(left) == 0 || time.Now().After(deadline) {
				break
			}
		}
		for _, l := range left {
			t.Errorf("left behind: %s", l.what)
			if l.pid > 0 && l.pid != os.Getpid() {
				// It may be ending just now.
				_ = unix.Kill(l.pid, unix.SIGKILL)
			}
		}
		for _, dir := range dirs {
			unmountBelow(dir)
		}
	})
}

// leak is an object that should be gone. pid is 0 if it is not a process.
type leak struct {
	what string
	pid  int
}

func leaksOf(dir string) []leak {
	all := processesOf(dir)
	for _, m := range mountsBelow(dir) {
		all = append(all, leak{what: "mount " + m})
	}
	err := filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		if err == nil && d.Type() == fs.ModeSocket {
			all = append(all, leak{what: "socket " + path})
		}
		return nil
	})
	if err != nil {
		all = append(all, leak{what: fmt.Sprintf("unknown: %s cannot be walked: %v", dir, err)})
	}
	return all
}

// processesOf finds processes through /proc. It finds zombies only as descendants, because they use nothing.
func processesOf(dir string) []leak {
	var all []leak
	for _, pid := range pids() {
		if why := uses(pid, dir); why != "" {
			all = append(all, leak{what: fmt.Sprintf("process %d (%s), which has %s in its %s", pid, commandLine(pid),
				dir, why), pid: pid})
		}
	}
	return all
}

// uses returns where process pid mentions dir, or "".
func uses(pid int, dir string) string {
	proc := "/proc/" + strconv.Itoa(pid)
	self := pid == os.Getpid()
	if !self {
		for _, name := range []string{"cmdline", "environ"} {
			// Processes may end meanwhile; an unreadable one is gone.
			text, _ := os.ReadFile(filepath.Join(proc, name))
			if bytes.Contains(text, []byte(dir)) {
				return name
			}
		}
	}
	for _, name := range []string{"cwd", "exe", "root"} {
		if target, _ := os.Readlink(filepath.Join(proc, name)); below(target, dir) {
			return name
		}
	}
	fds, _ := os.ReadDir(filepath.Join(proc, "fd"))
	for _, fd := range fds {
		if target, _ := os.Readlink(filepath.Join(proc, "fd", fd.Name())); below(target, dir) {
			return "open files: " + target
		}
	}
	return ""
}

func below(path, dir string) bool { return path == dir || strings.HasPrefix(path, dir+"/") }

func pids() []int {
	entries, _ := os.ReadDir("/proc")
	var all []int
	for _, e := range entries {
		if pid, err := strconv.Atoi(e.Name()); err == nil {
			all = append(all, pid)
		}
	}
	return all
}

func commandLine(pid int) string {
	text, _ := os.ReadFile(fmt.Sprintf("/proc/%d/cmdline", pid))
	return strings.TrimSpace(string(bytes.ReplaceAll(text, []byte{0}, []byte{' '})))
}

// descendants lists the processes below pid, by their parents.
func descendants(pid int) []int {
	children := map[int][]int{}
	for _, p := range pids() {
		if parent := parentOf(p); parent > 0 {
			children[parent] = append(children[parent], p)
		}
	}
	var all []int
	for queue := []int{pid}; len(queue) > 0; queue = queue[1:] {
		all = append(all, children[queue[0]]...)
		queue = append(queue, children[queue[0]]...)
	}
	return all
}

// parentOf returns the parent of pid, or 0 if the process is gone.
func parentOf(pid int) int {
	stat, _ := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	// The name stands in parentheses and may contain any character, even parentheses.
	_, rest, _ := strings.Cut(string(stat[bytes.LastIndexByte(stat, ')')+1:]), " ")
	fields := strings.Fields(rest)
	if len(fields) < 2 {
		return 0
	}
	parent, _ := strconv.Atoi(fields[1])
	return parent
}

func newProcesses(before []int) []leak {
	var all []leak
	for _, pid := range descendants(os.Getpid()) {
		if !slices.Contains(before, pid) {
			all = append(all, leak{what: fmt.Sprintf("child process %d (%s)", pid, commandLine(pid)), pid: pid})
		}
	}
	return all
}

// emptyGroups lists cgroups named harvest without processes, and named network namespaces. Those of running
// tests contain processes, so an empty one that stays is a leak.
func emptyGroups() []string {
	var all []string
	for _, pattern := range []string{"/sys/fs/cgroup", "/sys/fs/cgroup/*"} {
		tops, _ := filepath.Glob(filepath.Join(pattern, "harvest*"))
		for _, top := range tops {
			all = append(all, emptyBelow(top)...)
		}
	}
	names, _ := filepath.Glob("/run/netns/harvest*")
	return append(all, names...)
}

// emptyBelow lists the leaves below top without processes. top itself may stay.
func emptyBelow(top string) []string {
	var all []string
	_ = filepath.WalkDir(top, func(path string, d fs.DirEntry, err error) error {
		if err != nil || !d.IsDir() || path == top {
			return nil
		}
		if sub, _ := filepath.Glob(filepath.Join(path, "*", "cgroup.procs")); len(sub) > 0 {
			return nil
		}
		if procs, err := os.ReadFile(filepath.Join(path, "cgroup.procs")); err == nil && len(procs) == 0 {
			all = append(all, path)
		}
		return nil
	})
	return all
}

func newGroups(before []string) []leak {
	var all []leak
	for _, path := range emptyGroups() {
		if !slices.Contains(before, path) {
			all = append(all, leak{what: path})
		}
	}
	return all
}

// mountsBelow lists the mounts at dir or below it, innermost first.
func mountsBelow(dir string) []string {
	text, _ := os.ReadFile("/proc/self/mountinfo")
	var all []string
	for line := range strings.Lines(string(text)) {
		fields := strings.Fields(line)
		if len(fields) < 5 {
			continue
		}
		if point := unescape(fields[4]); below(point, dir) {
			all = append(all, point)
		}
	}
	slices.Reverse(all)
	return all
}

// unescape undoes mountinfo's octal escapes.
func unescape(text string) string {
	return strings.NewReplacer(`\040`, " ", `\011`, "\t", `\012`, "\n", `\134`, `\`).Replace(text)
}

func unmountBelow(dir string) {
	for _, m := range mountsBelow(dir) {
		// The removal of the directory reports remaining mounts.
		_ = unix.Unmount(m, unix.MNT_DETACH)
	}
}

package main

import (
	"context"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"github.com/RelevanceAI/harvest/client/errors"
)

// family returns the processes whose command line matches, and all their descendants. Arguments are separated by NUL.
func family(match func(cmdline string) bool) []int {
	entries, _ := os.ReadDir("/proc")
	children := map[int][]int{}
	var found []int
	for _, e := range entries {
		pid, err := strconv.Atoi(e.Name())
		if err != nil || pid == os.Getpid() {
			continue
		}
		stat, err := os.ReadFile(filepath.Join("/proc", e.Name(), "stat"))
		if err != nil {
			continue
		}
		if parent := parentOf(string(stat)); parent > 0 {
			children[parent] = append(children[parent], pid)
		}
		if cmdline, err := os.ReadFile(filepath.Join("/proc", e.Name(), "cmdline")); err == nil &&
			match(string(cmdline)) {
			found = append(found, pid)
		}
	}
	seen := map[int]bool{}
	var all []int
	for len(found) > 0 {
		pid := found[0]
		found = found[1:]
		if !seen[pid] {
			seen[pid] = true
			all = append(all, pid)
			found = append(found, children[pid]...)
		}
	}
	return all
}

// waitGone waits up to two seconds until no process matches, and returns those that still do. The last
// processes end shortly after the answer that a sandbox is destroyed.
func waitGone(ctx context.Context, match func(cmdline string) bool) []int {
	const longest = 2 * time.Second
	for end := time.Now().Add(longest); ; {
		left := family(match)
		if len(left) == 0 || time.Now().After(end) || pause(ctx, 10*time.Millisecond) != nil {
			return left
		}
	}
}

// parentOf returns the parent in a /proc/PID/stat, or 0. The name in front of it may contain any character.
func parentOf(stat string) int {
	end := strings.LastIndexByte(stat, ')')
	fields := strings.Fields(stat[end+1:])
	if end < 0 || len(fields) < 2 {
		return 0
	}
	pid, err := strconv.Atoi(fields[1])
	if err != nil {
		return 0
	}
	return pid
}

// kib returns a value of a /proc file of lines "Key:   123 kB", in bytes.
func kib(text, key string) (int64, bool) {
	for line := range strings.Lines(text) {
		if value, ok := strings.CutPrefix(line, key+":"); ok {
			n, err := strconv.ParseInt(strings.TrimSuffix(strings.TrimSpace(value), " kB"), 10, 64)
			return n << 10, err == nil
		}
	}
	return 0, false
}

// memoryOf returns a value of a process's status or smaps_rollup, in bytes.
func memoryOf(pid int, file, key string) (int64, error) {
	b, err := os.ReadFile(filepath.Join("/proc", strconv.Itoa(pid), file))
	if err != nil {
		return 0, errors.Wrapf(err, "read memory of a process")
	}
	n, ok := kib(string(b), key)
	if !ok {
		return 0, errors.Errorf("there is no %s in %s of process %d", key, file, pid)
	}
	return n, nil
}

// pss returns the total proportional set size of processes: shared memory counts once.
func pss(pids []int) (int64, error) {
	sum := int64(0)
	for _, pid := range pids {
		n, err := memoryOf(pid, "smaps_rollup", "Pss")
		if err != nil {
			return 0, err
		}
		sum += n
	}
	return sum, nil
}

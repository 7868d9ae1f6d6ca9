// Package processes finds processes of this machine in /proc, and keeps files from the processes that this one starts.
package processes

import (
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
)

// WithArgs returns the PIDs of the processes with exactly these arguments, the name of the program included.
func WithArgs(args ...string) []int {
	want := strings.Join(args, "\x00") + "\x00"
	var pids []int
	entries, _ := os.ReadDir("/proc")
	for _, e := range entries {
		pid, err := strconv.Atoi(e.Name())
		if err != nil {
			continue
		}
		if b, err := os.ReadFile(filepath.Join("/proc", e.Name(), "cmdline")); err == nil && string(b) == want {
			pids = append(pids, pid)
		}
	}
	return pids
}

// Below returns the PIDs of the processes that a process and its child processes have started.
func Below(pid int) []int {
	var all []int
	tasks, _ := filepath.Glob("/proc/" + strconv.Itoa(pid) + "/task/*/children")
	for _, task := range tasks {
		b, _ := os.ReadFile(task)
		for field := range strings.FieldsSeq(string(b)) {
			if child, err := strconv.Atoi(field); err == nil {
				all = append(append(all, child), Below(child)...)
			}
		}
	}
	slices.Sort(all)
	return all
}

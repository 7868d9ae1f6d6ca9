package guest

import (
	"path/filepath"

	"github.com/RelevanceAI/harvest/internal/engine/gvisor/keeper/initprog"
)

// sysctlFS is the mount point of a tmpfs in sandboxes. It covers gVisor's directory, which lacks files that
// programs read.
const sysctlFS = "/proc/sys/fs"

// sysctlFiles returns the files of sysctlFS. gVisor does not limit inotify or the open files of all processes,
// so the values are those of a large machine. The last three are gVisor's own.
func sysctlFiles() []initprog.Step {
	var steps []initprog.Step
	for _, f := range [][2]string{
		{"inotify/max_queued_events", "16384"}, {"inotify/max_user_instances", "8192"},
		{"inotify/max_user_watches", "1048576"},
		{"file-max", "9223372036854775807"},
		{"mount-max", "10000"}, {"nr_open", "2147483647"}, {"pipe-max-size", "1048576"},
	} {
		file := filepath.Join(sysctlFS, f[0])
		steps = append(steps, initprog.Step{Dir: filepath.Dir(file), File: file, Content: f[1] + "\n"})
	}
	return steps
}

// traceStep lets programs trace processes of the same user that they did not start (gdb -p, strace -p), as
// distributions do on servers. This is safe, because all processes of a sandbox belong to one user of Harvest.
func traceStep() initprog.Step {
	return initprog.Step{Dir: "/proc", File: "/proc/sys/kernel/yama/ptrace_scope", Content: "0"}
}

// MainFiles returns the files that the init program of a main container writes.
func MainFiles(hostname, machineID string) []initprog.Step {
	return append(nameFiles(hostname, machineID), sysctlFiles()...)
}

package keeper

import "path/filepath"

// sysctlFS is where sandboxes have a tmpfs over gVisor's directory of the same name, which lacks files that programs read.
const sysctlFS = "/proc/sys/fs"

// sysctlFiles are the files of sysctlFS. gVisor limits neither inotify nor open files of all processes together, so the values are
// those of a large machine; the last three are gVisor's own.
func sysctlFiles() []initStep {
	var steps []initStep
	for _, f := range [][2]string{
		{"inotify/max_queued_events", "16384"}, {"inotify/max_user_instances", "8192"}, {"inotify/max_user_watches", "1048576"},
		{"file-max", "9223372036854775807"},
		{"mount-max", "10000"}, {"nr_open", "2147483647"}, {"pipe-max-size", "1048576"},
	} {
		file := filepath.Join(sysctlFS, f[0])
		steps = append(steps, initStep{dir: filepath.Dir(file), file: file, content: f[1] + "\n"})
	}
	return steps
}

// traceStep lets programs trace others of the same user that they have not started (gdb -p, strace -p), as distributions do on servers
// and as there is no one to protect: all of a sandbox's processes belong to one user of Harvest.
func traceStep() initStep {
	return initStep{dir: "/proc", file: "/proc/sys/kernel/yama/ptrace_scope", content: "0"}
}

// mainFiles are the files that the init program of a main container writes.
func mainFiles(hostname, machineID string) []initStep {
	return append(nameFiles(hostname, machineID), sysctlFiles()...)
}

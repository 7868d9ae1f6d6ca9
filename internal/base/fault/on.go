//go:build harvest_faults

package fault

import (
	"os"
	"syscall"
)

// Point kills this process if HARVEST_FAULT is name.
func Point(name string) {
	if os.Getenv("HARVEST_FAULT") != name {
		return
	}
	os.Stderr.WriteString("killed at " + name + "\n")
	_ = syscall.Kill(os.Getpid(), syscall.SIGKILL)
	select {}
}

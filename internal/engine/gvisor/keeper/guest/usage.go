package guest

import (
	"fmt"
	"time"

	"github.com/RelevanceAI/harvest/client/errors"
	"github.com/RelevanceAI/harvest/internal/engine/gvisor/cgroup"
)

// Usage returns the processor time of the sandbox and its memory in bytes, gVisor included.
func (g *Guest) Usage() (cpu time.Duration, memory int64, err error) {
	if g.Group == nil {
		used, err := g.Sandbox.Memory()
		return cgroup.ProcessTime(family(g.Sandbox.Pid())), int64(used), errors.Wrapf(err, "ask gVisor for its memory")
	}
	if cpu, err = g.Group.CPU(); err == nil {
		memory, err = g.Group.Memory()
	}
	return cpu, memory, err
}

// OutOfMemory reports whether the kernel's OOM killer has killed a process in the sandbox's cgroup.
func (g *Guest) OutOfMemory() bool { return g.Group != nil && g.Group.OutOfMemory() }

// SharedAbove reports whether programs use more than limit bytes according to the cgroup. It first reads a
// counter that is cheap for the kernel.
func (g *Guest) SharedAbove(limit int64) bool {
	if charged, err := g.Group.Charged(); err != nil || charged <= limit {
		return false
	}
	shared, err := g.Group.Shared()
	return err == nil && shared > limit
}

// MemoryAbove reports whether the sandbox uses more than limit bytes according to gVisor.
func (g *Guest) MemoryAbove(limit int64) bool {
	used, err := g.Sandbox.Memory()
	return err == nil && used > uint64(limit)
}

// Environ returns a process's environment, or nothing if the process is gone. The root container sees all
// processes.
func (g *Guest) Environ(pid int32) []byte {
	b, _ := g.ReadFile(g.Args.Ref, fmt.Sprintf("/proc/%d/environ", pid))
	return b
}

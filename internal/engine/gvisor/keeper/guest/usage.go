package guest

import (
	"fmt"
	"time"

	"github.com/RelevanceAI/harvest/client/errors"
	"github.com/RelevanceAI/harvest/internal/engine/gvisor/cgroup"
)

// Usage implements kept.Sandbox. gVisor's own use is included.
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

// OutOfMemory implements kept.Sandbox.
func (g *Guest) OutOfMemory() bool { return g.Group != nil && g.Group.OutOfMemory() }

// RaiseMemory implements kept.Sandbox.
func (g *Guest) RaiseMemory(bytes int64) error {
	if g.Group == nil {
		return nil
	}
	return g.Group.RaiseMemory(bytes + SentryMemory)
}

// sharedAbove reports whether programs use more than limit bytes according to the cgroup. It first reads a
// counter that is cheap for the kernel.
func (g *Guest) sharedAbove(limit int64) bool {
	if charged, err := g.Group.Charged(); err != nil || charged <= limit {
		return false
	}
	shared, err := g.Group.Shared()
	return err == nil && shared > limit
}

// MemoryAbove implements kept.Sandbox. It asks gVisor, whose own count is the exact one.
func (g *Guest) MemoryAbove(limit int64, watched bool) bool {
	if !watched && !g.sharedAbove(limit) {
		return false
	}
	used, err := g.Sandbox.Memory()
	return err == nil && used > uint64(limit)
}

// Environ implements kept.Sandbox. The root container sees all processes.
func (g *Guest) Environ(pid int32) []byte {
	b, _ := g.read(g.Args.Ref, fmt.Sprintf("/proc/%d/environ", pid))
	return b
}

package guest

import (
	"fmt"
	"os"
	"slices"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/RelevanceAI/harvest/client/errors"
	"github.com/RelevanceAI/harvest/internal/engine/gvisor/cgroup"
	"github.com/RelevanceAI/harvest/internal/engine/gvisor/runsc"
)

// process is gVisor's process, with all its children on this machine.
type process struct {
	Sandbox *runsc.Sandbox
	Group   *cgroup.Group // nil without cgroups
}

// Usage implements kept.Sandbox. gVisor's own use is included.
func (p *process) Usage() (cpu time.Duration, memory int64, err error) {
	if p.Group == nil {
		used, err := p.Sandbox.Memory()
		return cgroup.ProcessTime(family(p.Sandbox.Pid())), int64(used), errors.Wrapf(err, "ask gVisor for its memory")
	}
	if cpu, err = p.Group.CPU(); err == nil {
		memory, err = p.Group.Memory()
	}
	return cpu, memory, err
}

// OutOfMemory implements kept.Sandbox.
func (p *process) OutOfMemory() bool { return p.Group != nil && p.Group.OutOfMemory() }

// RaiseMemory implements kept.Sandbox.
func (p *process) RaiseMemory(bytes int64) error {
	if p.Group == nil {
		return nil
	}
	return p.Group.RaiseMemory(bytes + SentryMemory)
}

// sharedAbove reports whether programs use more than limit bytes according to the cgroup. It first reads a
// counter that is cheap for the kernel.
func (p *process) sharedAbove(limit int64) bool {
	if charged, err := p.Group.Charged(); err != nil || charged <= limit {
		return false
	}
	shared, err := p.Group.Shared()
	return err == nil && shared > limit
}

// MemoryAbove implements kept.Sandbox. It asks gVisor, whose own count is the exact one.
func (p *process) MemoryAbove(limit int64, watched bool) bool {
	if !watched && !p.sharedAbove(limit) {
		return false
	}
	used, err := p.Sandbox.Memory()
	return err == nil && used > uint64(limit)
}

// joinCgroup moves gVisor's processes to their cgroup: the sentry, and the stubs that run programs. Processes
// that they fork afterwards start in it.
func (p *process) joinCgroup() error {
	sentry := p.Sandbox.Pid()
	if p.Group == nil || sentry == 0 { // StartRoot reports that it has ended
		return nil
	}
	for outside := []int{sentry}; len(outside) > 0 && p.Sandbox.Pid() != 0; {
		for _, pid := range outside {
			if err := p.Group.Add(pid); err != nil && !errors.Is(err, unix.ESRCH) {
				return err
			}
		}
		// Children that were forked while their parent was moved are outside.
		outside = slices.DeleteFunc(family(sentry), p.Group.Has)
	}
	return nil
}

// family returns a process and its living descendants.
func family(pid int) []int {
	all := []int{pid}
	tasks, _ := os.ReadDir(fmt.Sprintf("/proc/%d/task", pid))
	for _, task := range tasks {
		b, _ := os.ReadFile(fmt.Sprintf("/proc/%d/task/%s/children", pid, task.Name()))
		for _, field := range strings.Fields(string(b)) {
			if child, err := strconv.Atoi(field); err == nil {
				all = append(all, family(child)...)
			}
		}
	}
	return all
}

// Pause implements kept.Sandbox.
func (p *process) Pause() error { return p.Sandbox.Pause() }

// Resume implements kept.Sandbox.
func (p *process) Resume() error { return p.Sandbox.Resume() }

// Pid implements kept.Sandbox.
func (p *process) Pid() int { return p.Sandbox.Pid() }

// Wait implements kept.Sandbox.
func (p *process) Wait() unix.WaitStatus { return p.Sandbox.Wait() }

// Kill implements kept.Sandbox.
func (p *process) Kill() { p.Sandbox.Kill() }

package spec

import (
	"cmp"
	"runtime"
	"time"

	"golang.org/x/sys/unix"

	"github.com/RelevanceAI/harvest/client/errors"
	"github.com/RelevanceAI/harvest/internal/engine"
)

// A volume may have one file per bytesPerFile of the disk limit, like inodes of a file system, but at least
// leastVolumeFiles: enough for a few trees of node_modules.
const (
	bytesPerFile     = 16 << 10
	leastVolumeFiles = 200_000
)

// defaultDisk is the disk limit of sandboxes that ask for none, in bytes.
const defaultDisk = 10 << 30

// VolumeFiles returns the limit of files of a volume for the limits of sandboxes: l's own, or one that follows from the
// disk limit.
func VolumeFiles(l engine.Limits) int {
	return cmp.Or(l.VolumeFiles, int(max(leastVolumeFiles, cmp.Or(l.Disk, defaultDisk)/bytesPerFile)))
}

// WithDefaults returns m with the size of this machine for zero fields.
func (m Machine) WithDefaults() (Machine, error) {
	m.CPU = cmp.Or(m.CPU, float64(runtime.NumCPU()))
	if m.Memory == 0 {
		var info unix.Sysinfo_t
		if err := unix.Sysinfo(&info); err != nil {
			return m, errors.Wrapf(err, "ask for the size of the memory")
		}
		m.Memory = int64(info.Totalram) * int64(info.Unit)
	}
	return m, nil
}

// Limits returns l with defaults for zero fields, as far as the machine has them.
func (m Machine) Limits(l engine.Limits) engine.Limits {
	l.CPU = cmp.Or(l.CPU, min(1, m.CPU))
	l.Memory = cmp.Or(l.Memory, min(2<<30, m.Memory))
	l.Disk = cmp.Or(l.Disk, defaultDisk)
	l.Processes = cmp.Or(l.Processes, 1024)
	l.Files = cmp.Or(l.Files, 65536)
	l.VolumeFiles = VolumeFiles(l)
	return l
}

// CheckLimits adds the problems of l, the limits of requests that ask for none.
func (m Machine) CheckLimits(p *Problems, l engine.Limits) {
	p.Require(l.CPU >= MinCPU && l.CPU <= m.CPU, "the default number of cores exceeds this machine, or is too low")
	p.Require(l.Memory >= MinMemory && l.Memory <= m.Memory, "the default memory exceeds this machine, or is too low")
	p.Require(l.Disk >= MinDisk && l.Processes > 0 && l.Files > 0,
		"the default limits of disk, processes and open files must be positive")
}

// WithDefaults returns t with the defaults for zero fields.
func (t Timeouts) WithDefaults() Timeouts {
	t.MaxLife = cmp.Or(t.MaxLife, 7*24*time.Hour)
	t.Life = cmp.Or(t.Life, min(24*time.Hour, t.MaxLife))
	t.Exec = cmp.Or(t.Exec, min(30*time.Minute, t.MaxLife))
	t.Grace = cmp.Or(t.Grace, 2*time.Second)
	return t
}

// Check adds the problems of t.
func (t Timeouts) Check(p *Problems) {
	p.Require(t.MaxLife > 0 && t.Life > 0 && t.Life <= t.MaxLife,
		"the default lifetime must be positive and not above the maximum")
	p.Require(t.Idle >= 0 && t.Idle <= t.MaxLife,
		"the default idle limit must not be negative nor above the maximum lifetime")
	p.Require(t.Exec > 0 && t.Exec <= t.MaxLife,
		"the default time limit of commands must be positive and not above the maximum lifetime")
}

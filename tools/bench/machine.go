package main

import (
	"cmp"
	"context"
	"fmt"
	"os"
	"os/exec"
	"runtime"
	"runtime/debug"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/RelevanceAI/harvest/internal/engine/gvisor/cgroup"
)

// release is set by the Makefile.
var release string

// Machine describes the machine of a result, without anything that identifies it.
type Machine struct {
	Cores     int               `json:"cores"`
	CPU       string            `json:"cpu"`
	MemoryMiB int64             `json:"memory_mib"`
	Kernel    string            `json:"kernel"`
	System    string            `json:"system"`
	Cgroups   string            `json:"cgroups"`
	Load      []float64         `json:"load"` // of 1, 5 and 15 minutes, before the first row
	Harvest   string            `json:"harvest"`
	GVisor    string            `json:"gvisor"`
	Isolation string            `json:"isolation"`
	Go        string            `json:"go"`
	Image     string            `json:"image"`
	Peers     map[string]string `json:"peers"` // their versions
}

// String describes the machine in one line.
func (m Machine) String() string {
	return fmt.Sprintf("%d cores (%s), %d MiB, %s, Linux %s, %s; load before %v; Harvest %s, gVisor %s (%s)",
		m.Cores, m.CPU, m.MemoryMiB, m.System, m.Kernel, m.Cgroups, m.Load, m.Harvest, m.GVisor, m.Isolation)
}

func (l *lab) describe(ctx context.Context) Machine {
	m := Machine{Cores: runtime.NumCPU(), CPU: field("/proc/cpuinfo", "model name"), System: "unknown",
		Cgroups: cgroup.Version(), Go: runtime.Version(),
		Harvest: cmp.Or(release, "devel"), Isolation: l.engine.Capabilities().Isolation, Image: l.image.ID,
		Peers: map[string]string{}}
	var info unix.Sysinfo_t
	if unix.Sysinfo(&info) == nil {
		m.MemoryMiB = int64(uint64(info.Totalram) * uint64(info.Unit) >> 20)
	}
	var name unix.Utsname
	if unix.Uname(&name) == nil {
		m.Kernel = unix.ByteSliceToString(name.Release[:])
	}
	if b, err := os.ReadFile("/etc/debian_version"); err == nil {
		m.System = "Debian " + strings.TrimSpace(string(b))
	}
	if b, err := os.ReadFile("/proc/loadavg"); err == nil {
		for _, text := range strings.Fields(string(b))[:3] {
			v, _ := strconv.ParseFloat(text, 64)
			m.Load = append(m.Load, v)
		}
	}
	if build, ok := debug.ReadBuildInfo(); ok {
		for _, dep := range build.Deps {
			if dep.Path == "gvisor.dev/gvisor" {
				m.GVisor = dep.Version
			}
		}
	}
	for _, peer := range []string{"runc", "bwrap"} {
		if out, err := exec.CommandContext(ctx, peer, "--version").Output(); err == nil {
			first, _, _ := strings.Cut(string(out), "\n")
			m.Peers[peer] = first
		}
	}
	m.Peers["runsc"] = m.GVisor
	return m
}

// field returns the first value of that key in a file of lines "key : value".
func field(path, key string) string {
	b, _ := os.ReadFile(path)
	for line := range strings.Lines(string(b)) {
		if k, v, ok := strings.Cut(line, ":"); ok && strings.TrimSpace(k) == key {
			return strings.TrimSpace(v)
		}
	}
	return "unknown"
}

package guest

import (
	"fmt"
	"maps"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	specs "github.com/opencontainers/runtime-spec/specs-go"

	"github.com/RelevanceAI/harvest/client/errors"
	"github.com/RelevanceAI/harvest/internal/engine/gvisor/cgroup"
	"github.com/RelevanceAI/harvest/internal/engine/gvisor/keeper/initprog"
	"github.com/RelevanceAI/harvest/internal/engine/gvisor/keeper/kept"
	"github.com/RelevanceAI/harvest/internal/engine/gvisor/userns"
	"github.com/RelevanceAI/harvest/internal/engine/gvisor/wire"
)

// cgroupsInside is the mount point of gVisor's own cgroups.
const cgroupsInside = "/sys/fs/cgroup"

// groupLimits returns the steps by which the root container's init program sets the limits in gVisor's cgroup of the
// main container, which sees its group as the root of its own namespace and cannot change them. gVisor enforces the
// limit of processes: inside, exceeding it is an ordinary EAGAIN. The host's cgroup has a higher limit. The others are
// for programs that read them, such as Node and Java; the host's cgroup enforces them.
func groupLimits(args *wire.BootArgs) []initprog.Step {
	limits := args.Limits
	contents := map[string]string{}
	if limits.Processes > 0 {
		contents["pids.max"] = strconv.Itoa(limits.Processes + 1) // the limit includes the init program
	}
	if limits.CPU > 0 {
		contents["cpu.max"] = fmt.Sprintf("%.0f %d", math.Ceil(limits.CPU*cgroup.CPUPeriod), cgroup.CPUPeriod)
	}
	if limits.Memory > 0 {
		contents["memory.max"] = strconv.FormatInt(limits.Memory, 10)
	}
	var steps []initprog.Step
	for _, id := range []string{args.Ref + mainSuffix, args.Ref + PreparedSuffix} {
		group := filepath.Join(cgroupsInside, id)
		for _, name := range slices.Sorted(maps.Keys(contents)) {
			steps = append(steps, initprog.Step{Dir: group, File: filepath.Join(group, name), Content: contents[name]})
		}
	}
	return steps
}

// setUsers gives the spec its own user namespace, which gVisor requires for volumes: with the sandbox's own users, or
// else with all users of the current namespace.
func setUsers(args *wire.BootArgs, s *specs.Spec) error {
	s.Linux.Namespaces = append(s.Linux.Namespaces, specs.LinuxNamespace{Type: specs.UserNamespace})
	if own := ownUsers(args); own != nil {
		s.Linux.UIDMappings, s.Linux.GIDMappings = own, own
		return nil
	}
	for file, to := range map[string]*[]specs.LinuxIDMapping{"uid_map": &s.Linux.UIDMappings,
		"gid_map": &s.Linux.GIDMappings} {
		b, err := os.ReadFile(filepath.Join("/proc/self", file))
		if err != nil {
			return errors.Wrapf(err, "read %s", file)
		}
		for line := range strings.Lines(string(b)) {
			var id, parent, n uint32
			if _, err := fmt.Sscan(line, &id, &parent, &n); err != nil {
				return errors.Wrapf(err, "parse %s", file)
			}
			*to = append(*to, specs.LinuxIDMapping{ContainerID: id, HostID: id, Size: n})
		}
	}
	return nil
}

// ownUsers returns the map of the sandbox's own users, or nil.
func ownUsers(args *wire.BootArgs) []specs.LinuxIDMapping {
	if args.FirstUser == 0 {
		return nil
	}
	return []specs.LinuxIDMapping{{HostID: uint32(args.FirstUser), Size: userns.Size}}
}

// gVisor's annotations that distinguish a sandbox's root container from the others.
const (
	annotationType    = "io.kubernetes.cri.container-type"
	annotationSandbox = "io.kubernetes.cri.sandbox-id"
	annotationName    = "io.kubernetes.cri.container-name"
)

// rootfsPrefix is the prefix of the annotations that describe the root file system.
const rootfsPrefix = "dev.gvisor.spec.rootfs."

// baseSpec returns the common part of the root and main containers' specs.
func baseSpec(args *wire.BootArgs, argv []string) *specs.Spec {
	s := &specs.Spec{
		Version: specs.Version,
		Root:    &specs.Root{Path: filepath.Join(args.Dir, "empty")},
		Process: &specs.Process{
			Args: argv, Cwd: "/", Env: []string{"PATH=" + kept.DefaultPath},
			Capabilities:    &specs.LinuxCapabilities{},
			NoNewPrivileges: true,
		},
		Linux:       &specs.Linux{},
		Annotations: map[string]string{},
	}
	if n := args.Limits.Files; n > 0 {
		// Commands get the root container's limits (gVisor's loader, executeAsync).
		s.Process.Rlimits = []specs.POSIXRlimit{{Type: "RLIMIT_NOFILE", Soft: uint64(n), Hard: uint64(n)}}
	}
	for _, t := range []specs.LinuxNamespaceType{specs.PIDNamespace, specs.NetworkNamespace, specs.IPCNamespace,
		specs.UTSNamespace, specs.MountNamespace} {
		s.Linux.Namespaces = append(s.Linux.Namespaces, specs.LinuxNamespace{Type: t})
	}
	return s
}

// setRoot sets the spec's root to the EROFS file at path. If medium is not empty, it has a writable layer
// there.
func setRoot(args *wire.BootArgs, s *specs.Spec, path, medium string) {
	s.Annotations[rootfsPrefix+"type"] = "erofs"
	s.Annotations[rootfsPrefix+"source"] = path
	if medium == "" {
		return
	}
	s.Annotations[rootfsPrefix+"overlay"] = medium
	if n := args.Limits.Disk; n > 0 {
		s.Annotations[rootfsPrefix+"options"] = fmt.Sprintf("size=%d", n)
	}
}

// MainSpec returns the spec of a main container, with args for its init program.
func (g *Guest) MainSpec(args []string, root string, mounts []wire.Mount) *specs.Spec {
	spec := baseSpec(&g.Args, args)
	// The init program needs them for the host name and the files, and drops them afterwards.
	names := []string{"CAP_SYS_ADMIN", "CAP_DAC_OVERRIDE"}
	spec.Linux.Namespaces = append(spec.Linux.Namespaces, specs.LinuxNamespace{Type: specs.CgroupNamespace})
	spec.Process.Capabilities = &specs.LinuxCapabilities{Effective: names, Permitted: names, Bounding: names}
	spec.Annotations[annotationType] = "container"
	spec.Annotations[annotationSandbox] = g.Args.Ref
	setRoot(&g.Args, spec, root, "dir="+g.Args.Dir)
	spec.Mounts = []specs.Mount{
		{Destination: "/proc", Type: "proc", Source: "proc"},
		{Destination: sysctlFS, Type: "tmpfs", Source: "tmpfs", Options: []string{"mode=755", "size=1m"}},
		{Destination: "/sys", Type: "sysfs", Source: "sysfs", Options: []string{"ro"}},
		{Destination: "/dev", Type: "tmpfs", Source: "tmpfs"},
		{Destination: "/dev/shm", Type: "tmpfs", Source: "tmpfs", Options: []string{"mode=1777"}},
		{Destination: cgroupsInside, Type: "cgroup2", Source: "cgroup2"},
		// gVisor mounts a tmpfs on an empty /tmp. If /tmp is not empty, it stays on disk and counts against the
		// disk limit.
		{Destination: "/tmp/.X11-unix", Type: "tmpfs", Source: "tmpfs", Options: []string{"mode=1777"}},
		{Destination: initprog.Path, Type: "erofs", Source: g.Args.Init, Options: []string{"ro"}},
	}
	own := ownUsers(&g.Args)
	for _, m := range mounts {
		options := []string{"rbind", "rw"}
		if m.ReadOnly {
			options[1] = "ro"
		}
		// With a map, the file server asks for the mount itself, and does not look at the map.
		spec.Mounts = append(spec.Mounts, specs.Mount{Destination: m.Path, Type: "bind", Source: m.Source,
			Options: options, UIDMappings: own, GIDMappings: own})
	}
	g.mounted = nil
	for _, m := range spec.Mounts {
		g.mounted = append(g.mounted, m.Destination)
	}
	return spec
}

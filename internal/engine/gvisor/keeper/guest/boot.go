// Package guest boots a sandbox of gVisor, and starts the container with the image in it.
package guest

import (
	"cmp"
	"fmt"
	"maps"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	specs "github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"
	"gvisor.dev/gvisor/runsc/config"
	"gvisor.dev/gvisor/runsc/flag"

	"github.com/RelevanceAI/harvest/client/errors"
	"github.com/RelevanceAI/harvest/internal/engine/gvisor/cgroup"
	"github.com/RelevanceAI/harvest/internal/engine/gvisor/keeper/initprog"
	"github.com/RelevanceAI/harvest/internal/engine/gvisor/keeper/kept"
	"github.com/RelevanceAI/harvest/internal/engine/gvisor/runsc"
	"github.com/RelevanceAI/harvest/internal/engine/gvisor/userns"
	"github.com/RelevanceAI/harvest/internal/engine/gvisor/wire"
)

// SentryMemory is added to a sandbox's memory limit for gVisor itself, so that users get the full amount they
// requested.
const SentryMemory = 64 << 20

// Tasks of a sandbox on the host. gVisor enforces the process limit itself. The cgroup's is the second line of
// defence.
const (
	tasksPerProcess = 4
	sentryTasks     = 256
)

// GVisorLog is the file of gVisor's log in the sandbox's directory.
const GVisorLog = "gvisor.log"

// Guest is a booted gVisor sandbox: a root container that only sleeps, and, once it is claimed, a main
// container.
type Guest struct {
	Args     wire.BootArgs
	Sandbox  *runsc.Sandbox
	Root     string // path of the main container's image
	Hostname string // as passed to its init program
	// machineID is the content of /etc/machine-id, written by its init program.
	MachineID string
	mounted   []string            // mount points in the main container
	files     *runsc.FileServer   // serves the main container's volumes, if any
	volumes   map[string]*os.File // mounts with mapped owners, by mount point, during a claim
	Group     *cgroup.Group       // nil without cgroups

	Prepared *prepared // the prepared container that waits for a claim, or nil
	Taken    bool      // the prepared container is the main container

	tools    *os.File       // the program of the tools inside
	inits    *os.File       // receives a byte from each of the two init programs when it is done
	ready    chan struct{}  // closed when both are done
	clearing sync.WaitGroup // removals of unused prepared containers
}

// Options are the options of Boot.
type Options struct {
	Args  wire.BootArgs
	Tools *os.File // the program of the tools inside
	Inits *os.File // the other end of this process's standard output; Claim closes it
}

// Boot starts the gVisor process. It must run on the keeper's main thread, because gVisor dies with that
// thread.
func Boot(o Options) (*Guest, error) {
	return BootWith(o, nil, func(g *Guest) error { return g.Sandbox.StartRoot() })
}

// Restored declares the sandbox ready: its init programs have ended before its checkpoint.
func (g *Guest) Restored() { close(g.ready) }

// BootWith starts the gVisor process with open files that it keeps (runsc.Options), and then calls start.
func BootWith(o Options, files map[int]*os.File, start func(*Guest) error) (_ *Guest, err error) {
	args := o.Args
	conf, err := runscConfig(args)
	if err != nil {
		return nil, err
	}
	g := &Guest{Args: args, tools: o.Tools, inits: o.Inits, ready: make(chan struct{})}
	defer func() {
		if err != nil {
			err = errors.Stage(errors.Join(err, g.Destroy()), "boot")
		}
	}()
	if args.Cgroup != "" {
		if g.Group, err = cgroup.Create(args.Cgroup, cgroup.Options{Limits: args.Limits, Memory: SentryMemory,
			Tasks: (tasksPerProcess-1)*args.Limits.Processes + sentryTasks}); err != nil {
			return nil, err
		}
	}
	spec := g.baseSpec(initprog.Args("/init", "sandbox", append(g.groupLimits(), traceStep())...))
	spec.Mounts = []specs.Mount{{Destination: cgroupsInside, Type: "cgroup2", Source: "cgroup2"}}
	spec.Root.Readonly = true
	spec.Annotations[annotationType] = "sandbox"
	g.setRoot(spec, args.Init, "")
	if err := g.setUsers(spec); err != nil {
		return nil, err
	}
	if err := os.MkdirAll(conf.RootDir, 0o700); err != nil {
		return nil, errors.Wrapf(err, "create state directory")
	}
	bundle, err := writeBundle(filepath.Join(args.Dir, "root"), spec)
	if err != nil {
		return nil, err
	}
	init, err := os.Open(args.Init)
	if err != nil {
		return nil, errors.Wrapf(err, "open init image")
	}
	g.Sandbox, err = runsc.New(runsc.Options{Program: cmp.Or(args.Sentry, "/proc/self/exe"), Config: conf, ID: args.Ref,
		Bundle: bundle, Spec: spec, Root: init,
		Limits: args.Limits, Kept: files})
	if err != nil {
		return nil, err
	}
	joined := make(chan error, 1)
	go func() { joined <- g.joinCgroup() }() // during gVisor's start, because a move waits for all processors
	err = start(g)
	return g, errors.Join(errors.Wrapf(err, "start sandbox"), <-joined)
}

// cgroupsInside is the mount point of gVisor's own cgroups.
const cgroupsInside = "/sys/fs/cgroup"

// groupLimits returns the steps by which the root container's init program sets the limits in gVisor's cgroup of the
// main container, which sees its group as the root of its own namespace and cannot change them. gVisor enforces the
// limit of processes: inside, exceeding it is an ordinary EAGAIN. The host's cgroup has a higher limit. The others are
// for programs that read them, such as Node and Java; the host's cgroup enforces them.
func (g *Guest) groupLimits() []initprog.Step {
	limits := g.Args.Limits
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
	for _, id := range []string{g.Args.Ref + mainSuffix, g.Args.Ref + PreparedSuffix} {
		group := filepath.Join(cgroupsInside, id)
		for _, name := range slices.Sorted(maps.Keys(contents)) {
			steps = append(steps, initprog.Step{Dir: group, File: filepath.Join(group, name), Content: contents[name]})
		}
	}
	return steps
}

// joinCgroup moves gVisor's processes to their cgroup: the sentry, and the stubs that run programs. Processes
// that they fork afterwards start in it.
func (g *Guest) joinCgroup() error {
	sentry := g.Sandbox.Pid()
	if g.Group == nil || sentry == 0 { // StartRoot reports that it has ended
		return nil
	}
	for outside := []int{sentry}; len(outside) > 0 && g.Sandbox.Pid() != 0; {
		for _, pid := range outside {
			if err := g.Group.Add(pid); err != nil && !errors.Is(err, unix.ESRCH) {
				return err
			}
		}
		// Children that were forked while their parent was moved are outside.
		outside = slices.DeleteFunc(family(sentry), g.Group.Has)
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

// setUsers gives the spec its own user namespace, which gVisor requires for volumes: with the sandbox's own users, or
// else with all users of the current namespace.
func (g *Guest) setUsers(s *specs.Spec) error {
	s.Linux.Namespaces = append(s.Linux.Namespaces, specs.LinuxNamespace{Type: specs.UserNamespace})
	if own := g.ownUsers(); own != nil {
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
func (g *Guest) ownUsers() []specs.LinuxIDMapping {
	if g.Args.FirstUser == 0 {
		return nil
	}
	return []specs.LinuxIDMapping{{HostID: uint32(g.Args.FirstUser), Size: userns.Size}}
}

// gVisor's annotations that distinguish a sandbox's root container from the others.
const (
	annotationType    = "io.kubernetes.cri.container-type"
	annotationSandbox = "io.kubernetes.cri.sandbox-id"
	annotationName    = "io.kubernetes.cri.container-name"
)

// rootfsPrefix is the prefix of the annotations that describe the root file system.
const rootfsPrefix = "dev.gvisor.spec.rootfs."

// runscConfig returns gVisor's settings.
func runscConfig(args wire.BootArgs) (*config.Config, error) {
	fs := flag.NewFlagSet("keeper", flag.ContinueOnError)
	config.RegisterFlags(fs)
	log := filepath.Join(args.Dir, GVisorLog)
	overlay := "root:dir=" + args.Dir
	if args.Limits.Disk > 0 {
		overlay += fmt.Sprintf(",size=%d", args.Limits.Disk)
	}
	err := fs.Parse([]string{
		"--root=" + filepath.Join(args.Dir, "runsc"),
		"--platform=" + args.Platform,
		"--network=none",
		"--overlay2=" + overlay,
		fmt.Sprintf("--rootless=%t", args.Rootless),
		fmt.Sprintf("--allow-suid=%t", !args.NoSetuid),
		"--ignore-cgroups", // package cgroup does this
		// With version 1 of cgroups in the sandbox, gVisor ignores the process limit in six of seven forks.
		"--in-sandbox-cgroup=v2",
		// Check of package gvisor reports possible improvements.
		"--host-settings=ignore",
		// The default pins a namespace that outlives the sandbox.
		"--gofer-network-namespace=new",
		"--sidecar-usage-policy=LEGACY_DEPRECATED_SLOW_EMBEDDED_FALLBACK", // one binary: gVisor is part of Harvest's
		// Paths differ. Package wire defines the properties that must match.
		"--restore-spec-validation=ignore",
		"--log=" + log,
		"--panic-log=" + log,
	})
	if err != nil {
		return nil, errors.Wrapf(err, "gVisor's flags")
	}
	conf, err := config.NewFromFlags(fs)
	return conf, errors.Wrapf(err, "gVisor's configuration")
}

// baseSpec returns the common part of the root and main containers' specs.
func (g *Guest) baseSpec(args []string) *specs.Spec {
	s := &specs.Spec{
		Version: specs.Version,
		Root:    &specs.Root{Path: g.emptyDir()},
		Process: &specs.Process{
			Args: args, Cwd: "/", Env: []string{"PATH=" + kept.DefaultPath},
			Capabilities:    &specs.LinuxCapabilities{},
			NoNewPrivileges: true,
		},
		Linux:       &specs.Linux{},
		Annotations: map[string]string{},
	}
	if n := g.Args.Limits.Files; n > 0 {
		// Commands get the root container's limits (gVisor's loader, executeAsync).
		s.Process.Rlimits = []specs.POSIXRlimit{{Type: "RLIMIT_NOFILE", Soft: uint64(n), Hard: uint64(n)}}
	}
	for _, t := range []specs.LinuxNamespaceType{specs.PIDNamespace, specs.NetworkNamespace, specs.IPCNamespace,
		specs.UTSNamespace, specs.MountNamespace} {
		s.Linux.Namespaces = append(s.Linux.Namespaces, specs.LinuxNamespace{Type: t})
	}
	return s
}

func (g *Guest) emptyDir() string { return filepath.Join(g.Args.Dir, "empty") }

// setRoot sets the spec's root to the EROFS file at path. If medium is not empty, it has a writable layer
// there.
func (g *Guest) setRoot(s *specs.Spec, path, medium string) {
	s.Annotations[rootfsPrefix+"type"] = "erofs"
	s.Annotations[rootfsPrefix+"source"] = path
	if medium == "" {
		return
	}
	s.Annotations[rootfsPrefix+"overlay"] = medium
	if n := g.Args.Limits.Disk; n > 0 {
		s.Annotations[rootfsPrefix+"options"] = fmt.Sprintf("size=%d", n)
	}
}

// writeBundle writes the spec for gVisor's processes.
func writeBundle(dir string, spec *specs.Spec) (string, error) {
	b, err := runsc.EncodeSpec(spec)
	if err != nil {
		return "", err
	}
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return "", errors.Wrapf(err, "create bundle")
	}
	return dir, errors.Wrapf(os.WriteFile(filepath.Join(dir, "config.json"), b, 0o600), "write bundle")
}

// Suffixes of the main container's ID, after the sandbox's name: without and with preparation.
const (
	mainSuffix     = "-main"
	PreparedSuffix = "-prepared"
)

// MainID returns the ID of the container that runs the image.
func (g *Guest) MainID() string {
	if g.Taken {
		return g.Args.Ref + PreparedSuffix
	}
	return g.Args.Ref + mainSuffix
}

// claim starts the main container, or uses the prepared one. It must run on the keeper's main thread.
func (g *Guest) claim(c *wire.ClaimArgs) error {
	g.Root, g.Hostname, g.MachineID = c.Root, c.Hostname, kept.MachineID(c.ID)
	args := initprog.Args(initprog.Path+"/init", c.Hostname, MainFiles(c.Hostname, g.MachineID)...)
	if g.Prepared.fits(c) {
		g.Taken = true
		return errors.Stage(g.Prepared.order(args), "start")
	}
	spec := g.MainSpec(args, c.Root, c.Mounts)
	g.volumes = map[string]*os.File{}
	for i, f := range c.Files {
		g.volumes[c.Mounts[i].Path] = f
	}
	defer func() { g.volumes = nil }()
	return errors.Stage(errors.Wrapf(g.Start(spec, c.Root, g.MainID(), nil, g.Sandbox.Start), "start main container"),
		"start")
}

// MainSpec returns the spec of a main container, with args for its init program.
func (g *Guest) MainSpec(args []string, root string, mounts []wire.Mount) *specs.Spec {
	spec := g.baseSpec(args)
	// The init program needs them for the host name and the files, and drops them afterwards.
	names := []string{"CAP_SYS_ADMIN", "CAP_DAC_OVERRIDE"}
	spec.Linux.Namespaces = append(spec.Linux.Namespaces, specs.LinuxNamespace{Type: specs.CgroupNamespace})
	spec.Process.Capabilities = &specs.LinuxCapabilities{Effective: names, Permitted: names, Bounding: names}
	spec.Annotations[annotationType] = "container"
	spec.Annotations[annotationSandbox] = g.Args.Ref
	g.setRoot(spec, root, "dir="+g.Args.Dir)
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
	for _, m := range mounts {
		options := []string{"rbind", "rw"}
		if m.ReadOnly {
			options[1] = "ro"
		}
		// With a map, the file server asks for the mount itself, and does not look at the map.
		spec.Mounts = append(spec.Mounts, specs.Mount{Destination: m.Path, Type: "bind", Source: m.Source,
			Options: options, UIDMappings: g.ownUsers(), GIDMappings: g.ownUsers()})
	}
	g.mounted = nil
	for _, m := range spec.Mounts {
		g.mounted = append(g.mounted, m.Destination)
	}
	return spec
}

// Start starts a main container with the method by. The image, the writable layer and the init image are passed
// as open files. Directories of the host need gVisor's file server, an additional process. stdin is the
// standard input of the init program; nil is an empty one.
func (g *Guest) Start(spec *specs.Spec, root, id string, stdin *os.File, by func(*runsc.Container) error) error {
	var files []*os.File
	defer func() {
		for _, f := range files {
			_ = f.Close()
		}
	}()
	for _, path := range []string{root, g.Args.Init, os.DevNull} {
		f, err := os.Open(path)
		if err != nil {
			return errors.Wrapf(err, "open")
		}
		files = append(files, f)
	}
	null := files[2]
	upper, err := os.CreateTemp(g.Args.Dir, "upper-")
	if err != nil {
		return errors.Wrapf(err, "create writable layer")
	}
	files = append(files, upper)
	if err := os.Remove(upper.Name()); err != nil { // it exists for as long as gVisor has it open
		return errors.Wrapf(err, "unlink writable layer")
	}
	rootConf := runsc.MountConf{Lower: runsc.Erofs, Upper: runsc.Anonymous}
	if n := g.Args.Limits.Disk; n > 0 {
		rootConf.Size = fmt.Sprint(n)
	}
	if stdin == nil {
		stdin = null
	}
	c := &runsc.Container{ID: id, Spec: spec, Stdio: [3]*os.File{stdin, os.Stdout, null}, Upper: upper,
		Files:  files[:2:2],
		Mounts: []runsc.MountConf{rootConf, {Lower: runsc.Erofs}}}
	// A checkpoint identifies the container by this name.
	spec.Annotations[annotationName] = strings.TrimPrefix(id, g.Args.Ref+"-")
	if err := g.serveFiles(c); err != nil {
		return err
	}
	if g.files != nil {
		defer g.files.CloseFiles()
	}
	return errors.Wrapf(by(c), "start container")
}

// serveFiles starts the file server if the container mounts directories of the host.
func (g *Guest) serveFiles(c *runsc.Container) error {
	n := 0
	for _, m := range c.Spec.Mounts {
		if m.Type == "bind" {
			c.Mounts = append(c.Mounts, runsc.MountConf{Lower: runsc.Gofer})
			n++
		}
	}
	if n == 0 {
		return nil
	}
	bundle, err := writeBundle(filepath.Join(g.Args.Dir, "main"), c.Spec)
	if err != nil {
		return err
	}
	if err := g.setUsers(c.Spec); err != nil {
		return err
	}
	if g.files, err = g.Sandbox.ServeFiles(c.ID, bundle, c.Spec, c.Mounts, g.volumes); err != nil {
		return err
	}
	c.Files, c.Spec.Mounts = append(c.Files, g.files.Files...), g.files.Mounts
	if g.Group != nil {
		return g.Group.Add(g.files.Pid)
	}
	return nil
}

// Destroy ends the gVisor process and releases its resources on the host. It is idempotent.
func (g *Guest) Destroy() error {
	var errs []error
	if g.Sandbox != nil {
		errs = append(errs, g.Sandbox.Destroy())
	}
	if g.files != nil {
		g.files.Destroy()
	}
	if g.Group != nil {
		errs = append(errs, g.Group.Remove())
	}
	return errors.Join(errs...)
}

// StageClock returns a function that reports how long each step took.
func StageClock(conn *wire.Conn) func(name string) {
	last := time.Now()
	return func(name string) {
		now := time.Now()
		_ = conn.SendJSON(wire.KindStage, wire.Stage{Name: name, Took: now.Sub(last)})
		last = now
	}
}

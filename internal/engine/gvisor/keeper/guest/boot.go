// Package guest boots a sandbox of gVisor, and starts the container with the image in it.
package guest

import (
	"cmp"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"time"

	specs "github.com/opencontainers/runtime-spec/specs-go"
	"gvisor.dev/gvisor/runsc/config"
	"gvisor.dev/gvisor/runsc/flag"

	"github.com/RelevanceAI/harvest/client/errors"
	"github.com/RelevanceAI/harvest/internal/engine/gvisor/cgroup"
	"github.com/RelevanceAI/harvest/internal/engine/gvisor/keeper/initprog"
	"github.com/RelevanceAI/harvest/internal/engine/gvisor/keeper/kept"
	"github.com/RelevanceAI/harvest/internal/engine/gvisor/runsc"
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
	process
	Args     wire.BootArgs
	Root     string // path of the main container's image
	Hostname string // as passed to its init program
	// machineID is the content of /etc/machine-id, written by its init program.
	MachineID string
	mounted   []string            // mount points in the main container
	files     *runsc.FileServer   // serves the main container's volumes, if any
	volumes   map[string]*os.File // mounts with mapped owners, by mount point, during a claim

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
	spec := baseSpec(&args, initprog.Args("/init", "sandbox", append(groupLimits(&args), traceStep())...))
	spec.Mounts = []specs.Mount{{Destination: cgroupsInside, Type: "cgroup2", Source: "cgroup2"}}
	spec.Root.Readonly = true
	spec.Annotations[annotationType] = "sandbox"
	setRoot(&args, spec, args.Init, "")
	if err := setUsers(&args, spec); err != nil {
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
	if err := setUsers(&g.Args, c.Spec); err != nil {
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

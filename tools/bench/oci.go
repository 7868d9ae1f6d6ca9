package main

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	specs "github.com/opencontainers/runtime-spec/specs-go"

	"github.com/RelevanceAI/harvest/client/errors"
)

// oci is a peer with the command line of OCI runtimes: runc, or gVisor's own runsc.
type oci struct {
	name   string
	path   string
	args   []string // argv[0] and the arguments before the subcommand
	dir    string   // its state, bundles and log
	adjust func(*specs.Spec)
	why    error // set if the peer is unavailable
	next   int   // for ids
	live   map[string]bool
}

// openPeers finds the peers. An unavailable peer is not an error.
func (l *lab) openPeers(ctx context.Context) error {
	path, err := exec.LookPath("runc")
	if err == nil {
		err = l.noFiles
	}
	l.runc = &oci{name: "runc", path: path, dir: filepath.Join(l.dir, "runc"), why: err, live: map[string]bool{}}
	l.runc.args = []string{"runc", "--root", filepath.Join(l.runc.dir, "state")}
	l.runc.adjust = func(s *specs.Spec) {
		s.Root = &specs.Root{Path: l.files}
		l.limit(s)
	}

	path, err = runscPath()
	l.runsc = &oci{name: "runsc", path: path, dir: filepath.Join(l.dir, "runsc"), why: err, live: map[string]bool{}}
	l.runsc.args = []string{"runsc-cli", "--root=" + filepath.Join(l.runsc.dir, "state"), "--platform=systrap",
		"--network=none", "--host-settings=ignore",
		"--sidecar-usage-policy=LEGACY_DEPRECATED_SLOW_EMBEDDED_FALLBACK"}
	empty := filepath.Join(l.runsc.dir, "empty")
	l.runsc.adjust = func(s *specs.Spec) {
		// This gVisor's command line fails with a writable layer in a file, unless a gofer also runs, which
		// takes more memory.
		s.Root = &specs.Root{Path: empty}
		s.Annotations = map[string]string{"dev.gvisor.spec.rootfs.type": "erofs",
			"dev.gvisor.spec.rootfs.source":  l.root,
			"dev.gvisor.spec.rootfs.overlay": "memory", "dev.gvisor.spec.rootfs.options": fmt.Sprintf("size=%d",
				l.limits.Disk)}
		l.limit(s)
	}
	for _, o := range []*oci{l.runc, l.runsc} {
		if err := os.MkdirAll(filepath.Join(o.dir, "empty"), 0o755); err != nil {
			return errors.Wrapf(err, "make a directory for %s", o.name)
		}
		l.then(o.close)
		if o.why == nil {
			o.why = o.try(ctx)
		}
	}
	return nil
}

// runscPath is gVisor's command line: the program that `make bench` builds beside this one, or this one, which
// also contains it but is larger.
func runscPath() (string, error) {
	self, err := os.Executable()
	if err != nil {
		return "", errors.Wrapf(err, "find this program")
	}
	path := filepath.Join(filepath.Dir(self), "runsc")
	if _, err := os.Stat(path); err == nil {
		return path, nil
	}
	return self, nil
}

// limit gives a container the limits of Harvest's sandboxes. The limit of open files stays that of the peer's
// example: runc cannot set one above this process's own.
func (l *lab) limit(s *specs.Spec) {
	const period = 100_000
	p, quota, memory, pids := uint64(period), int64(l.limits.CPU*period), l.limits.Memory, int64(l.limits.Processes)
	s.Linux.Resources = &specs.LinuxResources{
		CPU:    &specs.LinuxCPU{Period: &p, Quota: &quota},
		Memory: &specs.LinuxMemory{Limit: &memory},
		Pids:   &specs.LinuxPids{Limit: pids},
	}
}

// try checks whether the peer works here.
func (o *oci) try(ctx context.Context) error {
	bundle, err := o.bundle(ctx, "/bin/true")
	if err != nil {
		return err
	}
	return o.command(ctx, "run", "--bundle", bundle, o.id()).run(nil)
}

// call is a run of the peer's command line.
type call struct {
	*exec.Cmd
	log *os.File
}

// command makes a call. Its stderr is a file, because processes left behind keep stderr open.
func (o *oci) command(ctx context.Context, args ...string) *call {
	cmd := exec.CommandContext(ctx, o.path)
	cmd.Args = append(append([]string{}, o.args...), args...)
	cmd.Env = []string{"PATH=" + os.Getenv("PATH")}
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true} // this process handles interrupts
	log, err := os.CreateTemp(o.dir, "log-")
	if err == nil {
		_ = os.Remove(log.Name())
		cmd.Stderr = log
	}
	return &call{cmd, log}
}

// run runs the call to its end. An error contains the peer's output.
func (c *call) run(stdout *stamp) error {
	defer c.log.Close()
	if stdout != nil {
		c.Stdout = stdout
	}
	err := c.Run()
	if err == nil {
		return nil
	}
	const most = 2000
	b := make([]byte, most)
	n, _ := c.log.ReadAt(b, 0)
	return errors.Errorf("%s: %v: %s", c.Args[0], err, bytes.TrimSpace(b[:n]))
}

// id returns a new container's name.
func (o *oci) id() string {
	o.next++
	id := fmt.Sprintf("%s-%s-%d", filepath.Base(filepath.Dir(o.dir)), o.name, o.next)
	o.live[id] = true
	return id
}

// bundle writes the peer's own example, changed to run args on the image.
func (o *oci) bundle(ctx context.Context, args ...string) (string, error) {
	dir, err := os.MkdirTemp(o.dir, "bundle-")
	if err != nil {
		return "", errors.Wrapf(err, "make a bundle")
	}
	if err := o.command(ctx, "spec", "--bundle", dir).run(nil); err != nil {
		return "", err
	}
	path := filepath.Join(dir, "config.json")
	b, err := os.ReadFile(path)
	var s specs.Spec
	if err == nil {
		err = json.Unmarshal(b, &s)
	}
	if err != nil {
		return "", errors.Wrapf(err, "read the bundle")
	}
	s.Process.Args, s.Process.Terminal = args, false
	s.Process.Env = []string{"PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin", "LANG=C.UTF-8"}
	o.adjust(&s)
	if b, err = json.Marshal(s); err == nil {
		err = os.WriteFile(path, b, 0o600)
	}
	return dir, errors.Wrapf(err, "write the bundle")
}

// start starts a container that keeps running. remove ends it.
func (o *oci) start(ctx context.Context, bundle string) (id string, remove func() error, err error) {
	id = o.id()
	remove = func() error { return o.remove(context.WithoutCancel(ctx), id) }
	err = o.command(ctx, "run", "--detach", "--bundle", bundle, id).run(nil)
	return id, remove, err
}

// remove ends a container, if it exists.
func (o *oci) remove(ctx context.Context, id string) error {
	ctx, cancel := context.WithTimeout(ctx, 20*time.Second)
	defer cancel()
	err := o.command(ctx, "delete", "--force", id).run(nil)
	if err != nil && strings.Contains(err.Error(), "does not exist") {
		err = nil
	}
	if err == nil {
		delete(o.live, id)
	}
	return err
}

// close ends all containers and removes their remaining cgroups.
func (o *oci) close(ctx context.Context) error {
	var all error
	for id := range o.live {
		if o.why == nil {
			all = errors.Join(all, o.remove(ctx, id))
		}
	}
	prefix := filepath.Base(filepath.Dir(o.dir)) + "-" + o.name + "-"
	for _, pattern := range []string{prefix + "*", "*/" + prefix + "*"} {
		dirs, _ := filepath.Glob(filepath.Join("/sys/fs/cgroup", pattern))
		for _, dir := range dirs {
			all = errors.Join(all, os.Remove(dir))
		}
	}
	return all
}

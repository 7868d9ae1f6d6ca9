// Package container is a sandbox that shares the kernel of this machine: a container with namespaces, a filter of
// system calls and cgroups (package box), for a keeper.
package container

import (
	"io"
	"os"
	"path/filepath"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/RelevanceAI/harvest/client/errors"
	"github.com/RelevanceAI/harvest/internal/engine/container/box"
	"github.com/RelevanceAI/harvest/internal/engine/container/pid1"
	"github.com/RelevanceAI/harvest/internal/engine/gvisor/cgroup"
	"github.com/RelevanceAI/harvest/internal/engine/gvisor/keeper/kept"
	"github.com/RelevanceAI/harvest/internal/engine/gvisor/wire"
)

// Container is a container of a keeper. It implements kept.Sandbox.
type Container struct {
	args  wire.BootArgs
	box   *box.Box
	group *cgroup.Group
	ready chan struct{}
}

var _ kept.Sandbox = (*Container)(nil)

// Tasks and memory of a container beside those of its programs: the first process.
const (
	initTasks  = 12
	initMemory = 16 << 20
)

// nobody is the user of bare commands.
const nobody = 65534

// Boot starts the first process of a container. program is a static one that calls pid1.Handover first in main. Boot
// must run on the keeper's main thread, with which the container ends.
func Boot(args wire.BootArgs, program *os.File) (_ *Container, err error) {
	c := &Container{args: args, ready: make(chan struct{})}
	defer func() {
		if err != nil {
			err = errors.Stage(errors.Join(err, c.Destroy()), "boot")
		}
	}()
	if args.FirstUser == 0 || args.Cgroup == "" {
		return nil, errors.Newf(errors.Unsupported,
			"a container needs root of this machine, users of its own and cgroups")
	}
	if c.group, err = cgroup.Create(args.Cgroup, cgroup.Options{Limits: args.Limits, Memory: initMemory,
		Tasks: initTasks, Freezer: true}); err != nil {
		return nil, err
	}
	return c, c.group.Within(func(dir *os.File) (err error) {
		c.box, err = box.Start(box.Options{Program: program, FirstUser: args.FirstUser, Log: os.Stderr, Cgroup: dir})
		return err
	})
}

// Claim implements kept.Sandbox.
func (c *Container) Claim(a *wire.ClaimArgs, _ func(func() error) error) error {
	users, err := c.box.Users()
	if err != nil {
		return errors.Stage(err, "start")
	}
	defer users.Close()
	root, err := box.Root{Image: a.Root, Dir: c.args.Dir, First: c.args.FirstUser, Users: users}.Mount()
	if err != nil {
		return errors.Stage(err, "start")
	}
	defer root.Close()
	enter := pid1.EnterArgs{Hostname: a.Hostname, NoSetuid: c.args.NoSetuid, OpenFile: c.args.Limits.Files,
		Filter: c.args.Container.Filter}
	for _, m := range a.Mounts {
		enter.Mounts = append(enter.Mounts, pid1.Mount{Path: m.Path, ReadOnly: m.ReadOnly})
	}
	for _, f := range kept.NameFiles(a.Hostname, kept.MachineID(a.ID)) {
		enter.Files = append(enter.Files, pid1.File{Path: f.Path, Content: f.Content})
	}
	var layer *os.File
	if a.Layer != "" {
		if layer, err = os.Open(a.Layer); err != nil {
			return errors.Stage(errors.Wrapf(err, "open the layer of the snapshot"), "snapshot")
		}
		defer layer.Close()
	}
	if err := c.box.Enter(enter, root, layer, a.Files); err != nil {
		return enterError(err)
	}
	close(c.ready)
	return nil
}

// enterError explains why a container did not get its root file system.
func enterError(err error) error {
	f := (*pid1.Failure)(nil)
	switch {
	case !errors.As(err, &f):
	case f.Errno == unix.ENOSPC || f.Errno == unix.EDQUOT:
		err = errors.Explainf(err, errors.Exhausted, "the files of the snapshot do not fit on the disk")
		return errors.Stage(errors.Remedy(err, "free some space"), "snapshot")
	case strings.HasPrefix(f.Step, "mount ") && f.Errno == unix.ENOTDIR, strings.HasPrefix(f.Step, "create ") &&
		f.Errno == unix.ENOTDIR:
		at := f.Step[strings.IndexByte(f.Step, ' ')+1:]
		err = errors.Explainf(err, errors.Invalid, "no volume can be mounted at %.200s: it is a file in the image", at)
		return errors.Stage(errors.Remedy(err, "mount the volume elsewhere"), "volumes")
	}
	return errors.Stage(err, "start")
}

// Ready implements kept.Sandbox.
func (c *Container) Ready() <-chan struct{} { return c.ready }

// Execute implements kept.Sandbox. Bare commands run as another user than root, since the kernel would give root its
// capabilities again.
func (c *Container) Execute(e *kept.Command) (int32, error) {
	a := pid1.StartArgs{Args: bytesOf(e.Args), Env: bytesOf(e.Env), Dir: e.Dir, UID: e.UID, GID: e.GID,
		Groups: e.Groups, Terminal: e.Terminal, Own: e.Program != nil}
	if e.Bare {
		a.UID, a.GID = nobody, nobody
	}
	files := []*os.File{e.Files[0], e.Files[1], e.Files[2]}
	if e.Program != nil {
		files = append(files, e.Program)
	}
	pid, err := c.box.Execute(a, files...)
	return int32(pid), err
}

func bytesOf(all []string) [][]byte {
	out := make([][]byte, len(all))
	for i, s := range all {
		out[i] = []byte(s)
	}
	return out
}

// WaitPID implements kept.Sandbox.
func (c *Container) WaitPID(pid int32) (unix.WaitStatus, error) { return c.box.WaitPID(int(pid)) }

// CheckDir implements kept.Sandbox.
func (c *Container) CheckDir(dir string) error {
	_, err := c.box.Dir(dir)
	return errors.Wrapf(err, "working directory")
}

// ReadFile implements kept.Sandbox.
func (c *Container) ReadFile(path string) ([]byte, error) {
	b, err := c.box.ReadFile(path)
	if f := (*pid1.Failure)(nil); errors.As(err, &f) {
		err = nil // such as a directory
	}
	return b, err
}

// Terminal implements kept.Sandbox: it opens a terminal of the container.
func (c *Container) Terminal() (master, slave *os.File, err error) {
	opened, slave, err := c.box.Terminal()
	if err != nil {
		return nil, nil, err
	}
	if master, err = kept.Pollable(opened); err != nil {
		return nil, nil, errors.Join(err, slave.Close())
	}
	return master, slave, nil
}

// KeysSignal implements kept.Sandbox.
func (c *Container) KeysSignal() bool { return true }

// Link implements kept.Sandbox.
func (c *Container) Link() (*os.File, error) { return c.box.Connect() }

// SetRoom implements kept.Sandbox. The kernel does not count the files of a directory.
func (c *Container) SetRoom(string, int64) error {
	return errors.Newf(errors.Unsupported, "a container cannot limit the number of files of a volume")
}

// Usage implements kept.Sandbox.
func (c *Container) Usage() (cpu time.Duration, memory int64, err error) {
	if cpu, err = c.group.CPU(); err == nil {
		memory, err = c.group.Memory()
	}
	return cpu, memory, err
}

// OutOfMemory implements kept.Sandbox.
func (c *Container) OutOfMemory() bool { return c.group.OutOfMemory() }

// MemoryAbove implements kept.Sandbox. The kernel holds the limit, unless it was raised.
func (c *Container) MemoryAbove(limit int64, watched bool) bool {
	if !watched {
		return false
	}
	used, err := c.group.Memory()
	return err == nil && used > limit
}

// RaiseMemory implements kept.Sandbox.
func (c *Container) RaiseMemory(bytes int64) error { return c.group.RaiseMemory(bytes + initMemory) }

// Pause implements kept.Sandbox.
func (c *Container) Pause() error { return c.group.Freeze(true) }

// Resume implements kept.Sandbox.
func (c *Container) Resume() error { return c.group.Freeze(false) }

// Pid implements kept.Sandbox.
func (c *Container) Pid() int { return c.box.Pid() }

// Wait implements kept.Sandbox.
func (c *Container) Wait() unix.WaitStatus { return c.box.Wait() }

// AwaitMain implements kept.Sandbox.
func (c *Container) AwaitMain() { c.box.Wait() }

// Kill implements kept.Sandbox.
func (c *Container) Kill() { c.box.Kill() }

// Destroy implements kept.Sandbox.
func (c *Container) Destroy() error {
	if c.box != nil {
		c.box.Kill()
		c.box.Wait()
	}
	if c.group != nil {
		return c.group.Remove()
	}
	return nil
}

// Snapshot implements kept.Sandbox.
func (c *Container) Snapshot(path string, w io.Writer) error {
	below, err := c.resolve(path)
	if err != nil {
		return err
	}
	if err := c.Pause(); err != nil {
		return err
	}
	defer func() { _ = c.Resume() }() // it fails once the container has ended
	return writeLayer(filepath.Join(c.args.Dir, "files", box.Layer), below, w)
}

// resolve returns the name of a directory relative to the root, without symbolic links.
func (c *Container) resolve(path string) (string, error) {
	if path == "" {
		return ".", nil
	}
	name, err := c.box.Dir(path)
	f := (*pid1.Failure)(nil)
	switch {
	case errors.As(err, &f) && f.Errno == unix.ENOENT:
		return "", errors.Newf(errors.NotFound, "there is no directory %.200q in the sandbox", path)
	case errors.As(err, &f) && f.Errno == unix.ENOTDIR:
		return "", errors.Newf(errors.Invalid, "%.200q in the sandbox is not a directory", path)
	case err != nil:
		return "", errors.Wrapf(err, "find %s", path)
	}
	// The answer only selects files of the layer.
	return filepath.Clean("/" + name)[1:], nil
}

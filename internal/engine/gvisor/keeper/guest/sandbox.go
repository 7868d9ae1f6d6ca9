package guest

import (
	"encoding/json"
	"fmt"
	"io"
	"os"
	"slices"
	"syscall"
	"time"
	"unicode/utf8"

	"github.com/creack/pty"
	"golang.org/x/sys/unix"

	"github.com/RelevanceAI/harvest/client/errors"
	"github.com/RelevanceAI/harvest/internal/engine/gateway/netstack"
	"github.com/RelevanceAI/harvest/internal/engine/gvisor/keeper/kept"
	"github.com/RelevanceAI/harvest/internal/engine/gvisor/layer"
	"github.com/RelevanceAI/harvest/internal/engine/gvisor/runsc"
	"github.com/RelevanceAI/harvest/internal/engine/gvisor/wire"
)

// initTime limits the run time of the init programs.
const initTime = 30 * time.Second

// capabilities are root's capabilities in a sandbox: the usual set of containers, CAP_SYS_ADMIN and
// CAP_SYS_PTRACE. They apply inside gVisor only: docs/decisions/027-setuid-programs-in-sandboxes.md.
const capabilities = 1<<unix.CAP_SYS_ADMIN | 1<<unix.CAP_SYS_PTRACE | 1<<unix.CAP_AUDIT_WRITE | 1<<unix.CAP_CHOWN |
	1<<unix.CAP_DAC_OVERRIDE | 1<<unix.CAP_FOWNER | 1<<unix.CAP_FSETID | 1<<unix.CAP_KILL | 1<<unix.CAP_MKNOD |
	1<<unix.CAP_NET_BIND_SERVICE | 1<<unix.CAP_NET_RAW | 1<<unix.CAP_SETFCAP | 1<<unix.CAP_SETGID |
	1<<unix.CAP_SETPCAP | 1<<unix.CAP_SETUID | 1<<unix.CAP_SYS_CHROOT

var _ kept.Sandbox = (*Guest)(nil)

// Claim implements kept.Sandbox: it starts the main container, or uses the prepared one, and fills it.
func (g *Guest) Claim(c *wire.ClaimArgs, thread func(func() error) error) error {
	if err := thread(func() error { return g.claim(c) }); err != nil {
		return err
	}
	go g.awaitInits()
	if !g.Taken && c.Layer != "" { // nothing else may write meanwhile
		select {
		case <-g.ready:
		case <-time.After(initTime):
			return errors.Stage(errors.Errorf("the sandbox's first process does not start"), "start")
		}
		if err := g.Fill(g.MainID(), c.Layer); err != nil {
			return errors.Stage(err, "snapshot")
		}
	}
	if p := g.Prepared; p != nil && !p.Gone && !g.Taken {
		g.clearing.Go(g.Unprepare)
	}
	return nil
}

// awaitInits closes ready when the init programs of both containers are done. Each has written a byte then.
func (g *Guest) awaitInits() {
	defer g.inits.Close()
	if _, err := io.ReadFull(g.inits, make([]byte, 2)); err == nil {
		close(g.ready)
	}
}

// Ready implements kept.Sandbox.
func (g *Guest) Ready() <-chan struct{} { return g.ready }

// AwaitCleared returns when a prepared container that nobody claimed has ended.
func (g *Guest) AwaitCleared() { g.clearing.Wait() }

// Execute implements kept.Sandbox.
func (g *Guest) Execute(c *kept.Command) (pid int32, err error) {
	exec := &runsc.Exec{Argv: c.Args, Envv: c.Env, WorkingDirectory: c.Dir, ContainerID: g.MainID(), KUID: c.UID,
		KGID: c.GID, ExtraKGIDs: c.Groups, StdioIsPty: c.Terminal, NoNewPrivileges: g.Args.NoSetuid || c.Bare,
		Capabilities: &runsc.Capabilities{}}
	if !c.Bare {
		exec.Capabilities.BoundingCaps = capabilities
		if c.UID == 0 {
			exec.Capabilities.EffectiveCaps, exec.Capabilities.PermittedCaps = capabilities, capabilities
		}
	}
	program := c.Program
	if !isText(exec) {
		if program != nil {
			return 0, errors.Newf(errors.Invalid, "the arguments and the environment of %q must be UTF-8", c.Args[0])
		}
		viaTool(exec)
		program = g.tools
	}
	return g.Sandbox.Execute(exec, c.Files, program)
}

// isText reports whether gVisor's control socket can transmit a command unchanged.
func isText(exec *runsc.Exec) bool {
	bad := func(s string) bool { return !utf8.ValidString(s) }
	return !slices.ContainsFunc(exec.Argv, bad) && !slices.ContainsFunc(exec.Envv, bad)
}

// viaTool replaces a command by a tool that starts it from inside.
func viaTool(exec *runsc.Exec) {
	var c wire.LaunchArgs
	for _, arg := range exec.Argv {
		c.Args = append(c.Args, []byte(arg))
	}
	for _, pair := range exec.Envv {
		c.Env = append(c.Env, []byte(pair))
	}
	b, err := json.Marshal(c)
	if err != nil {
		return // byte slices can always be encoded as JSON
	}
	exec.Argv = []string{wire.ToolName, wire.ToolLaunch, string(b)}
	exec.Envv = slices.DeleteFunc(exec.Envv, func(pair string) bool { return !utf8.ValidString(pair) })
}

// WaitPID implements kept.Sandbox.
func (g *Guest) WaitPID(pid int32) (unix.WaitStatus, error) {
	return g.Sandbox.WaitPID(g.MainID(), pid)
}

// Signal implements kept.Sandbox.
func (g *Guest) Signal(pid int32, sig syscall.Signal, foreground bool) error {
	return g.Sandbox.Signal(g.MainID(), pid, sig, foreground)
}

// Processes implements kept.Sandbox.
func (g *Guest) Processes() ([]kept.Process, error) {
	all, err := g.Sandbox.Processes(g.MainID())
	list := make([]kept.Process, len(all))
	for i, p := range all {
		list[i] = kept.Process{PID: p.PID, Parent: p.PPID, Group: p.PGID}
	}
	return list, err
}

// ReadFile implements kept.Sandbox.
func (g *Guest) ReadFile(path string) ([]byte, error) { return g.read(g.MainID(), path) }

// Terminal implements kept.Sandbox: it opens a terminal of this machine.
func (g *Guest) Terminal() (master, slave *os.File, err error) {
	opened, slave, err := pty.Open()
	if err != nil {
		return nil, nil, err
	}
	master, err = kept.Pollable(opened)
	if err != nil {
		return nil, nil, errors.Join(err, slave.Close())
	}
	return master, slave, nil
}

// KeysSignal implements kept.Sandbox. The terminal is one of this machine, which does not know the sandbox's processes.
func (g *Guest) KeysSignal() bool { return false }

// Link implements kept.Sandbox. It needs no device or namespace of this machine: the link is a pair of sockets, and
// gVisor adds the interface while it runs.
func (g *Guest) Link() (*os.File, error) {
	ours, theirs, err := netstack.Pair()
	if err != nil {
		return nil, err
	}
	defer theirs.Close()
	if err := g.Sandbox.AddLinks(LinkTo(theirs)); err != nil {
		return nil, errors.Join(err, ours.Close())
	}
	return ours, nil
}

// Snapshot implements kept.Sandbox.
func (g *Guest) Snapshot(path string, w io.Writer) error {
	return layer.Read(g.Sandbox, g.MainID(), path, w)
}

// SetRoom implements kept.Sandbox.
func (g *Guest) SetRoom(path string, left int64) error {
	return layer.SetRoom(g.Sandbox, []layer.Room{{Path: path, Left: left}})
}

// AwaitMain implements kept.Sandbox: it waits for the main container's process 1.
func (g *Guest) AwaitMain() { _ = g.Sandbox.WaitContainer(g.MainID()) }

// Environ implements kept.Sandbox. The root container sees all processes.
func (g *Guest) Environ(pid int32) []byte {
	b, _ := g.read(g.Args.Ref, fmt.Sprintf("/proc/%d/environ", pid))
	return b
}

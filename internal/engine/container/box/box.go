// Package box runs containers: processes of this machine in namespaces of their own, with the kernel that they share
// with everything else on it.
package box

import (
	"fmt"
	"net"
	"os"
	"os/exec"
	"sync"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/RelevanceAI/harvest/client/errors"
	"github.com/RelevanceAI/harvest/internal/engine/container/pid1"
	"github.com/RelevanceAI/harvest/internal/engine/gvisor/userns"
)

// Options are the options of a container.
type Options struct {
	Program   *os.File // a static program that calls pid1.Handover first in main
	FirstUser int      // of this machine: user 0 of the container
	Log       *os.File
	// Cgroup is the directory of a cgroup of version 2 for the container, or nil.
	Cgroup *os.File
}

// Box is a container. All methods may be called concurrently.
type Box struct {
	init *exec.Cmd
	link *pid1.Link
	over chan struct{} // closed when the container has ended

	mu      sync.Mutex
	last    uint64                       // ID of the newest request; guarded by mu
	replies map[uint64]chan reply        // guarded by mu
	exits   map[int]chan unix.WaitStatus // by the PID of a command; guarded by mu
	status  unix.WaitStatus              // of the first process; valid once over is closed
}

type reply struct {
	pid1.Message
	files []*os.File
}

// namespaces are those that a container does not share with the machine. That of cgroups follows when the first process
// is in its cgroup (pid1): it becomes the root of what the container sees.
const namespaces = unix.CLONE_NEWUSER | unix.CLONE_NEWNS | unix.CLONE_NEWPID | unix.CLONE_NEWNET | unix.CLONE_NEWIPC |
	unix.CLONE_NEWUTS

// Start starts a container, which has no root file system yet. The container ends with the thread that calls Start.
func Start(o Options) (*Box, error) {
	fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return nil, errors.Wrapf(err, "socket pair")
	}
	theirs, ours := os.NewFile(uintptr(fds[1]), "link"), os.NewFile(uintptr(fds[0]), "link")
	defer theirs.Close()
	defer ours.Close()
	conn, err := net.FileConn(ours)
	if err != nil {
		return nil, errors.Wrapf(err, "link")
	}
	users := userns.Map(o.FirstUser)
	// The program is started by its descriptor, because users of the range may not enter its directory.
	cmd := &exec.Cmd{Path: "/proc/self/fd/4", Args: []string{pid1.Name}, Env: []string{"GOMAXPROCS=2"}, Dir: "/",
		ExtraFiles: []*os.File{theirs, o.Program}, Stderr: o.Log,
		SysProcAttr: &syscall.SysProcAttr{Setsid: true, Pdeathsig: unix.SIGKILL, Cloneflags: namespaces,
			UidMappings: users, GidMappings: users, GidMappingsEnableSetgroups: true,
			Credential: &syscall.Credential{Uid: 0, Gid: 0, Groups: []uint32{}}}}
	if o.Cgroup != nil {
		cmd.SysProcAttr.UseCgroupFD, cmd.SysProcAttr.CgroupFD = true, int(o.Cgroup.Fd())
	}
	if err := cmd.Start(); err != nil {
		return nil, errors.Join(errors.Wrapf(err, "start the first process"), conn.Close())
	}
	return watch(cmd, conn.(*net.UnixConn)), nil
}

// watch returns the container of a first process that was started, and its link.
func watch(init *exec.Cmd, link *net.UnixConn) *Box {
	b := &Box{init: init, link: pid1.NewLink(link), over: make(chan struct{}), replies: map[uint64]chan reply{},
		exits: map[int]chan unix.WaitStatus{}}
	go b.receive()
	go func() {
		_ = init.Wait()
		if status, ok := init.ProcessState.Sys().(syscall.WaitStatus); ok {
			b.status = unix.WaitStatus(status)
		}
		_ = b.link.Close()
		close(b.over)
	}()
	return b
}

// Pid returns the process ID of the first process on this machine, or 0 once it has ended.
func (b *Box) Pid() int {
	select {
	case <-b.over:
		return 0
	default:
		return b.init.Process.Pid
	}
}

// Wait returns when the container has ended, with the status of its first process.
func (b *Box) Wait() unix.WaitStatus {
	<-b.over
	return b.status
}

// Kill ends the container with all its processes.
func (b *Box) Kill() { _ = b.init.Process.Kill() }

// maxExits is the maximum number of commands that have ended, or are waited for. Linux has no more processes by
// default.
const maxExits = 1 << 15

// receive handles the messages of the first process, until the link ends. Any of them may be forged.
func (b *Box) receive() {
	for {
		var m pid1.Message
		files, err := b.link.Receive(&m)
		if err != nil {
			b.Kill()
			return
		}
		b.mu.Lock()
		waiting := b.replies[m.ID]
		delete(b.replies, m.ID)
		if m.Exit != nil && m.PID > 0 {
			select {
			case b.exit(m.PID) <- *m.Exit:
			default: // a second end of the same command
			}
		}
		flood := len(b.exits) > maxExits
		b.mu.Unlock()
		if flood {
			b.Kill()
		}
		if waiting == nil {
			closeAll(files)
			continue
		}
		waiting <- reply{m, files}
	}
}

// exit returns the channel of a command's end. b.mu is held.
func (b *Box) exit(pid int) chan unix.WaitStatus {
	c := b.exits[pid]
	if c == nil {
		c = make(chan unix.WaitStatus, 1)
		b.exits[pid] = c
	}
	return c
}

func closeAll(files []*os.File) {
	for _, f := range files {
		_ = f.Close()
	}
}

// call sends a request and returns the reply, with the number of files that it must have.
func (b *Box) call(r pid1.Request, want int, files ...*os.File) (pid1.Message, []*os.File, error) {
	waiting := make(chan reply, 1)
	b.mu.Lock()
	b.last++
	r.ID = b.last
	b.replies[r.ID] = waiting
	b.mu.Unlock()
	if err := b.link.Send(r, files...); err != nil {
		b.mu.Lock()
		delete(b.replies, r.ID)
		b.mu.Unlock()
		return pid1.Message{}, nil, err
	}
	select {
	case got := <-waiting:
		switch {
		case got.Error != nil:
			closeAll(got.files)
			return pid1.Message{}, nil, got.Error
		case len(got.files) != want:
			closeAll(got.files)
			return pid1.Message{}, nil, errors.Errorf("a reply with %d files, not %d", len(got.files), want)
		}
		return got.Message, got.files, nil
	case <-b.over:
		return pid1.Message{}, nil, errors.Newf(errors.Conflict, "the container has ended")
	}
}

// Users returns the user namespace of the container.
func (b *Box) Users() (*os.File, error) {
	f, err := os.Open(fmt.Sprintf("/proc/%d/ns/user", b.Pid()))
	return f, errors.Wrapf(err, "open the users of the container")
}

// Enter gives the container its root file system, the files of a layer unless it is nil, and its volumes.
func (b *Box) Enter(a pid1.EnterArgs, root, layer *os.File, mounts []*os.File) error {
	files := []*os.File{root}
	if a.Layer = layer != nil; a.Layer {
		files = append(files, layer)
	}
	_, _, err := b.call(pid1.Request{Op: pid1.Enter, Enter: &a}, 0, append(files, mounts...)...)
	return err
}

// Execute starts a command and returns its process ID in the container.
func (b *Box) Execute(a pid1.StartArgs, files ...*os.File) (int, error) {
	m, _, err := b.call(pid1.Request{Op: pid1.Start, Start: &a}, 0, files...)
	return m.PID, err
}

// WaitPID returns the status of a command that has ended. It may be called once for each command.
func (b *Box) WaitPID(pid int) (unix.WaitStatus, error) {
	b.mu.Lock()
	ended := b.exit(pid)
	b.mu.Unlock()
	select {
	case status := <-ended:
		b.mu.Lock()
		delete(b.exits, pid)
		b.mu.Unlock()
		return status, nil
	case <-b.over:
		return 0, errors.Newf(errors.Conflict, "the container has ended")
	}
}

// Terminal opens a terminal of the container.
func (b *Box) Terminal() (master, slave *os.File, err error) {
	_, files, err := b.call(pid1.Request{Op: pid1.Terminal}, 2)
	if err != nil {
		return nil, nil, err
	}
	return files[0], files[1], nil
}

// Dir returns the path of a directory in which commands can start, without symbolic links.
func (b *Box) Dir(path string) (string, error) {
	m, _, err := b.call(pid1.Request{Op: pid1.Dir, Path: path}, 0)
	return string(m.Content), err
}

// ReadFile returns the content of a small file. A missing file is empty.
func (b *Box) ReadFile(path string) ([]byte, error) {
	m, _, err := b.call(pid1.Request{Op: pid1.Read, Path: path}, 0)
	return m.Content, err
}

package runsc

import (
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"syscall"

	specs "github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"
	"gvisor.dev/gvisor/pkg/abi/linux"
	"gvisor.dev/gvisor/pkg/unet"
	"gvisor.dev/gvisor/pkg/urpc"

	"github.com/RelevanceAI/harvest/client/errors"
)

// call calls a method and waits for its result. It uses a new connection, because gVisor serves one call at a
// time on each.
func (s *Sandbox) call(method string, arg, result any) error {
	path := s.socket
	if len(path) >= linux.UnixPathMax {
		fd, err := unix.Open(path, unix.O_PATH|unix.O_CLOEXEC, 0)
		if err != nil {
			return errors.Wrapf(err, "open the control socket")
		}
		defer unix.Close(fd)
		path = filepath.Join("/proc/self/fd", strconv.Itoa(fd))
	}
	conn, err := connect(path)
	if err != nil {
		return errors.Wrapf(err, "connect to the control socket")
	}
	defer conn.Close()
	return errors.Wrapf(conn.Call(method, arg, result), "call %s", method)
}

// connect is like gVisor's client.ConnectTo, but its descriptor is not inherited by processes that start
// meanwhile.
func connect(path string) (*urpc.Client, error) {
	fd, err := unix.Socket(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return nil, err
	}
	if err := unix.Connect(fd, &unix.SockaddrUnix{Name: path}); err != nil {
		return nil, errors.Join(err, unix.Close(fd))
	}
	socket, err := unet.NewSocket(fd)
	if err != nil {
		return nil, errors.Join(err, unix.Close(fd))
	}
	return urpc.NewClient(socket), nil
}

// StartRoot starts the root container, with loopback as its only network interface.
func (s *Sandbox) StartRoot() error {
	if err := s.call(setNetworkArgs, loopback(s.opts.Config.GVisorGRO), nil); err != nil {
		return err
	}
	return s.call(startRoot, &s.opts.ID, nil)
}

// Container is a container that is started in addition to the root container.
type Container struct {
	ID     string
	Spec   *specs.Spec
	Stdio  [3]*os.File
	Upper  *os.File    // the file of the root's anonymous upper layer
	Files  []*os.File  // one per mount
	Mounts []MountConf // the root's first
}

// Start starts the container.
func (s *Sandbox) Start(c *Container) error {
	if err := checkOutputs(c.Stdio[:]...); err != nil {
		return err
	}
	if err := s.call(createSubcontainer, &createArgs{CID: c.ID}, nil); err != nil {
		return err
	}
	return s.call(startSubcontainer, s.startArgs(c), nil)
}

func (s *Sandbox) startArgs(c *Container) *startArgs {
	return &startArgs{Spec: specOf(c.Spec), Conf: s.opts.Config, CID: c.ID, NumGoferFilestoreFDs: 1,
		GoferMountConfs: c.Mounts,
		FilePayload:     urpc.FilePayload{Files: slices.Concat(c.Stdio[:], []*os.File{c.Upper}, c.Files)}}
}

// DestroyContainer ends the container's processes and removes it. It is idempotent.
func (s *Sandbox) DestroyContainer(id string) error {
	if err := s.call(destroySubcontainer, &id, nil); err != nil && s.Pid() != 0 {
		return err
	}
	return nil
}

// WaitContainer returns when the container's first process has ended.
func (s *Sandbox) WaitContainer(id string) error {
	var status uint32
	return s.call(wait, &id, &status)
}

// Execute starts a command with files as its descriptors. If program is not nil, it is the executable, and may
// also be one of the files. The command's terminal, if any, becomes root's.
func (s *Sandbox) Execute(e *Exec, files map[int]*os.File, program *os.File) (pid int32, err error) {
	e.GuestFDs, e.Files = nil, nil
	for fd := range files {
		e.GuestFDs = append(e.GuestFDs, fd)
	}
	slices.Sort(e.GuestFDs)
	for _, fd := range e.GuestFDs {
		e.Files = append(e.Files, files[fd])
	}
	if err := checkOutputs(e.Files...); err != nil {
		return 0, err
	}
	if e.StdioIsPty && !s.opts.Config.Rootless {
		uid, gid := hostRoot(s.opts.Spec.Linux.UIDMappings), hostRoot(s.opts.Spec.Linux.GIDMappings)
		if err := files[0].Chown(uid, gid); err != nil && !errors.Is(err, unix.EPERM) {
			return 0, errors.Wrapf(err, "give the terminal to the sandbox")
		}
	}
	if program != nil {
		e.Files = append(e.Files, program)
	}
	return pid, s.call(executeAsync, e, &pid)
}

// WaitPID waits for the end of a command and returns its status.
func (s *Sandbox) WaitPID(container string, pid int32) (unix.WaitStatus, error) {
	var status uint32
	err := s.call(waitPID, &waitPIDArgs{PID: pid, CID: container}, &status)
	return unix.WaitStatus(status), err
}

// Signal sends a signal to a process, or to the foreground process group of its terminal.
func (s *Sandbox) Signal(container string, pid int32, sig syscall.Signal, foreground bool) error {
	mode := toProcess
	if foreground {
		mode = toForeground
	}
	return s.call(signal, &signalArgs{CID: container, Signo: int32(sig), PID: pid, Mode: mode}, nil)
}

// Processes returns the processes of a container, ordered by PID.
func (s *Sandbox) Processes(container string) (all []*Process, err error) {
	return all, s.call(processes, &container, &all)
}

// Pause pauses all processes in the sandbox.
func (s *Sandbox) Pause() error { return s.call(pause, nil, nil) }

// Resume resumes them.
func (s *Sandbox) Resume() error { return s.call(resume, nil, nil) }

// ReadFile writes at most size bytes of a container's file to w.
func (s *Sandbox) ReadFile(container, path string, size int64, w *os.File) error {
	return s.call(readFile, &readArgs{ContainerID: container, Path: path, Size: size,
		FilePayload: urpc.FilePayload{Files: []*os.File{w}}}, nil)
}

// Memory returns the bytes that the sandbox uses according to gVisor.
func (s *Sandbox) Memory() (uint64, error) {
	var u usage
	err := s.call(collectUsage, &usageArgs{}, &u)
	return u.Total, err
}

// AddLinks adds network interfaces.
func (s *Sandbox) AddLinks(links *Links) error { return s.call(createLinks, links, nil) }

// Trace starts a trace session with one sink, which receives the file.
func (s *Sandbox) Trace(sink string, config map[string]any, file *os.File) error {
	return s.call(createTraceSession, &traceArgs{Config: traceConfig{Name: traceSession,
		Sinks: []traceSink{{Name: sink, Config: config}}}, Force: true,
		FilePayload: urpc.FilePayload{Files: []*os.File{file}}}, nil)
}

// Package runsc starts gVisor's processes and calls them, as gVisor's own packages runsc/sandbox and
// runsc/container do, but without linking gVisor, so that a keeper stays small. Its messages are JSON of the
// types in messages.go. Tests compare them, and the processes that it starts, with gVisor's own.
package runsc

import (
	"fmt"
	"maps"
	"math"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"syscall"

	specs "github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"
	"gvisor.dev/gvisor/pkg/control/server"
	"gvisor.dev/gvisor/pkg/hostos"
	"gvisor.dev/gvisor/runsc/config"

	"github.com/RelevanceAI/harvest/client/errors"
	"github.com/RelevanceAI/harvest/internal/engine"
)

// Options describe a sandbox. Its spec has a new user namespace with mappings, and its network mode is none.
type Options struct {
	Program string // path of a static program that calls sentry.Main
	Config  *config.Config
	ID      string
	Bundle  string // directory with the spec as config.json
	Spec    *specs.Spec
	Root    *os.File      // EROFS image of the root container; New closes it
	Limits  engine.Limits // processors and memory that programs inside see
	// Kept are the open files of programs that Restore continues, by their numbers in the checkpoint. The
	// caller closes them.
	Kept map[int]*os.File
}

// Sandbox is a gVisor process. It is a child of this process, and ends with the thread that started it.
type Sandbox struct {
	opts    Options
	program *os.File
	socket  string // path of the control socket
	process *os.Process
	ended   chan struct{}
	status  unix.WaitStatus // valid once ended is closed
}

// New starts gVisor's process, and returns when it accepts calls. The calling thread must live as long as the
// sandbox.
func New(opts Options) (_ *Sandbox, err error) {
	defer opts.Root.Close()
	booted, tell, err := os.Pipe()
	if err != nil {
		return nil, errors.Wrapf(err, "pipe")
	}
	defer booted.Close()
	defer tell.Close()
	program, err := openProgram(opts.Program)
	if err != nil {
		return nil, err
	}
	s := &Sandbox{opts: opts, program: program, ended: make(chan struct{})}
	if err := s.start(tell); err != nil {
		return nil, errors.Join(err, s.removeSocket(), program.Close())
	}
	_ = tell.Close() // so that the pipe ends with the process
	if n, err := booted.Read(make([]byte, 1)); n != 1 {
		return nil, errors.Join(errors.Errorf("gVisor's process ended before it had booted: %v", err), s.Destroy())
	}
	return s, nil
}

// start starts the process, which writes a byte once it has booted.
func (s *Sandbox) start(tell *os.File) error {
	unlimitMemoryLocks()
	if err := closeOnExec(); err != nil {
		return err
	}
	o := s.opts
	cmd := s.command("runsc-sandbox")
	var d donations
	defer d.close()
	d.open("log-fd", o.Config.LogFilename, os.O_CREATE|os.O_WRONLY|os.O_APPEND)
	d.open("panic-log-fd", o.Config.PanicLog, os.O_CREATE|os.O_WRONLY|os.O_APPEND)
	d.transfer(cmd)
	cmd.Args = append(cmd.Args, "boot", "--bundle="+o.Bundle, "--gofer-mount-confs="+MountConf{Lower: Erofs}.String())
	cmd.Env = []string{}
	socket, err := s.listen()
	if err != nil {
		return err
	}
	d.give("io-fds", o.Root)
	d.give("start-sync-fd", tell)
	d.own("controller-fd", socket)
	d.open("spec-fd", filepath.Join(o.Bundle, "config.json"), os.O_RDONLY)
	if o.Config.Platform == "kvm" {
		d.open("device-fd", "/dev/kvm", os.O_RDWR)
		cmd.Env = append(cmd.Env, "GODEBUG=asyncpreemptoff=1")
	}
	d.give("stdio-fds", os.Stdin)
	d.give("stdio-fds", os.Stdout)
	d.give("stdio-fds", os.Stderr)
	isolate(cmd, o.Spec)
	cmd.SysProcAttr.Pdeathsig = unix.SIGKILL
	cmd.Args = append(cmd.Args, "--apply-caps=true", "--setup-root")
	limits, err := limitArgs(o.Limits, o.Config.CPUNumFromQuota)
	if err != nil {
		return err
	}
	cmd.Args = append(append(cmd.Args, limits...), "--attached")
	d.transfer(cmd)
	for _, number := range slices.Sorted(maps.Keys(o.Kept)) {
		d.pass(cmd, o.Kept[number], number)
	}
	if d.err != nil {
		return d.err
	}
	cmd.Args = append(cmd.Args, o.ID)
	if err := cmd.Start(); err != nil {
		return errors.Wrapf(err, "start gVisor's process")
	}
	s.process = cmd.Process
	go func() {
		_ = cmd.Wait()
		s.status = unix.WaitStatus(cmd.ProcessState.Sys().(syscall.WaitStatus))
		close(s.ended)
	}()
	return nil
}

// listen creates the control socket.
func (s *Sandbox) listen() (*os.File, error) {
	s.socket = filepath.Join(s.opts.Config.RootDir, "runsc-"+s.opts.ID+".sock")
	fd, err := server.CreateSocket(s.socket)
	if err != nil {
		return nil, errors.Wrapf(err, "create the control socket")
	}
	return os.NewFile(uintptr(fd), "control socket"), nil
}

func (s *Sandbox) removeSocket() error {
	if err := os.Remove(s.socket); s.socket != "" && !errors.IsNotExist(err) {
		return errors.Wrapf(err, "remove the control socket")
	}
	return nil
}

// openProgram opens the program to start, with a descriptor above those that the process receives. If it were
// opened by its path, it would be opened in the mount namespace of the new process. The process would then keep
// that namespace's copies of all mounts of the host for as long as it runs.
func openProgram(path string) (*os.File, error) {
	var limit unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_NOFILE, &limit); err != nil {
		return nil, errors.Wrapf(err, "read the limit of open files")
	}
	beyond := int(min(512, limit.Cur/2))
	f, err := os.Open(path)
	if err != nil {
		return nil, errors.Wrapf(err, "open gVisor's program")
	}
	defer f.Close()
	fd, err := unix.FcntlInt(f.Fd(), unix.F_DUPFD_CLOEXEC, beyond)
	if err != nil {
		return nil, errors.Wrapf(err, "open gVisor's program")
	}
	return os.NewFile(uintptr(fd), path), nil
}

// command returns a command that runs gVisor's program as name, in a new session. Its arguments start with the
// configuration.
func (s *Sandbox) command(name string) *exec.Cmd {
	cmd := exec.Command(fmt.Sprintf("/proc/self/fd/%d", s.program.Fd()), s.opts.Config.ToFlags()...)
	cmd.Args[0] = name
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	return cmd
}

// isolate gives a process new namespaces. It is root in a user namespace with the users of the spec.
func isolate(cmd *exec.Cmd, spec *specs.Spec) {
	a := cmd.SysProcAttr
	a.Cloneflags = unix.CLONE_NEWIPC | unix.CLONE_NEWNS | unix.CLONE_NEWUTS | unix.CLONE_NEWPID | unix.CLONE_NEWNET | unix.CLONE_NEWUSER
	a.UidMappings, a.GidMappings = mappings(spec.Linux.UIDMappings), mappings(spec.Linux.GIDMappings)
	a.Credential = &syscall.Credential{Uid: 0, Gid: 0}
	// If the sandbox has its own users, the process drops the supplementary groups of this process, which are not the
	// sandbox's.
	a.GidMappingsEnableSetgroups = hostRoot(spec.Linux.GIDMappings) != 0
}

// hostRoot returns the host's id of id 0, or 0 if it has none.
func hostRoot(of []specs.LinuxIDMapping) int {
	for _, m := range of {
		if m.ContainerID == 0 {
			return int(m.HostID)
		}
	}
	return 0
}

func mappings(of []specs.LinuxIDMapping) []syscall.SysProcIDMap {
	var all []syscall.SysProcIDMap
	for _, m := range of {
		all = append(all, syscall.SysProcIDMap{ContainerID: int(m.ContainerID), HostID: int(m.HostID),
			Size: int(m.Size)})
	}
	return all
}

// unlimitMemoryLocks permits gVisor to lock memory, which it does to populate many pages at once. It is best
// effort.
func unlimitMemoryLocks() {
	_ = unix.Setrlimit(unix.RLIMIT_MEMLOCK, &unix.Rlimit{Cur: unix.RLIM_INFINITY, Max: unix.RLIM_INFINITY})
}

// closeOnExec prevents processes that this process starts from inheriting its open files, whatever code opened
// them.
func closeOnExec() error {
	const dir = "/proc/self/fd"
	open, err := os.ReadDir(dir)
	if err != nil {
		return errors.Wrapf(err, "list open files")
	}
	for _, entry := range open {
		if fd, err := strconv.Atoi(entry.Name()); err == nil {
			unix.CloseOnExec(fd)
		}
	}
	return nil
}

// limitArgs returns the arguments that inform gVisor of the limits.
func limitArgs(l engine.Limits, fromQuota bool) ([]string, error) {
	const period, leastCPUs = 100_000, 2 // with one processor, programs omit locks, which gVisor does not expect
	memory, err := hostos.TotalSystemMemory()
	if err != nil {
		return nil, errors.Wrapf(err, "read how much memory this machine has")
	}
	if l.Memory > 0 {
		memory = min(memory, uint64(l.Memory))
	}
	// A tmpfs without a size gets half of the "host memory".
	args := []string{"--total-host-memory", strconv.FormatUint(memory, 10)}
	cpus := runtime.NumCPU()
	quota := int64(math.Ceil(l.CPU * period))
	if n := max(leastCPUs, int(math.Ceil(float64(quota)/period))); fromQuota && quota > 0 {
		cpus = min(cpus, n)
	}
	args = append(args, "--cpu-num", strconv.Itoa(cpus))
	if quota > 0 {
		args = append(args, "--cpu-quota", strconv.FormatInt(quota, 10))
	}
	return append(args, "--cpu-period", strconv.Itoa(period), "--total-memory", strconv.FormatUint(memory, 10)), nil
}

// Pid returns the process's PID, or 0 once it has ended.
func (s *Sandbox) Pid() int {
	select {
	case <-s.ended:
		return 0
	default:
		return s.process.Pid
	}
}

// Wait waits for the end of the process and returns its status.
func (s *Sandbox) Wait() unix.WaitStatus {
	<-s.ended
	return s.status
}

// Kill kills the process, and with it everything in the sandbox. It does not wait.
func (s *Sandbox) Kill() { _ = s.process.Kill() } // it may have ended

// Destroy ends the process and removes its socket. It is idempotent.
func (s *Sandbox) Destroy() error {
	s.Kill()
	<-s.ended
	_ = s.program.Close() // it may be closed already
	return s.removeSocket()
}

// donations are open files for a process. Each has an argument with its descriptor in the process.
type donations struct {
	pending []donation
	owned   []*os.File
	err     error // the first error
}

type donation struct {
	flag string
	file *os.File
}

// give adds a file that the caller owns.
func (d *donations) give(flag string, f *os.File) {
	d.pending = append(d.pending, donation{flag, f})
}

// own adds a file that close closes.
func (d *donations) own(flag string, f *os.File) {
	d.owned = append(d.owned, f)
	d.give(flag, f)
}

// open opens the file at path and adds it. An error is stored in d.err.
func (d *donations) open(flag, path string, mode int) {
	f, err := os.OpenFile(path, mode, 0o644)
	if err != nil {
		if d.err == nil {
			d.err = errors.Wrapf(err, "open the file of --%s", flag)
		}
		return
	}
	d.own(flag, f)
}

// pass adds a file with a given number.
func (d *donations) pass(cmd *exec.Cmd, f *os.File, number int) {
	cmd.Args = append(cmd.Args, fmt.Sprintf("--pass-fd=%d:%d", firstExtra+len(cmd.ExtraFiles), number))
	cmd.ExtraFiles = append(cmd.ExtraFiles, f)
}

// firstExtra is the descriptor of a command's first file after the standard streams.
const firstExtra = 3

// transfer adds the files and their arguments to the command.
func (d *donations) transfer(cmd *exec.Cmd) {
	for _, p := range d.pending {
		cmd.Args = append(cmd.Args, fmt.Sprintf("--%s=%d", p.flag, firstExtra+len(cmd.ExtraFiles)))
		cmd.ExtraFiles = append(cmd.ExtraFiles, p.file)
	}
	d.pending = nil
}

func (d *donations) close() {
	for _, f := range d.owned {
		_ = f.Close()
	}
}

// joined returns the values as one comma-separated argument.
func joined(confs []MountConf) string {
	var all []string
	for _, c := range confs {
		all = append(all, c.String())
	}
	return strings.Join(all, ",")
}

// Package kept is the contract between a keeper and the sandbox that it keeps: one of gVisor (package guest) or a
// container (package container).
package kept

import (
	"io"
	"os"
	"slices"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/RelevanceAI/harvest/client/errors"
	"github.com/RelevanceAI/harvest/internal/engine/gvisor/wire"
)

// Sandbox is a booted sandbox. Process IDs are those of the sandbox's programs.
type Sandbox interface {
	// Claim gives the sandbox its image and its name. It calls thread for what must run on the keeper's main thread,
	// with which the sandbox's processes die.
	Claim(c *wire.ClaimArgs, thread func(func() error) error) error
	// Ready is closed when commands can start, shortly after Claim.
	Ready() <-chan struct{}

	// Execute starts a command. Errors are in the words of Linux (StartError).
	Execute(c *Command) (pid int32, err error)
	// WaitPID waits for the end of a command. It fails if the sandbox ends.
	WaitPID(pid int32) (unix.WaitStatus, error)
	// Signal sends a signal to a process, or to the foreground process group of its terminal.
	Signal(pid int32, sig syscall.Signal, foreground bool) error
	// Processes returns the processes. The first one belongs to no command.
	Processes() ([]Process, error)
	// Environ returns the environment of a process, NUL after each pair, or nothing if the process is gone.
	Environ(pid int32) []byte
	// CheckDir returns an error if commands cannot start in dir.
	CheckDir(dir string) error
	// ReadFile reads the beginning of a small file. A missing file is empty.
	ReadFile(path string) ([]byte, error)
	// Terminal opens a terminal for a command. The master end honours deadlines.
	Terminal() (master, slave *os.File, err error)
	// KeysSignal reports whether the terminal itself sends the signals of keys such as Ctrl-C to the sandbox's
	// processes.
	KeysSignal() bool

	// Link adds a network interface, once, and returns the other end of its link for netstack.New.
	Link() (*os.File, error)
	// Snapshot writes the writable layer below path ("" for all of it) to w in the form of an OCI layer. The sandbox
	// stands still until then.
	Snapshot(path string, w io.Writer) error
	// SetRoom limits how many files can be created in the volume at a mount point: layer.Plenty for no limit.
	// Unsupported if the sandbox cannot do that.
	SetRoom(path string, left int64) error

	// Usage returns the processor time and the memory in bytes.
	Usage() (cpu time.Duration, memory int64, err error)
	// OutOfMemory reports whether the kernel has killed a process of the sandbox for want of memory.
	OutOfMemory() bool
	// MemoryAbove reports whether the programs use more memory than limit, in bytes. If watched is false, the kernel
	// holds the limit, too, and the answer may be no as long as a cheap look says so.
	MemoryAbove(limit int64, watched bool) bool
	// RaiseMemory raises the kernel's limit, if there is one, to so many bytes of the programs.
	RaiseMemory(bytes int64) error

	Pause() error
	Resume() error
	// Pid returns the process ID of the sandbox's first process on this machine, or 0 once it has ended.
	Pid() int
	// Wait waits for the end of the sandbox.
	Wait() unix.WaitStatus
	// AwaitMain returns when no further command can start after Claim.
	AwaitMain()
	// Kill ends the sandbox. It does not wait.
	Kill()
	// Destroy ends the sandbox and releases its resources on this machine. It must run on the keeper's main thread. It
	// is idempotent.
	Destroy() error
}

// Command is a command to start.
type Command struct {
	Args, Env []string // any bytes but NUL; "NAME=value"
	Dir       string
	UID, GID  uint32
	Groups    []uint32
	// Bare commands have no capabilities and gain no privileges.
	Bare     bool
	Terminal bool // Files are ends of a terminal, which becomes the command's own
	// Program is the executable. If it is nil, Args[0] is looked for in PATH.
	Program *os.File
	Files   map[int]*os.File // by descriptor; the caller closes them
}

// Process is a process of the sandbox.
type Process struct{ PID, Parent, Group int32 }

// DefaultPath is the PATH of commands if the image sets none.
const DefaultPath = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"

// Environment returns env as a sorted list of NAME=value pairs.
func Environment(env map[string]string) []string {
	pairs := make([]string, 0, len(env))
	for name, value := range env {
		pairs = append(pairs, name+"="+value)
	}
	slices.Sort(pairs)
	return pairs
}

// Pollable replaces an open file, which it closes, by one that honours deadlines. The former has the blocking mode that
// its descriptor had when it was made.
func Pollable(f *os.File) (*os.File, error) {
	defer f.Close()
	fd, err := unix.FcntlInt(f.Fd(), unix.F_DUPFD_CLOEXEC, 0)
	if err != nil {
		return nil, errors.Wrapf(err, "duplicate %s", f.Name())
	}
	if err := unix.SetNonblock(fd, true); err != nil {
		return nil, errors.Join(errors.Wrapf(err, "set the mode of %s", f.Name()), unix.Close(fd))
	}
	return os.NewFile(uintptr(fd), f.Name()), nil
}

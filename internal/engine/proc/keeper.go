package proc

import (
	"context"
	"encoding/json"
	"io"
	"net"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"slices"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/RelevanceAI/harvest/client/errors"
	"github.com/RelevanceAI/harvest/internal/base/atomicfile"
	"github.com/RelevanceAI/harvest/internal/engine"
)

const keeperName = "harvest-command-keeper"

var detached atomic.Bool

// Main lets commands outlive this process. Call it first in TestMain or main. Each command then gets its own
// keeper, which is another process of this program. In that process, Main runs the keeper and does not return.
// Without Main, keepers are goroutines.
func Main() {
	if os.Args[0] == keeperName {
		if err := keepFile(os.NewFile(3, "socket")); err != nil {
			os.Exit(1)
		}
		os.Exit(0)
	}
	detached.Store(true)
}

// Detach determines whether keepers are processes. undo restores the previous setting.
func Detach(on bool) (undo func()) {
	before := detached.Swap(on)
	return func() { detached.Store(before) }
}

// Detached reports whether commands outlive this process.
func Detached() bool { return detached.Load() }

// order describes a command for its keeper. All values refer to the host.
type order struct {
	Keep     string // directory of the keeper's files
	Limit    int64  // bytes of output to keep
	Info     engine.ProcessInfo
	Program  string
	Dir      string
	Env      []string
	Identity *identity
	Size     *engine.Size
	Input    bool // standard input follows
	// InputOnce makes the loss of input kill the command, as described for engine.Command.
	InputOnce bool
	Merged    bool // standard error goes to standard output
}

// keeper owns a running command, its pipes and its output. It ends when the command has ended and every
// attached client has received all output.
type keeper struct {
	order
	spool  *spool
	listen *net.UnixListener
	cmd    *exec.Cmd
	input  *os.File   // the command's standard input, or its terminal
	output []*os.File // sources of the spool
	// slave is the command's end of its terminal. It stays open until the command has ended, so that a command that
	// closes its own descriptors can open the terminal again.
	slave      *os.File
	pumps      sync.WaitGroup
	conns      sync.WaitGroup
	closed     sync.Once // of input
	inputEnded atomic.Bool
	inputLost  atomic.Bool
	exit       engine.Exit   // valid when done is closed
	done       chan struct{} // closed when the command has ended, with its output complete and its exit on disk
}

// spawn starts a keeper and returns a connection to it for the request "start".
func spawn(dir string) (net.Conn, error) {
	conn, theirs, err := socketPair()
	if err != nil {
		return nil, err
	}
	if !detached.Load() {
		go func() { _ = keepFile(theirs) }() // errors are reported through the connection
		return conn, nil
	}
	defer theirs.Close()
	cmd := &exec.Cmd{
		Path: "/proc/self/exe", Args: []string{keeperName, dir}, Dir: "/", Env: os.Environ(),
		ExtraFiles: []*os.File{theirs}, SysProcAttr: &syscall.SysProcAttr{Setsid: true},
	}
	if err := cmd.Start(); err != nil {
		conn.Close()
		return nil, errors.Wrapf(err, "start a keeper")
	}
	go func() { _ = cmd.Wait() }() // reaps the process; its end is detected on the connection
	return conn, nil
}

func keepFile(f *os.File) error {
	conn, err := net.FileConn(f)
	f.Close()
	if err != nil {
		return errors.Wrapf(err, "use the socket")
	}
	return keep(conn)
}

// keep runs a keeper.
func keep(conn net.Conn) error {
	defer conn.Close()
	var first request
	if err := readValue(conn, frameRequest, &first); err != nil || first.Order == nil {
		return errors.Errorf("the keeper received no command: %v", err)
	}
	k := &keeper{order: *first.Order, done: make(chan struct{})}
	if err := k.start(); err != nil {
		var errno syscall.Errno
		errors.As(err, &errno)
		return writeValue(conn, frameReply, reply{Errno: int(errno), Error: err.Error()})
	}
	r, _ := k.spool.reader(0) // before the pumps start, so that nothing is dropped
	for i, f := range k.output {
		k.pumps.Go(func() { k.pump(f, "oe"[i]) })
	}
	k.conns.Go(k.accept)
	k.conns.Go(func() {
		if !k.serveOutput(conn, r, reply{}, true) { // the client has already given up
			_ = killMarked(context.Background(), markProcess+k.Info.ID)
		}
	})
	err := k.wait()
	k.listen.Close()
	k.conns.Wait()
	return err
}

// resetIgnored makes commands start with the default action of signals that this process ignores because it was
// started so, for example by nohup. They are the two that Go's runtime keeps ignored, and that a program would inherit;
// actions other than ignoring are not inherited.
func resetIgnored() {
	for _, sig := range []os.Signal{syscall.SIGHUP, syscall.SIGINT} {
		if signal.Ignored(sig) {
			signal.Notify(make(chan os.Signal, 1), sig) // still without effect on this process
		}
	}
}

func (k *keeper) start() (err error) {
	if k.spool, err = createSpool(k.Keep, k.Limit); err != nil {
		return err
	}
	if k.listen, err = listen(k.Keep); err != nil {
		return err
	}
	k.cmd = &exec.Cmd{Path: k.Program, Args: k.Info.Args, Dir: k.Dir, Env: k.Env,
		SysProcAttr: &syscall.SysProcAttr{Setsid: true}}
	if k.Identity != nil {
		k.cmd.SysProcAttr.Credential = &syscall.Credential{Uid: k.Identity.UID, Gid: k.Identity.GID,
			Groups: k.Identity.Groups}
	}
	theirs, err := k.connect()
	if err == nil {
		resetIgnored()
		err = k.cmd.Start()
	}
	for _, f := range theirs {
		f.Close()
	}
	if err == nil {
		k.Info.Started = time.Now()
		err = errors.Join(k.saveInfo(), atomicfile.Reserve(k.infoFile()))
	}
	if err != nil {
		k.listen.Close()
		k.closeFiles()
		return err
	}
	if !k.Input {
		k.closeInput()
	}
	return nil
}

// connect creates the command's pipes or terminal, and returns the command's ends.
func (k *keeper) connect() (theirs []*os.File, err error) {
	if k.Size != nil {
		master, slave, err := openTerminal(*k.Size)
		if err != nil {
			return nil, err
		}
		k.input, k.output = master, []*os.File{master}
		k.cmd.Stdin, k.cmd.Stdout, k.cmd.Stderr = slave, slave, slave
		k.cmd.SysProcAttr.Setctty = true
		k.slave = slave
		return nil, nil
	}
	for i := range 3 {
		if i == 2 && k.Merged {
			k.cmd.Stderr = k.cmd.Stdout
			break
		}
		r, w, err := os.Pipe()
		if err != nil {
			return theirs, err
		}
		switch i {
		case 0:
			k.cmd.Stdin, k.input = r, w
			theirs = append(theirs, r)
		case 1:
			k.cmd.Stdout = w
		case 2:
			k.cmd.Stderr = w
		}
		if i > 0 {
			k.output, theirs = append(k.output, r), append(theirs, w)
		}
	}
	return theirs, nil
}

// openTerminal opens a pseudo-terminal. Its master is non-blocking, so that reads can be interrupted.
func openTerminal(size engine.Size) (master, slave *os.File, err error) {
	fd, err := unix.Open("/dev/ptmx", unix.O_RDWR|unix.O_NOCTTY|unix.O_NONBLOCK|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, nil, errors.Wrapf(err, "open a terminal")
	}
	master = os.NewFile(uintptr(fd), "terminal")
	err = unix.IoctlSetPointerInt(fd, unix.TIOCSPTLCK, 0)
	if err == nil {
		err = setSize(master, size)
	}
	if err == nil {
		var peer uintptr
		var errno syscall.Errno
		peer, _, errno = unix.Syscall(unix.SYS_IOCTL, uintptr(fd), unix.TIOCGPTPEER,
			unix.O_RDWR|unix.O_NOCTTY|unix.O_CLOEXEC)
		if errno == 0 {
			return master, os.NewFile(peer, "terminal"), nil
		}
		err = errno
	}
	master.Close()
	return nil, nil, errors.Wrapf(err, "open a terminal")
}

func setSize(master *os.File, size engine.Size) error {
	return control(master, func(fd int) error {
		return unix.IoctlSetWinsize(fd, unix.TIOCSWINSZ, &unix.Winsize{Row: uint16(size.Rows), Col: uint16(size.Cols)})
	})
}

// control calls do with f's descriptor, which stays non-blocking.
func control(f *os.File, do func(fd int) error) error {
	raw, err := f.SyscallConn()
	if err != nil {
		return err
	}
	failed := raw.Control(func(fd uintptr) { err = do(int(fd)) })
	return errors.Join(failed, err)
}

// pump copies output to the spool until its end, or until the command has ended and its output has been read.
func (k *keeper) pump(f *os.File, stream byte) {
	buf := make([]byte, maxData)
	left := -1 // bytes to the end, or -1 while unknown
	for left != 0 {
		part := buf
		if left > 0 {
			part = buf[:min(len(buf), left)]
		}
		n, err := f.Read(part)
		if n > 0 {
			k.spool.append(stream, buf[:n])
		}
		if left > 0 {
			left -= n
		}
		switch {
		case err == nil:
		case k.Size != nil && errors.Is(err, os.ErrDeadlineExceeded):
			k.rest(f, stream, buf)
			return
		case left < 0 && errors.Is(err, os.ErrDeadlineExceeded):
			// Another process still holds the pipe. The pipe now contains the rest of the command's output.
			left = pending(f)
			_ = f.SetReadDeadline(time.Time{})
		default:
			return
		}
	}
}

// rest copies the rest of a terminal's output, because the terminal does not report all of it as pending. It
// stops there, even if another process still writes.
func (k *keeper) rest(f *os.File, stream byte, buf []byte) {
	for most := 1 << 20; most > 0; {
		n := 0
		err := control(f, func(fd int) (err error) {
			n, err = unix.Read(fd, buf) // EAGAIN when it is empty, EIO when no process has it open
			return err
		})
		if err != nil || n <= 0 {
			return
		}
		k.spool.append(stream, buf[:n])
		most -= n
	}
}

func pending(f *os.File) (n int) {
	_ = control(f, func(fd int) (err error) {
		n, err = unix.IoctlGetInt(fd, unix.TIOCINQ)
		return err
	})
	return n
}

// wait returns when the command has ended, all its output is in the spool and its exit is on disk.
func (k *keeper) wait() error {
	_ = k.cmd.Wait() // a failing command is not an error
	if k.slave != nil {
		k.slave.Close()
	}
	deadline := time.Now()
	if k.Size != nil {
		deadline = deadline.Add(time.Second) // the kernel hangs the terminal up, which is a cleaner end of the output
	}
	for _, f := range k.output {
		_ = f.SetReadDeadline(deadline)
	}
	k.pumps.Wait()
	k.spool.close()
	status := k.cmd.ProcessState.Sys().(syscall.WaitStatus)
	if status.Signaled() {
		k.exit = engine.ExitOf(0, status.Signal())
	} else {
		k.exit = engine.ExitOf(status.ExitStatus(), 0)
	}
	k.exit.InputLost = k.inputLost.Load()
	k.Info.Exit = &k.exit
	err := k.saveInfo()
	atomicfile.ReleaseReserve(k.infoFile())
	close(k.done)
	k.closed.Do(func() {})
	k.closeFiles()
	return err
}

func (k *keeper) closeFiles() {
	if k.input != nil {
		k.input.Close()
	}
	if k.slave != nil {
		k.slave.Close()
	}
	for _, f := range k.output {
		f.Close()
	}
}

// closeInput ends the standard input.
func (k *keeper) closeInput() {
	k.inputEnded.Store(true)
	k.closed.Do(func() {
		if k.Size == nil {
			k.input.Close()
		} else {
			_, _ = k.input.Write([]byte{4}) // end-of-file on a terminal
		}
	})
}

// infoFile is the file with the command's exit, once it has ended.
func (k *keeper) infoFile() string { return filepath.Join(k.Keep, "info.json") }

func (k *keeper) saveInfo() error {
	data, err := json.Marshal(k.Info)
	if err != nil {
		return errors.Wrapf(err, "encode a process")
	}
	return atomicfile.Write(k.infoFile(), data, 0o600)
}

// accept serves connections until the listener is closed.
func (k *keeper) accept() {
	for {
		conn, err := k.listen.Accept()
		if err != nil {
			return
		}
		k.conns.Go(func() {
			defer conn.Close()
			k.serve(conn)
		})
	}
}

func (k *keeper) serve(conn net.Conn) {
	var req request
	if readValue(conn, frameRequest, &req) != nil {
		return
	}
	var err error
	switch req.Op {
	case "attach":
		r, dropped := k.spool.reader(0)
		k.serveOutput(conn, r, reply{Dropped: dropped}, false)
		return
	case "signal":
		err = k.signal(syscall.Signal(req.Signal))
	case "resize":
		err = setSize(k.input, req.Size)
	}
	var answer reply
	if err != nil {
		answer.Error = err.Error()
	}
	_ = writeValue(conn, frameReply, answer)
}

func (k *keeper) signal(sig syscall.Signal) error {
	if k.Size != nil {
		for _, group := range k.jobs() {
			_ = unix.Kill(-group, sig)
		}
	}
	if err := k.cmd.Process.Signal(sig); err != nil && !errors.Is(err, os.ErrProcessDone) {
		return err
	}
	return nil
}

// jobs returns the process groups, other than the command's own, that a signal to the terminal reaches: the
// foreground group. gVisor does not report it, so there it is every group of the command's session.
func (k *keeper) jobs() []int {
	var group int
	err := control(k.input, func(fd int) (err error) {
		group, err = unix.IoctlGetInt(fd, unix.TIOCGPGRP)
		return err
	})
	if err == nil && group > 0 && group != k.cmd.Process.Pid {
		return []int{group}
	}
	if err == nil {
		return nil
	}
	procs, _ := list() // on an error, there are no jobs
	found := []int{}
	for _, p := range procs {
		if p.session == k.cmd.Process.Pid && p.group != k.cmd.Process.Pid && !slices.Contains(found, p.group) {
			found = append(found, p.group)
		}
	}
	return found
}

// serveOutput sends output as it is produced, then the exit, and accepts input meanwhile. It returns false if
// it could not even send answer.
func (k *keeper) serveOutput(conn net.Conn, r *reader, answer reply, starter bool) bool {
	defer r.close()
	if writeValue(conn, frameReply, answer) != nil {
		return false
	}
	go k.feed(conn, r, starter)
	buf := make([]byte, maxData)
	for {
		stream, data, err := r.next(buf)
		if err == io.EOF {
			break
		}
		if err != nil {
			err = writeValue(conn, frameMissing, r.skip())
		} else {
			err = writeFrame(conn, stream, data)
		}
		if err != nil {
			return true
		}
	}
	<-k.done
	_ = writeValue(conn, frameExit, k.exit)
	return true
}

// loseInput kills the command if the rest of its input was lost with the connection that started it.
func (k *keeper) loseInput(starter bool) {
	select {
	case <-k.done:
		return
	default:
	}
	if !starter || !k.InputOnce || k.inputEnded.Load() {
		return
	}
	k.inputLost.Store(true)
	_ = killMarked(context.Background(), markProcess+k.Info.ID) // best effort
}

// feed forwards input. starter is set for the connection that started the command. When the connection ends, the client
// has left, and r must no longer block the command.
func (k *keeper) feed(conn net.Conn, r *reader, starter bool) {
	defer r.stop()
	buf := make([]byte, maxData)
	for {
		kind, data, err := readFrame(conn, buf)
		switch {
		case err != nil:
			k.loseInput(starter)
			return
		case kind == frameLost && !k.InputOnce:
			k.closeInput()
		case kind == frameLost:
			k.loseInput(starter)
		case kind == frameInput:
			_, _ = k.input.Write(data) // the command may have closed its input, or ended
		case kind == frameEOF:
			k.closeInput()
		}
	}
}

package keeper

import (
	"bytes"
	"io"
	"os"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/creack/pty"
	"github.com/moby/sys/user"
	"golang.org/x/sys/unix"
	"gvisor.dev/gvisor/pkg/log"

	"github.com/RelevanceAI/harvest/client/errors"
	"github.com/RelevanceAI/harvest/internal/engine/gvisor/layer"
	"github.com/RelevanceAI/harvest/internal/engine/gvisor/wire"
)

// control signals, kills or resizes a command.
func (k *Keeper) control(args *wire.ControlArgs) error {
	c, err := k.find(args.ID)
	if err != nil {
		return err
	}
	switch {
	case args.Kill:
		return k.killTree(c)
	case args.Size != nil:
		return k.resize(c, args)
	default:
		return k.signal(c, syscall.Signal(args.Signal))
	}
}

// resize sets the terminal's size and notifies the foreground processes.
func (k *Keeper) resize(c *command, args *wire.ControlArgs) error {
	if c.terminal == nil {
		return errors.Newf(errors.Conflict, "process %q has no terminal", c.id)
	}
	if ended(c) {
		return nil
	}
	if err := pty.Setsize(c.terminal, winsize(*args.Size)); err != nil {
		return errors.Wrapf(err, "resize terminal")
	}
	return k.signal(c, syscall.SIGWINCH)
}

// signal sends sig. On a terminal, it goes to the foreground process group. Signals that end a session also go
// to the session leader, as on a hang-up.
func (k *Keeper) signal(c *command, sig syscall.Signal) error {
	if ended(c) {
		return nil
	}
	c.mu.Lock()
	if slices.Contains(layer.CrashSignals, sig) && !slices.Contains(c.sent, sig) {
		c.sent = append(c.sent, sig)
	}
	c.mu.Unlock()
	leader := c.terminal == nil
	var err error
	if c.terminal != nil {
		err = k.sandbox.Signal(c.pid, sig, true)
		leader = err != nil || sig == syscall.SIGHUP || sig == syscall.SIGTERM || sig == syscall.SIGKILL
	}
	if leader {
		err = k.sandbox.Signal(c.pid, sig, false)
	}
	if err != nil && ended(c) {
		return nil
	}
	return errors.Wrapf(err, "signal process %s", c.id)
}

// ended reports whether a command has ended, or its end is about to be noticed.
func ended(c *command) bool {
	select {
	case <-c.done:
		return true
	default:
		return false
	}
}

// typeIn forwards typed input to a terminal. The kernel's line discipline echoes control characters, but would
// signal processes of the host. So this method sends the signals to the processes of the sandbox.
func (k *Keeper) typeIn(c *command, r io.Reader) error {
	typed, err := io.ReadAll(r)
	if err != nil {
		return err
	}
	for len(typed) > 0 {
		n, sig := len(typed), syscall.Signal(0)
		if mode, err := unix.IoctlGetTermios(int(c.terminal.Fd()), unix.TCGETS); err == nil &&
			mode.Lflag&unix.ISIG != 0 {
			n, sig = signalKey(typed, mode)
		}
		if _, err := c.terminal.Write(typed[:n]); err != nil {
			return err
		}
		if sig != 0 {
			settle(c.terminal)
			if err := k.sandbox.Signal(c.pid, sig, true); err != nil {
				log.Warningf("signal of a key: %v", err) // the command may have just ended
			}
		}
		typed = typed[n:]
	}
	return nil
}

// settle waits until the kernel has processed the input of a terminal. A key for a signal discards unread output. The
// kernel does so in a separate thread: on a busy machine, the program would have received its signal before, and its
// answer would be discarded.
func settle(terminal *os.File) {
	const patience, pause = 100 * time.Millisecond, time.Millisecond
	peer, _, errno := unix.Syscall(unix.SYS_IOCTL, terminal.Fd(), unix.TIOCGPTPEER,
		unix.O_RDWR|unix.O_NOCTTY|unix.O_CLOEXEC)
	if errno != 0 {
		return
	}
	defer unix.Close(int(peer))
	// poll waits for that thread unless there is input, which the key discards, too (Linux, n_tty_poll). Programs may
	// forbid that (NOFLSH).
	for begin := time.Now(); time.Since(begin) < patience; {
		n, err := unix.Poll([]unix.PollFd{{Fd: int32(peer), Events: unix.POLLIN}}, 0)
		if err != unix.EINTR && n <= 0 {
			return
		}
		<-time.After(pause)
	}
}

// signalKey finds the first key that generates a signal, and returns the number of bytes up to it.
func signalKey(typed []byte, mode *unix.Termios) (n int, sig syscall.Signal) {
	keys := map[byte]syscall.Signal{mode.Cc[unix.VINTR]: syscall.SIGINT, mode.Cc[unix.VQUIT]: syscall.SIGQUIT,
		mode.Cc[unix.VSUSP]: syscall.SIGTSTP}
	for i, b := range typed {
		if sig := keys[b]; sig != 0 && b != 0 {
			return i + 1, sig
		}
	}
	return len(typed), 0
}

// lookUp finds a user of the sandbox, by "name", "uid", or either with ":group". "" is root.
func (k *Keeper) lookUp(name string) (*user.ExecUser, error) {
	if name == "" || name == "root" || name == "0" || name == "0:0" {
		return &user.ExecUser{}, nil
	}
	passwd, err := k.readFile("/etc/passwd")
	if err != nil {
		return nil, err
	}
	group, err := k.readFile("/etc/group")
	if err != nil {
		return nil, err
	}
	if uid, gid, group := strings.Cut(name, ":"); uid == "" || group && gid == "" {
		return nil, errors.Remedy(errors.Newf(errors.Invalid, "%q is not a user", name),
			`use "name", "uid", or either with ":group"`)
	}
	u, err := user.GetExecUser(name, nil, bytes.NewReader(passwd), bytes.NewReader(group))
	if err != nil {
		err = errors.Explainf(err, errors.Invalid, "there is no user %q in the sandbox", name)
		return nil, errors.Remedy(err, "use a name from its /etc/passwd, or a number such as 1000")
	}
	return u, nil
}

// readFile reads a small file of the sandbox from outside. A missing file is empty.
func (k *Keeper) readFile(path string) ([]byte, error) {
	return k.sandbox.ReadFile(path)
}

package pid1

import (
	"fmt"
	"io"
	"net"
	"os"
	"os/signal"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/RelevanceAI/harvest/client/errors"
)

// Handover turns the process into a container's first one if it was started as that, and then never returns.
func Handover() {
	if len(os.Args) > 0 && os.Args[0] == Name {
		os.Exit(Main())
	}
}

// Main runs the first process of a container, and returns its exit code. The container ends with it. All requests are
// answered, and all commands started, by one thread, whose privileges and namespaces they inherit (enter).
func Main() int {
	runtime.LockOSThread()
	// A program of the container must not read this process's memory or use its descriptors.
	if err := unix.Prctl(unix.PR_SET_DUMPABLE, 0, 0, 0, 0); err != nil {
		return 1
	}
	name := append([]byte(Name), 0)
	_ = unix.Prctl(unix.PR_SET_NAME, uintptr(unsafe.Pointer(&name[0])), 0, 0, 0)
	// The keeper ignores these signals. Programs would inherit that, but not that they are caught.
	signal.Notify(make(chan os.Signal, 1), unix.SIGHUP, unix.SIGINT, unix.SIGQUIT, unix.SIGTERM, unix.SIGPIPE)
	file := os.NewFile(LinkFD, "link")
	conn, err := net.FileConn(file)
	_ = file.Close()
	socket, ok := conn.(*net.UnixConn)
	if err != nil || !ok {
		return 1
	}
	s := &server{link: NewLink(socket), commands: map[int]bool{}, children: make(chan struct{}, 1)}
	go s.reap()
	for {
		var r Request
		files, err := s.link.Receive(&r)
		if err == io.EOF {
			return 0 // the keeper has ended
		}
		if err != nil {
			return 1
		}
		m, out := s.answer(&r, files)
		closeAll(files)
		m.ID = r.ID
		err = s.link.Send(m, out...)
		closeAll(out)
		if err != nil {
			return 1
		}
	}
}

type server struct {
	link *Link

	mu       sync.Mutex
	commands map[int]bool  // that have not ended; guarded by mu, which is held while a command starts
	children chan struct{} // receives a value when a child may have been started
}

// answer executes a request.
func (s *server) answer(r *Request, files []*os.File) (m Message, out []*os.File) {
	var err error
	switch {
	case r.Op == Enter && r.Enter != nil:
		if err = enter(r.Enter, files); err == nil {
			go func() {
				if dropAll() != nil {
					_ = s.link.Close() // Main ends
				}
			}()
		}
	case r.Op == Start && r.Start != nil:
		m.PID, err = s.start(r.Start, files)
	case r.Op == Terminal:
		out, err = terminal()
	case r.Op == Dir:
		m.Content, err = checkDir(r.Path)
	case r.Op == Read:
		m.Content, err = readSmall(r.Path)
	default:
		err = errors.Errorf("unknown request %q", r.Op)
	}
	if err != nil {
		m.Error = failureOf(err)
	}
	return m, out
}

// failed returns a Failure of a system call, or nil.
func failed(err error, format string, args ...any) error {
	if err == nil {
		return nil
	}
	f := &Failure{Step: fmt.Sprintf(format, args...), Text: err.Error()}
	if errors.As(err, &f.Errno) {
		f.Text = f.Errno.Error()
	}
	return f
}

func failureOf(err error) *Failure {
	var f *Failure
	if errors.As(err, &f) {
		return f
	}
	return &Failure{Step: "request", Text: err.Error()}
}

// reap waits for the children of this process: commands, and processes whose parents have ended.
func (s *server) reap() {
	for {
		var status unix.WaitStatus
		pid, err := unix.Wait4(-1, &status, 0, nil)
		switch {
		case err == unix.EINTR:
			continue
		case err != nil: // there is no child
			<-s.children
			continue
		}
		s.mu.Lock()
		mine := s.commands[pid]
		delete(s.commands, pid)
		s.mu.Unlock()
		if mine {
			if err := s.link.Send(Message{PID: pid, Exit: &status}); err != nil {
				_ = s.link.Close() // Main ends
				return
			}
		}
	}
}

// start starts a command.
func (s *server) start(a *StartArgs, files []*os.File) (pid int, err error) {
	want := 3
	if a.Own {
		want++
	}
	if len(files) != want || len(a.Args) == 0 {
		return 0, errors.Errorf("a command with %d files and %d arguments", len(files), len(a.Args))
	}
	args, env := stringsOf(a.Args), stringsOf(a.Env)
	program := ""
	if a.Own {
		program = "/proc/self/fd/" + strconv.Itoa(int(files[3].Fd()))
	} else if program, err = find(args[0], a.Dir, env); err != nil {
		return 0, err
	}
	if !slices.ContainsFunc(env, func(pair string) bool { return strings.HasPrefix(pair, "HOME=") }) {
		env = append(env, "HOME="+homeOf(a.UID))
	}
	groups := a.Groups
	if groups == nil {
		groups = []uint32{}
	}
	attr := &syscall.ProcAttr{Dir: a.Dir, Env: env,
		Files: []uintptr{files[0].Fd(), files[1].Fd(), files[2].Fd()},
		Sys: &syscall.SysProcAttr{Setsid: true, Setctty: a.Terminal,
			Credential: &syscall.Credential{Uid: a.UID, Gid: a.GID, Groups: groups}}}
	s.mu.Lock()
	defer s.mu.Unlock()
	if pid, err = syscall.ForkExec(program, args, attr); err != nil {
		return 0, failed(err, "start %s", args[0])
	}
	s.commands[pid] = true
	select {
	case s.children <- struct{}{}:
	default:
	}
	return pid, nil
}

// homeOf returns the home directory of a user in /etc/passwd, or "/".
func homeOf(uid uint32) string {
	text, _ := readSmall("/etc/passwd")
	for line := range strings.Lines(string(text)) {
		if f := strings.Split(line, ":"); len(f) > 5 && f[2] == strconv.FormatUint(uint64(uid), 10) && f[5] != "" {
			return f[5]
		}
	}
	return "/"
}

func stringsOf(all [][]byte) []string {
	out := make([]string, len(all))
	for i, b := range all {
		out[i] = string(b)
	}
	return out
}

// find returns the file of a program: a path, or a name in PATH of env. It reports the reason that a shell would.
func find(name, dir string, env []string) (string, error) {
	if strings.Contains(name, "/") {
		return name, nil
	}
	refused := error(unix.ENOENT)
	for _, pair := range env {
		path, ok := strings.CutPrefix(pair, "PATH=")
		if !ok {
			continue
		}
		for _, in := range strings.Split(path, ":") {
			if !strings.HasPrefix(in, "/") {
				in = dir + "/" + in
			}
			file := in + "/" + name
			info, err := os.Stat(file)
			switch {
			case err != nil || info.IsDir():
			case info.Mode()&0o111 == 0:
				refused = unix.EACCES
			default:
				return file, nil
			}
		}
	}
	return "", failed(refused, "start %s", name)
}

// terminal opens a terminal of the container.
func terminal() ([]*os.File, error) {
	master, err := os.OpenFile("/dev/pts/ptmx", os.O_RDWR|unix.O_NOCTTY, 0)
	if err != nil {
		return nil, failed(err, "open a terminal")
	}
	if err := unix.IoctlSetPointerInt(int(master.Fd()), unix.TIOCSPTLCK, 0); err != nil {
		_ = master.Close()
		return nil, failed(err, "unlock a terminal")
	}
	fd, _, errno := unix.Syscall(unix.SYS_IOCTL, master.Fd(), unix.TIOCGPTPEER,
		unix.O_RDWR|unix.O_NOCTTY|unix.O_CLOEXEC)
	if errno != 0 {
		_ = master.Close()
		return nil, failed(errno, "open a terminal")
	}
	return []*os.File{master, os.NewFile(fd, "terminal")}, nil
}

func checkDir(dir string) (real []byte, err error) {
	path, err := filepath.EvalSymlinks(dir)
	if err != nil {
		return nil, failed(err, "enter %s", dir)
	}
	info, err := os.Stat(path)
	if err == nil && !info.IsDir() {
		err = unix.ENOTDIR
	}
	return []byte(path), failed(err, "enter %s", dir)
}

// maxSmall is the maximum size of a file to read.
const maxSmall = 1 << 20

// readTime limits the time to open a file, which may be a pipe.
const readTime = 2 * time.Second

// readSmall returns the beginning of a regular file. A missing file is empty.
func readSmall(path string) ([]byte, error) {
	f, err := os.OpenFile(path, os.O_RDONLY|unix.O_NONBLOCK|unix.O_NOCTTY, 0)
	if os.IsNotExist(err) {
		return nil, nil
	}
	if err != nil {
		return nil, failed(err, "open %s", path)
	}
	defer f.Close()
	_ = f.SetReadDeadline(time.Now().Add(readTime)) // regular files have none
	b, err := io.ReadAll(io.LimitReader(f, maxSmall))
	return b, failed(err, "read %s", path)
}

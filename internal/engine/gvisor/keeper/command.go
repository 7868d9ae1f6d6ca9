package keeper

import (
	"cmp"
	"io"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/creack/pty"
	"golang.org/x/sys/unix"

	"github.com/RelevanceAI/harvest/client/errors"
	"github.com/RelevanceAI/harvest/internal/engine"
	"github.com/RelevanceAI/harvest/internal/engine/gvisor/keeper/kept"
	"github.com/RelevanceAI/harvest/internal/engine/gvisor/layer"
	"github.com/RelevanceAI/harvest/internal/engine/gvisor/spool"
	"github.com/RelevanceAI/harvest/internal/engine/gvisor/wire"
)

const (
	// marker is the environment variable by which Kill finds a command's descendants.
	marker = "HARVEST_PROCESS"
	// keptCommands limits the ended commands whose output is kept.
	keptCommands = 64
	// pipeSize is the kernel's buffer for a command's output. A large buffer saves switches between gVisor and
	// the keeper.
	pipeSize = 1 << 20
	// readSize is the maximum size of an output frame.
	readSize = spool.MaxFrame - wire.HeaderSize
)

// command is a process in the sandbox, with its output.
type command struct {
	id       string
	number   int // the number in id
	tool     bool
	args     []string
	started  time.Time
	pid      int32
	inside   int32 // PID within the container, by which gVisor waits for restored processes; 0 for others
	out      *spool.Spool
	terminal *os.File // master side, or nil
	done     chan struct{}
	exit     engine.Exit // valid once done is closed

	outOfSpace atomic.Bool // killed because a volume is full
	inputOnce  bool        // its input cannot be continued
	inputLost  atomic.Bool // killed because its input was lost

	files []layer.KeptFile // files passed to the command; none for a tool

	mu    sync.Mutex
	stdin *os.File         // nil once closed; guarded by mu
	sent  []syscall.Signal // signals that the user sent; guarded by mu
	input input
}

// plumbing holds the files between a command and its keeper.
type plumbing struct {
	guest   map[int]*os.File // passed to the command
	outputs map[wire.Kind]*os.File
	stdin   *os.File
	master  *os.File
	// slave is the command's end of the terminal. It stays open until the command has ended: the terminal of a command
	// that closes its own descriptors would else hang up.
	slave *os.File
	files []layer.KeptFile // identities of guest; none for Harvest's own programs
}

func (p *plumbing) closeGuest() {
	closed := map[*os.File]bool{}
	for _, f := range p.guest {
		if !closed[f] && f != p.slave {
			closed[f] = true
			_ = f.Close()
		}
	}
}

func (p *plumbing) closeAll() {
	p.closeGuest()
	p.closeSlave()
	for _, f := range p.outputs {
		_ = f.Close()
	}
	if p.stdin != nil {
		_ = p.stdin.Close()
	}
}

func (p *plumbing) closeSlave() {
	if p.slave != nil {
		_ = p.slave.Close()
	}
}

// newPlumbing opens pipes, or a terminal by open.
func newPlumbing(args *wire.StartArgs, open func() (master, slave *os.File, err error)) (p *plumbing, err error) {
	p = &plumbing{guest: map[int]*os.File{}, outputs: map[wire.Kind]*os.File{}}
	defer func() {
		if err != nil {
			p.closeAll()
			err = errors.Explainf(err, errors.Exhausted, "too many open files for another command")
		}
	}()
	if args.Terminal != nil {
		master, slave, err := open()
		if err != nil {
			return p, err
		}
		p.outputs[wire.KindStdout] = master
		p.master, p.slave = master, slave
		p.guest[0], p.guest[1], p.guest[2] = slave, slave, slave
		return p, pty.Setsize(master, winsize(*args.Terminal))
	}
	if args.Stdin {
		if p.guest[0], p.stdin, err = os.Pipe(); err != nil {
			return p, err
		}
	} else if p.guest[0], err = os.Open(os.DevNull); err != nil {
		return p, err
	}
	for fd, kind := range map[int]wire.Kind{1: wire.KindStdout, 2: wire.KindStderr} {
		if args.Merged && fd == 2 {
			continue
		}
		r, w, err := os.Pipe()
		if err != nil {
			return p, err
		}
		p.outputs[kind], p.guest[fd] = r, w
	}
	_, _ = unix.FcntlInt(p.guest[1].Fd(), unix.F_SETPIPE_SZ, pipeSize)
	if args.Merged {
		fd, err := unix.FcntlInt(p.guest[1].Fd(), unix.F_DUPFD_CLOEXEC, 0)
		if err != nil {
			return p, err
		}
		p.guest[2] = os.NewFile(uintptr(fd), "output")
	}
	return p, nil
}

func winsize(s engine.Size) *pty.Winsize {
	return &pty.Winsize{Rows: uint16(s.Rows), Cols: uint16(s.Cols)}
}

// start starts a command. Unless args.Quiet is set, follower receives all output, and the command waits for it.
func (k *Keeper) start(args *wire.StartArgs) (c *command, follower *spool.Follower, err error) {
	if err := k.awaitReady(); err != nil {
		return nil, nil, err
	}
	k.mu.Lock()
	claim := k.args.Claim
	k.started++
	number := k.started
	id := "p" + strconv.Itoa(number)
	k.mu.Unlock()
	exec, err := k.execArgs(args, claim, id)
	if err != nil {
		return nil, nil, err
	}
	p, err := newPlumbing(args, k.sandbox.Terminal)
	if err != nil {
		return nil, nil, err
	}
	defer p.closeGuest()
	if args.Tool || args.Own {
		exec.Program = k.tools
	} else {
		p.files = p.identify(number)
	}
	exec.Files = p.guest
	c = &command{id: id, number: number, tool: args.Tool, args: listed(args.Args), started: time.Now(),
		terminal: p.master, stdin: p.stdin, files: p.files, done: make(chan struct{}),
		inputOnce: args.InputOnce && args.Terminal == nil && !args.Tool,
		out:       spool.New(filepath.Join(k.args.Dir, "commands", id), k.args.OutputBytes)}
	if c.terminal != nil {
		c.stdin = c.terminal
	}
	if !args.Quiet {
		follower, _ = c.out.Follow()
	}
	k.starting.RLock()
	defer k.starting.RUnlock()
	if c.pid, err = k.sandbox.Execute(exec); err != nil {
		p.closeAll()
		return nil, nil, kept.StartError(err, string(args.Args[0]), exec.Dir, k.args.Limits.Processes)
	}
	if c.terminal != nil && !args.Stdin {
		c.endStdin()
	}
	k.remember(c)
	go k.tend(c, p)
	return c, follower, nil
}

// execArgs translates args for the sandbox.
func (k *Keeper) execArgs(args *wire.StartArgs, claim *wire.ClaimArgs, id string) (*kept.Command, error) {
	env := map[string]string{"PATH": kept.DefaultPath}
	maps.Copy(env, claim.Env)
	if args.Terminal != nil {
		env["TERM"] = "xterm-256color"
	}
	for _, pair := range args.Env {
		name, value, _ := strings.Cut(string(pair), "=")
		env[name] = value
	}
	env[marker] = id
	exec := &kept.Command{Dir: cmp.Or(args.Dir, claim.Dir, "/"), Terminal: args.Terminal != nil,
		Env: kept.Environment(env)}
	for _, arg := range args.Args {
		exec.Args = append(exec.Args, string(arg))
	}
	name := cmp.Or(args.User, claim.User)
	if args.Tool {
		name, exec.Dir = "", "/"
	}
	u, err := k.lookUp(name)
	if err != nil {
		return nil, err
	}
	exec.UID, exec.GID = uint32(u.Uid), uint32(u.Gid)
	for _, g := range u.Sgids {
		exec.Groups = append(exec.Groups, uint32(g))
	}
	return exec, k.enter(exec.Dir)
}

// enter checks the working directory of a command, once per directory, because gVisor also starts commands in
// files.
func (k *Keeper) enter(dir string) error {
	k.mu.Lock()
	known := k.dirs[dir] || dir == "/"
	k.mu.Unlock()
	if known {
		return nil
	}
	if err := k.sandbox.CheckDir(dir); err != nil {
		return kept.StartError(err, "", dir, k.args.Limits.Processes)
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	k.dirs[dir] = true
	return nil
}

// listed returns arguments in a form that can be displayed.
func listed(args [][]byte) []string {
	list := make([]string, len(args))
	for i, arg := range args {
		list[i] = strings.ToValidUTF8(string(arg), "\ufffd")
	}
	return list
}

// remember lists a command, and forgets the oldest ended ones.
func (k *Keeper) remember(c *command) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.commands[c.id] = c
	k.order = append(k.order, c.id)
	ended := 0
	for _, id := range slices.Backward(k.order) {
		old := k.commands[id]
		select {
		case <-old.done:
			if ended++; ended > keptCommands {
				k.forget(old)
			}
		default:
		}
	}
}

// forget drops a command and its output. k.mu is held.
func (k *Keeper) forget(c *command) {
	delete(k.commands, c.id)
	k.order = slices.DeleteFunc(k.order, func(id string) bool { return id == c.id })
	c.out.Remove()
}

// tend reads a command's output until the command has ended, and then the output of its children.
func (k *Keeper) tend(c *command, p *plumbing) {
	exited := make(chan struct{})
	var drained sync.WaitGroup
	for kind, f := range p.outputs {
		drained.Add(1)
		go func() { collect(c.out, kind, f, exited, drained.Done) }()
	}
	ws, err := k.sandbox.WaitPID(cmp.Or(c.inside, c.pid))
	if err != nil {
		<-k.ended // only the end of the sandbox breaks the connection
		ws = unix.WaitStatus(syscall.SIGKILL)
	}
	p.closeSlave()
	c.exit = exitOf(ws)
	select {
	case <-k.ended:
		c.exit.OutOfMemory = k.end.OutOfMemory
	default:
		// The OOM killer may be ending the whole sandbox, which then is the reason why the command died.
		if c.exit.Signal == "KILL" && k.sandbox.OutOfMemory() {
			<-k.ended
			c.exit.OutOfMemory = true
		}
	}
	c.exit.OutOfSpace = c.outOfSpace.Load() && c.exit.Signal == "KILL"
	c.exit.InputLost = c.inputLost.Load()
	c.exit.Crashed = k.crashesOf(c)
	close(exited)
	drained.Wait()
	c.out.End()
	c.closeStdin()
	close(c.done)
}

func exitOf(ws unix.WaitStatus) engine.Exit {
	if ws.Signaled() {
		return engine.Exit{Code: 128 + int(ws.Signal()),
			Signal: strings.TrimPrefix(unix.SignalName(ws.Signal()), "SIG")}
	}
	return engine.Exit{Code: ws.ExitStatus()}
}

// collect copies output from f to the spool. When the command has exited, it reads the rest of the pipe and
// calls drained. Then it continues with the output of children that still hold the other end.
func collect(out *spool.Spool, kind wire.Kind, f *os.File, exited <-chan struct{}, drained func()) {
	defer f.Close()
	var once sync.Once
	defer once.Do(drained)
	stop := make(chan struct{})
	defer close(stop)
	go func() {
		select {
		case <-exited:
			_ = f.SetReadDeadline(time.Now()) // interrupts the read below
		case <-stop:
		}
	}()
	buf := make([]byte, wire.HeaderSize+readSize)
	for {
		n, err := f.Read(buf[wire.HeaderSize:])
		if n > 0 {
			out.Append(kind, buf[:wire.HeaderSize+n])
		}
		switch {
		case errors.Is(err, os.ErrDeadlineExceeded):
			_ = f.SetReadDeadline(time.Time{})
			drain(out, kind, f, buf)
			once.Do(drained)
		case err != nil:
			return
		}
	}
}

// drain reads until f would block.
func drain(out *spool.Spool, kind wire.Kind, f *os.File, buf []byte) {
	raw, err := f.SyscallConn()
	if err != nil {
		return
	}
	_ = raw.Read(func(fd uintptr) bool {
		for {
			n, err := unix.Read(int(fd), buf[wire.HeaderSize:])
			if err == unix.EINTR {
				continue
			}
			if n <= 0 {
				return true
			}
			out.Append(kind, buf[:wire.HeaderSize+n])
		}
	})
}

// serveStart starts a command and follows it.
func (k *Keeper) serveStart(conn *wire.Conn, args *wire.StartArgs) error {
	c, follower, err := k.start(args)
	if err != nil {
		return err
	}
	_ = conn.SendJSON(wire.KindReply, wire.Reply{ID: c.id}) // a disconnected client is detected below
	k.follow(conn, c, follower, args.Stdin)
	return nil
}

// serveAttach follows a command that was started before.
func (k *Keeper) serveAttach(conn *wire.Conn, args *wire.AttachArgs) error {
	c, err := k.find(args.ID)
	if err != nil {
		return err
	}
	var follower *spool.Follower
	var skipped int64
	if !args.Quiet {
		follower, skipped = c.out.Follow()
	}
	reply := wire.Reply{ID: c.id}
	if args.Input {
		reply.Input = c.takeOver()
	}
	if err := conn.SendJSON(wire.KindReply, reply); err == nil && skipped > 0 {
		_ = conn.SendJSON(wire.KindTruncated, skipped)
	}
	k.follow(conn, c, follower, args.Stdin)
	return nil
}

// follow sends the output (unless follower is nil) and the exit of c, and forwards its input. If the client
// disconnects, the command keeps running, unless it is a tool, which cannot be reopened.
func (k *Keeper) follow(conn *wire.Conn, c *command, follower *spool.Follower, stdin bool) {
	gone := make(chan struct{})
	var from *feed
	if stdin {
		from = c.input.enter()
	}
	go func() {
		defer close(gone)
		k.readStdin(conn, c, from)
		if follower != nil {
			follower.Close()
		}
		if c.tool {
			_ = k.killTree(c)
		}
	}()
	if c.tool {
		defer func() {
			k.mu.Lock()
			defer k.mu.Unlock()
			k.forget(c)
		}()
	}
	if follower != nil {
		defer follower.Close()
		for {
			frames, lost, err := follower.Next()
			if err == io.EOF {
				break
			}
			if err != nil {
				_ = conn.SendJSON(wire.KindFailure, wire.FailureOf(err))
				return
			}
			if lost > 0 {
				err = conn.SendJSON(wire.KindTruncated, lost)
			} else {
				err = conn.SendFrames(frames)
			}
			if err != nil {
				return
			}
		}
	}
	select {
	case <-c.done:
		_ = conn.SendJSON(wire.KindExit, c.exit)
	case <-gone:
	}
}

// readStdin forwards input frames to the command until the client disconnects. It discards them if from is nil.
func (k *Keeper) readStdin(conn *wire.Conn, c *command, from *feed) {
	defer c.input.leave(from)
	for {
		kind, payload, err := conn.Next()
		if from != nil && (err != nil || kind == wire.KindStdinLost) {
			k.loseInput(c)
		}
		if err != nil {
			return
		}
		switch {
		case kind == wire.KindStdin && from != nil:
			k.giveInput(c, from, payload)
		case kind == wire.KindStdinEnd && from != nil && !c.input.isCut(from):
			c.endStdin()
		}
		if _, err := io.Copy(io.Discard, payload); err != nil {
			return
		}
	}
}

// giveInput writes to the command's input. An error means that the command no longer reads, which is not a
// failure.
func (k *Keeper) giveInput(c *command, from *feed, r io.Reader) {
	c.mu.Lock()
	f := c.stdin
	c.mu.Unlock()
	switch {
	case f == nil || c.input.isCut(from):
	case c.terminal != nil && !k.sandbox.KeysSignal():
		counted := &counter{r: r}
		_ = k.typeIn(c, counted)
		c.input.add(counted.n)
	default:
		_, _ = io.Copy(feeder{c, from, f}, r)
	}
}

// endStdin ends the command's input.
func (c *command) endStdin() {
	if c.terminal == nil {
		c.closeStdin()
		return
	}
	const endOfTransmission = 4 // end-of-file for a terminal's line discipline
	_, _ = c.terminal.Write([]byte{endOfTransmission})
}

func (c *command) closeStdin() {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.stdin != nil && c.terminal == nil {
		_ = c.stdin.Close()
	}
	c.stdin = nil
}

// find returns a command by its ID.
func (k *Keeper) find(id string) (*command, error) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if c := k.commands[id]; c != nil && !c.tool {
		return c, nil
	}
	return nil, errors.Remedy(errors.Newf(errors.NotFound, "there is no process %q in this sandbox", id),
		"list the processes to see those that are kept")
}

// processes lists the commands, oldest first.
func (k *Keeper) processes() []engine.ProcessInfo {
	k.mu.Lock()
	defer k.mu.Unlock()
	list := []engine.ProcessInfo{}
	for _, id := range k.order {
		c := k.commands[id]
		if c.tool {
			continue
		}
		info := engine.ProcessInfo{ID: c.id, Args: c.args, Terminal: c.terminal != nil, Started: c.started}
		select {
		case <-c.done:
			info.Exit = &c.exit
		default:
		}
		list = append(list, info)
	}
	return list
}

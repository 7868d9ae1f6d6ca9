// Package proc starts commands as child processes, stores their output on disk and reopens them. Engines that
// start commands as their own processes share it.
package proc

import (
	"context"
	"crypto/rand"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/RelevanceAI/harvest/client/errors"
	"github.com/RelevanceAI/harvest/internal/engine"
)

// Table holds the commands of one sandbox. All methods may be called concurrently.
type Table struct {
	Dir  string // parent of the commands' directories; absolute, must exist
	Name string // name of the sandbox, unique on this machine; marks all its processes
	Keep int64  // kept output of each command, in bytes
	// OutOfMemory, if set, reports whether a command was killed because memory ran out.
	OutOfMemory func() bool
}

// Defaults are a sandbox's defaults for commands.
type Defaults struct {
	Env  map[string]string
	Dir  string
	User string
	// Host, if set, returns the directory on this machine for a directory of the sandbox.
	Host func(dir string) string
}

// Start starts a command; ctx covers only the start. Errors are those of engine.Sandbox.
func (t *Table) Start(ctx context.Context, cmd engine.Command, d Defaults) (engine.Process, error) {
	if err := engine.CheckCommand(cmd); err != nil {
		return nil, err
	}
	p := &process{t: t, id: strings.ToLower(rand.Text()), terminal: cmd.Terminal != nil, done: make(chan struct{})}
	p.dir = filepath.Join(t.Dir, p.id)
	o, err := t.order(p, cmd, d)
	if err != nil {
		return nil, err
	}
	if err := os.Mkdir(p.dir, 0o700); err != nil {
		return nil, errors.Wrapf(err, "start a command")
	}
	conn, err := p.start(ctx, o)
	if err != nil {
		kill := killMarked(context.WithoutCancel(ctx), markProcess+p.id)
		return nil, errors.Join(err, kill, os.RemoveAll(p.dir))
	}
	go p.follow(conn, engine.Stdio{Stdin: cmd.Stdin, Stdout: cmd.Stdout, Stderr: cmd.Stderr,
		Truncated: cmd.Truncated})
	return p, nil
}

// order converts cmd to an order for its keeper.
func (t *Table) order(p *process, cmd engine.Command, d Defaults) (*order, error) {
	env, dir, userName := maps.Clone(d.Env), d.Dir, d.User
	if env == nil {
		env = map[string]string{}
	}
	maps.Copy(env, cmd.Env)
	if _, set := env["TERM"]; p.terminal && !set {
		env["TERM"] = "xterm-256color"
	}
	if cmd.Dir != "" {
		dir = cmd.Dir
	}
	if cmd.User != "" {
		userName = cmd.User
	}
	id, err := resolve(userName)
	if err != nil {
		return nil, err
	}
	o := &order{
		Keep: p.dir, Limit: t.Keep, Dir: filepath.Clean(dir), Identity: id, Size: cmd.Terminal, Input: cmd.Stdin != nil,
		InputOnce: cmd.InputOnce && cmd.Terminal == nil, Merged: cmd.Merged,
		Info: engine.ProcessInfo{ID: p.id, Args: cmd.Args, Terminal: p.terminal},
	}
	if d.Host != nil {
		o.Dir = d.Host(dir)
	}
	if info, err := os.Stat(o.Dir); err != nil || !info.IsDir() {
		return nil, errors.Newf(errors.Invalid, "there is no directory %.200q", dir)
	}
	if cmd.Own {
		o.Program = "/proc/self/exe" // accessible to every user, wherever the program is
	} else {
		o.Program, err = lookPath(cmd.Args[0], o.Dir, env["PATH"])
	}
	if err != nil {
		return nil, err
	}
	for _, name := range slices.Sorted(maps.Keys(env)) {
		o.Env = append(o.Env, name+"="+env[name])
	}
	o.Env = append(o.Env, markSandbox+t.Name, markProcess+p.id)
	return o, nil
}

// Processes lists the commands of this table, oldest first.
func (t *Table) Processes() ([]engine.ProcessInfo, error) {
	entries, err := os.ReadDir(t.Dir)
	if err != nil {
		return nil, errors.Wrapf(err, "list the processes")
	}
	infos := []engine.ProcessInfo{}
	for _, entry := range entries {
		info, err := readInfo(filepath.Join(t.Dir, entry.Name()))
		if errors.IsNotExist(err) {
			continue // it is being started
		}
		if err != nil {
			return nil, err
		}
		infos = append(infos, info)
	}
	slices.SortFunc(infos, func(a, b engine.ProcessInfo) int { return a.Started.Compare(b.Started) })
	return infos, nil
}

// Open attaches to a command, as described in engine.ProcessOpener.
func (t *Table) Open(ctx context.Context, id string, stdio engine.Stdio) (engine.Process, error) {
	p := &process{t: t, id: id, dir: filepath.Join(t.Dir, id), ctx: ctx, done: make(chan struct{})}
	info, err := engine.ProcessInfo{}, error(errors.NotFound)
	if processID.MatchString(id) {
		info, err = readInfo(p.dir)
	}
	if err != nil {
		return nil, errors.Explainf(err, errors.NotFound, "there is no process %.80q", id)
	}
	p.terminal = info.Terminal
	conn, err := p.attach(&stdio)
	if err != nil {
		conn = nil // the keeper has ended; its output is on disk
	}
	go p.follow(conn, stdio)
	return p, nil
}

// Control controls a command without following it.
type Control struct{ p *process }

// Find returns the Control of a command. NotFound if the command does not exist.
func (t *Table) Find(id string) (Control, error) {
	p := &process{t: t, id: id, dir: filepath.Join(t.Dir, id)}
	info, err := engine.ProcessInfo{}, error(errors.NotFound)
	if processID.MatchString(id) {
		info, err = readInfo(p.dir)
	}
	p.terminal = info.Terminal
	return Control{p}, errors.Explainf(err, errors.NotFound, "there is no process %.80q", id)
}

// SignalNumber sends a signal, as engine.Process.Signal does.
func (c Control) SignalNumber(ctx context.Context, sig int) error {
	return c.p.request(ctx, request{Op: "signal", Signal: sig})
}

// Kill implements engine.Process.Kill.
func (c Control) Kill(ctx context.Context) error { return c.p.Kill(ctx) }

// Resize implements engine.Process.Resize.
func (c Control) Resize(ctx context.Context, size engine.Size) error { return c.p.Resize(ctx, size) }

// KillAll kills all commands with their descendants, and ends their keepers.
func (t *Table) KillAll(ctx context.Context) error {
	err := killMarked(ctx, markSandbox+t.Name)
	if err == nil && t.killStarted(ctx) {
		err = killMarked(ctx, markSandbox+t.Name)
	}
	if err != nil {
		return err
	}
	for deadline := time.Now().Add(2 * time.Second); ; {
		pids, err := Keepers(t.Dir)
		if err != nil || len(pids) == 0 {
			return err
		}
		if time.Now().After(deadline) || ctx.Err() != nil { // no client reads their output
			for _, pid := range pids {
				_ = unix.Kill(pid, unix.SIGKILL)
			}
		}
		time.Sleep(2 * time.Millisecond)
	}
}

// killStarted kills the commands without a recorded exit, because the environment of one that has just started
// may not be visible yet. It reports whether there were any.
func (t *Table) killStarted(ctx context.Context) (asked bool) {
	ctx, cancel := context.WithTimeout(ctx, 2*time.Second)
	defer cancel()
	entries, _ := os.ReadDir(t.Dir) // without the directory, there are no commands
	for _, entry := range entries {
		p := &process{t: t, id: entry.Name(), dir: filepath.Join(t.Dir, entry.Name())}
		if info, err := readInfo(p.dir); err != nil && !errors.IsNotExist(err) || info.Exit != nil {
			continue
		}
		// An error means that the command has ended, or never started.
		_ = p.request(ctx, request{Op: "signal", Signal: int(unix.SIGKILL)})
		asked = true
	}
	return asked
}

// Owner returns the IDs of a user of this machine, or those of this process if user is "". Kinds: those of
// CheckUser.
func Owner(user string) (uid, gid int, err error) {
	id, err := resolve(user)
	if err != nil || id == nil {
		return os.Geteuid(), os.Getegid(), err
	}
	return int(id.UID), int(id.GID), nil
}

// CheckUser returns Invalid if the user does not exist on this machine.
func CheckUser(user string) error {
	_, err := resolve(user)
	return err
}

// EndAll records for commands in dir without a recorded exit that they were killed, because their sandbox has
// ended.
func EndAll(dir string) error {
	entries, err := os.ReadDir(dir)
	if err != nil {
		return errors.Wrapf(err, "list the processes")
	}
	for _, entry := range entries {
		info, err := readInfo(filepath.Join(dir, entry.Name()))
		if err != nil || info.Exit != nil {
			continue // it was being started, and has no client
		}
		exit := engine.ExitOf(0, unix.SIGKILL)
		k := keeper{order: order{Keep: filepath.Join(dir, entry.Name()), Info: info}}
		k.Info.Exit = &exit
		if err := k.saveInfo(); err != nil {
			return err
		}
	}
	return nil
}

package gvisor

import (
	"context"
	"maps"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/RelevanceAI/harvest/client/errors"
	"github.com/RelevanceAI/harvest/internal/engine"
	"github.com/RelevanceAI/harvest/internal/engine/gvisor/keeper"
	"github.com/RelevanceAI/harvest/internal/engine/gvisor/keeper/kept"
	"github.com/RelevanceAI/harvest/internal/engine/gvisor/wire"
	"github.com/RelevanceAI/harvest/internal/image"
)

// boot starts a keeper for ref. The keeper boots gVisor as spec describes, and starts the image unless claim is
// nil. If boot fails, ref is removed.
func (e *Engine) boot(ctx context.Context, ref string, spec engine.Spec, claim *wire.ClaimArgs) (err error) {
	defer func() {
		if err != nil {
			err = errors.Join(err, e.remove(ref))
		}
	}()
	if err := ctx.Err(); err != nil {
		return errors.Wrapf(err, "boot sandbox %s", ref)
	}
	args := wire.BootArgs{Ref: ref, Dir: e.dir(ref), Init: e.initImage(), Sentry: e.opts.Sentry, Tools: e.opts.Tools,
		Platform: e.opts.Platform, Rootless: e.rootless, NoSetuid: e.opts.NoSetuid,
		Crashes: filepath.Join(e.opts.Dir, "crashes"),
		Limits:  spec.Limits, OutputBytes: e.opts.OutputBytes, Claim: claim, Restore: spec.Checkpoint,
		Hosts: e.opts.Hosts}
	if e.cgroups {
		args.Cgroup = e.cgroup(ref)
	}
	if e.filter != nil {
		args.Container = &wire.ContainerArgs{Filter: e.filter}
	}
	conn, kill, err := e.startWith(ctx, &args)
	if err != nil {
		return errors.Stage(err, "boot")
	}
	defer conn.Close()
	stop := context.AfterFunc(ctx, kill)
	defer stop()
	if err = conn.SendJSON(wire.KindRequest, wire.Request{Op: wire.Boot, Boot: &args}); err == nil {
		_, err = conn.ReceiveReply(func(s wire.Stage) {
			if spec.Stage != nil {
				spec.Stage(s.Name, s.Took)
			}
		})
	}
	if err == nil && stop() {
		return nil
	}
	kill()
	if ctx.Err() != nil {
		return errors.Stage(errors.Wrapf(ctx.Err(), "boot sandbox %s", ref), "boot")
	}
	return errors.Stage(errors.Wrapf(err, "boot sandbox %s%s", ref, e.lastWords(ref)), "boot")
}

// startWith starts the keeper with users for the sandbox, and with its mounts.
func (e *Engine) startWith(ctx context.Context, args *wire.BootArgs) (conn *wire.Conn, kill func(), err error) {
	lease, err := e.leaseUsers()
	if err != nil {
		return nil, nil, err
	}
	if lease != nil {
		defer lease.Hold.Close() // the keeper holds it
		args.FirstUser = lease.First
	}
	if err := e.openMounts(ctx, args.Claim, args.FirstUser); err != nil {
		return nil, nil, err
	}
	defer args.Claim.CloseFiles()
	return e.startKeeper(args.Ref, handOver(lease, args.Claim))
}

// startKeeper starts the keeper's process, with additional open files. kill ends the process, and with it the sandbox.
func (e *Engine) startKeeper(ref string, files []*os.File) (conn *wire.Conn, kill func(), err error) {
	fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return nil, nil, errors.Wrapf(err, "socket pair")
	}
	theirs := os.NewFile(uintptr(fds[1]), "keeper")
	defer theirs.Close()
	mine := os.NewFile(uintptr(fds[0]), "boot")
	defer mine.Close()
	c, err := net.FileConn(mine)
	if err != nil {
		return nil, nil, errors.Wrapf(err, "boot connection")
	}
	log, err := os.OpenFile(filepath.Join(e.dir(ref), "keeper.log"), os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o600)
	if err != nil {
		return nil, nil, errors.Join(errors.Wrapf(err, "open keeper's log"), c.Close())
	}
	defer log.Close()
	cmd := exec.Command(e.opts.Executable)
	cmd.Args = []string{keeper.Name, e.dir(ref)}
	cmd.Env = keeperEnv()
	cmd.Dir = "/"
	cmd.Stderr = log
	cmd.ExtraFiles = append([]*os.File{theirs}, files...)
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	if e.rootless {
		cmd.SysProcAttr.Cloneflags = syscall.CLONE_NEWUSER
		cmd.SysProcAttr.UidMappings = []syscall.SysProcIDMap{{ContainerID: 0, HostID: os.Getuid(), Size: 1}}
		cmd.SysProcAttr.GidMappings = []syscall.SysProcIDMap{{ContainerID: 0, HostID: os.Getgid(), Size: 1}}
	}
	if err := cmd.Start(); err != nil {
		err = errors.Join(err, c.Close())
		if e.rootless && (errors.Is(err, syscall.EPERM) || errors.Is(err, syscall.ENOSPC) ||
			errors.Is(err, syscall.EACCES)) {
			err = errors.Explainf(err, errors.Unsupported,
				"only root may create user namespaces on this machine, and sandboxes need one")
			return nil, nil, errors.Remedy(err,
				"run as root, or allow them: sysctl -w kernel.unprivileged_userns_clone=1 "+
					"user.max_user_namespaces=15000 kernel.apparmor_restrict_unprivileged_userns=0")
		}
		return nil, nil, errors.Wrapf(err, "start keeper")
	}
	go cmd.Wait() // reaps the process; its end is detected on the connections
	return wire.NewConn(c), sync.OnceFunc(func() {
		_ = cmd.Process.Kill()
		_ = c.Close()
	}), nil
}

// keeperEnv returns the keeper's environment. From the server's environment it inherits only the directory for
// coverage. Garbage collection is off until gVisor has booted.
func keeperEnv() []string {
	env := []string{"GOGC=off", "PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"}
	if dir := os.Getenv("GOCOVERDIR"); dir != "" {
		env = append(env, "GOCOVERDIR="+dir)
	}
	return env
}

// lastWords returns the end of the keeper's and gVisor's logs, for operators.
func (e *Engine) lastWords(ref string) string {
	const keep = 2000
	var words strings.Builder
	for _, name := range []string{"keeper.log", "gvisor.log"} {
		b, _ := os.ReadFile(filepath.Join(e.dir(ref), name))
		if len(b) > keep {
			b = b[len(b)-keep:]
		}
		if len(b) > 0 {
			words.WriteString("; " + name + ": " + strings.TrimSpace(string(b)))
		}
	}
	return words.String()
}

// Warm implements engine.Warmer.
func (e *Engine) Warm(ctx context.Context, limits engine.Limits) (engine.Warm, error) {
	ref := newRef()
	if _, err := e.take(ref, ""); err != nil {
		return nil, err
	}
	if err := e.writeUses(ref, uses{}); err != nil {
		return nil, errors.Join(err, e.remove(ref))
	}
	if err := e.boot(ctx, ref, engine.Spec{Limits: limits}, nil); err != nil {
		return nil, err
	}
	w := &warm{e: e, ref: ref}
	if e.filter != nil {
		return struct{ engine.Warm }{w}, nil // containers have no preparation
	}
	return w, nil
}

// warm is a booted sandbox without an image.
type warm struct {
	e       *Engine
	ref     string
	mu      sync.Mutex
	claimed bool // guarded by mu
}

func (w *warm) Handle() engine.Handle { return engine.Handle{Ref: w.ref} }

// Prepare implements engine.Preparer. It does not protect the image from deletion, because gVisor has it open.
func (w *warm) Prepare(ctx context.Context, image string, warmUp []string) error {
	img, err := w.e.opts.Images.Find(ctx, image)
	if err != nil {
		return errors.Stage(err, "image")
	}
	args := &wire.PrepareArgs{Root: w.e.opts.Images.Root(img), Layer: w.e.opts.Images.Layer(img), WarmUp: warmUp,
		Env: imageEnv(img)}
	_, err = w.e.container(w.Handle()).Call(ctx, wire.Request{Op: wire.Prepare, Prepare: args})
	return err
}

// imageEnv returns the image's environment for commands.
func imageEnv(img image.Image) map[string]string {
	env := map[string]string{"PATH": kept.DefaultPath}
	maps.Copy(env, img.Config.Env)
	return env
}

// Claim implements engine.Warm.
func (w *warm) Claim(ctx context.Context, spec engine.Spec) (engine.Sandbox, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.claimed {
		return nil, errors.Newf(errors.Conflict, "the sandbox is taken")
	}
	claim, err := w.e.prepare(ctx, w.ref, spec)
	if err != nil {
		return nil, errors.Join(err, w.discard(ctx))
	}
	if err := w.send(ctx, claim, spec); err != nil {
		return nil, errors.Join(errors.Stage(err, "start"), w.discard(ctx))
	}
	w.claimed = true
	return w.e.sandbox(engine.Handle{ID: spec.ID, Ref: w.ref}, w.e.filter != nil), nil
}

// send sends the claim to the keeper, with the sandbox's mounts.
func (w *warm) send(ctx context.Context, claim *wire.ClaimArgs, spec engine.Spec) error {
	state, err := w.e.readState(w.ref)
	if err != nil {
		return err
	}
	if err := w.e.openMounts(ctx, claim, state.FirstUser); err != nil {
		return err
	}
	defer claim.CloseFiles()
	conn, err := dial(ctx, w.e.dir(w.ref))
	if err != nil {
		return err
	}
	defer conn.Close()
	defer context.AfterFunc(ctx, func() { _ = conn.Close() })()
	err = conn.SendJSON(wire.KindRequest, wire.Request{Op: wire.Claim, Claim: claim})
	if err == nil {
		err = conn.SendFiles(claim.Files)
	}
	if err == nil {
		_, err = conn.ReceiveReply(func(s wire.Stage) {
			if spec.Stage != nil {
				spec.Stage(s.Name, s.Took)
			}
		})
	}
	if ctx.Err() != nil {
		return errors.Wrapf(ctx.Err(), "claim sandbox %s", w.ref)
	}
	return err
}

// discard destroys the sandbox even if ctx has ended.
func (w *warm) discard(ctx context.Context) error {
	return w.e.destroy(context.WithoutCancel(ctx), w.ref)
}

// Destroy implements engine.Warm.
func (w *warm) Destroy(ctx context.Context) error {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.claimed {
		return nil
	}
	return w.discard(ctx)
}

package keeper

import (
	"crypto/sha256"
	"os"
	"strings"
	"time"

	"golang.org/x/sys/unix"
	"gvisor.dev/gvisor/pkg/log"

	"github.com/RelevanceAI/harvest/engine/gvisor/layer"
	"github.com/RelevanceAI/harvest/engine/gvisor/runsc"
	"github.com/RelevanceAI/harvest/engine/gvisor/wire"
	"github.com/RelevanceAI/harvest/errors"
)

// prepared is a main container with the image of an expected claim. Its init program waits for the host name.
// Nothing else runs in it.
type prepared struct {
	root, layer string
	orders      *os.File // standard input of its init program
	gone        bool     // it was destroyed
}

// fits reports whether the container matches c. Volumes do not match, because they must be mounted at the
// start.
func (p *prepared) fits(c *wire.ClaimArgs) bool {
	return p != nil && !p.gone && p.root == c.Root && p.layer == c.Layer && len(c.Mounts) == 0
}

// order sends the init program its arguments.
func (p *prepared) order(args []string) error {
	stack, err := initStack(args)
	if err == nil {
		_, err = p.orders.Write(stack)
	}
	return errors.Wrapf(errors.Join(err, p.orders.Close()), "tell the sandbox's first process its name")
}

const (
	// warmUpTime limits the run time of a warm-up.
	warmUpTime = 10 * time.Second
	// nobody is the user of the warm-up. It is unprivileged, so that it can change almost nothing.
	nobody = 65534
)

// prepare starts the main container for an expected claim. If it fails, the sandbox is as before. Conflict if
// the sandbox has an image or a preparation. A claim waits until prepare returns.
func (k *Keeper) prepare(a *wire.PrepareArgs) error {
	k.image.Lock()
	defer k.image.Unlock()
	if err := k.errEnded(); err != nil {
		return err
	}
	k.mu.Lock()
	taken := k.args.Claim != nil
	k.mu.Unlock()
	if taken || k.guest.prepared != nil {
		return errors.Newf(errors.Conflict, "the sandbox has an image already")
	}
	if err := k.onThread(func() error { return k.guest.prepare(a) }); err != nil {
		return errors.Stage(err, "prepare")
	}
	id := k.guest.args.Ref + preparedSuffix
	err := errors.Stage(k.guest.fillPrepared(id, a.Layer), "snapshot")
	if err == nil && len(a.WarmUp) > 0 {
		err = errors.Stage(k.guest.warmUp(id, a), "warm-up")
	}
	if err != nil {
		k.guest.prepared.gone = true
		k.guest.unprepare()
	}
	return err
}

// prepare starts the container.
func (g *guest) prepare(a *wire.PrepareArgs) error {
	r, w, err := os.Pipe()
	if err != nil {
		return errors.Wrapf(err, "pipe")
	}
	defer r.Close()
	spec := g.mainSpec(initArgs(initPath+"/init", "")[:1], a.Root, nil)
	if err := g.start(spec, a.Root, g.args.Ref+preparedSuffix, r, g.sb.Start); err != nil {
		return errors.Join(err, w.Close())
	}
	g.prepared = &prepared{root: a.Root, layer: a.Layer, orders: w}
	return nil
}

func (g *guest) fillPrepared(id, path string) error {
	if path == "" {
		return nil
	}
	return g.fill(id, path)
}

// unprepare ends the container. Its ID is not reused, because gVisor has removed its cgroup, and with it the
// process limit.
func (g *guest) unprepare() {
	if err := g.sb.DestroyContainer(g.args.Ref + preparedSuffix); err != nil {
		log.Warningf("end a container that was prepared: %v", err)
	}
	_ = g.prepared.orders.Close() // not earlier, or its init program would continue
}

// warmUp runs a command, so that a user's first command finds common files open and mapped. It is not an error
// if the image lacks the program. It is an error if the command changes the file system: users must get exactly
// the image.
func (g *guest) warmUp(id string, a *wire.PrepareArgs) error {
	before, err := g.layerSum(id)
	if err != nil {
		return err
	}
	null, err := os.OpenFile(os.DevNull, os.O_RDWR, 0)
	if err != nil {
		return errors.Wrapf(err, "open null device")
	}
	defer null.Close()
	exec := &runsc.Exec{Argv: a.WarmUp, Envv: environment(a.Env), WorkingDirectory: "/", ContainerID: id,
		NoNewPrivileges: true,
		KUID:            nobody, KGID: nobody, Capabilities: &runsc.Capabilities{}}
	pid, err := g.sb.Execute(exec, map[int]*os.File{0: null, 1: null, 2: null}, nil)
	if err != nil {
		err = startError(err, a.WarmUp[0], "/", g.args.Limits.Processes)
		if errors.Is(err, errors.Invalid) {
			return nil
		}
		return err
	}
	timer := time.AfterFunc(warmUpTime, func() { _ = g.sb.Signal(id, pid, unix.SIGKILL, false) })
	_, err = g.sb.WaitPID(id, pid)
	timer.Stop()
	if err != nil {
		return errors.Wrapf(err, "wait for %q", a.WarmUp)
	}
	if all, err := g.sb.Processes(id); err != nil || len(all) != 1 {
		return errors.Newf(errors.Invalid, "the warm-up %q leaves processes behind (%d, %v)",
			strings.Join(a.WarmUp, " "), len(all)-1, err)
	}
	after, err := g.layerSum(id)
	if err == nil && after != before {
		err = errors.Newf(errors.Invalid, "the warm-up %q changes files", strings.Join(a.WarmUp, " "))
	}
	return err
}

// layerSum returns a hash of the state of a container's writable layer.
func (g *guest) layerSum(id string) ([sha256.Size]byte, error) {
	h := sha256.New()
	err := layer.Read(g.sb, id, "", h)
	return [sha256.Size]byte(h.Sum(nil)), errors.Wrapf(err, "read the writable layer")
}

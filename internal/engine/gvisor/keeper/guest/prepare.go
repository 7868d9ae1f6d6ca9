package guest

import (
	"crypto/sha256"
	"os"
	"strings"
	"time"

	"golang.org/x/sys/unix"
	"gvisor.dev/gvisor/pkg/log"

	"github.com/RelevanceAI/harvest/client/errors"
	"github.com/RelevanceAI/harvest/internal/engine/gvisor/keeper/initprog"
	"github.com/RelevanceAI/harvest/internal/engine/gvisor/keeper/kept"
	"github.com/RelevanceAI/harvest/internal/engine/gvisor/layer"
	"github.com/RelevanceAI/harvest/internal/engine/gvisor/runsc"
	"github.com/RelevanceAI/harvest/internal/engine/gvisor/wire"
)

// prepared is a main container with the image of an expected claim. Its init program waits for the host name.
// Nothing else runs in it.
type prepared struct {
	root, layer string
	orders      *os.File // standard input of its init program
	Gone        bool     // it was destroyed
}

// fits reports whether the container matches c. Volumes do not match, because they must be mounted at the
// start.
func (p *prepared) fits(c *wire.ClaimArgs) bool {
	return p != nil && !p.Gone && p.root == c.Root && p.layer == c.Layer && len(c.Mounts) == 0
}

// order sends the init program its arguments.
func (p *prepared) order(args []string) error {
	stack, err := initprog.Stack(args)
	if err == nil {
		_, err = p.orders.Write(stack)
	}
	return errors.Wrapf(errors.Join(err, p.orders.Close()), "send the sandbox's name to its first process")
}

const (
	// warmUpTime limits the run time of a warm-up.
	warmUpTime = 10 * time.Second
	// nobody (65534) is the user of the warm-up. The user is unprivileged, so that it can change almost nothing.
	nobody = 65534
)

// Prepare starts the container.
func (g *Guest) Prepare(a *wire.PrepareArgs) error {
	r, w, err := os.Pipe()
	if err != nil {
		return errors.Wrapf(err, "pipe")
	}
	defer r.Close()
	spec := g.MainSpec(initprog.Args(initprog.Path+"/init", "")[:1], a.Root, nil)
	if err := g.Start(spec, a.Root, g.Args.Ref+PreparedSuffix, r, g.Sandbox.Start); err != nil {
		return errors.Join(err, w.Close())
	}
	g.Prepared = &prepared{root: a.Root, layer: a.Layer, orders: w}
	return nil
}

// Unprepare ends the container. Its ID is not reused, because gVisor has removed its cgroup, and with it the
// process limit.
func (g *Guest) Unprepare() {
	if err := g.Sandbox.DestroyContainer(g.Args.Ref + PreparedSuffix); err != nil {
		log.Warningf("end a container that was prepared: %v", err)
	}
	_ = g.Prepared.orders.Close() // not earlier, or its init program would continue
}

// WarmUp runs a command, so that a user's first command finds common files open and mapped. It is not an error
// if the image lacks the program. It is an error if the command changes the file system: users must get exactly
// the image.
func (g *Guest) WarmUp(id string, a *wire.PrepareArgs) error {
	before, err := g.layerSum(id)
	if err != nil {
		return err
	}
	null, err := os.OpenFile(os.DevNull, os.O_RDWR, 0)
	if err != nil {
		return errors.Wrapf(err, "open null device")
	}
	defer null.Close()
	exec := &runsc.Exec{Argv: a.WarmUp, Envv: kept.Environment(a.Env), WorkingDirectory: "/", ContainerID: id,
		NoNewPrivileges: true,
		KUID:            nobody, KGID: nobody, Capabilities: &runsc.Capabilities{}}
	pid, err := g.Sandbox.Execute(exec, map[int]*os.File{0: null, 1: null, 2: null}, nil)
	if err != nil {
		err = kept.StartError(err, a.WarmUp[0], "/", g.Args.Limits.Processes)
		if errors.Is(err, errors.Invalid) {
			return nil
		}
		return err
	}
	timer := time.AfterFunc(warmUpTime, func() { _ = g.Sandbox.Signal(id, pid, unix.SIGKILL, false) })
	_, err = g.Sandbox.WaitPID(id, pid)
	timer.Stop()
	if err != nil {
		return errors.Wrapf(err, "wait for %q", a.WarmUp)
	}
	if all, err := g.Sandbox.Processes(id); err != nil || len(all) != 1 {
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
func (g *Guest) layerSum(id string) ([sha256.Size]byte, error) {
	h := sha256.New()
	err := layer.Read(g.Sandbox, id, "", h)
	return [sha256.Size]byte(h.Sum(nil)), errors.Wrapf(err, "read the writable layer")
}
